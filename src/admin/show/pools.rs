//! SHOW POOLS.

use std::collections::HashMap;
use std::time::Duration;

use crate::admin::show::named::load_balance;
use crate::admin::show::{Column, View, int4, int8, text};
use crate::admin::value::Cell;
use crate::config::PoolMode;
use crate::config::databases::CONSOLE;
use crate::stats::{Phase, ServerState, Totals};

/// A pool.
#[derive(Debug, Default)]
pub(super) struct Row {
    database: String,
    user: String,
    counts: Counts,
    connecting: usize,
    longest_wait: Duration,
    mode: PoolMode,
    load_balance_hosts: Option<&'static str>,
    totals: Totals,
}

/// Who does what in a pool.
#[derive(Debug, Default, Clone, Copy)]
struct Counts {
    clients: u64,
    waiting: u64,
    active: u64,
    idle: u64,
    used: u64,
    tested: u64,
    being_canceled: u64,
    /// Servers to which a cancel request is on its way.
    cancelling: u64,
}

pub(super) static COLUMNS: &[Column<Row>] = &[
    text("database", |row| row.database.as_str().into()),
    text("user", |row| row.user.as_str().into()),
    int4("cl_active", |row| row.counts.clients.into()),
    int4("cl_waiting", |row| row.counts.waiting.into()),
    int4("cl_active_cancel_req", |row| row.counts.cancelling.into()),
    int4("cl_waiting_cancel_req", |_| Cell::Number(0)),
    int4("sv_active", |row| row.counts.active.into()),
    int4("sv_active_cancel", |row| row.counts.cancelling.into()),
    int4("sv_being_canceled", |row| row.counts.being_canceled.into()),
    int4("sv_idle", |row| row.counts.idle.into()),
    int4("sv_used", |row| row.counts.used.into()),
    int4("sv_tested", |row| row.counts.tested.into()),
    int4("sv_login", |row| row.connecting.into()),
    int4("maxwait", |row| row.longest_wait.as_secs().into()),
    int4("maxwait_us", |row| row.longest_wait.subsec_micros().into()),
    text("pool_mode", |row| row.mode.as_str().into()),
    text("load_balance_hosts", |row| row.load_balance_hosts.into()),
    int8("prepare_cache_hit", |row| {
        row.totals.prepare_cache_hits.into()
    }),
    int8("prepare_cache_miss", |row| {
        row.totals.prepare_cache_misses.into()
    }),
];

/// All pools and the console, by database and user.
pub(super) fn rows(view: &View<'_>) -> Vec<Row> {
    let manager = &view.console.manager;
    let clients = manager.parts().registry.clients();
    let servers = manager.parts().registry.servers();
    let mut counts: HashMap<(&str, &str), Counts> = HashMap::new();
    let mut console = Counts::default();
    for client in &clients {
        let counts = if view.config.is_console(&client.database) {
            &mut console
        } else {
            counts
                .entry((&client.database, &client.pool_user))
                .or_default()
        };
        match client.phase() {
            Phase::Waiting => counts.waiting += 1,
            Phase::Idle
            | Phase::Active
            | Phase::IdleInTransaction
            | Phase::LinkedIdle
            | Phase::Draining => {
                counts.clients += 1;
            }
        }
    }
    for server in &servers {
        let counts = counts.entry((&server.database, &server.user)).or_default();
        counts.cancelling += u64::from(server.has_cancels());
        match server.state() {
            // Counted by the pool, from before there is anything to list.
            ServerState::New => {}
            ServerState::Idle => counts.idle += 1,
            ServerState::Active => counts.active += 1,
            ServerState::Tested => counts.tested += 1,
            ServerState::Used => counts.used += 1,
            ServerState::BeingCanceled => counts.being_canceled += 1,
        }
    }
    let pools = manager.pools().into_iter().map(|pool| Row {
        counts: counts
            .get(&(pool.database.as_str(), pool.user.as_str()))
            .copied()
            .unwrap_or_default(),
        connecting: pool.connecting(),
        longest_wait: pool.queue().1,
        mode: pool.settings().mode,
        load_balance_hosts: view
            .config
            .database(&pool.database)
            .and_then(|database| load_balance(&database)),
        totals: pool.totals(),
        database: pool.database.clone(),
        user: pool.user.clone(),
    });
    let mut rows: Vec<Row> = pools.collect();
    rows.push(Row {
        database: CONSOLE.to_owned(),
        user: CONSOLE.to_owned(),
        counts: console,
        mode: PoolMode::Statement,
        ..Row::default()
    });
    rows.sort_by(|a, b| (&a.database, &a.user).cmp(&(&b.database, &b.user)));
    rows
}
