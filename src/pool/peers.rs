//! Passing cancel requests on to peers: other poolers behind the same address (PgBouncer: "Section \[peers\]").
//!
//! A cancel request comes on a connection of its own, and where several processes share a port it may come to another
//! than the one it is for. So a key that clients are given names its process: the second and the third byte of the
//! eight that every client sends back are its `peer_id`, least significant first, and the two lowest bits of the
//! eighth say how often it may still be passed on.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::settings::{address, tcp_options, ttl};
use crate::config::{Config, Peer, PeerId};
use crate::net::{Address, Connection, Names, Stream};
use crate::protocol::frontend;

/// The bits that say how often a request may be passed on; all set in a fresh key.
const HOPS: u8 = 3;

/// Marks a fresh key as ours: the number that stands for a process id, and the secret.
pub fn sign(own: PeerId, pid: i32, key: &mut [u8]) -> i32 {
    if own == PeerId::default() {
        return pid;
    }
    if let Some(byte) = key.get_mut(3) {
        *byte |= HOPS;
    }
    let ([first, _, _, last], [low, high]) = (pid.to_be_bytes(), own.0.to_le_bytes());
    i32::from_be_bytes([first, low, high, last])
}

/// The secret as it was given out, however often it was passed on.
pub fn unspent(mut key: Vec<u8>) -> Vec<u8> {
    if let Some(byte) = key.get_mut(3) {
        *byte |= HOPS;
    }
    key
}

/// Whose key it is.
fn owner(pid: i32) -> u16 {
    let [_, low, high, _] = pid.to_be_bytes();
    u16::from_le_bytes([low, high])
}

/// The secret for the next process; `None`: it has been passed on often enough.
fn spend(mut key: Vec<u8>) -> Option<Vec<u8>> {
    let byte = key.get_mut(3)?;
    if *byte & HOPS == 0 {
        return None;
    }
    *byte -= 1;
    Some(key)
}

/// Requests on their way to one peer.
#[derive(Debug)]
struct Traffic {
    size: usize,
    places: Semaphore,
    waiting: AtomicUsize,
    connecting: AtomicUsize,
    active: AtomicUsize,
}

/// A line of SHOW PEER_POOLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeerCounts {
    /// The peer.
    pub id: u16,
    /// Requests that are being passed on.
    pub active: usize,
    /// Requests that wait for a place.
    pub waiting: usize,
    /// Connections that are being made.
    pub connecting: usize,
}

/// All peers that were sent anything.
#[derive(Debug, Default)]
pub struct Peers {
    traffic: Mutex<BTreeMap<u16, Arc<Traffic>>>,
}

/// Counts for as long as it lives.
struct Counted<'a>(&'a AtomicUsize);

impl<'a> Counted<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Peers {
    /// What is on its way, by peer.
    pub fn counts(&self) -> Vec<PeerCounts> {
        let traffic = self.traffic.lock();
        let counts = traffic.iter().map(|(&id, traffic)| PeerCounts {
            id,
            active: traffic.active.load(Ordering::Relaxed),
            waiting: traffic.waiting.load(Ordering::Relaxed),
            connecting: traffic.connecting.load(Ordering::Relaxed),
        });
        counts.collect()
    }

    fn traffic(&self, id: u16, size: usize) -> Arc<Traffic> {
        let mut all = self.traffic.lock();
        if let Some(known) = all.get(&id).filter(|known| known.size == size) {
            return known.clone();
        }
        let fresh = Arc::new(Traffic {
            size,
            places: Semaphore::new(size.clamp(1, Semaphore::MAX_PERMITS)),
            waiting: AtomicUsize::new(0),
            connecting: AtomicUsize::new(0),
            active: AtomicUsize::new(0),
        });
        all.insert(id, fresh.clone());
        fresh
    }

    /// Passes a request on to the process whose key it is. One for nobody we know is dropped, as is
    /// one that went round too often; nobody would listen to an answer.
    pub async fn pass_on(&self, config: &Config, names: &Names, pid: i32, key: Vec<u8>) {
        let id = owner(pid);
        if id == config.settings.peer_id.0 {
            return;
        }
        let (Some(peer), Some(key)) = (config.peers.get(&id), spend(key)) else {
            tracing::debug!("cancel request for peer {id} dropped");
            return;
        };
        let size = peer.pool_size.unwrap_or(config.settings.default_pool_size);
        let traffic = self.traffic(id, size);
        let limit = match config.settings.cancel_wait_timeout {
            limit if limit.is_zero() => Duration::from_secs(3600),
            limit => limit,
        };
        let mut out = Vec::new();
        frontend::cancel_request(&mut out, pid, &key);
        match timeout(limit, deliver(&traffic, peer, (config, names), &out)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!("cancel request not passed on to peer {id}: {error}"),
            Err(_) => {
                tracing::warn!("cancel request not passed on to peer {id}: cancel_wait_timeout");
            }
        }
    }
}

async fn deliver(
    traffic: &Traffic,
    peer: &Peer,
    (config, names): (&Config, &Names),
    request: &[u8],
) -> std::io::Result<()> {
    let waiting = Counted::new(&traffic.waiting);
    let _place = traffic
        .places
        .acquire()
        .await
        .map_err(std::io::Error::other)?;
    drop(waiting);
    let _active = Counted::new(&traffic.active);
    let connecting = Counted::new(&traffic.connecting);
    let tcp = tcp_options(config);
    let address = match address(&peer.host, peer.port) {
        Address::Tcp(host, port) => {
            let found = names.resolve(&host, port, ttl(config)).await?;
            let first = found
                .addresses
                .first()
                .ok_or(std::io::ErrorKind::NotFound)?;
            Address::Tcp(first.ip().to_string(), first.port())
        }
        unix @ Address::Unix(_) => unix,
    };
    let mut connection = Connection::new(Stream::connect(&address, &tcp).await?);
    drop(connecting);
    connection.send_all(request).await?;
    while connection.read_more().await? > 0 {
        connection.kept.clear();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_names_its_process_and_counts_down() {
        let mut key = vec![0, 0, 0, 0xf0];
        let pid = sign(PeerId(0x1234), 0x7f00_00ff, &mut key);
        assert_eq!(pid, 0x7f34_12ff);
        assert_eq!(owner(pid), 0x1234);
        assert_eq!(key, [0, 0, 0, 0xf3]);
        let once = spend(key.clone()).unwrap();
        assert_eq!(once, [0, 0, 0, 0xf2]);
        assert_eq!(unspent(once.clone()), key);
        let thrice = spend(spend(once).unwrap()).unwrap();
        assert_eq!(spend(thrice), None);
        let mut plain = vec![0; 4];
        assert_eq!(sign(PeerId(0), 5, &mut plain), 5);
        assert_eq!(plain, [0; 4]);
        assert_eq!(spend(vec![1, 2]), None);
    }

    #[tokio::test]
    async fn a_request_reaches_the_peer_and_one_for_a_stranger_nobody() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut config = Config::default();
        config.settings.peer_id = PeerId(1);
        let peer = Peer {
            host: crate::config::Host::Tcp("127.0.0.1".into()),
            port: listener.local_addr().unwrap().port(),
            pool_size: Some(1),
        };
        config.peers.insert(2, peer);
        let (peers, names) = (Peers::default(), Names::default());
        let pid = sign(PeerId(2), 7, &mut [0; 4]);
        let reads = async {
            use tokio::io::AsyncReadExt;
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = vec![0; 16];
            stream.read_exact(&mut request).await.unwrap();
            request
        };
        let passes = peers.pass_on(&config, &names, pid, vec![9, 9, 9, 3]);
        let (request, ()) = tokio::join!(reads, passes);
        assert_eq!(request[8..12], pid.to_be_bytes());
        assert_eq!(request[12..], [9, 9, 9, 2]);
        let idle = PeerCounts {
            id: 2,
            active: 0,
            waiting: 0,
            connecting: 0,
        };
        assert_eq!(peers.counts(), [idle]);
        peers
            .pass_on(
                &config,
                &names,
                sign(PeerId(3), 7, &mut [0; 4]),
                vec![0, 0, 0, 3],
            )
            .await;
        assert_eq!(peers.counts().len(), 1);
    }
}
