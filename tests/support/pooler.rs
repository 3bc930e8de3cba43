//! The pooler under test, as users run it: a process with an ini file, signals, a log and a console.
//!
//! `PGFERRY_TEST_BINARY` names another program to test in its place, such as a PgBouncer: the ini
//! dialect is the same, so the tests can be tried against the original.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{Read, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::sync::OnceLock;

use nix::sys::signal::Signal;
use nix::unistd::Uid;

use super::message::Message;
use super::ports::free_port;
use super::postgres::{ROLES, password, postgres};
use super::process::{self, Orphan, Process};
use super::wire::{Refusal, Rows, Wire};
use super::{eventually, within};

/// What the pooler is told: `[pgbouncer]`, `[databases]`, `[users]` and the auth file.
#[derive(Clone)]
pub struct Ini {
    settings: BTreeMap<String, String>,
    databases: BTreeMap<String, String>,
    users: BTreeMap<String, String>,
    peers: BTreeMap<String, String>,
    secrets: BTreeMap<String, String>,
    files: BTreeMap<String, String>,
    environment: BTreeMap<String, String>,
    options: Vec<String>,
}

impl Ini {
    /// Transaction pooling for everybody, trusted, over the PostgreSQL of this run.
    fn new(port: u16, directory: &Path) -> Self {
        let server = format!("host=127.0.0.1 port={}", postgres().port());
        let auth_file = directory.join("userlist.txt").display().to_string();
        let settings = [
            ("listen_addr", "127.0.0.1"),
            ("listen_port", &port.to_string()),
            ("unix_socket_dir", ""),
            ("auth_type", "trust"),
            ("auth_file", &auth_file),
            ("admin_users", "postgres"),
            ("pool_mode", "transaction"),
            ("max_client_conn", "500"),
        ];
        // Clients on different threads, from the start.
        let ours = (!is_pgbouncer()).then_some(("min_worker_threads", "2"));
        let own = |(key, value): (&str, &str)| (key.to_owned(), value.to_owned());
        let secrets = ROLES
            .iter()
            .map(|role| ((*role).to_owned(), password(role)));
        Self {
            settings: settings.into_iter().chain(ours).map(own).collect(),
            databases: [("*", server.as_str())].into_iter().map(own).collect(),
            users: BTreeMap::new(),
            peers: BTreeMap::new(),
            files: BTreeMap::new(),
            environment: BTreeMap::new(),
            options: Vec::new(),
            secrets: secrets
                .chain([("postgres".to_owned(), password("postgres"))])
                .collect(),
        }
    }

    /// A line of `[pgbouncer]`.
    #[allow(
        clippy::needless_pass_by_value,
        reason = "reads better with plain numbers"
    )]
    pub fn set(&mut self, key: &str, value: impl ToString) -> &mut Self {
        self.settings.insert(key.to_owned(), value.to_string());
        self
    }

    /// An option on the command line.
    pub fn option(&mut self, option: &str) -> &mut Self {
        self.options.push(option.to_owned());
        self
    }

    /// The value of a line of `[pgbouncer]`, if there is one for this key.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.settings.get(key).map(String::as_str)
    }

    /// No line of `[pgbouncer]` for this key.
    pub fn unset(&mut self, key: &str) -> &mut Self {
        self.settings.remove(key);
        self
    }

    /// A line of `[databases]`; host and port of the test's PostgreSQL are put before `rest`.
    pub fn database(&mut self, name: &str, rest: &str) -> &mut Self {
        let line = format!("host=127.0.0.1 port={} {rest}", postgres().port());
        self.target(name, &line)
    }

    /// A line of `[databases]`, as it is.
    pub fn target(&mut self, name: &str, line: &str) -> &mut Self {
        self.databases.insert(name.to_owned(), line.to_owned());
        self
    }

    /// No line of `[databases]` for this name.
    pub fn without_database(&mut self, name: &str) -> &mut Self {
        self.databases.remove(name);
        self
    }

    /// A line of `[users]`.
    pub fn user(&mut self, name: &str, rest: &str) -> &mut Self {
        self.users.insert(name.to_owned(), rest.to_owned());
        self
    }

    /// A line of `[peers]`.
    pub fn peer(&mut self, id: u16, line: &str) -> &mut Self {
        self.peers.insert(id.to_string(), line.to_owned());
        self
    }

    /// No line of `[peers]` for this number.
    pub fn without_peer(&mut self, id: &str) -> &mut Self {
        self.peers.remove(id);
        self
    }

    /// A line of the auth file.
    pub fn secret(&mut self, user: &str, secret: &str) -> &mut Self {
        self.secrets.insert(user.to_owned(), secret.to_owned());
        self
    }

    /// No line of the auth file for this user.
    pub fn no_secret(&mut self, user: &str) -> &mut Self {
        self.secrets.remove(user);
        self
    }

    /// A file beside the ini; the settings name it as it is, for the pooler runs there.
    pub fn file(&mut self, name: &str, text: &str) -> &mut Self {
        self.files.insert(name.to_owned(), text.to_owned());
        self
    }

    /// A variable of the environment that the pooler starts in.
    pub fn variable(&mut self, name: &str, value: &Path) -> &mut Self {
        let value = value.to_str().unwrap().to_owned();
        self.environment.insert(name.to_owned(), value);
        self
    }

    fn text(&self) -> String {
        let mut text = String::new();
        let sections = [
            ("pgbouncer", &self.settings),
            ("databases", &self.databases),
            ("users", &self.users),
            ("peers", &self.peers),
        ];
        for (name, lines) in sections {
            writeln!(text, "[{name}]").unwrap();
            for (key, value) in lines {
                writeln!(text, "{key} = {value}").unwrap();
            }
        }
        text
    }

    fn userlist(&self) -> String {
        self.secrets
            .iter()
            .fold(String::new(), |mut text, (user, secret)| {
                writeln!(text, "\"{user}\" \"{}\"", secret.replace('"', "\"\"")).unwrap();
                text
            })
    }
}

/// A running pooler.
pub struct Pooler {
    pub ini: Ini,
    port: u16,
    directory: PathBuf,
    /// The processes that UPGRADE has started. (They go before the directory does.)
    started: Vec<Orphan>,
    process: Process,
    /// Processes whose place another one has taken. Kept, for their directory goes with them.
    before: Vec<Process>,
}

impl Pooler {
    /// Starts the pooler with the settings that `change` makes, and waits until it accepts.
    pub fn start(change: impl FnOnce(&mut Ini)) -> Self {
        Self::launch(change).accepting()
    }

    fn accepting(mut self) -> Self {
        let address = self.address();
        eventually("the pooler accepts connections", || {
            assert!(
                self.process.ended().is_none(),
                "the pooler ended:\n{}",
                self.log()
            );
            TcpStream::connect(address).ok()
        });
        self
    }

    /// Starts the pooler with these arguments, which have to make it listen on this port, in a directory that
    /// has what it needs, and waits until it accepts.
    pub fn start_in(directory: PathBuf, port: u16, arguments: &[&str]) -> Self {
        let log = directory.join("pooler.log");
        let process = Process::start(arguments, &directory, &log, Signal::SIGKILL);
        let pooler = Self {
            ini: Ini::new(port, &directory),
            port,
            directory,
            started: Vec::new(),
            process,
            before: Vec::new(),
        };
        pooler.accepting()
    }

    /// Starts the pooler without waiting for anything.
    pub fn launch(change: impl FnOnce(&mut Ini)) -> Self {
        let directory = process::directory();
        let port = free_port();
        let mut ini = Ini::new(port, &directory);
        change(&mut ini);
        write(&directory, &ini);
        let process = run(&ini, &directory, &[], "pooler.log");
        Self {
            ini,
            port,
            directory,
            started: Vec::new(),
            process,
            before: Vec::new(),
        }
    }

    /// Starts another process with `-R`, which is to take this one's place, and waits for nothing.
    pub fn succeed(&mut self) {
        let log = format!("pooler-{}.log", self.before.len() + 1);
        let process = run(&self.ini, &self.directory, &["-R"], &log);
        self.before
            .push(std::mem::replace(&mut self.process, process));
    }

    /// The same, and waits until the process before has ended. Nothing is asked of the pooler meanwhile.
    pub fn take_over(&mut self) {
        self.succeed();
        let last = self.before.last_mut().unwrap();
        let status = within(super::PATIENCE, "the process before ends", || last.ended());
        assert!(status.success(), "it ended with {status}");
    }

    /// UPGRADE: a process in the place of this one, which has ended when this returns.
    pub fn upgrade(&mut self) {
        let before = self.pid();
        self.console("UPGRADE");
        let pid = eventually("there is another process", || {
            let written = std::fs::read_to_string(self.directory.join("pooler.pid")).ok()?;
            written.trim().parse().ok().filter(|pid| *pid != before)
        });
        let last = self.started.len();
        self.started.push(Orphan::adopt(pid, &self.directory));
        eventually("the process before ends", || {
            let has_ended = match last.checked_sub(1).map(|at| &self.started[at]) {
                Some(before) => !before.runs(),
                None => self.process.ended().is_some_and(|status| status.success()),
            };
            has_ended.then_some(())
        });
    }

    /// The successor has failed: the process before it is the pooler again. Comes back with the exit status.
    pub fn give_up(&mut self) -> ExitStatus {
        let status = self.wait();
        let before = self.before.pop().unwrap();
        // (In this order: its directory is the same.)
        let failed = std::mem::replace(&mut self.process, before);
        std::mem::forget(failed);
        status
    }

    /// The running process.
    pub fn pid(&self) -> u32 {
        let started = self.started.last().map(Orphan::pid);
        started.unwrap_or_else(|| self.process.pid())
    }

    /// Has the process whose place was taken last ended?
    pub fn has_left(&mut self) -> bool {
        self.before.last_mut().is_none_or(|it| it.ended().is_some())
    }

    pub fn address(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.port))
    }

    /// Where its files are.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Its Unix socket, if `unix_socket_dir` is its own directory, `.`.
    pub fn socket(&self) -> PathBuf {
        self.directory.join(format!(".s.PGSQL.{}", self.port))
    }

    /// What a driver connects to, as the user `app`.
    pub fn url(&self, database: &str) -> String {
        format!(
            "postgres://app@127.0.0.1:{}/{database}?sslmode=disable",
            self.port
        )
    }

    /// A client of the user `app`.
    pub fn connect(&self, database: &str) -> Wire {
        self.login("app", database, None)
            .unwrap_or_else(|refusal| panic!("login: {refusal:?}"))
    }

    pub fn login(
        &self,
        user: &str,
        database: &str,
        password: Option<&str>,
    ) -> Result<Wire, Refusal> {
        Wire::login(self.address(), user, database, password)
    }

    /// A client of the user `app` that asks for more in its start-up message.
    pub fn connect_with(&self, database: &str, more: &[(&str, &str)]) -> Wire {
        let parameters = [&[("user", "app"), ("database", database)], more].concat();
        Wire::login_with(self.address(), &parameters, None)
            .unwrap_or_else(|refusal| panic!("{more:?}: {}", refusal.text()))
    }

    /// What is answered to this on its Unix socket until it closes.
    pub fn by_socket(&self, bytes: &[u8]) -> Vec<Message> {
        let mut stream = eventually("its socket listens", || {
            UnixStream::connect(self.socket()).ok()
        });
        stream.write_all(bytes).unwrap();
        let mut all = Vec::new();
        stream.read_to_end(&mut all).unwrap();
        let mut messages = Vec::new();
        while let [tag, a, b, c, d, ..] = all[..] {
            let length = usize::try_from(u32::from_be_bytes([a, b, c, d])).unwrap();
            let body = all[5..=length].to_vec();
            messages.push(Message { tag, body });
            all.drain(..=length);
        }
        messages
    }

    /// "in" if PostgreSQL then knows the client by this name, or the error that the client was told.
    pub fn outcome(&self, user: &str, secret: &str) -> String {
        match self.login(user, "postgres", Some(secret)) {
            Ok(mut client) => {
                assert_eq!(client.value("SELECT current_user"), user);
                "in".to_owned()
            }
            Err(refusal) => refusal.text(),
        }
    }

    /// An administrator on the console, who is trusted.
    pub fn open_console(&self) -> Wire {
        self.login("postgres", "pgbouncer", None)
            .unwrap_or_else(|refusal| panic!("console: {refusal:?}"))
    }

    /// A console command that must succeed.
    pub fn console(&self, command: &str) -> Rows {
        let console = self.login("postgres", "pgbouncer", Some(&password("postgres")));
        console
            .unwrap_or_else(|refusal| panic!("console: {refusal:?}"))
            .rows(command)
    }

    /// What SHOW STATS says in this column of the database.
    pub fn stat(&self, database: &str, column: &str) -> u64 {
        let stats = self.console("SHOW STATS");
        let row = stats.find("database", database).unwrap();
        stats.get(row, column).parse().unwrap()
    }

    /// The row of SHOW POOLS of this database and user.
    pub fn pool(&self, database: &str, user: &str) -> PoolRow {
        let rows = self.console("SHOW POOLS");
        let row = (0..rows.rows.len())
            .find(|row| rows.get(*row, "database") == database && rows.get(*row, "user") == user);
        PoolRow { rows, row }
    }

    /// How many servers this pool has, in whatever state.
    pub fn servers(&self, database: &str, user: &str) -> u64 {
        let pool = self.pool(database, user);
        ["sv_active", "sv_idle", "sv_used", "sv_tested", "sv_login"]
            .map(|column| pool.get(column))
            .iter()
            .sum()
    }

    /// Waits until `value` is what SHOW POOLS says in this column, and fails if it never does.
    pub fn wait_for_pool(&self, database: &str, user: &str, column: &str, value: u64) {
        eventually(&format!("{column} of {database}/{user} is {value}"), || {
            (self.pool(database, user).get(column) == value).then_some(())
        });
    }

    /// Writes the changed settings and asks the console to reload; the rows tell nothing, an error
    /// fails the test.
    pub fn reconfigure(&mut self, change: impl FnOnce(&mut Ini)) {
        change(&mut self.ini);
        write(&self.directory, &self.ini);
        self.console("RELOAD");
    }

    /// Writes the changed settings, for a later SIGHUP.
    pub fn rewrite(&mut self, change: impl FnOnce(&mut Ini)) {
        change(&mut self.ini);
        write(&self.directory, &self.ini);
    }

    /// SIGHUP.
    pub fn reload(&self) {
        self.signal(Signal::SIGHUP);
    }

    pub fn signal(&self, signal: Signal) {
        self.process.signal(signal);
    }

    /// Waits for the process to end by itself.
    pub fn wait(&mut self) -> ExitStatus {
        let process = &mut self.process;
        within(super::PATIENCE, "the pooler ends", || process.ended())
    }

    /// Whether the process is still there.
    pub fn running(&mut self) -> bool {
        self.process.ended().is_none()
    }

    /// Of the process that runs.
    pub fn log(&self) -> String {
        let name = match self.before.len() {
            0 => "pooler.log".to_owned(),
            number => format!("pooler-{number}.log"),
        };
        std::fs::read_to_string(self.directory.join(name)).unwrap_or_default()
    }

    /// Of the process whose place was taken last.
    pub fn log_before(&self) -> String {
        let name = match self.before.len() {
            0 | 1 => "pooler.log".to_owned(),
            number => format!("pooler-{}.log", number - 1),
        };
        std::fs::read_to_string(self.directory.join(name)).unwrap_or_default()
    }

    /// The largest resident memory so far, in KiB.
    pub fn peak_memory(&self) -> u64 {
        let status =
            std::fs::read_to_string(format!("/proc/{}/status", self.process.pid())).unwrap();
        let line = status
            .lines()
            .find(|line| line.starts_with("VmHWM:"))
            .unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    }
}

impl Drop for Pooler {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = self.log();
            let lines: Vec<&str> = log.lines().collect();
            eprintln!(
                "--- end of the pooler's log ---\n{}",
                lines[lines.len().saturating_sub(30)..].join("\n")
            );
        }
    }
}

/// A row of SHOW POOLS; a pool that is not there has zeros.
pub struct PoolRow {
    rows: Rows,
    row: Option<usize>,
}

impl PoolRow {
    pub fn get(&self, column: &str) -> u64 {
        self.row
            .map_or(0, |row| self.rows.get(row, column).parse().unwrap())
    }
}

/// Starts the program with these options and the configuration.
fn run(ini: &Ini, directory: &Path, options: &[&str], log: &str) -> Process {
    // `env` turns into the program, so its pid is the program's.
    let mut arguments = vec!["env".to_owned()];
    let variables = ini.environment.iter();
    arguments.extend(variables.map(|(name, value)| format!("{name}={value}")));
    arguments.push(binary().to_str().unwrap().to_owned());
    arguments.extend(ini.options.iter().cloned());
    arguments.extend(options.iter().map(|&option| option.to_owned()));
    arguments.push(directory.join("pooler.ini").to_str().unwrap().to_owned());
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    Process::start(&arguments, directory, &directory.join(log), Signal::SIGKILL)
}

fn write(directory: &Path, ini: &Ini) {
    let own = [("userlist.txt", ini.userlist()), ("pooler.ini", ini.text())];
    let own = own.iter().map(|(name, text)| (*name, text));
    let others = ini.files.iter().map(|(name, text)| (name.as_str(), text));
    for (name, text) in own.chain(others) {
        let path = directory.join(name);
        std::fs::write(&path, text).unwrap();
        process::hand_over(&path);
    }
}

/// Runs the program with this option and the configuration, to its end: success, and what it said.
pub fn run_once(option: &str, change: impl FnOnce(&mut Ini)) -> (bool, String) {
    let directory = process::directory();
    let mut ini = Ini::new(free_port(), &directory);
    change(&mut ini);
    write(&directory, &ini);
    let output = process::command(binary(), &directory)
        .args([option, "pooler.ini"])
        .output()
        .unwrap();
    std::fs::remove_dir_all(&directory).unwrap();
    let text = [output.stdout, output.stderr].concat();
    (
        output.status.success(),
        String::from_utf8_lossy(&text).into_owned(),
    )
}

/// Is it a PgBouncer that is tested? Some of its answers are those of an older version, and it has no settings of ours.
pub fn is_pgbouncer() -> bool {
    let program = std::env::var_os("PGFERRY_TEST_BINARY").map(PathBuf::from);
    program.is_some_and(|path| path.ends_with("pgbouncer"))
}

/// The program to test. Where servers run under another account than ours, a copy that this account
/// can reach: the build directory may be closed to it.
pub fn binary() -> &'static Path {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| {
        let built = std::env::var_os("PGFERRY_TEST_BINARY").map_or_else(
            || PathBuf::from(env!("CARGO_BIN_EXE_pgferry")),
            PathBuf::from,
        );
        if !Uid::effective().is_root() {
            return built;
        }
        let copy = postgres().directory().join("pooler");
        std::fs::copy(&built, &copy).unwrap();
        process::hand_over(&copy);
        copy
    })
}
