//! SHOW CLIENTS and SHOW SERVERS.

use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use crate::admin::show::{Column, View, int4, int8, text};
use crate::admin::value::Cell;
use crate::protocol::startup::Replication;
use crate::stats::registry::Peer;
use crate::stats::{ClientEntry, Phase, ServerEntry, ServerState};

/// A connection of either side.
#[derive(Debug)]
pub(super) struct Row {
    kind: &'static str,
    user: String,
    database: String,
    replication: Replication,
    state: &'static str,
    address: Address,
    local: Address,
    connected: SystemTime,
    requested: SystemTime,
    wait: Duration,
    close_needed: bool,
    pointer: String,
    link: String,
    remote_pid: i32,
    tls: String,
    application_name: String,
    prepared_statements: u32,
    id: u64,
    prepare_cache_hits: u64,
    prepare_cache_misses: u64,
    /// Why it keeps its server outside of session pooling.
    pinned: String,
}

/// An address as SHOW has it.
#[derive(Debug)]
struct Address {
    host: String,
    port: u16,
}

impl Address {
    /// `port` stands for a Unix socket's.
    fn new(peer: Peer, port: u16) -> Self {
        match peer {
            Peer::Tcp(address) => Self::tcp(address),
            Peer::Unix(_) => Self {
                host: "unix".to_owned(),
                port,
            },
        }
    }

    fn tcp(address: SocketAddr) -> Self {
        Self {
            host: address.ip().to_canonical().to_string(),
            port: address.port(),
        }
    }
}

pub(super) static CLIENTS: &[Column<Row>] =
    &shared_and::<22>(&[text("pinned", |row: &Row| row.pinned.as_str().into())]);

pub(super) static SERVERS: &[Column<Row>] = &shared_and::<23>(&[
    int8("prepare_cache_hit", |row: &Row| {
        row.prepare_cache_hits.into()
    }),
    int8("prepare_cache_miss", |row: &Row| {
        row.prepare_cache_misses.into()
    }),
]);

/// Of both sides, with what PgBouncer says about its buffers.
pub(super) static SOCKETS: &[Column<Row>] = &{
    let mut all = shared_and::<28>(&[
        zero("recv_pos"),
        zero("pkt_pos"),
        zero("pkt_remain"),
        zero("send_pos"),
        zero("send_remain"),
        zero("pkt_avail"),
        zero("send_avail"),
    ]);
    all[STATE] = text("state", |row: &Row| row.socket_state().into());
    all
};

/// The place of `state` among the shared columns.
const STATE: usize = 4;

/// The shared columns and more: `N` in all.
#[allow(
    clippy::indexing_slicing,
    reason = "checked by the compiler: it runs this"
)]
const fn shared_and<const N: usize>(more: &[Column<Row>]) -> [Column<Row>; N] {
    let shared = shared();
    let mut all = [shared[0]; N];
    let mut at = 0;
    while at < N {
        all[at] = if at < shared.len() {
            shared[at]
        } else {
            more[at - shared.len()]
        };
        at += 1;
    }
    all
}

const fn zero(name: &'static str) -> Column<Row> {
    int4(name, |_| Cell::Number(0))
}

impl Row {
    /// The state as SHOW SOCKETS calls it. It has no idle clients: they are active without a server.
    fn socket_state(&self) -> String {
        match (self.kind, self.state) {
            ("C", "idle") => "cl_active".to_owned(),
            ("C", state) => format!("cl_{state}"),
            (_, "new") => "sv_login".to_owned(),
            (_, state) => format!("sv_{state}"),
        }
    }
}

pub(super) fn sockets(view: &View<'_>) -> Vec<Row> {
    let mut rows = clients(view);
    rows.extend(servers(view));
    rows
}

pub(super) fn active_sockets(view: &View<'_>) -> Vec<Row> {
    let mut rows = sockets(view);
    rows.retain(|row| !matches!(row.state, "idle" | "used"));
    rows
}

/// The columns that both sides have.
const fn shared() -> [Column<Row>; 21] {
    [
        text("type", |row| row.kind.into()),
        text("user", |row| row.user.as_str().into()),
        text("database", |row| row.database.as_str().into()),
        text("replication", |row| row.replication.name().into()),
        text("state", |row| row.state.into()),
        text("addr", |row| row.address.host.as_str().into()),
        int4("port", |row| row.address.port.into()),
        text("local_addr", |row| row.local.host.as_str().into()),
        int4("local_port", |row| row.local.port.into()),
        text("connect_time", |row| moment(row.connected).into()),
        text("request_time", |row| moment(row.requested).into()),
        int4("wait", |row| row.wait.as_secs().into()),
        int4("wait_us", |row| row.wait.subsec_micros().into()),
        int4("close_needed", |row| row.close_needed.into()),
        text("ptr", |row| row.pointer.as_str().into()),
        text("link", |row| row.link.as_str().into()),
        int4("remote_pid", |row| row.remote_pid.into()),
        text("tls", |row| row.tls.as_str().into()),
        text("application_name", |row| {
            row.application_name.as_str().into()
        }),
        int4("prepared_statements", |row| row.prepared_statements.into()),
        int4("id", |row| row.id.into()),
    ]
}

/// `2026-11-21 09:06:06 UTC`, in local time.
pub(super) fn moment(at: SystemTime) -> String {
    let zoned = jiff::Zoned::try_from(at);
    zoned
        .map(|zoned| zoned.strftime("%Y-%m-%d %H:%M:%S %Z").to_string())
        .unwrap_or_default()
}

/// What stands for PgBouncer's addresses of its objects: it is the same in `ptr` and `link`, and empty for none.
fn pointer(id: u64) -> String {
    if id == 0 {
        String::new()
    } else {
        format!("{id:#x}")
    }
}

/// All clients by id.
pub(super) fn clients(view: &View<'_>) -> Vec<Row> {
    let registry = &view.console.manager.parts().registry;
    let now = registry.now();
    let port = view.config.settings.listen_port;
    let row = |client: &ClientEntry| Row {
        kind: "C",
        user: client.user.clone(),
        database: client.database.clone(),
        replication: client.replication,
        state: match client.phase() {
            Phase::Idle => "idle",
            Phase::Waiting => "waiting",
            Phase::Active | Phase::IdleInTransaction | Phase::LinkedIdle | Phase::Draining => {
                "active"
            }
        },
        address: Address::new(client.peer, port),
        local: client
            .local
            .map_or_else(|| Address::new(Peer::Unix(None), port), Address::tcp),
        connected: registry.epoch.wall(client.connected),
        requested: registry.epoch.wall(client.request_time()),
        wait: match client.phase() {
            Phase::Waiting => Duration::from_micros(now.saturating_sub(client.since())),
            _ => Duration::ZERO,
        },
        close_needed: false,
        pointer: pointer(client.id),
        link: pointer(client.server()),
        remote_pid: match client.peer {
            Peer::Unix(pid) => pid.unwrap_or(0),
            Peer::Tcp(_) => 0,
        },
        tls: client.tls.to_string(),
        application_name: application_name(client),
        prepared_statements: client.prepared_statements.load(Ordering::Relaxed),
        id: client.id,
        prepare_cache_hits: 0,
        prepare_cache_misses: 0,
        pinned: registry.pin_of(client.id).unwrap_or_default(),
    };
    let mut rows: Vec<Row> = registry
        .clients()
        .iter()
        .map(|client| row(client))
        .collect();
    rows.sort_by_key(|row| row.id);
    rows
}

/// All servers by id.
pub(super) fn servers(view: &View<'_>) -> Vec<Row> {
    let registry = &view.console.manager.parts().registry;
    let row = |server: &ServerEntry| {
        let client = registry.client(server.client());
        let port = match server.peer {
            Peer::Tcp(_) => 0,
            Peer::Unix(_) => view
                .config
                .database(&server.database)
                .map_or(0, |database| database.port),
        };
        Row {
            kind: "S",
            user: server.user.clone(),
            database: server.database.clone(),
            replication: server.replication,
            state: match server.state() {
                ServerState::New => "new",
                ServerState::Idle => "idle",
                ServerState::Active => "active",
                ServerState::Tested => "tested",
                ServerState::Used => "used",
                ServerState::BeingCanceled => "being_canceled",
            },
            address: Address::new(server.peer, port),
            local: server
                .local
                .map_or_else(|| Address::new(server.peer, port), Address::tcp),
            connected: registry.epoch.wall(server.connected),
            requested: registry.epoch.wall(server.request_time()),
            wait: Duration::ZERO,
            close_needed: server.close_needed.load(Ordering::Relaxed),
            pointer: pointer(server.id),
            link: pointer(server.client()),
            remote_pid: server.cancel_pid,
            tls: server.tls.to_string(),
            application_name: client
                .map(|client| application_name(&client))
                .unwrap_or_default(),
            prepared_statements: server.prepared_statements.load(Ordering::Relaxed),
            id: server.id,
            prepare_cache_hits: server.prepare_cache_hits.load(Ordering::Relaxed),
            prepare_cache_misses: server.prepare_cache_misses.load(Ordering::Relaxed),
            pinned: String::new(),
        }
    };
    let mut rows: Vec<Row> = registry
        .servers()
        .iter()
        .map(|server| row(server))
        .collect();
    rows.sort_by_key(|row| row.id);
    rows
}

fn application_name(client: &ClientEntry) -> String {
    String::from_utf8_lossy(&client.application_name.lock()).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mapped_addresses_are_shown_as_what_they_are() {
        let address = Address::new(Peer::Tcp("[::ffff:10.0.0.1]:5000".parse().unwrap()), 1);
        assert_eq!((address.host.as_str(), address.port), ("10.0.0.1", 5000));
        let address = Address::new(Peer::Unix(Some(7)), 6432);
        assert_eq!((address.host.as_str(), address.port), ("unix", 6432));
    }

    #[test]
    fn moments_have_seconds_and_a_zone() {
        let text = moment(SystemTime::UNIX_EPOCH + Duration::from_micros(1_700_000_000_123_456));
        assert_eq!(
            text.get(4..5).zip(text.get(19..20)),
            Some(("-", " ")),
            "{text}"
        );
        assert!(text.len() > 20);
    }
}
