//! The start, step by step in PgBouncer's order, and the main thread's life until the end.

use std::ffi::OsString;
use std::io;
use std::net::TcpListener;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{oneshot, watch};
use tokio::time::{MissedTickBehavior, interval};

use super::accept::{Acceptors, Reception};
use super::activation::{self, Passed};
use super::balance;
use super::cli::{self, Args, Exit};
use super::listen::{self, ListenOptions, Listeners};
use super::log::{self, Format, LogHandle, LogOptions};
use super::pidfile::{self, Pidfile};
use super::rarely::Rarely;
use super::reload::{Fixed, Reloader};
use super::runtime::Runtime;
use super::shutdown::Request;
use super::signals::{self, Signals};
use super::syslog::Filing;
use super::systemd::{self, Service, State};
use super::takeover::giving::{Candidates, Giver, Succession};
use super::takeover::starting::{self, Origin};
use super::takeover::taking::{self, Predecessor};
use super::{Error, privileges};
use crate::admin::advice::{Adviser, expected_descriptors};
use crate::admin::{Averages, Console, Control, Exporter, Shutdown, Upgrade, http};
use crate::client::{Context, timeouts};
use crate::config::{Config, ConfigHandle};
use crate::net::tls::Setup;
use crate::operator::{self, Outcome};
use crate::pool::{Manager, run_janitor};

/// The whole program: from the command line to the exit code.
pub fn main(argv: Vec<OsString>) -> ExitCode {
    let argv = match operator::command(argv) {
        Outcome::Ran(code) => return code,
        Outcome::Pooler(argv) => argv,
    };
    // A pooler's heap is small and scattered: with huge pages an idle process takes 8 MB instead of 2. Where the kernel
    // knows no such thing nothing is lost.
    let _ = nix::sys::prctl::set_thp_disable(true);
    let program = cli::program(&argv);
    let args = match cli::parse(argv.iter().cloned()) {
        Ok(args) => args,
        Err(exit) => return exit.print(),
    };
    let config = match load(&args) {
        Ok(Some(config)) => config,
        Ok(None) => return Exit::missing_config(&program).print(),
        Err(error) => return fatal(&error),
    };
    // Before the user is changed, who may not be able to read a key. (A reload then can't, either.)
    let tls = match Setup::load(&config) {
        Ok(tls) => tls,
        Err(error) => return fatal(&Error::from(error)),
    };
    if args.check {
        let warnings = config.warnings.iter().chain(&tls.warnings);
        warnings.for_each(|warning| eprintln!("warning: {warning}"));
        println!("configuration is valid");
        return ExitCode::SUCCESS;
    }
    let origin = Origin::of(&argv, &args);
    match run((&args, origin), config, tls) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fatal(&error),
    }
}

/// The configuration of the file, or of the environment if no file is named and it has one.
fn load(args: &Args) -> Result<Option<Config>, crate::config::Error> {
    let Some(path) = &args.config else {
        return if Config::is_in_environment() {
            Config::from_env().map(Some)
        } else {
            Ok(None)
        };
    };
    Config::load(path).map(Some)
}

/// The last line of a process that can't go on. The log may not be set up, so it goes to the standard error output as well.
fn fatal(error: &dyn std::error::Error) -> ExitCode {
    starting::give_up(&error.to_string());
    if tracing::dispatcher::has_been_set() {
        tracing::error!(fatal = true, "{error}");
    } else {
        eprintln!("FATAL {error}");
    }
    ExitCode::FAILURE
}

fn run((args, origin): (&Args, Origin), config: Config, tls: Setup) -> Result<(), Error> {
    let settings = &config.settings;
    let verbosity = u8::try_from(settings.verbose)
        .unwrap_or(u8::MAX)
        .max(args.verbose);
    let quiet = args.quiet || args.daemon;
    // The file is opened as the user we will be, so that it can be opened again.
    if let Some(user) = args.user.as_ref().or(settings.user.as_ref()) {
        privileges::switch_user(user)?;
    }
    let log = log::init(&LogOptions {
        quiet,
        file: settings.logfile.clone(),
        verbosity,
        format: Format::from_env(),
        syslog: Filing::from_settings(settings),
    })?;
    privileges::refuse_root()?;
    let warnings = config.warnings.iter().chain(&tls.warnings);
    warnings.for_each(|warning| tracing::warn!("{warning}"));
    // Before we are another process in the background.
    let passed = activation::take()?;
    let predecessor = if args.reboot { knock(&config)? } else { None };
    if predecessor.is_none() {
        if let Some(dir) = &settings.unix_socket_dir
            && passed.is_none()
        {
            listen::refuse_used_unix_socket(dir, settings.listen_port)?;
        }
        settings
            .pidfile
            .as_deref()
            .map(pidfile::check)
            .transpose()?;
    }
    if args.daemon {
        if settings.pidfile.is_none() {
            return Err(Error::DaemonNeedsPidfile);
        }
        privileges::daemonize()?;
    }
    let (soft, hard) = privileges::raise_fd_limit()?;
    tracing::info!(
        "kernel file descriptor limit: {soft} (hard: {hard}); max_client_conn: {}, max expected fd use: {}",
        settings.max_client_conn,
        expected_descriptors(&config)
    );
    signals::hold().map_err(|source| Error::Runtime { source })?;
    let opened = open(&config, passed, predecessor)?;
    serve((args, origin), (config, tls), log, opened)
}

/// Asks the process that runs for its place (`-R`).
fn knock(config: &Config) -> Result<Option<Predecessor>, Error> {
    if let Some(predecessor) = taking::of_parent() {
        return Ok(Some(predecessor?));
    }
    let settings = &config.settings;
    let Some(dir) = &settings.unix_socket_dir else {
        return Err(Error::TakeoverNeedsSocket);
    };
    let found = taking::knock(dir, settings.listen_port)?;
    if found.is_none() {
        tracing::info!("nobody to take over from, starting as usual");
    }
    Ok(found)
}

/// What listens, and whose place we take.
struct Opened {
    listeners: Listeners,
    http: Option<TcpListener>,
    predecessor: Option<Predecessor>,
    /// Not before a predecessor has removed its own.
    pidfile: Option<Pidfile>,
}

/// What has begun.
struct Begun {
    acceptors: Acceptors,
    giver: Giver,
    http: Option<TcpListener>,
    /// Told when all have come from a predecessor.
    arrived: Option<oneshot::Receiver<()>>,
}

/// What a giver needs to know of the process.
struct Ending {
    left: watch::Sender<bool>,
    origin: Origin,
    shutdown: Request,
    service: Service,
}

impl Opened {
    /// Begins to accept, once a predecessor has stopped to. Comes back with what gives all of it away again.
    fn begin(
        mut self,
        reception: &Reception,
        candidates: Candidates,
        Ending {
            left,
            origin,
            shutdown,
            service,
        }: Ending,
    ) -> Result<Begun, Error> {
        let failed = |source| Error::Runtime { source };
        let context = &reception.context;
        let mut arrived = None;
        if let Some(predecessor) = self.predecessor {
            let arrivals = predecessor.go(context)?;
            self.pidfile = make_pidfile(context);
            arrived = Some(arrivals.begin().map_err(failed)?);
            starting::let_go();
        }
        let giver = Giver {
            candidates,
            origin,
            left,
            pidfile: Mutex::new(self.pidfile),
            http: spare_pages(self.http.as_ref(), context).map_err(failed)?,
            shutdown,
            service,
        };
        let acceptors = Acceptors::start(self.listeners, reception).map_err(failed)?;
        Ok(Begun {
            acceptors,
            giver,
            http: self.http,
            arrived,
        })
    }
}

fn open(
    config: &Config,
    passed: Option<Passed>,
    mut predecessor: Option<Predecessor>,
) -> Result<Opened, Error> {
    let settings = &config.settings;
    let listeners = match (passed, &mut predecessor) {
        (_, Some(predecessor)) => predecessor.listeners(&listen_options(config))?,
        (Some(passed), None) => passed.listen(settings),
        (None, None) => Listeners::bind(&listen_options(config))?,
    };
    let given = predecessor
        .as_mut()
        .and_then(|it| it.http(&settings.http_listen));
    let http = match given {
        Some(socket) => Some(socket),
        None => listen::http(&settings.http_listen)?,
    };
    let pidfile = settings.pidfile.as_deref();
    let pidfile = pidfile.filter(|_| predecessor.is_none());
    Ok(Opened {
        listeners,
        http,
        pidfile: pidfile.map(Pidfile::create).transpose()?,
        predecessor,
    })
}

fn listen_options(config: &Config) -> ListenOptions {
    let settings = &config.settings;
    ListenOptions {
        addresses: settings.listen_addr.clone(),
        port: settings.listen_port,
        backlog: u32::try_from(settings.listen_backlog).unwrap_or(u32::MAX),
        reuseport: settings.so_reuseport,
        unix_dir: settings.unix_socket_dir.clone(),
        unix_mode: settings.unix_socket_mode.0,
        unix_group: Some(settings.unix_socket_group.clone()).filter(|group| !group.is_empty()),
    }
}

fn serve(
    (args, origin): (&Args, Origin),
    (config, tls): (Config, Setup),
    log: LogHandle,
    opened: Opened,
) -> Result<(), Error> {
    let runtime = Runtime::start(config.settings.worker_threads, config.settings.io_uring)
        .map_err(|source| Error::Runtime { source })?;
    let config = ConfigHandle::new(config);
    let before = opened.predecessor.as_ref();
    let manager = Manager::new(runtime.workers.clone(), config.clone());
    let manager = Arc::new(match before {
        Some(before) => manager.in_place_of(before.epoch(), before.prefix()),
        None => manager,
    });
    manager.parts().tls.store(tls);
    let console_version = format!("{}/bouncer", cli::COMPATIBLE_WITH);
    let context = Arc::new(Context::new(
        manager.clone(),
        config.clone(),
        console_version,
    ));
    let (shutdown, service) = (Request::default(), Service::default());
    let fixed = Fixed {
        verbose: args.verbose,
    };
    let reloader = Arc::new(Reloader::new(
        context.clone(),
        (log, fixed),
        (shutdown.clone(), service.clone()),
    ));
    let (succession, candidates) = Succession::new();
    let control = Steering {
        reloader: reloader.clone(),
        shutdown: shutdown.clone(),
        context: context.clone(),
        succession: succession.clone(),
    };
    let console = console(&manager, control);
    let averages = console.averages.clone();
    let defers = reloader.defers_accept();
    let reception = Reception::new(context.clone(), console.clone(), defers, succession);
    let (threads, advised) = (runtime.threads.clone(), console.clone());
    let mut exporter = Exporter::new(console.clone());
    runtime.run(async move {
        let failed = |source| Error::Runtime { source };
        let signals = Signals::listen().map_err(failed)?;
        let (left, pages) = watch::channel(false);
        let ending = Ending {
            left,
            origin,
            shutdown: shutdown.clone(),
            service: service.clone(),
        };
        let Begun {
            acceptors,
            giver,
            http,
            arrived,
        } = opened.begin(&reception, candidates, ending)?;
        tracing::info!(
            "process up: {}, workers: {}",
            cli::VERSION_LINE,
            manager.parts().workers.count()
        );
        service.notify(State::Ready);
        let watchdog = systemd::watch(&manager.parts().workers, systemd::watchdog(), || {
            service.notify(State::Alive);
        });
        tokio::select! {
            () = shutdown.carry_out(&acceptors, &context, &service) => {}
            () = giver.carry_out(&acceptors, &context) => {}
            () = signals.obey(&reloader, &shutdown, &manager) => {}
            () = run_janitor(manager.clone()) => {}
            () = sweep_clients(&context) => {}
            () = tick_averages(&averages, &advised, &service) => {}
            () = balance::run(&manager, &threads) => {}
            () = watchdog => {}
            () = serve_pages(http, pages, console) => {}
            () = claim_files(arrived, &acceptors) => {}
            () = Rarely::new(exporter.run()) => {}
        }
        exporter.finish().await;
        tracing::info!("server shutting down");
        Ok(())
    })
}

fn console(manager: &Arc<Manager>, control: Steering) -> Arc<Console> {
    Arc::new(Console {
        manager: manager.clone(),
        control: Arc::new(control),
        averages: Arc::default(),
        version: cli::VERSION_LINE,
    })
}

/// The pidfile, when nobody else can be told any more that there can be none.
fn make_pidfile(context: &Context) -> Option<Pidfile> {
    let path = context.config.load().settings.pidfile.clone();
    let made = path.as_deref().map(Pidfile::create).transpose();
    made.unwrap_or_else(|error| {
        tracing::error!("{error}");
        None
    })
}

/// The address of the pages, and another handle of their socket, for a process that takes our place.
fn spare_pages(
    http: Option<&TcpListener>,
    context: &Context,
) -> io::Result<Option<(String, TcpListener)>> {
    let address = context.config.load().settings.http_listen.clone();
    let socket = http.map(TcpListener::try_clone).transpose()?;
    Ok(socket.map(|socket| (address, socket)))
}

/// When the process before has ended, or failed, the files of its Unix sockets are ours to remove.
async fn claim_files(arrived: Option<oneshot::Receiver<()>>, acceptors: &Acceptors) {
    if let Some(arrived) = arrived
        && arrived.await.is_ok()
    {
        acceptors.claim_files();
    }
    std::future::pending::<()>().await;
}

/// The pages of `http_listen`, on the main thread, unless they are left to another process.
async fn serve_pages(
    socket: Option<TcpListener>,
    mut are_left: watch::Receiver<bool>,
    console: Arc<Console>,
) {
    let Some(socket) = socket else {
        return std::future::pending().await;
    };
    loop {
        // An error would mean that the process ends.
        let _ = are_left.wait_for(|left| !left).await;
        let listener = socket
            .try_clone()
            .and_then(tokio::net::TcpListener::from_std);
        let serving = async {
            match listener {
                Ok(listener) => http::serve(listener, console.clone()).await,
                Err(error) => {
                    tracing::error!("http_listen: {error}");
                    std::future::pending::<()>().await;
                }
            }
        };
        tokio::select! {
            () = serving => {}
            _ = are_left.wait_for(|&left| left) => {}
        }
    }
}

async fn sweep_clients(context: &Context) {
    let mut tick = interval(timeouts::PERIOD);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tick.tick().await;
        timeouts::sweep(context);
    }
}

/// The averages of SHOW STATS, and the statistics line and advice in the log.
async fn tick_averages(averages: &Averages, console: &Console, service: &Service) {
    let manager = &console.manager;
    let mut adviser = Adviser::default();
    loop {
        let period = manager.parts().config.load().settings.stats_period;
        tokio::time::sleep(period.max(Duration::from_secs(1))).await;
        let line = averages.tick(manager);
        service.notify(State::Status(&line));
        if manager.parts().config.load().settings.log_stats {
            tracing::info!("{line}");
        }
        adviser.log(console);
    }
}

/// What the console may do to the process.
struct Steering {
    reloader: Arc<Reloader>,
    shutdown: Request,
    context: Arc<Context>,
    succession: Succession,
}

impl Control for Steering {
    fn reload(&self) -> Result<(), String> {
        tracing::info!("RELOAD command issued");
        self.reloader.reload()
    }

    fn shutdown(&self, how: Shutdown) {
        // Before the command is answered: who comes after that is too late.
        if matches!(how, Shutdown::Drain(_)) {
            self.context.drain();
        } else {
            self.context.shut_down();
        }
        self.shutdown.send(how);
    }

    fn set(&self, key: &str, value: &str) -> Result<Option<String>, String> {
        self.reloader.set(key, value)
    }

    fn upgrade(&self) -> Result<Upgrade, String> {
        let no = if self.shutdown.is_sent() {
            "the pooler is shutting down"
        } else if self.context.is_taking_over() {
            "this process is still taking over itself"
        } else if std::process::id() == 1 {
            "process 1 can't be replaced, a container ends with it"
        } else {
            let upgrade = self.succession.want();
            return upgrade.ok_or_else(|| "a successor is on its way already".to_owned());
        };
        Err(no.to_owned())
    }

    fn is_shutting_down(&self) -> bool {
        self.shutdown.is_sent()
    }
}
