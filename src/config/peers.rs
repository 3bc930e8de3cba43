//! Peers: other processes behind the same address, to which cancel requests are passed on.
//!
//! Owns what a peer is and the lines of the `[peers]` section (PgBouncer: "Section \[peers\]"); `toml` has tables in their
//! place. Passing on is `client`'s.

use crate::config::databases::{Host, count, pairs};
use crate::config::error::Problem;
use crate::config::kind::Value;

/// Another process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    /// Where it listens.
    pub host: Host,
    /// The port it listens on, and the number in the name of its Unix socket.
    pub port: u16,
    /// How many cancel requests are passed on to it at the same time; `None`: `default_pool_size`.
    pub pool_size: Option<usize>,
}

/// The keys of a peer.
pub(crate) const KEYS: &[&str] = &["host", "port", "pool_size"];

/// A peer of which not everything may have been said yet.
#[derive(Debug, Default)]
pub(crate) struct Sketch {
    host: Option<Host>,
    port: Option<u16>,
    pool_size: Option<usize>,
}

impl Sketch {
    /// Takes the value of a key.
    pub(crate) fn set(&mut self, key: &str, value: &str) -> Result<(), Problem> {
        match key {
            "host" => self.host = Some(Host::parse(value)),
            "port" => match u16::parse(value) {
                Ok(number) if number > 0 => self.port = Some(number),
                _ => return Err(Problem::invalid(key, value, "a port, 1 to 65535")),
            },
            "pool_size" => self.pool_size = count(key, value)?,
            _ => return Err(Problem::unknown_key(key, KEYS.iter().copied())),
        }
        Ok(())
    }

    /// What it has become.
    pub(crate) fn finish(self) -> Result<Peer, Problem> {
        Ok(Peer {
            host: self.host.ok_or(Problem::Missing { key: "host" })?,
            port: self.port.unwrap_or(6432),
            pool_size: self.pool_size,
        })
    }
}

/// Reads the number of a peer.
pub(crate) fn number(id: &str) -> Result<u16, Problem> {
    match u16::parse(id) {
        Ok(number) if number > 0 => Ok(number),
        _ => Err(Problem::Syntax("a peer is a number, 1 to 65535".to_owned())),
    }
}

/// Reads a line: the number of the peer, and what stands behind it.
pub(crate) fn parse(id: &str, line: &str) -> Result<(u16, Peer), Problem> {
    let number = number(id)?;
    let mut peer = Sketch::default();
    for (key, value) in pairs(line)? {
        peer.set(&key, &value)?;
    }
    Ok((number, peer.finish()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_needs_a_host_and_has_defaults_for_the_rest() {
        let (id, peer) = parse("1", "host=/tmp/one").unwrap();
        assert_eq!(
            (id, peer.host, peer.port, peer.pool_size),
            (1, Host::Unix("/tmp/one".into()), 6432, None)
        );
        let (_, peer) = parse("2", "host=::1 port=7000 pool_size=3").unwrap();
        assert_eq!((peer.port, peer.pool_size), (7000, Some(3)));
        let refused = |id, line| parse(id, line).unwrap_err().to_string();
        assert_eq!(refused("1", "port=1"), "host is missing");
        assert_eq!(
            refused("0", "host=a"),
            "syntax error: a peer is a number, 1 to 65535"
        );
        assert_eq!(
            refused("x", "host=a"),
            "syntax error: a peer is a number, 1 to 65535"
        );
        assert_eq!(
            refused("1", "host=a port=0"),
            "port = 0: expected a port, 1 to 65535"
        );
        assert_eq!(
            refused("1", "host=a prt=1"),
            "unknown key \"prt\"; did you mean \"port\"?"
        );
    }
}
