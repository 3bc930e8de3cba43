//! THE table: one row per setting, and everything made from it.
//!
//! Owns the names, kinds, defaults, effect on reload and documentation of every `[pgbouncer]` setting
//! PgBouncer has and of our own, the typed view of the values ([`Settings`]), what SHOW CONFIG prints,
//! what SET does, and `docs/settings.md`. Does not read files: `ini`, `toml` and `env` do, and they
//! all end in [`Settings::assign`].

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::config::error::Problem;
use crate::config::kind::{
    AuthType, ByteSize, Facility, Fault, FollowSequences, Fraction, Kind, LogText, Millis,
    MillisOrNever, Mode, PeerId, PinPolicy, PoolMode, ShutdownMode, SslMode, TraceSource,
    UnnamedTexts, Value,
};
use crate::config::{ldap, otlp};

pub mod comparison;
#[cfg(test)]
mod man;
mod markdown;

pub use markdown::markdown;

/// One row of the table.
#[derive(Debug, Clone, Copy)]
pub struct Setting {
    /// PgBouncer's name.
    pub name: &'static str,
    /// How the value is written.
    pub kind: Kind,
    /// The value as a file would write it; `None`: no default, which SHOW CONFIG prints as NULL.
    pub default: Option<&'static str>,
    /// What it is about.
    pub scope: Scope,
    /// When a changed value takes effect.
    pub reload: Reload,
    /// How far this version honours it.
    pub support: Support,
    /// What it means, in Markdown.
    pub doc: &'static str,
}

impl Setting {
    /// The row of a name, or of PgBouncer's other name for a setting; `None` for an unknown one.
    pub fn find(name: &str) -> Option<&'static Self> {
        let name = if name == "service_name" {
            "job_name"
        } else {
            name
        };
        TABLE.iter().find(|setting| setting.name == name)
    }

    /// Whether RELOAD or SET can change it (SHOW CONFIG's `changeable`).
    pub fn changeable(&self) -> bool {
        self.reload != Reload::Restart
    }
}

/// What a setting is about; groups the documentation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// The process as a whole.
    Process,
    /// What is written to the log, and the statistics.
    Log,
    /// Where clients connect.
    Listen,
    /// Options of every socket.
    Socket,
    /// Who may log in, and how.
    Login,
    /// Clients that are logged in.
    Client,
    /// How many servers there are and who gets them.
    Pool,
    /// Connections to PostgreSQL.
    Server,
    /// Encryption.
    Tls,
    /// Name look-ups.
    Dns,
}

impl Scope {
    const ALL: [(Self, &'static str); 10] = [
        (Self::Process, "Process"),
        (Self::Log, "Log and statistics"),
        (Self::Listen, "Listening"),
        (Self::Socket, "Sockets"),
        (Self::Login, "Login"),
        (Self::Client, "Clients"),
        (Self::Pool, "Pools"),
        (Self::Server, "Servers"),
        (Self::Tls, "TLS"),
        (Self::Dns, "DNS"),
    ];
}

/// When a changed value takes effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reload {
    /// At once, also for present connections (at their next transaction at the latest).
    Live,
    /// For connections made after the change.
    NewConnections,
    /// Only when the process is started again.
    Restart,
}

/// How far this version honours a setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Support {
    /// It does what PgBouncer documents.
    Full,
    /// It is accepted and has no meaning here; setting it gives a warning with this reason.
    AcceptAndWarn(&'static str),
}

/// What the console's SET did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Applied {
    /// It holds from now on.
    Now,
    /// It holds for new connections.
    NewConnections,
    /// Nothing changed: the setting is read at start only.
    NeedsRestart,
    /// It was taken note of and has no meaning here, for this reason.
    NoEffect(&'static str),
}

/// The settings of one scope, in groups by that scope and by whether we honour them.
macro_rules! settings {
    (
        supported { $( $scope:ident { $(
            $name:ident: $type:ty = $default:expr, $kind:expr, $reload:ident, $doc:literal;
        )* } )* }
        known { $( $kscope:ident { $(
            $known:ident = $kdefault:expr, $kkind:expr, $kreload:ident, $support:expr, $kdoc:literal;
        )* } )* }
    ) => {
        /// Every setting PgBouncer has in `[pgbouncer]`, and ours.
        pub static TABLE: &[Setting] = &[
            $( $( Setting {
                name: stringify!($name), kind: $kind, default: $default, scope: Scope::$scope,
                reload: Reload::$reload, support: Support::Full, doc: $doc,
            }, )* )*
            $( $( Setting {
                name: stringify!($known), kind: $kkind, default: $kdefault, scope: Scope::$kscope,
                reload: Reload::$kreload, support: $support, doc: $kdoc,
            }, )* )*
        ];

        /// The values of all settings, typed; a field for each one that this version honours.
        ///
        /// Times are durations of which zero means "off" unless the setting says otherwise.
        #[derive(Debug, Clone, PartialEq)]
        pub struct Settings {
            $( $( #[doc = $doc] pub $name: $type, )* )*
            /// What was written for settings that we only know, and for lists: SHOW CONFIG prints it.
            noted: BTreeMap<&'static str, String>,
        }

        impl Default for Settings {
            fn default() -> Self {
                Self {
                    // A test checks that every default can be read.
                    $( $( $name: <$type as Value>::parse($default.unwrap_or_default())
                        .unwrap_or_default(), )* )*
                    noted: BTreeMap::new(),
                }
            }
        }

        impl Settings {
            /// Reads a value into the field of that name; false if there is no such field.
            fn read_field(&mut self, name: &str, text: &str) -> Result<bool, Fault> {
                match name {
                    $( $( stringify!($name) => self.$name = Value::parse(text)?, )* )*
                    _ => return Ok(false),
                }
                Ok(true)
            }

            /// Prints the field of that name, with false if it is not set at all.
            fn print_field(&self, name: &str) -> Option<(bool, String)> {
                match name {
                    $( $( stringify!($name) => Some((self.$name.is_set(), self.$name.print())), )* )*
                    _ => None,
                }
            }

            /// Is the field of that name another one in `other`?
            fn field_differs(&self, name: &str, other: &Self) -> bool {
                match name {
                    $( $( stringify!($name) => self.$name != other.$name, )* )*
                    _ => false,
                }
            }

            /// Copies the field of that name.
            fn copy_field(&mut self, name: &str, from: &Self) {
                match name {
                    $( $( stringify!($name) => self.$name.clone_from(&from.$name), )* )*
                    _ => {}
                }
            }
        }
    };
}

const WHEN_QUERY: &str = "SELECT rolname, CASE WHEN rolvaliduntil < now() THEN NULL ELSE rolpassword END \
                          FROM pg_authid WHERE rolname=$1 AND rolcanlogin";
const ONE_THREADED: &str = "it tunes an event loop that pgferry does not have";
const OWN_RESOLVER: &str = "names are looked up by the system's resolver";

settings! {
    supported {
        Process {
            conffile: Option<PathBuf> = None, Kind::Text, Live,
                "The configuration file; SET names another one for the next RELOAD.";
            pidfile: Option<PathBuf> = Some(""), Kind::Text, Restart,
                "File that the process id is written to. Empty: none.";
            user: Option<String> = None, Kind::Text, Restart,
                "User to become after the start, when started as root.";
            suspend_timeout: Duration = Some("10"), Kind::Seconds, Live,
                "Longest that SUSPEND waits for connections to fall silent before it closes them; 0: for ever.";
            shutdown_mode: ShutdownMode = Some("wait_for_clients"), Kind::Enum(ShutdownMode::WORDS), Live,
                "What SIGTERM does: `wait_for_clients` serves those that are connected until they leave, as PgBouncer; `drain` sends them away between transactions, and ends within `drain_timeout`. Not in PgBouncer.";
            drain_timeout: Duration = Some("30"), Kind::Seconds, Live,
                "How long `SHUTDOWN DRAIN` takes at most, and SIGTERM with `shutdown_mode = drain`; what is not over by then is ended. Not in PgBouncer.";
            peer_id: PeerId = Some("0"), Kind::PeerId, Live,
                "This process's number among `[peers]`, 1 to 16383, so that cancel requests find it; 0: no peers.";
            worker_threads: usize = Some("0"), Kind::Int, Restart,
                "The most threads that serve connections; 0: one per core. Not in PgBouncer.";
            min_worker_threads: usize = Some("1"), Kind::Int, Live,
                "So many of them are in use at any time; the others when these are busy. Few busy threads need less CPU than many idle ones. Not in PgBouncer.";
            http_listen: String = Some(""), Kind::Text, Restart,
                "Address and port (`127.0.0.1:9127`, `:9127` for all addresses) of the pages `/metrics`, `/healthz`, `/readyz` and `/`, which ask for no login; empty: there are none. Not in PgBouncer.";
            metrics_max_pools: usize = Some("1000"), Kind::Int, Live,
                "So many pools have metrics of their own; the others are added up as `(others)`. Not in PgBouncer.";
            otlp_endpoint: otlp::Endpoint = Some(""), Kind::Text, Live,
                "Collector that metrics and spans are sent to by OTLP over HTTP (`http://host:4318`, or `https://` with the system's authorities); `/v1/metrics` and `/v1/traces` are put behind it. Empty: none. Not in PgBouncer.";
            otlp_headers: otlp::Headers = Some(""), Kind::Text, Live,
                "Headers of these requests, such as `authorization=Bearer%20abc,x-scope-orgid=7`: percent-encoded, with commas between. SHOW CONFIG hides the values. Not in PgBouncer.";
            otlp_interval: Duration = Some("60"), Kind::Seconds, Live,
                "Time from one export of the metrics to the next; 0: they are not exported. Not in PgBouncer.";
            otlp_traceparent: TraceSource = Some("off"), Kind::Enum(TraceSource::WORDS), Live,
                "Where clients may say to which trace a transaction belongs (W3C `traceparent`): in a comment at the beginning or the end of a text (`comment`), in `application_name`, or in `both`. A transaction whose trace is sampled makes a span, one whose trace is not makes none. Not in PgBouncer.";
            otlp_sample: Fraction = Some("0"), Kind::Fraction, Live,
                "Share of the other transactions that make spans, as traces of their own. Not in PgBouncer.";
            otlp_service_name: String = Some("pgferry"), Kind::Text, Live,
                "What telemetry calls this service (`service.name`). Not in PgBouncer.";
            otlp_resource_attributes: otlp::Attributes = Some(""), Kind::Text, Live,
                "What else it says of this process, such as `deployment.environment.name=prod`: percent-encoded, with commas between. Not in PgBouncer.";
            io_uring: bool = Some("1"), Kind::Bool01, Restart,
                "Send in batches, many sockets with one system call, where the kernel offers io_uring. Not in PgBouncer.";
        }
        Log {
            logfile: Option<PathBuf> = Some(""), Kind::Text, Live,
                "File that the log is appended to; reopened on reload. Empty: none. The standard error output is written as well, unless `-q` is given.";
            verbose: usize = Some("0"), Kind::Int, Live,
                "How much is logged, 0 to 3.";
            syslog: bool = Some("0"), Kind::Bool01, Live,
                "Write the log to syslog as well.";
            syslog_ident: String = Some("pgbouncer"), Kind::Text, Live,
                "Name under which syslog files our lines.";
            syslog_facility: Facility = Some("daemon"), Kind::Enum(Facility::WORDS), Live,
                "Facility under which syslog files our lines.";
            log_connections: bool = Some("1"), Kind::Bool01, Live,
                "Log each login and each new server connection.";
            log_disconnections: bool = Some("1"), Kind::Bool01, Live,
                "Log why each connection was closed.";
            log_pooler_errors: bool = Some("1"), Kind::Bool01, Live,
                "Log the errors that the pooler itself sends to clients.";
            log_min_duration: MillisOrNever = Some("-1"), Kind::MillisOrNever, Live,
                "Log queries that took so many milliseconds or more, with what they waited for a server and what they took on it, and without their text; at most ten lines a second. -1: none. Also per database. Not in PgBouncer.";
            log_statement_text: LogText = Some("off"), Kind::Enum(LogText::WORDS), Live,
                "What the lines of `log_min_duration` have of the query's text: nothing (`off`), the text without its constants, comments and what is over 1 kB (`normalized`), or its first 4 kB with all data in them (`full`); with a text come the rows and bytes that were returned. Spans have the same of it (`otlp_endpoint`). Not in PgBouncer.";
            track_statements: usize = Some("0"), Kind::Int, Live,
                "Count calls, errors, times, rows and bytes of so many statements, by pool and text without constants, for SHOW STATEMENTS and the status page; each worker thread keeps as many, and those that are used least make room. 0: none. Not in PgBouncer.";
            log_stats: bool = Some("1"), Kind::Bool01, Live,
                "Log one line of statistics per `stats_period`.";
            stats_period: Duration = Some("60"), Kind::Seconds, Live,
                "Period of the averages in SHOW STATS and of the statistics line.";
        }
        Listen {
            listen_addr: Vec<String> = Some(""), Kind::List, Restart,
                "Addresses or host names to listen on for TCP; `*`: all. Empty: no TCP.";
            listen_port: u16 = Some("6432"), Kind::Port, Restart,
                "Port for TCP, and the number in the name of the Unix socket.";
            unix_socket_dir: Option<PathBuf> = Some("/tmp"), Kind::Text, Restart,
                "Directory of the Unix socket, and of PostgreSQL's for databases without `host`. Empty: no Unix socket; `@name`: the abstract namespace.";
            unix_socket_mode: Mode = Some("0777"), Kind::Mode, Restart,
                "Permissions of the Unix socket, with a leading 0 for octal.";
            unix_socket_group: String = Some(""), Kind::Text, Restart,
                "Group, by name or number, of the Unix socket. Empty: the process's own.";
            listen_backlog: usize = Some("128"), Kind::Int, Restart,
                "Connections the kernel may queue before they are accepted.";
            so_reuseport: bool = Some("0"), Kind::Bool01, Restart,
                "Let several processes listen on the same port, for rolling restarts.";
        }
        Socket {
            tcp_keepalive: bool = Some("1"), Kind::Bool01, NewConnections,
                "Send TCP keepalives.";
            tcp_keepcnt: usize = Some("0"), Kind::Int, NewConnections,
                "Unanswered keepalives before a connection is lost; 0: the system's number.";
            tcp_keepidle: usize = Some("0"), Kind::Int, NewConnections,
                "Seconds of silence before the first keepalive; 0: the system's number.";
            tcp_keepintvl: usize = Some("0"), Kind::Int, NewConnections,
                "Seconds between keepalives; 0: the system's number.";
            tcp_user_timeout: Millis = Some("0"), Kind::Millis, NewConnections,
                "How long sent data may stay unacknowledged, in milliseconds; 0: the system's limit.";
            tcp_socket_buffer: usize = Some("0"), Kind::Int, NewConnections,
                "Bytes of the kernel's send and receive buffers; 0: the system's size.";
            tcp_defer_accept: usize = Some("1"), Kind::Int, Live,
                "Leave TCP connections to the kernel until their first bytes come, or for about 45 seconds; 0: accept them at once.";
            max_packet_size: usize = Some("2147483647"), Kind::Int, NewConnections,
                "Largest protocol message accepted from a client or a server, in bytes.";
        }
        Login {
            admin_users: Vec<String> = Some(""), Kind::List, Live,
                "Users who may run every console command.";
            stats_users: Vec<String> = Some(""), Kind::List, Live,
                "Users who may run the console's SHOW commands.";
            stats_users_prefix: String = Some(""), Kind::Text, Live,
                "Users whose names begin so may run the console's SHOW commands, too. Empty: nobody more. A patch of Zalando's operator has it. Not in PgBouncer.";
            auth_type: AuthType = Some("md5"), Kind::Enum(AuthType::WORDS), Live,
                "How clients prove who they are; `hba`: as `auth_hba_file` says; `ldap`: the directory of `auth_ldap_options` checks the password; `pam`: PAM does, for the service `pgbouncer` (only if pgferry was built with the feature `pam`). The last two know no `auth_file` and no `auth_user`.";
            auth_file: Option<PathBuf> = None, Kind::Text, Live,
                "File of users and their secrets, `\"user\" \"secret\"` a line.";
            auth_hba_file: Option<PathBuf> = Some(""), Kind::Text, Live,
                "Rules for `auth_type = hba`, in the form of PostgreSQL's `pg_hba.conf`; read again on reload.";
            auth_ident_file: Option<PathBuf> = None, Kind::Text, Live,
                "Maps that `map=` in `auth_hba_file` names, in the form of `pg_ident.conf`; read again on reload.";
            auth_ldap_options: ldap::Options = None, Kind::Text, Live,
                "The directory for `auth_type = ldap`, in the words of PostgreSQL's `pg_hba.conf`: `ldapserver=ldap.example.com ldapprefix=\"uid=\" ldapsuffix=\",ou=people,dc=example,dc=com\"`, or for a search `ldapbasedn`, `ldapsearchattribute` and so on. SHOW CONFIG hides `ldapbindpasswd`.";
            auth_user: Option<String> = None, Kind::Text, Live,
                "User that runs `auth_query` to look up users who are not in `auth_file`. Also per database.";
            auth_query: String = Some(WHEN_QUERY), Kind::Text, Live,
                "Query that returns user and secret for the user `$1`. Also per database.";
            auth_dbname: Option<String> = None, Kind::Text, Live,
                "Database that `auth_query` runs in; unset: the one the client asks for. Also per database.";
            scram_iterations: usize = Some("4096"), Kind::Int, Live,
                "Iterations of the SCRAM verifiers that are made from plain-text passwords.";
            client_login_timeout: Duration = Some("60"), Kind::Seconds, Live,
                "Longest time from accepting a connection to the end of the login; 0: no limit.";
            ignore_startup_parameters: Vec<String> = Some(""), Kind::List, Live,
                "Startup parameters that are accepted and dropped. Others are settings of their client in transaction and statement mode (see `pin_policy`); in session mode, or with `pin_policy = off`, they are refused.";
            application_name_add_host: bool = Some("0"), Kind::Bool01, Live,
                "Append the client's address to its `application_name` when it logs in.";
            login_notify_message: String = Some(""), Kind::Text, Live,
                "Notice sent at the end of each login. Empty: none.";
        }
        Client {
            max_client_conn: usize = Some("100"), Kind::Int, Live,
                "Most client connections, those that are logging in included.";
            max_db_client_connections: usize = Some("0"), Kind::Int, Live,
                "Most client connections per database; 0: no limit. Also per database.";
            max_user_client_connections: usize = Some("0"), Kind::Int, Live,
                "Most client connections per user; 0: no limit. Also per user.";
            client_idle_timeout: Duration = Some("0"), Kind::Seconds, Live,
                "Close a client that has no server and is silent for so long; 0: never. Also per user.";
            query_timeout: Duration = Some("0"), Kind::Seconds, Live,
                "Longest a query may run; 0: no limit. Also per user.";
            query_wait_timeout: Duration = Some("120"), Kind::Seconds, Live,
                "Longest a query may wait for a server; 0: for ever. Also per database and per user.";
            query_wait_notify: Duration = Some("5"), Kind::Seconds, Live,
                "Send a notice to a client that has waited so long for a server; 0: none.";
            cancel_wait_timeout: Duration = Some("10"), Kind::Seconds, Live,
                "Longest a cancel request may wait to be forwarded; 0: for ever.";
            idle_transaction_timeout: Duration = Some("0"), Kind::Seconds, Live,
                "Close a client that idles within a transaction for so long; 0: never. Also per user.";
            transaction_timeout: Duration = Some("0"), Kind::Seconds, Live,
                "Longest a transaction may take; 0: no limit. Also per user.";
            track_extra_parameters: Vec<String> = Some("IntervalStyle"), Kind::List, Restart,
                "Parameters kept per client besides the five that are always kept. With `pin_policy = off` this works for parameters that PostgreSQL reports; otherwise for all, and no setting needs it.";
            disable_pqexec: bool = Some("0"), Kind::Bool01, Restart,
                "Disconnect clients that use the simple query protocol, in which one message may hold several statements.";
        }
        Pool {
            pool_mode: PoolMode = Some("session"), Kind::Enum(PoolMode::WORDS), Live,
                "When a server goes back to its pool. Also per database and per user.";
            default_pool_size: usize = Some("20"), Kind::Int, Live,
                "Servers per pool, that is per database and user; 0: no limit. Also per database and per user as `pool_size`.";
            min_pool_size: usize = Some("0"), Kind::Int, Live,
                "Servers kept open in a pool that is in use. Also per database.";
            reserve_pool_size: usize = Some("0"), Kind::Int, Live,
                "Servers that may be added to a pool whose clients wait too long. Also per database and per user.";
            reserve_pool_timeout: Duration = Some("5"), Kind::Seconds, Live,
                "How long a client must have waited before the reserve is used; 0: never.";
            max_db_connections: usize = Some("0"), Kind::Int, Live,
                "Most servers per database, all users together; 0: no limit. Also per database.";
            max_user_connections: usize = Some("0"), Kind::Int, Live,
                "Most servers per user, all databases together; 0: no limit. Also per user.";
            server_round_robin: bool = Some("0"), Kind::Bool01, Live,
                "Use idle servers in turn instead of the last used first.";
            max_prepared_statements: usize = Some("200"), Kind::Int, Live,
                "Prepared statements kept on each server in transaction and statement mode; 0: statements are passed through.";
            prepare_unnamed_after: usize = Some("0"), Kind::Int, Live,
                "In transaction and statement mode: a text that clients send as an unnamed statement is prepared once on each server when it has been seen so often, so that PostgreSQL need not read it each time; 0: never. Needs `max_prepared_statements` and a `pin_policy` other than `off`. Also per database. Not in PgBouncer.";
            prepare_unnamed_texts: UnnamedTexts = Some("proven"), Kind::Enum(UnnamedTexts::WORDS), Live,
                "Which texts `prepare_unnamed_after` is for: `proven`: parameters have types or casts, and string constants no letters, so that PostgreSQL notices what a migration does to them; `all`: others as well, which may be read as before a migration for up to a minute. Not in PgBouncer.";
            autodb_idle_timeout: Duration = Some("3600"), Kind::Seconds, Live,
                "Forget a database made by `*`, and its statistics, when it was unused for so long; 0: never.";
            pool_idle_timeout: Duration = Some("0"), Kind::Seconds, Live,
                "Forget a pool that had no clients and no servers for so long; 0: never.";
            prepared_statements_memory: ByteSize = Some("256MB"), Kind::Bytes, Live,
                "Bytes that the named statements of all clients together may take: their texts, and for each text and each name some more. Not in PgBouncer.";
        }
        Server {
            server_lifetime: Duration = Some("3600"), Kind::Seconds, Live,
                "Close an unused server that is older; 0: use each once. Also per database.";
            server_idle_timeout: Duration = Some("600"), Kind::Seconds, Live,
                "Close a server that was not used for so long; 0: never.";
            server_connect_timeout: Duration = Some("15"), Kind::Seconds, Live,
                "Longest a connection to PostgreSQL and its login may take; 0: no limit.";
            server_login_retry: Duration = Some("15"), Kind::Seconds, Live,
                "Longest pause after a failed connection or login before the next try.";
            server_check_delay: Duration = Some("30"), Kind::Seconds, Live,
                "Run the check query on a server that idled longer before it is used; 0: always.";
            server_check_query: String = Some("<empty>"), Kind::Text, Live,
                "Query that proves a server alive; `<empty>`: an empty query. Empty: no check.";
            server_reset_query: String = Some("DISCARD ALL"), Kind::Text, Live,
                "Query that cleans a server on release in session mode. Empty: none.";
            pin_policy: PinPolicy = Some("auto"), Kind::Enum(PinPolicy::WORDS), Live,
                "Outside of session pooling: what a client has SET or made by SQL's PREPARE goes along to whichever server it is given, and with `auto` a client with state that can't move (temporary tables, advisory locks, cursors `WITH HOLD` and so on) keeps its server for as long as there is such state; `refuse` sends it away instead; `off` does neither, as PgBouncer. Clients that `LISTEN` share one connection of their pool, unless it is `off`. Also per database and per user. Not in PgBouncer.";
            follow_functions: bool = Some("1"), Kind::Bool01, Live,
                "With `pin_policy`: also look at a session after a call of a function whose source says that it may change settings, take advisory locks and so on, and where triggers, views, policies and the like call such functions, after each write or each query. Not in PgBouncer.";
            follow_sequences: FollowSequences = Some("auto"), Kind::Enum(FollowSequences::WORDS), Live,
                "With `pin_policy`: `currval` and `lastval` never say what another client has drawn. With `auto`, once a client of a pool has asked them for what it had drawn in an earlier transaction, it and others that draw by the same texts keep their servers; `on`: every client that draws from a sequence does; `off`: nothing is done about them, as PgBouncer. Not in PgBouncer.";
            max_pinned_servers: usize = Some("0"), Kind::Int, Live,
                "Most servers of a pool that may be kept so at a time; a client that would need one more is sent away. 0: no limit. Not in PgBouncer.";
            server_reset_query_always: bool = Some("0"), Kind::Bool01, Live,
                "Run `server_reset_query` in the other modes as well.";
            server_fast_close: bool = Some("0"), Kind::Bool01, Live,
                "In session mode, close an outdated server as soon as it is outside of a transaction, and its client with it.";
        }
        Dns {
            dns_max_ttl: Duration = Some("15"), Kind::Seconds, Live,
                "How long the addresses of a host name are used before they are looked up again.";
            dns_nxdomain_ttl: Duration = Some("15"), Kind::Seconds, Live,
                "How long a failed look-up is remembered.";
        }
        Tls {
            client_tls_sslmode: SslMode = Some("disable"), Kind::Enum(SslMode::WORDS), NewConnections,
                "TLS with clients over TCP: `disable`, `allow` and `prefer` (offered), `require`, `verify-ca` and `verify-full` (both: clients must show a certificate of `client_tls_ca_file`).";
            client_tls_key_file: Option<PathBuf> = Some(""), Kind::Text, NewConnections,
                "Our private key, in PEM. Read again on RELOAD, like the other files.";
            client_tls_cert_file: Option<PathBuf> = Some(""), Kind::Text, NewConnections,
                "Our certificate, and those between it and the authority's, in PEM.";
            client_tls_ca_file: Option<PathBuf> = Some(""), Kind::Text, NewConnections,
                "Certificates of the authorities that clients' certificates must come from, in PEM.";
            client_tls_protocols: String = Some("secure"), Kind::Text, NewConnections,
                "TLS versions: `tlsv1.2`, `tlsv1.3`, or `secure` for both. Older ones are not offered.";
            client_tls_ciphers: String = Some("default"), Kind::Text, NewConnections,
                "Ciphers of TLS 1.2 by OpenSSL's names; those with ECDHE and AES-GCM or ChaCha20 can be chosen.";
            client_tls13_ciphers: Option<String> = None, Kind::Text, NewConnections,
                "Ciphers of TLS 1.3 by their registered names.";
            client_tls_ecdhcurve: String = Some("auto"), Kind::Text, NewConnections,
                "Groups for the key exchange: `auto`, or of X25519, prime256v1, secp384r1, X25519MLKEM768.";
            server_tls_sslmode: SslMode = Some("prefer"), Kind::Enum(SslMode::WORDS), NewConnections,
                "TLS with PostgreSQL over TCP: `disable`, `allow` and `prefer` (if PostgreSQL can), `require`, `verify-ca` (its certificate must be valid), `verify-full` (and be for the host name).";
            server_tls_ca_file: Option<PathBuf> = Some(""), Kind::Text, NewConnections,
                "Certificates of the authorities that PostgreSQL's certificate must come from, in PEM; empty: those of the system.";
            server_tls_key_file: Option<PathBuf> = Some(""), Kind::Text, NewConnections,
                "Our private key towards PostgreSQL, in PEM.";
            server_tls_cert_file: Option<PathBuf> = Some(""), Kind::Text, NewConnections,
                "Our certificate towards PostgreSQL, in PEM.";
            server_tls_protocols: String = Some("secure"), Kind::Text, NewConnections,
                "TLS versions, as in `client_tls_protocols`.";
            server_tls_ciphers: String = Some("default"), Kind::Text, NewConnections,
                "Ciphers of TLS 1.2, as in `client_tls_ciphers`.";
            server_tls13_ciphers: Option<String> = None, Kind::Text, NewConnections,
                "Ciphers of TLS 1.3, as in `client_tls13_ciphers`.";
        }
    }
    known {
        Process {
            job_name = Some("pgbouncer"), Kind::Text, Restart, Support::AcceptAndWarn("it names a Windows service"),
                "Name of the Windows service; may be written `service_name`.";
        }
        Socket {
            pkt_buf = Some("4096"), Kind::Int, Restart, Support::AcceptAndWarn("buffers grow as needed"),
                "Size of a buffer.";
            sbuf_loopcnt = Some("5"), Kind::Int, Live, Support::AcceptAndWarn(ONE_THREADED),
                "Buffers read from one socket in a turn.";
        }
        Tls {
            client_tls_dheparams = Some("auto"), Kind::Text, Live,
                Support::AcceptAndWarn("no cipher here uses finite-field Diffie-Hellman"),
                "DH parameters. There are no ciphers that would use them.";
        }
        Dns {
            dns_zone_check_period = Some("0"), Kind::Seconds, Live, Support::AcceptAndWarn(OWN_RESOLVER),
                "Period of checks for changed zones.";
            resolv_conf = Some(""), Kind::Text, Restart, Support::AcceptAndWarn(OWN_RESOLVER),
                "Alternative `resolv.conf`.";
        }
    }
}

impl Settings {
    /// The value as SHOW CONFIG prints it; `None` for one that is not set, or an unknown name.
    pub fn get(&self, name: &str) -> Option<String> {
        let setting = Setting::find(name)?;
        if setting.kind == Kind::List
            && let Some(text) = self.noted.get(name)
        {
            return Some(text.clone());
        }
        if let Some((is_set, text)) = self.print_field(name) {
            // An empty file name has a default, "", and is no NULL in SHOW CONFIG.
            return (is_set || setting.default.is_some()).then_some(text);
        }
        let noted = self.noted.get(name).cloned();
        noted.or_else(|| setting.default.map(str::to_owned))
    }

    /// Has the setting another value in `other`? What it prints may be the same: a password is not printed.
    pub(crate) fn differs(&self, name: &str, other: &Self) -> bool {
        self.get(name) != other.get(name) || self.field_differs(name, other)
    }

    /// Changes a setting as the console's SET does: one that is read at start only stays as it is.
    pub fn set(&mut self, name: &str, value: &str) -> Result<Applied, Problem> {
        let setting = find(name)?;
        if setting.reload == Reload::Restart {
            // A wrong value is still an error, so that it is not found out at the next start.
            self.clone().assign(name, value)?;
            return Ok(Applied::NeedsRestart);
        }
        match self.assign(name, value)? {
            Some(reason) => Ok(Applied::NoEffect(reason)),
            None if setting.reload == Reload::NewConnections => Ok(Applied::NewConnections),
            None => Ok(Applied::Now),
        }
    }

    /// Gives a setting its value from a file, the environment or the command line.
    ///
    /// Returns why the setting has no meaning here, if it has none: the caller makes it a warning.
    pub fn assign(&mut self, name: &str, value: &str) -> Result<Option<&'static str>, Problem> {
        let setting = find(name)?;
        let supported = self
            .read_field(setting.name, value)
            .map_err(|fault| Problem::fault(setting.name, value, fault))?;
        if supported {
            if setting.kind == Kind::List {
                self.noted.insert(setting.name, value.to_owned());
            }
            return Ok(None);
        }
        let empty = value.is_empty() && setting.kind == Kind::Text;
        let normal = setting
            .kind
            .normalise(value)
            .map_err(|fault| Problem::fault(setting.name, value, fault))?;
        let is_default = setting.default.unwrap_or_default() == normal;
        let warning = match setting.support {
            Support::AcceptAndWarn(reason) => (!is_default).then_some(reason),
            Support::Full => None,
        };
        if empty && setting.default.is_none() {
            self.noted.remove(setting.name);
        } else {
            self.noted.insert(setting.name, normal);
        }
        Ok(warning)
    }

    /// Puts a setting back to its default.
    pub(crate) fn reset(&mut self, setting: &'static Setting) {
        self.copy_field(setting.name, &Self::default());
        self.noted.remove(setting.name);
    }

    /// Takes over from the running settings what only a restart can change.
    pub(crate) fn keep_restart_settings(&mut self, running: &Self) {
        for setting in TABLE
            .iter()
            .filter(|setting| setting.reload == Reload::Restart)
        {
            self.copy_field(setting.name, running);
            match running.noted.get(setting.name) {
                Some(text) => self.noted.insert(setting.name, text.clone()),
                None => self.noted.remove(setting.name),
            };
        }
    }

    /// Records the configuration file, which SHOW CONFIG prints as `conffile`, unless the file names another.
    pub(crate) fn note_conffile(&mut self, path: &Path) {
        self.conffile.get_or_insert_with(|| path.to_path_buf());
    }
}

fn find(name: &str) -> Result<&'static Setting, Problem> {
    Setting::find(name)
        .ok_or_else(|| Problem::unknown_key(name, TABLE.iter().map(|setting| setting.name)))
}

#[cfg(test)]
mod tests;
