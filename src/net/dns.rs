//! Host names: looked up by the system's resolver, remembered for a while, used in turn.
//!
//! Owns PgBouncer's cache of names (`dns_max_ttl`, `dns_nxdomain_ttl`): the system tells no lifetime, so an answer
//! holds as long as the setting says. A name is looked up by one task at a time, and the others wait for its answer.
//! Which host of a list is meant, and what becomes of connections to addresses that a name has lost, is `server`'s.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// The name of the machine we are on; empty if it can't be had.
pub fn own_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    name.trim_end().to_owned()
}

/// How long answers hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Ttl {
    /// Addresses (`dns_max_ttl`).
    pub found: Duration,
    /// That there are none (`dns_nxdomain_ttl`).
    pub missing: Duration,
}

/// What is known of a name.
#[derive(Debug, Clone)]
struct Answer {
    /// Empty: the look-up failed.
    addresses: Vec<IpAddr>,
    expires: Instant,
    /// Where the next connection begins.
    turn: usize,
}

/// What a look-up came to.
#[derive(Debug, PartialEq, Eq)]
pub struct Found {
    /// The addresses, the one whose turn it is first.
    pub addresses: Vec<SocketAddr>,
    /// Addresses that the name had at the look-up before this one, and has no more.
    pub vanished: Vec<IpAddr>,
}

/// A line of SHOW DNS_HOSTS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Known {
    /// The name.
    pub name: String,
    /// How long the answer still holds.
    pub ttl: Duration,
    /// What it is; empty: the look-up failed.
    pub addresses: Vec<IpAddr>,
}

type Slot = Arc<tokio::sync::Mutex<Option<Answer>>>;

/// The names that were looked up; clones share them.
#[derive(Debug, Clone, Default)]
pub struct Names {
    slots: Arc<Mutex<HashMap<String, Slot>>>,
}

impl Names {
    /// The addresses of a host; an address in figures is its own. Cancel-safe.
    pub async fn resolve(&self, host: &str, port: u16, ttl: Ttl) -> io::Result<Found> {
        self.resolve_with(host, port, ttl, system).await
    }

    async fn resolve_with<F>(
        &self,
        host: &str,
        port: u16,
        ttl: Ttl,
        look_up: impl FnOnce(String) -> F,
    ) -> io::Result<Found>
    where
        F: Future<Output = io::Result<Vec<IpAddr>>>,
    {
        if let Ok(address) = host.parse::<IpAddr>() {
            return Ok(Found {
                addresses: vec![SocketAddr::new(address, port)],
                vanished: Vec::new(),
            });
        }
        let slot = self
            .slots
            .lock()
            .entry(host.to_owned())
            .or_default()
            .clone();
        let mut known = slot.lock().await;
        let mut vanished = Vec::new();
        if known.as_ref().is_none_or(|it| Instant::now() >= it.expires) {
            let (addresses, holds) = match look_up(host.to_owned()).await {
                Ok(addresses) if !addresses.is_empty() => (addresses, ttl.found),
                Ok(_) => (Vec::new(), ttl.missing),
                Err(error) => {
                    tracing::debug!("DNS lookup of {host} failed: {error}");
                    (Vec::new(), ttl.missing)
                }
            };
            let before = known.take();
            // A failure says nothing about the addresses there were.
            if let Some(before) = &before
                && !addresses.is_empty()
            {
                let lost = before.addresses.iter().filter(|it| !addresses.contains(it));
                vanished = lost.copied().collect();
            }
            *known = Some(Answer {
                addresses,
                expires: Instant::now() + holds,
                turn: before.map_or(0, |before| before.turn),
            });
        }
        let answer = known
            .as_mut()
            .filter(|answer| !answer.addresses.is_empty())
            .ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "no such host"))?;
        let first = answer.turn % answer.addresses.len();
        answer.turn = answer.turn.wrapping_add(1);
        let (end, start) = answer.addresses.split_at(first);
        Ok(Found {
            addresses: start
                .iter()
                .chain(end)
                .map(|&address| SocketAddr::new(address, port))
                .collect(),
            vanished,
        })
    }

    /// All names, in their order, but those that are being looked up right now.
    pub fn known(&self) -> Vec<Known> {
        let slots: BTreeMap<String, Slot> = self.slots.lock().clone().into_iter().collect();
        let now = Instant::now();
        let known = slots.into_iter().filter_map(|(name, slot)| {
            let answer = slot.try_lock().ok()?.clone()?;
            Some(Known {
                name,
                ttl: answer.expires.saturating_duration_since(now),
                addresses: answer.addresses,
            })
        });
        known.collect()
    }

    /// How many names there are, and how many of them are being looked up.
    pub fn counts(&self) -> (usize, usize) {
        let slots = self.slots.lock();
        let busy = slots.values().filter(|slot| slot.try_lock().is_err());
        (slots.len(), busy.count())
    }
}

/// Asks the system, each address once: it names them once for each kind of socket.
async fn system(host: String) -> io::Result<Vec<IpAddr>> {
    let mut addresses = Vec::new();
    for found in tokio::net::lookup_host((host.as_str(), 0)).await? {
        if !addresses.contains(&found.ip()) {
            addresses.push(found.ip());
        }
    }
    Ok(addresses)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Ttl = Ttl {
        found: Duration::from_secs(15),
        missing: Duration::from_secs(5),
    };

    fn ip(last: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, last])
    }

    /// Looks up `db`, which has these addresses; what comes back, by their last figures.
    async fn look(names: &Names, answer: io::Result<&[u8]>) -> io::Result<(Vec<u8>, Vec<u8>)> {
        let answer = answer.map(|last| last.iter().copied().map(ip).collect());
        let found = names
            .resolve_with("db", 5432, TTL, |_| std::future::ready(answer))
            .await?;
        let last = |ip: &IpAddr| match ip {
            IpAddr::V4(ip) => ip.octets()[3],
            IpAddr::V6(_) => 0,
        };
        assert!(found.addresses.iter().all(|it| it.port() == 5432));
        Ok((
            found.addresses.iter().map(|it| last(&it.ip())).collect(),
            found.vanished.iter().map(last).collect(),
        ))
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_holds_for_its_time_and_its_addresses_take_turns() {
        let names = Names::default();
        assert_eq!(look(&names, Ok(&[1, 2])).await.unwrap().0, [1, 2]);
        assert_eq!(look(&names, Ok(&[9])).await.unwrap().0, [2, 1]);
        assert_eq!(look(&names, Ok(&[9])).await.unwrap().0, [1, 2]);
        tokio::time::advance(Duration::from_secs(15)).await;
        let (addresses, vanished) = look(&names, Ok(&[2, 3])).await.unwrap();
        assert_eq!((addresses, vanished), (vec![3, 2], vec![1]));
    }

    #[tokio::test(start_paused = true)]
    async fn a_failure_holds_for_less_and_takes_no_address_away() {
        let names = Names::default();
        let failed = || Err(io::Error::other("no"));
        look(&names, Ok(&[1])).await.unwrap();
        tokio::time::advance(Duration::from_secs(15)).await;
        assert!(look(&names, failed()).await.is_err());
        assert!(look(&names, Ok(&[1])).await.is_err());
        let known = names.known();
        assert_eq!(
            (known[0].name.as_str(), known[0].addresses.len()),
            ("db", 0)
        );
        tokio::time::advance(Duration::from_secs(5)).await;
        assert_eq!(look(&names, Ok(&[1])).await.unwrap(), (vec![1], vec![]));
        assert_eq!(names.known()[0].ttl, TTL.found);
        assert_eq!(names.counts(), (1, 0));
    }

    #[tokio::test]
    async fn figures_are_not_looked_up_and_localhost_is_known_to_every_system() {
        let names = Names::default();
        let found = names.resolve("::1", 7, TTL).await.unwrap();
        assert_eq!(found.addresses, ["[::1]:7".parse().unwrap()]);
        assert!(names.known().is_empty());
        let found = names.resolve("localhost", 7, TTL).await.unwrap();
        assert!(found.addresses.iter().all(|it| it.ip().is_loopback()));
        assert_eq!(names.known()[0].name, "localhost");
    }
}
