//! Who may have which server, and when.
//!
//! A pool is the servers of one (database, server-side user). Its idle servers and its waiting clients are kept in
//! shards, one for each worker it lives on, so that a lease is taken and given back on one thread without a shared
//! lock; a server crosses over only when somebody waits longer on the other side. What limits apply
//! is plain arithmetic in [`accounting`]. The bytes of a session are `client`'s and `server`'s.

mod accepted;
pub mod accounting;
pub mod auth_query;
pub mod balance;
mod carried;
mod error;
mod functions;
mod gather;
mod greeting;
mod janitor;
mod limits;
pub mod listener;
mod manager;
mod open;
pub mod peers;
mod sequences;
mod settings;
mod shards;
mod state;
mod sweep;
mod waiter;

pub use accepted::{Declined, LoginSettings};
pub use carried::{CarriedPool, Elsewhere, PoolName, Seat};
pub use error::WaitError;
pub use functions::Functions;
pub use greeting::Greeting;
pub use janitor::run as run_janitor;
pub use limits::{Admission, AdmissionError};
pub use manager::{Learned, Manager, Parts};
pub use open::Pooled;
pub use settings::{PoolSettings, Tracing, tcp_options, ttl};
pub use state::Pool;
pub use waiter::Waiter;
