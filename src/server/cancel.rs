//! Sending CancelRequest to PostgreSQL (`protocol-flow`, "Canceling Requests in Progress").

use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::timeout;

use super::Error;
use super::dial::dial_encrypted;
use crate::net::tls::WithServers;
use crate::net::{Address, Connection, Stream, TcpOptions};
use crate::protocol::frontend;
use crate::stats::registry::{CancelGuard, Peer, ServerEntry};

/// How a request goes to the server that is meant.
#[derive(Debug)]
pub struct Route<'a> {
    /// Options of the socket.
    pub tcp: &'a TcpOptions,
    /// How it is encrypted if the server's connection is: nobody on the way should learn the key.
    pub tls: &'a WithServers,
}

impl Route<'_> {
    async fn dial(&self, server: &ServerEntry) -> Result<Stream, Error> {
        // Where this server is, not where the next one would be looked for.
        let address = match server.peer {
            Peer::Tcp(peer) => Address::Tcp(peer.ip().to_string(), peer.port()),
            Peer::Unix(_) => Address::Unix(server.host.clone().into()),
        };
        if !server.tls.is_empty() && self.tls.is_wanted() {
            return dial_encrypted(&address, &server.host, self.tcp, self.tls).await;
        }
        Stream::connect(&address, self.tcp)
            .await
            .map_err(Error::Connect)
    }
}

/// Asks PostgreSQL to cancel what the server of `guard` is running, on a connection of its own, and
/// waits until the request has been dealt with: PostgreSQL closes the connection when the signal
/// is sent. Until this returns, the guard keeps the server from being given to another client.
pub async fn send(guard: CancelGuard, route: &Route<'_>, limit: Duration) -> Result<(), Error> {
    let mut sent = false;
    let deal = async {
        let stream = route.dial(guard.server()).await?;
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
