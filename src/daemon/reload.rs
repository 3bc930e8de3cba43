//! A new configuration while we run: read, check, compare, apply. A file that can't be read in full changes nothing.

use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::watch;

use super::log::LogHandle;
use super::shutdown::Request;
use super::syslog::Filing;
use super::systemd::{Service, State};
use crate::client::Context;
use crate::config::{Applied, Change, Config, ConfigHandle};
use crate::net::tls::Setup;
use crate::pool::Manager;
use crate::stats::reloads::Outcome;

/// What the command line said that outlives a reload.
#[derive(Debug, Clone, Copy, Default)]
pub struct Fixed {
    /// `-v`, so many times.
    pub verbose: u8,
}

/// Settings that say how clients log in, and so which files are read and who is asked with TLS.
const LOGIN: [&str; 4] = [
    "auth_type",
    "auth_hba_file",
    "auth_ident_file",
    "auth_ldap_options",
];

/// What SHOW RELOADS says of these.
fn outcome(changes: &[Change]) -> Outcome {
    let (waiting, applied): (Vec<&Change>, Vec<&Change>) =
        changes.iter().partition(|change| change.needs_restart());
    let list = |changes: Vec<&Change>| {
        let words: Vec<String> = changes.into_iter().map(ToString::to_string).collect();
        words.join(", ")
    };
    let names = waiting.into_iter().map(|change| match change {
        Change::Setting { name, .. } => (*name).to_owned(),
        other => other.to_string(),
    });
    Outcome::Done {
        applied: list(applied),
        needs_restart: names.collect::<Vec<_>>().join(", "),
    }
}

/// Applies configurations.
#[derive(Debug)]
pub struct Reloader {
    context: Arc<Context>,
    config: ConfigHandle,
    manager: Arc<Manager>,
    log: LogHandle,
    fixed: Fixed,
    shutdown: Request,
    service: Service,
    defers_accept: watch::Sender<bool>,
    /// One reload at a time.
    running: Mutex<()>,
}

impl Reloader {
    /// Applies to these. What systemd is told of it depends on whether the process is to end.
    pub fn new(
        context: Arc<Context>,
        (log, fixed): (LogHandle, Fixed),
        (shutdown, service): (Request, Service),
    ) -> Self {
        let (config, manager) = (context.config.clone(), context.manager.clone());
        Self {
            defers_accept: watch::Sender::new(config.load().settings.tcp_defer_accept > 0),
            context,
            config,
            manager,
            log,
            fixed,
            shutdown,
            service,
            running: Mutex::default(),
        }
    }

    /// Reads the file again. `Err` says why nothing was changed.
    pub fn reload(&self) -> Result<(), String> {
        let _running = self.running.lock();
        self.tell(State::Reloading);
        let result = self.read_again();
        self.manager.parts().registry.reloads.note(match &result {
            Ok(changes) => outcome(changes),
            Err(error) => Outcome::Rejected(error.clone()),
        });
        // It is over, also if the file is bad.
        self.tell(State::Ready);
        result.map(|_| ())
    }

    /// Tells those who accept what `tcp_defer_accept` says, now and after each change.
    pub fn defers_accept(&self) -> watch::Receiver<bool> {
        self.defers_accept.subscribe()
    }

    /// A process that is about to end is not ready any more.
    fn tell(&self, state: State<'_>) {
        if !self.shutdown.is_sent() {
            self.service.notify(state);
        }
    }

    fn read_again(&self) -> Result<Vec<Change>, String> {
        let current = self.config.load();
        let (config, changes) = match current.reload() {
            Ok(read) => read,
            Err(error) => {
                tracing::error!("configuration not reloaded: {error}");
                return Err(error.to_string());
            }
        };
        // The files of TLS are read again even if no setting has changed: certificates are renewed in place.
        let tls = match Setup::load(&config) {
            Ok(tls) => tls,
            Err(error) => {
                let error = super::Error::from(error);
                tracing::error!("configuration not reloaded: {error}");
                return Err(error.to_string());
            }
        };
        for warning in config.warnings.iter().chain(&tls.warnings) {
            tracing::warn!("{warning}");
        }
        self.apply(config, Some(tls), &changes);
        Ok(changes)
    }

    /// The console's SET: what a line in the file would do, until the next reload.
    pub fn set(&self, key: &str, value: &str) -> Result<Option<String>, String> {
        let _running = self.running.lock();
        let mut config = (*self.config.load()).clone();
        let applied = config
            .settings
            .set(key, value)
            .map_err(|problem| problem.to_string())?;
        let is_about_login = LOGIN.contains(&key);
        if is_about_login {
            config.warnings.clear();
            config.read_rules().map_err(|error| error.to_string())?;
            for warning in &config.warnings {
                tracing::warn!("{warning}");
            }
        }
        let notice = match applied {
            Applied::Now => None,
            Applied::NewConnections => Some(format!("{key} takes effect on new connections")),
            Applied::NeedsRestart => {
                return Ok(Some(format!("{key} takes effect after a restart only")));
            }
            Applied::NoEffect(why) => Some(format!("{key} has no effect: {why}")),
        };
        let is_about_tls = key.contains("_tls") || is_about_login;
        let (tls, notice) = match is_about_tls.then(|| Setup::load(&config)) {
            None => (None, notice),
            Some(Ok(tls)) => (Some(tls), notice),
            // As PgBouncer: several settings may have to be set before they fit together.
            Some(Err(error)) if !is_about_login => {
                tracing::error!("{}", super::Error::from(error));
                let text = "TLS settings could not be applied, still using old configuration";
                (None, Some(text.to_owned()))
            }
            Some(Err(error)) => return Err(error.to_string()),
        };
        let changes = crate::config::diff::diff(&self.config.load(), &config);
        self.apply(config, tls, &changes);
        Ok(notice)
    }

    fn apply(&self, config: Config, tls: Option<Setup>, changes: &[Change]) {
        for change in changes {
            if change.needs_restart() {
                tracing::warn!("reload: {change}");
            } else {
                tracing::info!("reload: {change}");
            }
        }
        self.set_log(&config);
        self.context.forget_old_secrets(&config);
        let defers = config.settings.tcp_defer_accept > 0;
        self.defers_accept
            .send_if_modified(|last| std::mem::replace(last, defers) != defers);
        self.config.store(config);
        let handle = &self.manager.parts().tls;
        let must_reconnect = tls.is_some_and(|tls| {
            let differs = tls.servers.differs(&handle.load().servers);
            handle.store(tls);
            differs
        });
        self.manager.apply(&self.config.load(), changes);
        if must_reconnect {
            tracing::info!("reload: TLS with servers (servers reconnect)");
            self.manager.reconnect(None);
        }
    }

    /// The log goes where the configuration says; the file is opened again in any case, for logrotate.
    fn set_log(&self, config: &Config) {
        let verbosity = u8::try_from(config.settings.verbose)
            .unwrap_or(u8::MAX)
            .max(self.fixed.verbose);
        let logfile: Option<PathBuf> = config.settings.logfile.clone();
        let result = self
            .log
            .set_verbosity(verbosity)
            .and_then(|()| self.log.set_file(logfile))
            .and_then(|()| self.log.set_syslog(Filing::from_settings(&config.settings)));
        if let Err(error) = result {
            tracing::error!("{error}");
        }
    }
}
