//! Sending CancelRequest to PostgreSQL (`protocol-flow`, "Canceling Requests in Progress").

use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::timeout;

use super::Error;
use crate::net::{Address, Connection, Stream, TcpOptions};
use crate::protocol::frontend;
use crate::stats::registry::CancelGuard;

/// Asks PostgreSQL to cancel what the server of `guard` is running, on a connection of its own, and
/// waits until the request has been dealt with: PostgreSQL closes the connection when the signal
/// is sent. Until this returns, the guard keeps the server from being given to another client.
pub async fn send(
    guard: CancelGuard,
    address: &Address,
    tcp: &TcpOptions,
    limit: Duration,
) -> Result<(), Error> {
    let mut sent = false;
    let deal = async {
        let stream = Stream::connect(address, tcp)
            .await
            .map_err(Error::Connect)?;
        let mut connection = Connection::new(stream);
        let mut out = Vec::new();
        frontend::cancel_request(
            &mut out,
            guard.server().cancel_pid,
            &guard.server().cancel_key.0,
        );
        sent = true;
        connection.send_all(&out).await?;
        while connection.read_more().await? > 0 {
            connection.kept.clear();
        }
        Ok(())
    };
    let result = timeout(limit, deal)
        .await
        .unwrap_or(Err(Error::ConnectTimeout));
    if sent && result.is_err() {
        // It may still hit, and nobody knows when: not somebody else's query.
        guard.server().close_needed.store(true, Ordering::SeqCst);
    }
    drop(guard);
    result
}
