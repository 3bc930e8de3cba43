//! pgferry: a PostgreSQL connection pooler in which prepared statements work in transaction mode.
//!
//! The rooms of the house, lowest first; each imports only from those above it in this list:
//! `protocol` and `sql` (bytes and text, pure), `config` and `stats`, `net`, `auth` and `prepared`,
//! `server` and `operator`, `pool`, `client`, `admin` and `top`, `daemon`. `ARCHITECTURE.md` tells the life of a query.

#![deny(unsafe_code)]

pub mod admin;
pub mod auth;
pub mod client;
pub mod config;
pub mod daemon;
pub mod net;
pub mod operator;
pub mod pool;
pub mod prepared;
pub mod protocol;
pub mod server;
pub mod sql;
pub mod stats;
#[cfg(feature = "top")]
pub mod top;
