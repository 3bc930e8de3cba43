//! What is beyond the pools: SHOW PEERS, `PEER_POOLS`, `DNS_HOSTS`, `DNS_ZONES` and FDS.

use std::net::SocketAddr;

use crate::admin::show::{Column, View, column, int4, int8, text};
use crate::admin::value::{Cell, Type};
use crate::config::Peer;
use crate::net::dns::Known;
use crate::pool::peers::PeerCounts;

/// A peer: its number, what is configured, and the size that holds.
pub(super) type PeerRow = (u16, Peer, usize);

pub(super) static PEERS: &[Column<PeerRow>] = &[
    int4("peer_id", |row| row.0.into()),
    text("host", |row| row.1.host.to_string().into()),
    int4("port", |row| row.1.port.into()),
    int4("pool_size", |row| row.2.into()),
];

pub(super) fn peers(view: &View<'_>) -> Vec<PeerRow> {
    let default = view.config.settings.default_pool_size;
    let peers = view.config.peers.iter();
    peers
        .map(|(&id, peer)| (id, peer.clone(), peer.pool_size.unwrap_or(default)))
        .collect()
}

pub(super) static PEER_POOLS: &[Column<PeerCounts>] = &[
    int4("peer_id", |row| row.id.into()),
    int4("cl_active_cancel_req", |row| row.active.into()),
    int4("cl_waiting_cancel_req", |row| row.waiting.into()),
    int4("sv_active_cancel", |row| {
        row.active.saturating_sub(row.connecting).into()
    }),
    int4("sv_login", |row| row.connecting.into()),
];

pub(super) fn peer_pools(view: &View<'_>) -> Vec<PeerCounts> {
    view.console.manager.parts().peers.counts()
}

pub(super) static DNS_HOSTS: &[Column<Known>] = &[
    text("hostname", |row| row.name.as_str().into()),
    int8("ttl", |row| row.ttl.as_secs().into()),
    text("addrs", |row| addresses(row).into()),
];

/// As PgBouncer writes them: with the port 0, since a name has none.
fn addresses(known: &Known) -> String {
    let addresses = known.addresses.iter();
    let texts: Vec<String> = addresses
        .map(|&address| SocketAddr::new(address, 0).to_string())
        .collect();
    texts.join(",")
}

pub(super) fn dns_hosts(view: &View<'_>) -> Vec<Known> {
    view.console.manager.parts().names.known()
}

/// Rows that there are none of.
pub(super) enum Never {}

pub(super) fn none(_: &View<'_>) -> Vec<Never> {
    Vec::new()
}

pub(super) static DNS_ZONES: &[Column<Never>] = &[
    text("zonename", |never| match *never {}),
    int8("serial", |never| match *never {}),
    int4("count", |never| match *never {}),
];

const fn no(name: &'static str, kind: Type) -> Column<Never> {
    column(name, kind, |never| -> Cell { match *never {} })
}

pub(super) static FDS: &[Column<Never>] = &[
    no("fd", Type::Int4),
    no("task", Type::Text),
    no("user", Type::Text),
    no("database", Type::Text),
    no("addr", Type::Text),
    no("port", Type::Int4),
    no("cancel", Type::Int8),
    no("link", Type::Int4),
    no("client_encoding", Type::Text),
    no("std_strings", Type::Text),
    no("datestyle", Type::Text),
    no("timezone", Type::Text),
    no("password", Type::Text),
    no("scram_client_key", Type::Bytea),
    no("scram_server_key", Type::Bytea),
];
