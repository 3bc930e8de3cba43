//! The console: the database that is none, in which administrators look and give orders.
//!
//! It asks and displays; what it shows belongs to `pool`, `stats`, `prepared` and `config`, what it orders is done by
//! `pool` and, behind [`Control`], by `daemon`. A client gets here when it is logged in and its rights are known.
//! Own state is only what no other room keeps: the averages of the last period, and how much the console itself
//! was used.
//!
//! ```text
//!   message ── conversation ── parse ──> Command ──┬── show ─────> rows
//!                  ^                               └── control ──> tag | Wait ─┐
//!                  └──────────────── serve polls it ───────────────────────────┘
//! ```

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Duration;

pub mod advice;
pub mod averages;
pub mod comparison;
mod control;
mod conversation;
mod error;
mod export;
pub mod http;
pub mod metrics;
pub mod numbers;
pub mod parse;
pub mod show;
mod status_page;
mod upgrade;
pub mod value;

pub use averages::{Averages, Period};
pub use error::Error;
pub use export::Exporter;
pub use upgrade::Upgrade;

use control::Wait;
use conversation::{Conversation, Step};

use crate::net::Connection;
use crate::net::connection::ReadError;
use crate::pool::Manager;
use crate::stats::registry::ClientGuard;
use crate::stats::{Order, Phase};

/// Longest message that is read, in bytes.
const MAX_MESSAGE: usize = 1 << 20;

/// How often a command that waits looks whether it is over.
const LOOK: Duration = Duration::from_millis(20);

/// What the console can ask of the process; `daemon` implements it.
pub trait Control: Send + Sync {
    /// Reads the configuration files again, and logs that it does. `Err` says what is wrong with them; then nothing has changed.
    fn reload(&self) -> Result<(), String>;
    /// Begins a shutdown. Returns at once, but for [`Shutdown::Now`], which need not return.
    fn shutdown(&self, mode: Shutdown);
    /// Changes a setting. `Ok` may hold something to tell the user, such as that it takes a restart; `Err`
    /// says why the setting cannot have the value.
    fn set(&self, key: &str, value: &str) -> Result<Option<String>, String>;
    /// Begins to start a successor, which is to take this process's place. `Err` says why none is started.
    fn upgrade(&self) -> Result<Upgrade, String>;
    /// Has a shutdown begun?
    fn is_shutting_down(&self) -> bool;
}

/// When the process ends (PgBouncer: "SHUTDOWN").
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shutdown {
    /// At once.
    Now,
    /// When the last server is released.
    WaitForServers,
    /// With the last client.
    WaitForClients,
    /// With the last client, each of which is sent away between transactions; after this time, or `drain_timeout`, at
    /// the latest.
    Drain(Option<Duration>),
}

impl Shutdown {
    /// The argument of the command.
    fn word(self) -> Option<&'static str> {
        match self {
            Self::Now => None,
            Self::WaitForServers => Some("WAIT_FOR_SERVERS"),
            Self::WaitForClients => Some("WAIT_FOR_CLIENTS"),
            Self::Drain(_) => Some("DRAIN"),
        }
    }
}

/// What a console user may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rights {
    /// Everything (`admin_users`).
    Admin,
    /// Look (`stats_users`).
    Stats,
}

/// The console, shared by all its clients.
pub struct Console {
    /// The pools.
    pub manager: Arc<Manager>,
    /// The process.
    pub control: Arc<dyn Control>,
    /// What SHOW VERSION answers. Monitoring takes the first `N.N.N` in it for PgBouncer's version.
    pub version: &'static str,
    /// Rates of the last period, and how much the console was used.
    pub averages: Arc<Averages>,
}

impl std::fmt::Debug for Console {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Console")
            .field("version", &self.version)
            .finish_non_exhaustive()
    }
}

/// What a client is told that KILL_CLIENT ends.
const DISCONNECT: &str = "admin forced disconnect";

/// How a console connection ends.
enum End {
    /// It closed, or what it sent makes no sense.
    Closed,
    /// `KILL_CLIENT`.
    Disconnected,
}

/// Serves a client that is logged in and has been told so (`AuthenticationOk` to ReadyForQuery), until it
/// leaves or is made to. Says why it ended, in the log's words.
pub async fn serve(
    console: &Console,
    mut connection: Connection,
    rights: Rights,
    entry: ClientGuard,
) -> &'static str {
    console.averages.count_login();
    let (canceled, suspends) = (AtomicBool::new(false), AtomicBool::new(false));
    let end = {
        let client = Client {
            console,
            rights,
            entry: &entry,
            canceled: &canceled,
            suspends: &suspends,
        };
        let mut talk = pin!(client.talk(&mut connection));
        poll_fn(|cx| {
            entry.register(cx.waker());
            let orders = entry.take_orders();
            if orders.has(Order::AdminDisconnect) {
                return Poll::Ready(End::Disconnected);
            }
            if orders.has(Order::CancelWaiting) {
                client.cancel();
            }
            talk.as_mut().poll(cx).map(|()| End::Closed)
        })
        .await
    };
    if suspends.into_inner() && console.manager.end_suspension() {
        tracing::info!("the client that gave SUSPEND is gone: resuming");
    }
    match end {
        End::Closed => "client close request",
        End::Disconnected => {
            // In the middle of another message it would not be understood.
            if !connection.has_backlog() {
                let mut out = Vec::new();
                Conversation::farewell(&mut out, DISCONNECT);
                connection.stream.write_once(&out);
            }
            DISCONNECT
        }
    }
}

/// A client of the console.
#[derive(Clone, Copy)]
struct Client<'a> {
    console: &'a Console,
    rights: Rights,
    entry: &'a ClientGuard,
    /// A cancel request came while a command waited.
    canceled: &'a AtomicBool,
    /// It said SUSPEND.
    suspends: &'a AtomicBool,
}

impl Client<'_> {
    fn enter(self, phase: Phase) {
        self.entry
            .enter(phase, self.console.manager.parts().registry.now());
    }

    /// A cancel request ends a command that waits; without one it is PgBouncer's short way to RESUME.
    fn cancel(self) {
        if self.entry.phase() == Phase::Waiting {
            self.canceled.store(true, Ordering::Relaxed);
        } else if self.rights == Rights::Admin
            && (self.console.manager.is_all_paused() || self.console.manager.is_suspended())
        {
            self.console.manager.resume(None);
        }
    }

    /// Answers messages until the client leaves.
    async fn talk(self, connection: &mut Connection) {
        let mut conversation = Conversation::new(self.console, self.rights);
        loop {
            let message = match connection.read_message(MAX_MESSAGE).await {
                Ok(message) => message,
                Err(ReadError::Io(_)) => return,
                Err(ReadError::Protocol(error)) => {
                    Conversation::farewell(&mut conversation.out, &error.to_string());
                    // It may be gone; the connection ends in any case.
                    let _ = connection.send_all(&conversation.out).await;
                    return;
                }
            };
            self.entry
                .request_begins(self.console.manager.parts().registry.now());
            self.enter(Phase::Active);
            let mut step = conversation.handle(&message);
            self.suspends
                .fetch_or(conversation.gave_suspend, Ordering::Relaxed);
            while let Step::Wait(wait) = step {
                // What has been said so far does not wait with the command.
                let sent = connection
                    .send_all(&std::mem::take(&mut conversation.out))
                    .await;
                let (Ok(()), Some(result)) = (sent, self.wait(connection, &wait).await) else {
                    return;
                };
                step = conversation.finish(result);
            }
            self.enter(Phase::Idle);
            let statements = u32::try_from(conversation.statements()).unwrap_or(u32::MAX);
            self.entry
                .prepared_statements
                .store(statements, Ordering::Relaxed);
            if connection
                .send_all(&std::mem::take(&mut conversation.out))
                .await
                .is_err()
                || step == Step::Close
            {
                return;
            }
        }
    }

    /// The end of a wait; `None` if the client leaves before it.
    async fn wait(
        self,
        connection: &mut Connection,
        wait: &Wait,
    ) -> Option<Result<&'static str, Error>> {
        let manager = &self.console.manager;
        self.canceled.store(false, Ordering::Relaxed);
        self.enter(Phase::Waiting);
        loop {
            if self.canceled.swap(false, Ordering::Relaxed) {
                return Some(Err(wait.cancel(manager)));
            }
            if let Some(result) = wait.outcome(manager) {
                return Some(result);
            }
            // What comes meanwhile is kept for its turn; reading shows when the client goes.
            tokio::select! {
                () = tokio::time::sleep(LOOK) => {}
                read = connection.read_more(), if connection.kept.len() < MAX_MESSAGE => {
                    if !matches!(read, Ok(1..)) {
                        return None;
                    }
                }
            }
        }
    }
}

/// The text of `docs/console.md`.
pub fn markdown() -> String {
    use std::fmt::Write;
    let mut text = String::from(include_str!("console_head.md"));
    // Writing to a string does not fail.
    for verb in parse::VERBS {
        let _ = writeln!(
            text,
            "| `{}` | {} |",
            verb.usage.replace('|', "\\|"),
            verb.doc
        );
    }
    text.push_str("\n## SHOW\n");
    for show in show::SHOWS {
        let _ = write!(
            text,
            "\n### SHOW {}\n\n{}\n\n",
            show.name.to_ascii_uppercase(),
            show.doc
        );
        let headings = (show.headings)();
        let columns: Vec<_> = headings
            .iter()
            .map(|heading| format!("`{}` {}", heading.name, heading.kind.name()))
            .collect();
        let _ = writeln!(text, "{}", columns.join(", "));
    }
    text
}

#[cfg(test)]
mod tests;
