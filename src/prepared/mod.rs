//! Statements shared by all clients: one global name for each (SQL text, parameter types, settings they are read under).
//!
//! A client's own name is translated in `client::statements`; which server has which statement is
//! known to `server::statements`. Both hold `Arc<Statement>`s; when the last of them lets go, the
//! entry leaves the registry, so what is kept is what somebody can still name.

mod context;
pub mod promotion;
mod registry;

pub use context::Context;
pub use registry::{Error, Registry, Statement};
