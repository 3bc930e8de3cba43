//! Sockets, TLS, framed connections, and the worker threads as lower rooms see them. Knows nothing of
//! pools or sessions.

pub mod batch;
pub mod connection;
pub mod dns;
pub mod executor;
mod listener;
pub mod parcels;
mod reactor;
pub mod scratch;
mod socket;
pub mod stream;
mod sys;
pub mod tls;
pub mod workers;

pub use connection::Connection;
pub use dns::Names;
pub use executor::Worker;
pub use listener::{Accepted, Listener};
pub use parcels::{Parcel, Parcels};
pub use socket::Raw;
pub use stream::{Address, Detached, Stream, TcpOptions};
pub use tls::TlsHandle;
pub use workers::{ClientCount, Workers};
