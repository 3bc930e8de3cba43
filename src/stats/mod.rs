//! What is counted and who is alive. Numbers are written where things happen and named and added
//! up here; no other room renders them.

mod apart;
pub mod clock;
pub mod counters;
pub mod errors;
pub mod exposition;
pub mod histogram;
pub mod otlp;
pub mod registry;
pub mod reloads;
pub mod spans;
pub mod statements;
mod throttle;

pub use apart::Apart;
pub use counters::{Counters, Totals};
pub use errors::{Errors, Fault};
pub use registry::{ClientEntry, Order, Phase, Registry, ServerEntry, ServerState};
pub use reloads::Reloads;
pub use spans::Spans;
pub use statements::Statements;
pub use throttle::Throttle;
