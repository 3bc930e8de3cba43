//! What commands do: PAUSE and its kin, SET, RELOAD, SHUTDOWN.
//!
//! Owns the rules about who may do what and when. The doing itself is `pool`'s, and `daemon`'s behind
//! [`Control`](crate::admin::Control). Commands that wait are returned as a [`Wait`], which somebody else polls.

use std::sync::atomic::Ordering;

use tokio::time::Instant;

use crate::admin::parse::{Command, VERBS};
use crate::admin::show::{SHOWS, View};
use crate::admin::value::{Cell, Heading, Type};
use crate::admin::{Console, Error, Rights, Shutdown, Upgrade};
use crate::config::databases::CONSOLE;
use crate::pool::Manager;
use crate::stats::Order;

/// What a command answers.
#[derive(Debug)]
pub enum Outcome {
    /// Rows. The tag is `SHOW`.
    Rows(Vec<Vec<Cell>>),
    /// It is done.
    Done {
        /// The command tag.
        tag: String,
        /// Something to say besides.
        notice: Option<Notice>,
    },
    /// There was nothing to do: `EmptyQueryResponse`.
    Nothing,
    /// It takes until [`Wait::outcome`] says so.
    Wait(Wait),
    /// The process ends, and the connection without an answer.
    Close,
}

/// A `NoticeResponse`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Notice {
    /// What it says.
    pub message: String,
    /// More of it.
    pub detail: Option<String>,
}

impl Notice {
    fn new(message: &str) -> Self {
        Self {
            message: message.to_owned(),
            detail: None,
        }
    }
}

/// The columns of a command's answer; `None` for one that returns no rows.
pub fn headings(command: &Command) -> Option<Vec<Heading>> {
    match command {
        Command::Show(show) => Some((show.headings)()),
        Command::ShowParameter(parameter) => Some(vec![Heading {
            name: parameter.name,
            kind: Type::Text,
        }]),
        Command::Help
        | Command::SetIgnored
        | Command::Set { .. }
        | Command::Reload
        | Command::Pause(_)
        | Command::Resume(_)
        | Command::Kill(_)
        | Command::Reconnect(_)
        | Command::WaitClose(_)
        | Command::Disable(_)
        | Command::Enable(_)
        | Command::KillClient(_)
        | Command::ResetStatements
        | Command::Suspend
        | Command::Upgrade
        | Command::Shutdown(_)
        | Command::Nothing => None,
    }
}

/// Runs a command for somebody with these rights.
pub fn run(console: &Console, rights: Rights, command: &Command) -> Result<Outcome, Error> {
    match command {
        Command::Show(show) if show.is_private && rights == Rights::Stats => {
            Err(Error::AdminNeeded)
        }
        Command::Show(show) => Ok(Outcome::Rows((show.rows)(&View::new(console, rights)))),
        Command::ShowParameter(parameter) => Ok(Outcome::Rows(vec![vec![parameter.value.into()]])),
        Command::Help => {
            let notice = Notice {
                message: "Console usage".to_owned(),
                detail: Some(help()),
            };
            Ok(Outcome::Done {
                tag: "SHOW".to_owned(),
                notice: Some(notice),
            })
        }
        Command::SetIgnored => Ok(Outcome::Done {
            tag: "SET".to_owned(),
            notice: Some(Notice::new("SET ignored")),
        }),
        Command::Nothing => Ok(Outcome::Nothing),
        command => match rights {
            Rights::Admin => change(console, command),
            Rights::Stats => Err(Error::AdminNeeded),
        },
    }
}

/// The commands that only administrators may give.
fn change(console: &Console, command: &Command) -> Result<Outcome, Error> {
    let databases = Databases { console };
    match command {
        Command::Set { key, value } => set(console, key, value),
        Command::Reload => {
            console
                .control
                .reload()
                .map_err(|reason| Error::ReloadFailed { reason })?;
            Ok(done("RELOAD"))
        }
        Command::Pause(database) => databases.pause(database.as_deref()),
        Command::Resume(database) => databases.resume(database.as_deref()),
        Command::Kill(database) => databases.kill(database.as_deref()),
        Command::Reconnect(database) => {
            issued("RECONNECT", database.as_deref());
            databases.check("reconnect", database.as_deref())?;
            console.manager.reconnect(database.as_deref());
            Ok(done("RECONNECT"))
        }
        Command::WaitClose(database) => {
            issued("WAIT_CLOSE", database.as_deref());
            databases.check("wait in", database.as_deref())?;
            databases.wait(Wait::Close {
                database: database.clone(),
            })
        }
        Command::Disable(database) => databases.disable(database.as_deref(), true),
        Command::Enable(database) => databases.disable(database.as_deref(), false),
        Command::KillClient(id) => {
            let id = client_id(id).ok_or(Error::InvalidClient)?;
            let client = console
                .manager
                .parts()
                .registry
                .client(id)
                .ok_or(Error::ClientNotFound)?;
            client.order(Order::AdminDisconnect);
            Ok(done("KILL_CLIENT"))
        }
        Command::ResetStatements => {
            console.manager.parts().registry.statements.clear();
            Ok(done("RESET"))
        }
        Command::Suspend => databases.suspend(),
        Command::Upgrade => {
            issued("UPGRADE", None);
            let upgrade = console.control.upgrade();
            let upgrade = upgrade.map_err(|reason| Error::UpgradeFailed { reason })?;
            Ok(Outcome::Wait(Wait::Upgrade(upgrade)))
        }
        Command::Shutdown(mode) => {
            issued("SHUTDOWN", mode.word());
            console.control.shutdown(*mode);
            match mode {
                Shutdown::Now => Ok(Outcome::Close),
                Shutdown::WaitForServers | Shutdown::WaitForClients | Shutdown::Drain(_) => {
                    Ok(done("SHUTDOWN"))
                }
            }
        }
        Command::Show(_)
        | Command::ShowParameter(_)
        | Command::Help
        | Command::SetIgnored
        | Command::Nothing => Ok(Outcome::Nothing),
    }
}

fn done(tag: &str) -> Outcome {
    Outcome::Done {
        tag: tag.to_owned(),
        notice: None,
    }
}

fn issued(command: &str, argument: Option<&str>) {
    if let Some(argument) = argument {
        tracing::info!("{command} '{argument}' command issued");
    } else {
        tracing::info!("{command} command issued");
    }
}

/// An id as SHOW CLIENTS shows it in `id`, or, with `0x`, in `ptr`.
fn client_id(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

fn set(console: &Console, key: &str, value: &str) -> Result<Outcome, Error> {
    // Names of settings are in lower case; the tag repeats what was written.
    let set = console.control.set(&key.to_ascii_lowercase(), value);
    let message = set.map_err(|reason| Error::SetFailed { reason })?;
    Ok(Outcome::Done {
        tag: format!("SET {key}={value}"),
        notice: message.as_deref().map(Notice::new),
    })
}

/// The DETAIL of SHOW HELP.
fn help() -> String {
    use std::fmt::Write;
    let mut text = String::from("\n\tSHOW HELP");
    for (at, show) in SHOWS.iter().enumerate() {
        // A handful a line.
        let between = if at % 6 == 5 { "\n\tSHOW " } else { "|" };
        // Writing to a string does not fail.
        let _ = write!(text, "{between}{}", show.name.to_ascii_uppercase());
    }
    text.push_str("\n\tSET key = value");
    for verb in VERBS {
        let _ = write!(text, "\n\t{}", verb.usage);
    }
    text
}

/// The commands about databases.
struct Databases<'a> {
    console: &'a Console,
}

impl Databases<'_> {
    fn manager(&self) -> &Manager {
        &self.console.manager
    }

    fn exists(&self, name: &str) -> bool {
        self.manager()
            .parts()
            .config
            .load()
            .database(name)
            .is_some()
    }

    /// Is there such a database, and is it not the console?
    fn check(&self, verb: &'static str, database: Option<&str>) -> Result<(), Error> {
        let Some(name) = database else { return Ok(()) };
        if self.manager().parts().config.load().is_console(name) {
            return Err(Error::ConsoleDatabase {
                verb,
                name: name.to_owned(),
            });
        }
        if !self.exists(name) {
            return Err(Error::NoSuchDatabase {
                name: name.to_owned(),
            });
        }
        Ok(())
    }

    /// Waits only if it must.
    fn wait(&self, wait: Wait) -> Result<Outcome, Error> {
        match wait.outcome(self.manager()) {
            Some(result) => result.map(done),
            None => Ok(Outcome::Wait(wait)),
        }
    }

    fn pause(&self, database: Option<&str>) -> Result<Outcome, Error> {
        issued("PAUSE", database);
        if self.manager().is_all_paused() || self.manager().is_suspended() {
            return Err(Error::AlreadyPaused);
        }
        self.check("pause", database)?;
        self.manager().pause(database);
        self.wait(Wait::Pause {
            database: database.map(str::to_owned),
        })
    }

    fn kill(&self, database: Option<&str>) -> Result<Outcome, Error> {
        issued("KILL", database);
        if self.manager().is_all_paused() || self.manager().is_suspended() {
            return Err(Error::AlreadyPaused);
        }
        self.check("kill", database)?;
        self.manager().kill(database);
        Ok(done("KILL"))
    }

    fn suspend(&self) -> Result<Outcome, Error> {
        let manager = self.manager();
        if manager.is_all_paused() || manager.is_suspended() {
            return Err(Error::AlreadyPaused);
        }
        if manager.paused_databases() > 0 {
            return Err(Error::PausedDatabases);
        }
        issued("SUSPEND", None);
        manager.suspend();
        let limit = manager.parts().config.load().settings.suspend_timeout;
        let deadline = (!limit.is_zero()).then(|| Instant::now() + limit);
        self.wait(Wait::Suspend { deadline })
    }

    fn resume(&self, database: Option<&str>) -> Result<Outcome, Error> {
        issued("RESUME", database);
        if database.is_none() && self.console.control.is_shutting_down() {
            return Err(Error::ShuttingDown);
        }
        // Before asking whether it exists: one that left the file while it was paused is forgotten, too.
        if self.manager().resume(database) {
            return Ok(done("RESUME"));
        }
        Err(match database {
            None => Error::NotPaused,
            Some(name) if self.exists(name) || name == CONSOLE => Error::DatabaseNotPaused {
                name: name.to_owned(),
            },
            Some(name) => Error::NoSuchDatabase {
                name: name.to_owned(),
            },
        })
    }

    fn disable(&self, database: Option<&str>, disabled: bool) -> Result<Outcome, Error> {
        let (verb, tag) = if disabled {
            ("disable", "DISABLE")
        } else {
            ("enable", "ENABLE")
        };
        let name = database.ok_or(Error::DatabaseRequired)?;
        issued(tag, database);
        self.check(verb, database)?;
        self.manager().set_disabled(name, disabled);
        Ok(done(tag))
    }
}

/// What a command waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wait {
    /// PAUSE: that no server is left (of a database).
    Pause {
        /// `None`: all.
        database: Option<String>,
    },
    /// SUSPEND: that every client is silent.
    Suspend {
        /// Then those who are not are sent away.
        deadline: Option<Instant>,
    },
    /// `WAIT_CLOSE`: that no server that must be replaced is left (of a database).
    Close {
        /// `None`: all.
        database: Option<String>,
    },
    /// UPGRADE: that a successor has taken over.
    Upgrade(Upgrade),
}

impl Wait {
    /// The command tag once it is over, and why it will never be; `None`: not yet.
    pub fn outcome(&self, manager: &Manager) -> Option<Result<&'static str, Error>> {
        match self {
            Self::Pause { database } => {
                let paused = match database {
                    Some(name) => manager.is_paused(name),
                    None => manager.is_all_paused(),
                };
                if !paused {
                    return Some(Err(Error::Resumed));
                }
                (manager.active_servers(database.as_deref()) == 0).then_some(Ok("PAUSE"))
            }
            Self::Suspend { deadline } => {
                if !manager.is_suspended() {
                    return Some(Err(Error::Resumed));
                }
                let restless = manager.restless_clients();
                if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                    for client in &restless {
                        client.order(Order::SuspendTimeout);
                    }
                }
                restless.is_empty().then_some(Ok("SUSPEND"))
            }
            Self::Close { database } => {
                let of_ours = |name: &str| database.as_deref().is_none_or(|wanted| wanted == name);
                let left = manager.parts().registry.servers().iter().any(|server| {
                    of_ours(&server.database) && server.close_needed.load(Ordering::Relaxed)
                });
                (!left).then_some(Ok("WAIT_CLOSE"))
            }
            Self::Upgrade(upgrade) => match upgrade.outcome()? {
                Ok(()) => Some(Ok("UPGRADE")),
                Err(reason) => Some(Err(Error::UpgradeFailed {
                    reason: reason.clone(),
                })),
            },
        }
    }

    /// The user does not want to wait any more: what PAUSE did is undone, as in PgBouncer.
    pub fn cancel(&self, manager: &Manager) -> Error {
        match self {
            Self::Pause { database } => {
                manager.resume(database.as_deref());
            }
            Self::Suspend { .. } => {
                manager.resume(None);
            }
            // What has begun goes on.
            Self::Close { .. } | Self::Upgrade(_) => {}
        }
        Error::Canceled
    }
}

#[cfg(test)]
mod tests;
