//! One task for each client: it logs the client in, waits for work, takes a lease, relays both ways, gives the
//! server back.
//!
//! [`mod@handshake`] ends in a route; for a pool that is [`session`], a state machine polled as one. What
//! happens to the bytes is [`translate`]'s (to the server) and [`replies`]' (to the client), both without I/O.
//! A client that leaves its server in the middle of something is cleaned up after by [`drain`].

mod ahead;
mod alone;
mod asked;
mod belongings;
pub mod cancel;
pub mod carried;
mod channels;
mod context;
mod drain;
mod dropping;
pub mod error;
pub mod handshake;
mod home;
mod journal;
mod linked;
mod login;
mod method;
#[cfg(test)]
mod model;
mod names;
mod orders;
mod parameters;
mod parting;
mod prepare;
mod reading;
mod relay;
mod release;
mod replan;
mod replication;
mod replies;
mod sequences;
mod session;
mod statements;
pub mod timeouts;
mod trace;
mod translate;
mod vouch;
mod watch;

pub use context::{Asked, Context};
pub use error::Error;
pub use handshake::{ConsoleLogin, Rights, Route, handshake};
pub use journal::Conn;
pub use login::{Arrival, LoggingIn, Operator, Resident, log_in};
pub use statements::NamesHeld;
