//! What the configuration says about one pool, put together once for each reload.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::accounting::Sizes;
use super::functions::Functions;
use crate::config::{
    Config, Database, FollowSequences, Host, LogText, PinPolicy, PoolMode, TraceSource,
    UnnamedTexts,
};
use crate::net::dns::Ttl;
use crate::net::{Address, Names, TcpOptions};
use crate::prepared::promotion::Promotions;
use crate::protocol::startup::Replication;
use crate::server::Hosts;
use crate::server::connect::Target;
use crate::server::session::TrackedNames;
use crate::sql::steady::Steady;
use crate::stats::clock::micros;

/// The longest message there can be: its length is a signed number of 32 bits.
const LONGEST: usize = i32::MAX as usize;

/// The settings of a pool. Clients keep an `Arc` of it and look at the pool's version to see
/// whether it is still the latest. They read it with every query, so the count of its shares, which changes with every
/// login, is kept off its cache lines.
#[derive(Debug, Clone)]
#[repr(align(128))]
#[allow(
    clippy::struct_excessive_bools,
    reason = "a setting of 0 or 1 is a bool"
)]
pub struct PoolSettings {
    /// When a server goes back.
    pub mode: PoolMode,
    /// What becomes of a client whose session can't move.
    pub pin_policy: PinPolicy,
    /// `follow_functions`, where sessions are followed.
    pub follows_functions: bool,
    /// `follow_sequences`, where sessions are followed.
    pub follow_sequences: FollowSequences,
    /// The functions of the database that may touch a session; the pool's own.
    pub functions: Arc<Functions>,
    /// `max_pinned_servers`; 0: no limit.
    pub max_pinned: usize,
    /// Limits.
    pub sizes: Sizes,
    /// Where the servers are.
    pub target: Target,
    /// `max_db_connections`; 0 is no limit.
    pub max_db_connections: usize,
    /// `max_user_connections`; 0 is no limit.
    pub max_user_connections: usize,
    /// `server_lifetime`; zero: each server is used once.
    pub lifetime: Duration,
    /// `server_idle_timeout`; zero: never.
    pub idle_timeout: Duration,
    /// `server_check_delay`.
    pub check_delay: Duration,
    /// The check query; `None`: no check.
    pub check_query: Option<Vec<u8>>,
    /// The reset query; `None`: no reset.
    pub reset_query: Option<Vec<u8>>,
    /// `server_reset_query_always`.
    pub reset_always: bool,
    /// `server_round_robin`.
    pub round_robin: bool,
    /// `max_prepared_statements`; 0: names are passed through.
    pub max_prepared_statements: usize,
    /// `prepare_unnamed_after`, where statements can be prepared and sessions are followed; 0: never.
    pub prepare_unnamed_after: usize,
    /// How steady such a text has to be (`prepare_unnamed_texts`).
    pub steady_enough: Steady,
    /// The texts that are prepared so; the pool's own, and new with each change of the settings.
    pub promotions: Arc<Promotions>,
    /// `prepared_statements_memory`, bytes.
    pub prepared_memory: usize,
    /// `disable_pqexec`.
    pub refuses_queries: bool,
    /// `server_fast_close`, where it applies.
    pub fast_close: bool,
    /// `max_packet_size`, for both sides; no more than a length field can say.
    pub max_packet_size: usize,
    /// `query_timeout`, microseconds; 0: none. (Compared with the live list's numbers.)
    pub query_timeout: u64,
    /// `idle_transaction_timeout`, microseconds.
    pub idle_transaction_timeout: u64,
    /// `transaction_timeout`, microseconds.
    pub transaction_timeout: u64,
    /// `log_min_duration`, microseconds; as long as can be: never.
    pub slow_after: u64,
    /// A query that took so long, waiting included, is looked at when it is over: `slow_after`, or 0 where all are watched.
    pub judge_after: u64,
    /// Is it seen which statement each query is of: for `track_statements`, for texts in the log, or for spans?
    pub is_watched: bool,
    /// `track_statements`.
    pub track_statements: usize,
    /// `log_statement_text`.
    pub log_text: LogText,
    /// Which transactions make spans; `None`: none does.
    pub tracing: Option<Tracing>,
}

/// Which transactions make spans (`otlp_traceparent`, `otlp_sample`).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Tracing {
    /// Where a client may say to which trace one belongs.
    pub source: TraceSource,
    /// So many of the others, of all numbers of 32 bits.
    pub drawn: u64,
}

impl Tracing {
    fn new(config: &Config) -> Option<Self> {
        let all = &config.settings;
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a share of 2^32, from 0 to all"
        )]
        let drawn = (all.otlp_sample.0 * 4_294_967_296.0) as u64;
        let is_wanted = drawn > 0 || all.otlp_traceparent != TraceSource::Off;
        (is_wanted && all.otlp_endpoint.0.is_some()).then_some(Self {
            source: all.otlp_traceparent,
            drawn,
        })
    }
}

impl PoolSettings {
    /// The settings for the pool of `database` and the server-side `user`.
    pub fn new(
        config: &Config,
        database: &Database,
        user: &str,
        names: (&TrackedNames, &Names),
    ) -> Self {
        let all = &config.settings;
        let mode = config.pool_mode(database, user);
        let pin_policy = match mode {
            // The server is the client's own.
            PoolMode::Session => PinPolicy::Off,
            PoolMode::Transaction | PoolMode::Statement => config.pin_policy(database, user),
        };
        // In session pooling the server is the client's own, and so are its names.
        let max_prepared_statements = if mode == PoolMode::Session {
            0
        } else {
            config.max_prepared_statements(database)
        };
        // What a client has made of its session may be in front of what a text meant for others.
        let may_promote = max_prepared_statements > 0 && pin_policy != PinPolicy::Off;
        let slow_after = config.log_min_duration(database).map_or(u64::MAX, micros);
        let logs_texts = slow_after < u64::MAX && all.log_statement_text != LogText::Off;
        let tracing = Tracing::new(config);
        let is_watched = all.track_statements > 0 || logs_texts || tracing.is_some();
        let query = |text: &str| (!text.is_empty()).then(|| text.as_bytes().to_vec());
        Self {
            mode,
            pin_policy,
            functions: Arc::default(),
            follows_functions: pin_policy != PinPolicy::Off && all.follow_functions,
            follow_sequences: match pin_policy {
                PinPolicy::Off => FollowSequences::Off,
                PinPolicy::Auto | PinPolicy::Refuse => all.follow_sequences,
            },
            max_pinned: all.max_pinned_servers,
            sizes: Sizes {
                size: config.pool_size(database, user),
                reserve: config.reserve_pool_size(database, user),
                reserve_after: all.reserve_pool_timeout,
                min: config.min_pool_size(database, user),
                longest_pause: all.server_login_retry,
            },
            target: Target {
                follows_sessions: pin_policy != PinPolicy::Off,
                ..target(config, database, names)
            },
            max_db_connections: config.max_db_connections(database),
            max_user_connections: config.max_user_connections(user),
            lifetime: config.server_lifetime(database, user),
            idle_timeout: config.server_idle_timeout(database),
            check_delay: all.server_check_delay,
            check_query: match all.server_check_query.as_str() {
                "<empty>" => Some(Vec::new()),
                text => query(text),
            },
            reset_query: query(&all.server_reset_query),
            reset_always: all.server_reset_query_always,
            round_robin: all.server_round_robin,
            max_prepared_statements,
            prepare_unnamed_after: if may_promote {
                config.prepare_unnamed_after(database)
            } else {
                0
            },
            steady_enough: match all.prepare_unnamed_texts {
                UnnamedTexts::Proven => Steady::Always,
                UnnamedTexts::All => Steady::UntilChanged,
            },
            promotions: Arc::default(),
            prepared_memory: usize::try_from(all.prepared_statements_memory.0)
                .unwrap_or(usize::MAX),
            refuses_queries: all.disable_pqexec,
            fast_close: all.server_fast_close && mode == PoolMode::Session,
            max_packet_size: all.max_packet_size.min(LONGEST),
            query_timeout: micros(config.query_timeout(database, user)),
            idle_transaction_timeout: micros(config.idle_transaction_timeout(user)),
            transaction_timeout: micros(config.transaction_timeout(user)),
            slow_after,
            judge_after: if is_watched { 0 } else { slow_after },
            is_watched,
            track_statements: all.track_statements,
            log_text: all.log_statement_text,
            tracing,
        }
    }

    /// Is what clients make of their sessions followed?
    #[inline]
    pub fn follows_sessions(&self) -> bool {
        self.pin_policy != PinPolicy::Off
    }

    /// Is it seen to that no client finds what others have drawn from sequences?
    #[inline]
    pub fn watches_sequences(&self) -> bool {
        match self.follow_sequences {
            FollowSequences::Auto => self.functions.sequences().are_read(),
            FollowSequences::On => true,
            FollowSequences::Off => false,
        }
    }

    /// Is the reset query run when a server is released?
    pub fn resets_on_release(&self) -> Option<&[u8]> {
        let wanted = self.mode == PoolMode::Session || self.reset_always;
        self.reset_query.as_deref().filter(|_| wanted)
    }
}

/// The socket options of the configuration.
pub fn tcp_options(config: &Config) -> TcpOptions {
    let all = &config.settings;
    let seconds = |number: usize| Duration::from_secs(number as u64);
    TcpOptions {
        keepalive: all.tcp_keepalive,
        idle: seconds(all.tcp_keepidle),
        interval: seconds(all.tcp_keepintvl),
        count: u32::try_from(all.tcp_keepcnt).unwrap_or(u32::MAX),
        user_timeout: all.tcp_user_timeout.0,
        buffer: all.tcp_socket_buffer,
    }
}

/// How long host names hold.
pub fn ttl(config: &Config) -> Ttl {
    Ttl {
        found: config.settings.dns_max_ttl,
        missing: config.settings.dns_nxdomain_ttl,
    }
}

fn target(
    config: &Config,
    database: &Database,
    (tracked, names): (&TrackedNames, &Names),
) -> Target {
    let parameters = [
        ("client_encoding", &database.client_encoding),
        ("datestyle", &database.datestyle),
        ("timezone", &database.timezone),
        ("application_name", &database.application_name),
    ];
    let ttl = ttl(config);
    Target {
        hosts: Hosts::new(
            database
                .hosts()
                .map(|host| address(host, database.port))
                .collect(),
            database.load_balance_hosts,
            (names.clone(), ttl),
        ),
        tcp: tcp_options(config),
        database: database.server_dbname().to_owned(),
        pool_database: database.name.clone(),
        parameters: parameters
            .into_iter()
            .filter_map(|(name, value)| Some((name.to_owned(), value.clone()?)))
            .collect(),
        connect_query: database.connect_query.clone(),
        follows_sessions: false,
        limit: config.server_connect_timeout(database),
        tracked: tracked.clone(),
        replication: Replication::None,
    }
}

/// Where that is.
pub fn address(host: &Host, port: u16) -> Address {
    match host {
        Host::Tcp(name) => Address::Tcp(name.clone(), port),
        Host::Unix(directory) => {
            let mut path = directory.clone().into_os_string();
            path.push(format!("/.s.PGSQL.{port}"));
            Address::Unix(PathBuf::from(path))
        }
    }
}
