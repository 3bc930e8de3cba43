//! The process: command line, log, pidfile, identity and listening sockets, one concern a file.
//!
//! This room knows that it is a Unix process with a terminal, a user, file descriptors and a
//! neighbour that may run already. It builds everything the rooms below need ([`start`]), deals out
//! connections ([`accept`]) and brings new configurations and the end ([`reload`], [`shutdown`]).
//!
//! The order in which a start uses them, each failure being fatal: parse the command line
//! ([`cli`]), read the configuration, change the user and refuse root ([`privileges`]), take over
//! systemd's sockets ([`activation`]) or look whether our Unix socket is taken ([`listen`]), check the pidfile ([`pidfile`]), daemonise,
//! listen, write the pidfile.

mod accept;
pub mod activation;
mod balance;
pub mod cli;
mod defer;
mod drain;
pub mod listen;
pub mod log;
pub mod pidfile;
pub mod privileges;
mod rarely;
mod reload;
mod runtime;
mod shutdown;
mod signals;
mod start;
pub mod syslog;
mod systemd;
mod takeover;

pub use start::main;

use std::io;
use std::path::PathBuf;

/// Why the process cannot start, or cannot change what it was asked to change while it runs.
///
/// The texts become the `FATAL` line of a start, so those that scripts look for are
/// `PgBouncer`'s.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// `logfile` could not be opened for appending; the log goes on where it went before.
    #[error("could not open logfile '{}': {source}", path.display())]
    LogFile {
        /// The file as it was configured.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// No socket for syslog is to be had.
    #[error("could not open syslog: {source}")]
    Syslog {
        /// What the system said.
        source: io::Error,
    },
    /// A log was set up twice in one process, or the one a handle steered is gone.
    #[error("could not set up the log: {reason}")]
    LogSetup {
        /// What the log library said.
        reason: String,
    },
    /// The pidfile names a process that lives, or something that is not a pid.
    #[error("pidfile '{}' exists, another instance running?", path.display())]
    PidfileExists {
        /// The file as it was configured.
        path: PathBuf,
    },
    /// The pidfile could not be read, written or removed.
    #[error("could not open pidfile '{}': {source}", path.display())]
    Pidfile {
        /// The file as it was configured.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The user to switch to is not in the user database.
    #[error("could not find user '{name}' to switch to")]
    UnknownUser {
        /// The name that was asked for.
        name: String,
    },
    /// The system refused to make us that user.
    #[error("failed to assume identity of user '{name}': {source}")]
    SwitchUser {
        /// The name that was asked for.
        name: String,
        /// What the system said.
        source: io::Error,
    },
    /// The process would serve clients as uid 0.
    #[error("pgferry should not run as root")]
    Root,
    /// `-d` without a pidfile: nobody could find the process again.
    #[error("daemon needs pidfile configured")]
    DaemonNeedsPidfile,
    /// `-R` without a Unix socket: that is how the two processes talk.
    #[error("option -R needs unix_socket_dir")]
    TakeoverNeedsSocket,
    /// `-R`: the place of the process that runs could not be taken. That one goes on.
    #[error("could not take over: {0}")]
    Takeover(#[from] takeover::Error),
    /// Threads, sockets or signals could not be set up.
    #[error("could not start: {source}")]
    Runtime {
        /// What the system said.
        source: io::Error,
    },
    /// The settings of TLS can't be put to use.
    #[error("TLS setup failed: {source}")]
    Tls {
        /// Which one, and why.
        #[from]
        source: crate::net::tls::SetupError,
    },
    /// The process could not leave its terminal.
    #[error("failed to daemonize: {source}")]
    Daemonize {
        /// What the system said.
        source: io::Error,
    },
    /// The limit of open files could not be read.
    #[error("could not read the file descriptor limit: {source}")]
    FdLimit {
        /// What the system said.
        source: io::Error,
    },
    /// Neither a TCP address nor a Unix socket folder is configured.
    #[error("nowhere to listen on")]
    NowhereToListen,
    /// A name in `listen_addr` has no address.
    #[error("could not resolve listen_addr '{address}': {source}")]
    Unresolvable {
        /// The item of the list.
        address: String,
        /// What the resolver said.
        source: io::Error,
    },
    /// Not one address of `listen_addr` could be bound; each has had its own warning.
    #[error("failed to listen on any address in listen_addr list: {list}")]
    NoAddress {
        /// The whole list as it was configured.
        list: String,
    },
    /// The address of the pages for monitoring could not be bound.
    #[error("could not listen on http_listen '{address}': {source}")]
    Http {
        /// As it was configured.
        address: String,
        /// What the system said.
        source: io::Error,
    },
    /// What systemd has opened for us can't be listened on.
    #[error("cannot use descriptor {descriptor} passed by systemd: {source}")]
    PassedSocket {
        /// Its number.
        descriptor: usize,
        /// What is wrong with it.
        source: io::Error,
    },
    /// Somebody accepts connections on our Unix socket.
    #[error("unix socket is in use, cannot continue")]
    UnixSocketInUse,
    /// A lock file beside our Unix socket says that a `PostgreSQL` server owns the port.
    #[error("unix port {port} is in use")]
    UnixPortLocked {
        /// `listen_port`.
        port: u16,
    },
    /// The Unix socket could not be looked at, created or given its mode.
    #[error("failed to listen on unix socket '{}': {source}", path.display())]
    UnixSocket {
        /// The socket; an abstract name begins with `@`.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// `unix_socket_group` names no group.
    #[error("could not find group '{name}' for the unix socket")]
    UnknownGroup {
        /// The name that was asked for.
        name: String,
    },
}
