//! SHOW DATABASES and SHOW USERS: what is configured by name, with what holds for it now.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::admin::show::{Column, View, int4, text};
use crate::admin::value::Cell;
use crate::config::databases::CONSOLE;
use crate::config::{Database, Host, PoolMode};

/// A database.
#[derive(Debug)]
pub(super) struct DatabaseRow {
    name: String,
    host: Option<String>,
    port: u16,
    database: String,
    force_user: Option<String>,
    pool_size: usize,
    min_pool_size: usize,
    reserve_pool_size: usize,
    server_lifetime: Duration,
    pool_mode: Option<PoolMode>,
    load_balance_hosts: Option<&'static str>,
    max_connections: usize,
    current_connections: usize,
    max_client_connections: usize,
    current_client_connections: usize,
    paused: bool,
    disabled: bool,
}

pub(super) static DATABASES: &[Column<DatabaseRow>] = &[
    text("name", |row| row.name.as_str().into()),
    text("host", |row| row.host.as_deref().into()),
    int4("port", |row| row.port.into()),
    text("database", |row| row.database.as_str().into()),
    text("force_user", |row| row.force_user.as_deref().into()),
    int4("pool_size", |row| row.pool_size.into()),
    int4("min_pool_size", |row| row.min_pool_size.into()),
    int4("reserve_pool_size", |row| row.reserve_pool_size.into()),
    int4("server_lifetime", |row| {
        row.server_lifetime.as_secs().into()
    }),
    text("pool_mode", |row| {
        row.pool_mode.map(PoolMode::as_str).into()
    }),
    text("load_balance_hosts", |row| row.load_balance_hosts.into()),
    int4("max_connections", |row| row.max_connections.into()),
    int4("current_connections", |row| row.current_connections.into()),
    int4("max_client_connections", |row| {
        row.max_client_connections.into()
    }),
    int4("current_client_connections", |row| {
        row.current_client_connections.into()
    }),
    int4("paused", |row| row.paused.into()),
    int4("disabled", |row| row.disabled.into()),
];

/// The databases of the files, those that `*` stands in for and that have pools, and the console.
pub(super) fn databases(view: &View<'_>) -> Vec<DatabaseRow> {
    let manager = &view.console.manager;
    let mut all: BTreeSet<String> = view.config.databases.keys().cloned().collect();
    all.extend(manager.pools().iter().map(|pool| pool.database.clone()));
    let mut rows: Vec<DatabaseRow> = all.iter().filter_map(|name| database(view, name)).collect();
    rows.push(console(view));
    rows.sort_by(|a, b| a.name.cmp(&b.name));
    rows
}

fn database(view: &View<'_>, name: &str) -> Option<DatabaseRow> {
    let (config, manager) = (&view.config, &view.console.manager);
    let database = config.database(name)?;
    // The limits of a forced user are its pool's; without one there is no user to ask for.
    let user = database.user.as_deref().unwrap_or_default();
    Some(DatabaseRow {
        name: name.to_owned(),
        host: match &database.host {
            // PgBouncer's NULL: no host was written.
            Host::Unix(directory)
                if Some(directory) == config.settings.unix_socket_dir.as_ref()
                    && database.more_hosts.is_empty() =>
            {
                None
            }
            Host::Tcp(_) | Host::Unix(_) => {
                let hosts: Vec<String> = database.hosts().map(ToString::to_string).collect();
                Some(hosts.join(","))
            }
        },
        port: database.port,
        database: database.server_dbname().to_owned(),
        force_user: database.user.clone(),
        pool_size: config.pool_size(&database, user),
        min_pool_size: config.min_pool_size(&database, user),
        reserve_pool_size: config.reserve_pool_size(&database, user),
        server_lifetime: config.server_lifetime(&database, user),
        pool_mode: database.pool_mode,
        load_balance_hosts: load_balance(&database),
        max_connections: config.max_db_connections(&database),
        current_connections: manager.servers_of_database(name),
        max_client_connections: config.max_db_client_connections(&database),
        current_client_connections: manager.clients_of_database(name),
        paused: manager.is_paused_by_name(name),
        disabled: manager.is_disabled(name),
    })
}

/// What is shown of several hosts, and NULL for one.
pub(super) fn load_balance(database: &Database) -> Option<&'static str> {
    (!database.more_hosts.is_empty()).then(|| database.load_balance_hosts.as_str())
}

fn console(view: &View<'_>) -> DatabaseRow {
    DatabaseRow {
        name: CONSOLE.to_owned(),
        host: None,
        port: view.config.settings.listen_port,
        database: CONSOLE.to_owned(),
        force_user: Some(CONSOLE.to_owned()),
        // PgBouncer's numbers for its own.
        pool_size: 2,
        min_pool_size: 0,
        reserve_pool_size: 0,
        server_lifetime: view.config.settings.server_lifetime,
        pool_mode: Some(PoolMode::Statement),
        load_balance_hosts: None,
        max_connections: 0,
        current_connections: 0,
        max_client_connections: view.config.settings.max_db_client_connections,
        current_client_connections: view.console.manager.clients_of_database(CONSOLE),
        paused: false,
        disabled: false,
    }
}

/// A user.
#[derive(Debug)]
pub(super) struct UserRow {
    name: String,
    pool_size: Option<usize>,
    reserve_pool_size: Option<usize>,
    pool_mode: Option<PoolMode>,
    max_connections: usize,
    current_connections: usize,
    max_client_connections: usize,
    current_client_connections: usize,
}

pub(super) static USERS: &[Column<UserRow>] = &[
    text("name", |row| row.name.as_str().into()),
    text("pool_size", |row| padded(row.pool_size)),
    text("reserve_pool_size", |row| padded(row.reserve_pool_size)),
    text("pool_mode", |row| {
        row.pool_mode.map(PoolMode::as_str).into()
    }),
    int4("max_user_connections", |row| row.max_connections.into()),
    int4("current_connections", |row| row.current_connections.into()),
    int4("max_user_client_connections", |row| {
        row.max_client_connections.into()
    }),
    int4("current_client_connections", |row| {
        row.current_client_connections.into()
    }),
];

/// As PgBouncer writes it.
fn padded(number: Option<usize>) -> Cell {
    number
        .map(|number| format!("{number:>9}"))
        .unwrap_or_default()
        .into()
}

/// The users of the files and those that are connected, on either side.
pub(super) fn users(view: &View<'_>) -> Vec<UserRow> {
    let (config, manager) = (&view.config, &view.console.manager);
    let mut all: BTreeSet<String> = config
        .secrets
        .keys()
        .chain(config.users.keys())
        .cloned()
        .collect();
    all.extend(
        config
            .databases
            .values()
            .flat_map(|database| database.users.keys().cloned()),
    );
    all.extend(
        config
            .databases
            .values()
            .filter_map(|database| database.user.clone()),
    );
    all.extend(
        manager
            .parts()
            .registry
            .clients()
            .iter()
            .map(|client| client.user.clone()),
    );
    all.extend(manager.pools().iter().map(|pool| pool.user.clone()));
    let row = |name: String| {
        let own = config.users.get(&name);
        UserRow {
            pool_size: own.and_then(|own| own.pool_size),
            reserve_pool_size: own.and_then(|own| own.reserve_pool_size),
            pool_mode: own.and_then(|own| own.pool_mode),
            max_connections: config.max_user_connections(&name),
            current_connections: manager.servers_of_user(&name),
            max_client_connections: config.max_user_client_connections(&name),
            current_client_connections: manager.clients_of_user(&name),
            name,
        }
    };
    all.into_iter().map(row).collect()
}
