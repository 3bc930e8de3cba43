//! Integration tests: the built pooler as a process, in front of a real PostgreSQL.
//!
//! One binary, a module per subject, so that one PostgreSQL serves them all. `scripts/setup` installs
//! what they need.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that meets what it did not expect has failed"
)]
#![allow(
    clippy::disallowed_methods,
    reason = "the clock of other processes cannot be paused"
)]
#![allow(
    clippy::missing_panics_doc,
    clippy::doc_markdown,
    reason = "read here, not in rendered docs"
)]
#![allow(dead_code, reason = "support offers what the next test will need")]

#[path = "../support/mod.rs"]
mod support;

mod adaptive;
mod admin;
mod ahead;
mod auth;
mod auth_query;
mod cancel;
mod churn;
mod compat;
mod contexts;
mod contract;
mod copy;
mod differential;
mod drain;
mod failures;
mod functions;
mod hba;
mod hosts;
mod http;
mod inside;
mod large;
mod ldap;
mod lifetime;
mod listen;
mod login_settings;
mod operator;
mod oracle;
mod otlp;
mod pam;
mod peers;
mod pooling;
mod prepared;
mod process;
mod redefined;
mod reload;
mod replans;
mod replication;
mod samples;
mod sequences;
mod sessions;
mod shapes;
mod shutdown;
mod sql_prepared;
mod startup_parameters;
mod statements;
mod suspend;
mod systemd;
mod takeover;
mod timeouts;
mod tls;
#[cfg(feature = "top")]
mod top;
mod unread;
mod upgrade;
mod uuid;
mod workers;
