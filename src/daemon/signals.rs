//! Signals, with PgBouncer's meanings.

use std::io;

use nix::sys::signal::{SigSet, Signal as SysSignal};
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::reload::Reloader;
use super::shutdown::Request;
use crate::admin::Shutdown;
use crate::config::ShutdownMode;
use crate::pool::Manager;

/// The signals we listen to.
pub struct Signals {
    hangup: Signal,
    terminate: Signal,
    interrupt: Signal,
    quit: Signal,
    user1: Signal,
    user2: Signal,
}

/// Signals that mean something to a pooler that runs, and would end one that does not listen yet.
fn early() -> SigSet {
    [SysSignal::SIGHUP, SysSignal::SIGUSR1, SysSignal::SIGUSR2]
        .into_iter()
        .collect()
}

/// Lets signals wait until somebody listens. To be called before the process can be found: before it accepts
/// connections, and before its pidfile is written. Threads made in between never get them.
pub fn hold() -> io::Result<()> {
    Ok(early().thread_block()?)
}

/// What SIGTERM does.
fn terminate(mode: ShutdownMode) -> Shutdown {
    match mode {
        ShutdownMode::WaitForClients => {
            tracing::info!("got SIGTERM, shutting down, waiting for all clients disconnect");
            Shutdown::WaitForClients
        }
        ShutdownMode::Drain => {
            tracing::info!("got SIGTERM, draining");
            Shutdown::Drain(None)
        }
    }
}

impl Signals {
    /// Begins to listen; from now on none of them ends the process by itself. What waited comes now.
    pub fn listen() -> io::Result<Self> {
        let signals = Self {
            hangup: signal(SignalKind::hangup())?,
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            quit: signal(SignalKind::quit())?,
            user1: signal(SignalKind::user_defined1())?,
            user2: signal(SignalKind::user_defined2())?,
        };
        early().thread_unblock()?;
        Ok(signals)
    }

    /// Acts on them for ever.
    pub async fn obey(mut self, reloader: &Reloader, shutdown: &Request, manager: &Manager) {
        loop {
            tokio::select! {
                _ = self.hangup.recv() => {
                    tracing::info!("got SIGHUP, re-reading config");
                    // What went wrong is in the log, and there is nobody else to tell.
                    let _ = reloader.reload();
                }
                _ = self.terminate.recv() => {
                    shutdown.send(terminate(manager.parts().config.load().settings.shutdown_mode));
                }
                _ = self.interrupt.recv() => {
                    tracing::info!("got SIGINT, shutting down, waiting for all servers connections to be released");
                    shutdown.send(Shutdown::WaitForServers);
                }
                _ = self.quit.recv() => {
                    tracing::info!("got SIGQUIT, fast exit");
                    shutdown.send(Shutdown::Now);
                }
                _ = self.user1.recv() => {
                    tracing::info!("got SIGUSR1, pausing all activity");
                    if !manager.is_suspended() {
                        manager.pause(None);
                    }
                }
                _ = self.user2.recv() => {
                    if shutdown.is_sent() {
                        tracing::info!("got SIGUSR2 while shutting down, ignoring");
                    } else {
                        tracing::info!("got SIGUSR2, continuing from PAUSE");
                        manager.resume(None);
                    }
                }
            }
        }
    }
}
