//! Several hosts for one database: which of them a new server is made at.
//!
//! Owns `load_balance_hosts` (PgBouncer, "Section \[databases\]"), and what happens to the servers at an address that a
//! host's name has lost. Looking names up is `net`'s.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::Error;
use super::dial::Attempt;
use crate::config::LoadBalance;
use crate::net::dns::Ttl;
use crate::net::{Address, Names, Stream};
use crate::stats::Registry;
use crate::stats::registry::Peer;

/// Where a database may be had; clones share whose turn it is.
#[derive(Debug, Clone)]
pub struct Hosts {
    addresses: Arc<[Arc<Address>]>,
    balance: LoadBalance,
    turn: Arc<AtomicUsize>,
    names: Names,
    ttl: Ttl,
}

impl std::fmt::Display for Hosts {
    /// As the log names a server that did not come about.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (at, address) in self.addresses.iter().enumerate() {
            let comma = if at > 0 { "," } else { "" };
            write!(f, "{comma}{address}")?;
        }
        Ok(())
    }
}

/// A connection that is made, before anything was said on it.
#[derive(Debug)]
pub struct Dialled {
    /// The connection.
    pub stream: Stream,
    /// The host it leads to.
    pub address: Arc<Address>,
    /// To be told if a server comes of it.
    pub choice: Choice,
    /// Hosts that could not be reached before this one could.
    pub passed_over: Vec<(Arc<Address>, Error)>,
}

/// The choice of a host. Dropped without [`keep`](Self::keep) it was a bad one: where hosts do not take turns,
/// the next one is tried the next time.
#[derive(Debug)]
pub struct Choice {
    moves: Option<(Arc<AtomicUsize>, usize)>,
}

impl Choice {
    /// It was a good one.
    pub fn keep(mut self) {
        self.moves = None;
    }
}

impl Drop for Choice {
    fn drop(&mut self) {
        if let Some((turn, at)) = self.moves.take() {
            let next = at.wrapping_add(1);
            // Only one of the attempts that failed at the same time moves it.
            let _ = turn.compare_exchange(at, next, Ordering::Relaxed, Ordering::Relaxed);
        }
    }
}

impl Hosts {
    /// These hosts, of which there must be at least one.
    pub fn new(addresses: Vec<Address>, balance: LoadBalance, (names, ttl): (Names, Ttl)) -> Self {
        Self {
            addresses: addresses.into_iter().map(Arc::new).collect(),
            balance,
            turn: Arc::default(),
            names,
            ttl,
        }
    }

    fn choose(&self) -> Option<(Arc<Address>, Choice)> {
        let (at, moves) = match self.balance {
            LoadBalance::RoundRobin => (self.turn.fetch_add(1, Ordering::Relaxed), None),
            LoadBalance::Disable => {
                let at = self.turn.load(Ordering::Relaxed);
                (at, Some((self.turn.clone(), at)))
            }
        };
        let address = self.addresses.get(at.checked_rem(self.addresses.len())?)?;
        Some((address.clone(), Choice { moves }))
    }

    /// Connects to the host whose turn it is; if it can't be reached, to the next one, each once. Cancel-safe.
    pub(super) async fn dial(
        &self,
        attempt: &Attempt<'_>,
        registry: &Registry,
    ) -> Result<Dialled, Error> {
        let mut passed_over = Vec::new();
        for _ in 0..self.addresses.len() {
            let Some((address, choice)) = self.choose() else {
                break;
            };
            match self.dial_one(&address, attempt, registry).await {
                Ok(stream) => {
                    return Ok(Dialled {
                        stream,
                        address,
                        choice,
                        passed_over,
                    });
                }
                Err(error) => passed_over.push((address, error)),
            }
        }
        Err(passed_over.pop().map_or(Error::Lookup, |(_, last)| last))
    }

    async fn dial_one(
        &self,
        address: &Address,
        attempt: &Attempt<'_>,
        registry: &Registry,
    ) -> Result<Stream, Error> {
        let Address::Tcp(host, port) = address else {
            return attempt.connect(address).await;
        };
        let found = self.names.resolve(host, *port, self.ttl).await;
        let found = found.map_err(|_| Error::Lookup)?;
        if !found.vanished.is_empty() {
            outdate(registry, host, &found.vanished);
        }
        let mut last = Error::Connect(io::ErrorKind::NotFound.into());
        for address in found.addresses {
            let address = Address::Tcp(address.ip().to_string(), address.port());
            match attempt.dial(&address, host).await {
                Ok(stream) => return Ok(stream),
                Err(error) => last = error,
            }
        }
        Err(last)
    }
}

/// Servers at addresses that the host has no more go when they are free.
fn outdate(registry: &Registry, host: &str, vanished: &[IpAddr]) {
    for server in registry.servers() {
        if let Peer::Tcp(peer) = server.peer
            && server.host == host
            && vanished.contains(&peer.ip())
        {
            server.close_needed.store(true, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hosts(balance: LoadBalance) -> Hosts {
        let addresses = ["a", "b", "c"].map(|host| Address::Tcp(host.into(), 1));
        Hosts::new(addresses.to_vec(), balance, Default::default())
    }

    fn chosen(hosts: &Hosts, good: bool) -> String {
        let (address, choice) = hosts.choose().unwrap();
        if good {
            choice.keep();
        }
        address.host()
    }

    #[test]
    fn hosts_take_turns_or_stay_until_one_fails() {
        let turns = hosts(LoadBalance::RoundRobin);
        let order: Vec<_> = (0..4).map(|_| chosen(&turns, true)).collect();
        assert_eq!(order, ["a", "b", "c", "a"]);
        let sticky = hosts(LoadBalance::Disable);
        let order = [true, true, false, true, false, false, true].map(|good| chosen(&sticky, good));
        assert_eq!(order, ["a", "a", "a", "b", "b", "c", "a"]);
    }

    #[test]
    fn two_attempts_that_fail_together_move_on_by_one() {
        let sticky = hosts(LoadBalance::Disable);
        let (_, first) = sticky.choose().unwrap();
        let (_, second) = sticky.choose().unwrap();
        drop((first, second));
        assert_eq!(chosen(&sticky, true), "b");
    }

    #[tokio::test]
    async fn a_host_that_cannot_be_reached_is_passed_over() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let addresses = vec![
            Address::Unix("/no/such/socket".into()),
            Address::Tcp("localhost".into(), port),
        ];
        let ttl = Ttl {
            found: std::time::Duration::from_secs(15),
            ..Ttl::default()
        };
        let hosts = Hosts::new(addresses, LoadBalance::RoundRobin, (Names::default(), ttl));
        let registry = Registry::default();
        let (tcp, tls) = Default::default();
        let attempt = Attempt::new(&tcp, &tls);
        let dialled = hosts.dial(&attempt, &registry).await.unwrap();
        assert_eq!(dialled.address.host(), "localhost");
        assert!(matches!(
            &dialled.passed_over[..],
            [(address, Error::Connect(_))] if address.host() == "/no/such/socket"
        ));
        let nowhere = Hosts::new(
            vec![Address::Tcp("no-such-host.invalid".into(), 1)],
            LoadBalance::RoundRobin,
            Default::default(),
        );
        let error = nowhere.dial(&attempt, &registry).await;
        assert!(matches!(error, Err(Error::Lookup)));
    }
}
