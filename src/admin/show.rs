//! SHOW: the table of everything that can be shown, and the shape of a column.
//!
//! Each table of answers has its columns in one list: name, type and reader of the value stand in one row, so
//! that headings, values and `docs/console.md` cannot drift apart. PgBouncer's columns come first, in its
//! order; ours follow. Owns no state: everything is read from `pool`, `stats` and `config` when it is asked for.

use std::sync::Arc;

use crate::admin::value::{Cell, Heading, Type};
use crate::admin::{Console, Rights};
use crate::config::Config;

mod advice;
mod connections;
mod errors;
mod listeners;
mod misc;
mod named;
mod network;
mod pins;
mod pools;
mod reloads;
pub(in crate::admin) mod statements;
mod stats;

/// One thing that can be shown.
pub struct Show {
    /// What follows SHOW, in lower case.
    pub name: &'static str,
    /// What it is.
    pub doc: &'static str,
    /// Only administrators may see it.
    pub is_private: bool,
    /// Its columns.
    pub headings: fn() -> Vec<Heading>,
    /// Its rows at this moment, each with a cell for every column.
    pub rows: fn(&View<'_>) -> Vec<Vec<Cell>>,
}

impl std::fmt::Debug for Show {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Show({})", self.name)
    }
}

/// What a SHOW looks at.
#[derive(Debug)]
pub struct View<'a> {
    /// The pooler.
    pub console: &'a Console,
    /// The configuration of this moment.
    pub config: Arc<Config>,
    /// What the one who asks may see.
    pub rights: Rights,
}

impl<'a> View<'a> {
    /// The present state.
    pub fn new(console: &'a Console, rights: Rights) -> Self {
        Self {
            console,
            config: console.manager.parts().config.load(),
            rights,
        }
    }
}

/// A row of [`SHOWS`] from the columns and rows of a module.
macro_rules! show {
    ($name:literal, $columns:path, $rows:path, $doc:literal) => {
        Show {
            name: $name,
            doc: $doc,
            is_private: false,
            headings: || headings($columns),
            rows: |view| cells($columns, &$rows(view)),
        }
    };
}

/// All that can be shown, besides HELP.
pub static SHOWS: &[Show] = &[
    show!(
        "pools",
        pools::COLUMNS,
        pools::rows,
        "Pools, a row for each database and server-side user."
    ),
    show!(
        "clients",
        connections::CLIENTS,
        connections::clients,
        "Clients that have proved who they are; among them, as `waiting`, those whose login waits for the first server of their pool."
    ),
    show!(
        "servers",
        connections::SERVERS,
        connections::servers,
        "Connections to PostgreSQL."
    ),
    Show {
        name: "stats",
        doc: "Counters by database, and averages over the last `stats_period`.",
        is_private: false,
        headings: stats::headings,
        rows: stats::rows,
    },
    Show {
        name: "stats_totals",
        doc: "Counters by database.",
        is_private: false,
        headings: stats::totals_headings,
        rows: stats::totals_rows,
    },
    Show {
        name: "stats_averages",
        doc: "Averages over the last `stats_period` by database: counts a second, microseconds each.",
        is_private: false,
        headings: stats::averages_headings,
        rows: stats::averages_rows,
    },
    show!(
        "totals",
        stats::TOTALS,
        stats::list,
        "Counters and averages, all databases together."
    ),
    show!(
        "databases",
        named::DATABASES,
        named::databases,
        "Databases with the limits that hold for them."
    ),
    show!(
        "users",
        named::USERS,
        named::users,
        "Users that are configured or connected."
    ),
    show!(
        "config",
        misc::CONFIG,
        misc::config,
        "Settings with their values and defaults."
    ),
    show!(
        "lists",
        misc::LISTS,
        misc::lists,
        "How many there are of what."
    ),
    show!(
        "mem",
        misc::MEM,
        misc::mem,
        "Memory by use; `size` is of one, all in bytes."
    ),
    show!(
        "state",
        misc::STATE,
        misc::state,
        "Whether the pooler is active or paused."
    ),
    show!("version", misc::VERSION, misc::version, "The version."),
    show!(
        "prepared",
        misc::PREPARED,
        misc::prepared,
        "Prepared statements that clients and servers hold at the moment; not in PgBouncer. `holders` is how many \
         do, and `query` the beginning of the text, which only administrators see."
    ),
    show!(
        "pins",
        pins::COLUMNS,
        pins::rows,
        "Clients that keep their servers outside of session pooling, why, and since when (`pin_policy`); not in PgBouncer. \
         `query` is the beginning of the text that last touched the session, which only administrators see."
    ),
    show!(
        "errors",
        errors::COLUMNS,
        errors::rows,
        "Errors that clients were sent, those of the last seconds first; not in PgBouncer. `fault` is whose they are: the `client`'s, \
         the `server`'s or the `pooler`'s own, and `user` that of the server where PostgreSQL has sent them. `message` is the last text, \
         which only administrators see. What is beyond 256 kinds is `(others)`, as are names of refused logins that nobody knows."
    ),
    show!(
        "statements",
        statements::COLUMNS,
        statements::rows,
        "The 100 statements that took most time on the servers, with `track_statements`; not in PgBouncer. `query` is the text without \
         its constants; times are microseconds, and `wait_time` is what clients have waited for a server. What is sent without waiting for the answer is \
         one call, of the statement that is run first. Texts that had to make room are `(others)`."
    ),
    show!(
        "reloads",
        reloads::COLUMNS,
        reloads::rows,
        "The last 20 reloads of the configuration, the latest first: what has changed and holds, what waits for a restart, and why a file \
         was `rejected`, which changes nothing; not in PgBouncer. `error` is for administrators."
    ),
    show!(
        "advice",
        advice::COLUMNS,
        advice::rows,
        "Settings that do not fit what happens: clients that wait for minutes, limits that are nearly reached, too few prepared statements, \
         too many connections for PostgreSQL, a rejected reload. The log has it, too; not in PgBouncer."
    ),
    show!(
        "listeners",
        listeners::COLUMNS,
        listeners::rows,
        "Channels that clients listen to by the shared connection of their pool; not in PgBouncer. `clients` is how many do, \
         `received` counts notifications from PostgreSQL and `delivered` those times the clients they were for, `lost` is how \
         often the connection was lost, and `server` which it is; 0: there is none now."
    ),
    show!(
        "peers",
        network::PEERS,
        network::peers,
        "The processes of `[peers]`."
    ),
    show!(
        "peer_pools",
        network::PEER_POOLS,
        network::peer_pools,
        "Cancel requests on their way to each peer that was sent any."
    ),
    show!(
        "dns_hosts",
        network::DNS_HOSTS,
        network::dns_hosts,
        "Host names that were looked up, how many seconds the answer still holds, and the answer."
    ),
    show!(
        "dns_zones",
        network::DNS_ZONES,
        network::none,
        "Empty: zones are not watched."
    ),
    show!(
        "sockets",
        connections::SOCKETS,
        connections::sockets,
        "Clients and servers, in one table. The numbers about buffers are 0: they are not kept per socket."
    ),
    show!(
        "active_sockets",
        connections::SOCKETS,
        connections::active_sockets,
        "The same, only those that work or wait."
    ),
    Show {
        name: "fds",
        doc: "Empty: it serves PgBouncer's online restart. For administrators.",
        is_private: true,
        headings: || headings(network::FDS),
        rows: |_| Vec::new(),
    },
];

/// The SHOW of this name, in any case.
pub fn find(name: &str) -> Option<&'static Show> {
    SHOWS
        .iter()
        .find(|show| show.name.eq_ignore_ascii_case(name))
}

/// A column of rows `R`.
struct Column<R> {
    name: &'static str,
    kind: Type,
    read: fn(&R) -> Cell,
}

impl<R> Clone for Column<R> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<R> Copy for Column<R> {}

const fn column<R>(name: &'static str, kind: Type, read: fn(&R) -> Cell) -> Column<R> {
    Column { name, kind, read }
}

const fn text<R>(name: &'static str, read: fn(&R) -> Cell) -> Column<R> {
    column(name, Type::Text, read)
}

const fn int4<R>(name: &'static str, read: fn(&R) -> Cell) -> Column<R> {
    column(name, Type::Int4, read)
}

const fn int8<R>(name: &'static str, read: fn(&R) -> Cell) -> Column<R> {
    column(name, Type::Int8, read)
}

fn headings<R>(columns: &[Column<R>]) -> Vec<Heading> {
    columns
        .iter()
        .map(|column| Heading {
            name: column.name,
            kind: column.kind,
        })
        .collect()
}

fn cells<R>(columns: &[Column<R>], rows: &[R]) -> Vec<Vec<Cell>> {
    rows.iter()
        .map(|row| columns.iter().map(|column| (column.read)(row)).collect())
        .collect()
}

#[cfg(test)]
mod tests;
