//! `[pools.NAME]` with its users and its one shard: PgCat's way to say what a database is.

use std::time::Duration;

use crate::config::Draft;
use crate::config::databases::{self, Database, Host, PoolUser, typed};
use crate::config::error::{Error, Problem};
use crate::config::kind::{Kind, PoolMode};
use crate::config::toml::{
    Item, ROUTING, Section, Verdict, keep_secret, parameter, refuse_plugins,
};

/// Reads all pools. PgCat's mode is transaction where neither the pool nor anything above it names one.
pub(super) fn read(
    pools: &Section<'_>,
    draft: &mut Draft,
    pool_mode_is_set: bool,
) -> Result<(), Error> {
    for (name, item) in pools.entries() {
        let pool = pools.subsection(name, item)?;
        databases::check_name(name).map_err(|problem| problem.at(pool.start()))?;
        let mut database = Database::new(name, Host::socket_dir());
        if !pool_mode_is_set {
            database.pool_mode = Some(PoolMode::Transaction);
        }
        read_pool(&pool, &mut database, draft)?;
        draft.databases.insert(name.to_owned(), database);
    }
    Ok(())
}

/// PgCat's names in a pool that we do not have.
const JUDGED: &[(&str, Verdict)] = &[
    (
        "load_balancing_mode",
        Verdict::Only(&["random", "loc"], "this way to balance load"),
    ),
    (
        "default_role",
        Verdict::Only(&["any", "primary"], "replicas"),
    ),
    ("query_parser_enabled", Verdict::Only(&["false"], ROUTING)),
    (
        "query_parser_read_write_splitting",
        Verdict::Only(&["false"], ROUTING),
    ),
    (
        "db_activity_based_routing",
        Verdict::Only(&["false"], ROUTING),
    ),
    ("automatic_sharding_key", Verdict::Refuse("sharding")),
    ("sharding_key_regex", Verdict::Refuse("sharding")),
    ("shard_id_regex", Verdict::Refuse("sharding")),
    ("query_parser_max_length", Verdict::Ignore),
    ("primary_reads_enabled", Verdict::Ignore),
    ("db_activity_init_delay", Verdict::Ignore),
    ("db_activity_ttl", Verdict::Ignore),
    ("table_mutation_cache_ms_ttl", Verdict::Ignore),
    ("regex_search_limit", Verdict::Ignore),
    ("default_shard", Verdict::Ignore),
    ("sharding_function", Verdict::Ignore),
    (
        "checkout_failure_limit",
        Verdict::Warn("a client may fail to get a server as often as it likes"),
    ),
    (
        "cleanup_server_connections",
        Verdict::WarnUnless(
            &["true"],
            "what a client leaves behind is always cleaned up",
        ),
    ),
    (
        "log_client_parameter_status_changes",
        Verdict::WarnUnless(&["false"], "they are not logged"),
    ),
];

/// PgCat's names in a pool that are read one by one.
const SPECIAL: [&str; 10] = [
    "prepared_statements_cache_size",
    "connect_timeout",
    "idle_timeout",
    "server_lifetime",
    "auth_query",
    "auth_query_user",
    "auth_query_password",
    "plugins",
    "users",
    "shards",
];

/// Keys of a `[databases]` line that the shard gives.
const GIVEN_BY_SHARD: [&str; 4] = ["host", "port", "dbname", "load_balance_hosts"];

fn read_pool(pool: &Section<'_>, database: &mut Database, draft: &mut Draft) -> Result<(), Error> {
    let ours = || {
        databases::KEYS
            .iter()
            .copied()
            .filter(|key| !GIVEN_BY_SHARD.contains(key))
    };
    let known: Vec<&str> = JUDGED
        .iter()
        .map(|(name, _)| *name)
        .chain(SPECIAL)
        .chain(ours())
        .collect();
    pool.refuse_unknown(&known)?;
    for (key, item) in pool.entries() {
        if let Some((_, verdict)) = JUDGED.iter().find(|(name, _)| *name == key) {
            pool.judge(key, item, *verdict, draft)?;
        }
    }
    read_special(pool, database, draft)?;
    for (key, item) in pool.entries() {
        if ours().any(|name| name == key) && !SPECIAL.contains(&key) {
            let text = pool.text(key, item, Kind::Int)?;
            databases::set(database, key, text).map_err(|problem| problem.at(pool.place(item)))?;
        }
    }
    if let Some(plugins) = pool.section("plugins")? {
        refuse_plugins(&plugins)?;
    }
    if let Some(users) = pool.section("users")? {
        read_users(&users, database)?;
    }
    read_shards(pool, database)
}

fn read_special(
    pool: &Section<'_>,
    database: &mut Database,
    draft: &mut Draft,
) -> Result<(), Error> {
    let time = |key: &str| pool.get(key).map(|item| pool.millis(key, item)).transpose();
    database.server_connect_timeout = time("connect_timeout")?;
    database.query_wait_timeout = database.server_connect_timeout;
    database.server_idle_timeout = time("idle_timeout")?;
    database.server_lifetime = time("server_lifetime")?.filter(|time| !time.is_zero());
    database.max_prepared_statements = number(pool, "prepared_statements_cache_size")?;
    let text = |key: &str| pool.get(key).map(|item| pool.string(key, item)).transpose();
    database.auth_query = text("auth_query")?.map(|query| parameter(&query));
    database.auth_user = text("auth_query_user")?;
    if let Some(item) = pool.get("auth_query_password") {
        let Some(user) = &database.auth_user else {
            return Err(Problem::Missing {
                key: "auth_query_user",
            }
            .at(pool.place(item)));
        };
        keep_secret(
            user,
            &pool.secret("auth_query_password", item)?,
            &pool.place(item),
            draft,
        )?;
    }
    Ok(())
}

fn number(section: &Section<'_>, key: &str) -> Result<Option<usize>, Error> {
    let Some(item) = section.get(key) else {
        return Ok(None);
    };
    let text = section.text(key, item, Kind::Int)?;
    typed(key, &text)
        .map(Some)
        .map_err(|problem| problem.at(section.place(item)))
}

const USER_KEYS: &[&str] = &[
    "username",
    "password",
    "auth_type",
    "pool_size",
    "min_pool_size",
    "pool_mode",
    "server_lifetime",
    "statement_timeout",
    "server_username",
    "server_password",
    "connect_timeout",
    "idle_timeout",
];

fn read_users(users: &Section<'_>, database: &mut Database) -> Result<(), Error> {
    for (index, item) in users.entries() {
        let section = users.subsection(index, item)?;
        section.refuse_unknown(USER_KEYS)?;
        let (name, user) = read_user(&section)?;
        // A pool is a database and a server user, so it cannot have two sizes.
        let server_user = user.server_username.as_deref().unwrap_or(&name);
        if let Some(other) = database.pool_user(server_user)
            && !shares_pool(other, &user)
        {
            let text = format!(
                "another user of this pool logs in to PostgreSQL as {server_user} with other settings"
            );
            return Err(Problem::Conflict(text).at(section.start()));
        }
        if database.users.insert(name.clone(), user).is_some() {
            return Err(
                Problem::Conflict(format!("user {name} is given twice")).at(section.start())
            );
        }
    }
    Ok(())
}

fn shares_pool(one: &PoolUser, other: &PoolUser) -> bool {
    let key = |user: &PoolUser| {
        (
            user.pool_size,
            user.min_pool_size,
            user.pool_mode,
            user.server_lifetime,
            user.query_timeout,
        )
    };
    key(one) == key(other)
}

fn read_user(section: &Section<'_>) -> Result<(String, PoolUser), Error> {
    let text = |key: &str| {
        section
            .get(key)
            .map(|item| section.string(key, item))
            .transpose()
    };
    let secret = |key: &str| {
        section
            .get(key)
            .map(|item| section.secret(key, item))
            .transpose()
    };
    let time = |key: &str| -> Result<Option<Duration>, Error> {
        section
            .get(key)
            .map(|item| section.millis(key, item))
            .transpose()
    };
    for key in ["connect_timeout", "idle_timeout"] {
        if let Some(item) = section.get(key) {
            return Err(Problem::not_yet(format!("{key} of one user")).at(section.place(item)));
        }
    }
    if let Some(item) = section.get("auth_type")
        && item.get_ref().as_str() != Some("md5")
    {
        return Err(Problem::not_yet("auth_type of one user").at(section.place(item)));
    }
    let pool_mode = match section.get("pool_mode") {
        Some(item) => {
            let word = section.string("pool_mode", item)?;
            Some(typed("pool_mode", &word).map_err(|problem| problem.at(section.place(item)))?)
        }
        None => None,
    };
    let name = text("username")?
        .ok_or_else(|| Problem::Missing { key: "username" }.at(section.start()))?;
    let user = PoolUser {
        password: secret("password")?,
        pool_size: number(section, "pool_size")?,
        min_pool_size: number(section, "min_pool_size")?,
        pool_mode,
        server_lifetime: time("server_lifetime")?,
        query_timeout: time("statement_timeout")?.filter(|time| !time.is_zero()),
        server_username: text("server_username")?,
        server_password: secret("server_password")?,
    };
    Ok((name, user))
}

fn read_shards(pool: &Section<'_>, database: &mut Database) -> Result<(), Error> {
    let shards = pool
        .section("shards")?
        .ok_or_else(|| Problem::Missing { key: "shards" }.at(pool.start()))?;
    let mut entries = shards.entries();
    let Some((index, item)) = entries.next() else {
        return Err(Problem::Missing { key: "shards" }.at(pool.start()));
    };
    let shard = shards.subsection(index, item)?;
    if let Some((index, item)) = entries.next() {
        let second = shards.subsection(index, item)?;
        return Err(Problem::not_yet("several shards").at(second.start()));
    }
    shard.refuse_unknown(&["servers", "database", "mirrors"])?;
    if let Some(item) = shard.get("mirrors")
        && item
            .get_ref()
            .as_array()
            .is_none_or(|mirrors| !mirrors.is_empty())
    {
        return Err(Problem::not_yet("mirrors").at(shard.place(item)));
    }
    if let Some(item) = shard.get("database") {
        let name = shard.string("database", item)?;
        database.dbname = Some(name).filter(|name| *name != database.name);
    }
    let item = shard
        .get("servers")
        .ok_or_else(|| Problem::Missing { key: "servers" }.at(shard.start()))?;
    read_server(&shard, item, database)
}

/// `servers = [["host", 5432, "primary"]]`.
fn read_server(shard: &Section<'_>, item: Item<'_>, database: &mut Database) -> Result<(), Error> {
    const EXPECTED: &str = "[[\"host\", port, \"primary\"]]";
    let invalid = || shard.invalid("servers", item, EXPECTED);
    let servers = item.get_ref().as_array().ok_or_else(invalid)?;
    if servers.len() > 1 {
        return Err(Problem::not_yet("more than one server in a pool").at(shard.place(item)));
    }
    let server = servers
        .iter()
        .next()
        .and_then(|server| server.get_ref().as_array())
        .ok_or_else(invalid)?;
    let fields: Vec<Item<'_>> = server.iter().collect();
    let [host, port, role] = fields.as_slice() else {
        return Err(invalid());
    };
    let host = host
        .get_ref()
        .as_str()
        .filter(|host| !host.is_empty())
        .ok_or_else(invalid)?;
    match role.get_ref().as_str() {
        Some("primary") => {}
        Some("replica" | "mirror" | "auto") => {
            return Err(Problem::not_yet("servers that are not primary").at(shard.place(item)));
        }
        _ => return Err(invalid()),
    }
    let port = shard.text("servers", port, Kind::Port)?;
    databases::set(database, "host", host.to_owned())
        .and_then(|()| databases::set(database, "port", port))
        .map_err(|problem| problem.at(shard.place(item)))
}
