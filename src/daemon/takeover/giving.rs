//! The process that runs makes way for the one that takes its place, or goes on if that fails. How clients and servers go is
//! [`handover`](super::handover)'s.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::pin::pin;
use std::process::Child;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, timeout};

use super::handover::Handover;
use super::starting::Origin;
use super::{Error, Hello, Kind, Listening, Purpose, State, Word, expect, hear, read, say};
use crate::admin::{Shutdown, Upgrade};
use crate::client::Context;
use crate::daemon::accept::Acceptors;
use crate::daemon::pidfile::Pidfile;
use crate::daemon::shutdown::Request;
use crate::daemon::systemd::Service;
use crate::net::Parcels;

/// How long a successor may take for a word.
const WORD: Duration = Duration::from_secs(10);

/// How long it may take to start.
const START: Duration = Duration::from_secs(60);

/// How often it is looked whether a successor that has failed has ended.
const PERIOD: Duration = Duration::from_millis(2);

/// How long a successor that says nothing any more may take to end.
const ENDING: Duration = Duration::from_secs(3);

/// How long a takeover may still fail before an administrator who wants it is told that it has come about. Most clients are
/// over by then, and it may take as long as the longest query.
const SETTLED: Duration = Duration::from_secs(2);

/// How long an administrator may take to hear of it, before this process ends.
const ANSWER: Duration = Duration::from_secs(1);

/// Who is to take this process's place.
#[derive(Debug)]
pub enum Candidate {
    /// It has come to our Unix socket.
    Knocks(UnixStream),
    /// It is to be started.
    IsWanted(Upgrade),
}

/// By this a successor is asked for.
#[derive(Debug, Clone)]
pub struct Succession {
    candidates: UnboundedSender<Candidate>,
    is_busy: Arc<AtomicBool>,
}

impl Succession {
    /// And where they are waited for.
    pub fn new() -> (Self, Candidates) {
        let (candidates, incoming) = unbounded_channel();
        let is_busy = Arc::<AtomicBool>::default();
        let candidates = Self {
            candidates,
            is_busy: is_busy.clone(),
        };
        (candidates, Candidates { incoming, is_busy })
    }

    /// One has come.
    pub fn knock(&self, socket: UnixStream) {
        // Nobody listens any more only when the process ends.
        let _ = self.candidates.send(Candidate::Knocks(socket));
    }

    /// One is to be started. `None`: one is under way.
    pub fn want(&self) -> Option<Upgrade> {
        if self.is_busy.swap(true, Ordering::SeqCst) {
            return None;
        }
        let upgrade = Upgrade::default();
        let _ = self.candidates.send(Candidate::IsWanted(upgrade.clone()));
        Some(upgrade)
    }
}

/// Those who are to take this process's place, one after the other.
#[derive(Debug)]
pub struct Candidates {
    incoming: UnboundedReceiver<Candidate>,
    is_busy: Arc<AtomicBool>,
}

impl Candidates {
    async fn next(&mut self) -> Option<Candidate> {
        self.is_busy.store(false, Ordering::SeqCst);
        let candidate = self.incoming.recv().await;
        self.is_busy.store(true, Ordering::SeqCst);
        candidate
    }
}

/// The process as it is given away.
pub struct Giver {
    /// To whom.
    pub candidates: Candidates,
    /// How a successor is started.
    pub origin: Origin,
    /// The pidfile, which goes when the successor is to make its own.
    pub pidfile: Mutex<Option<Pidfile>>,
    /// Are the pages left to the successor?
    pub left: watch::Sender<bool>,
    /// The configured pages' address, and their socket.
    pub http: Option<(String, std::net::TcpListener)>,
    /// Ends the process if it can neither go on nor give away the rest.
    pub shutdown: Request,
    /// What systemd calls the service.
    pub service: Service,
}

impl Giver {
    /// Waits for a successor, gives everything to it, and returns when the process may exit. A successor that fails
    /// changes nothing.
    pub async fn carry_out(mut self, acceptors: &Acceptors, context: &Arc<Context>) {
        while let Some(candidate) = self.candidates.next().await {
            let given = match candidate {
                Candidate::Knocks(socket) => {
                    let unasked = Upgrade::default();
                    self.give_to((socket, WORD), &unasked, (acceptors, context))
                        .await
                }
                Candidate::IsWanted(upgrade) => {
                    self.give_to_another(&upgrade, acceptors, context).await
                }
            };
            match given {
                Ok(pid) => {
                    tracing::info!("process {pid} has taken over, exiting");
                    return;
                }
                Err(error) => tracing::error!("takeover failed: {error}; going on"),
            }
        }
        std::future::pending::<()>().await;
    }

    /// Starts a successor and gives everything to it.
    async fn give_to_another(
        &self,
        upgrade: &Upgrade,
        acceptors: &Acceptors,
        context: &Arc<Context>,
    ) -> Result<u32, Error> {
        let origin = self.origin.clone();
        let given = match blocking(move || origin.start()).await {
            Ok((child, socket)) => {
                let given = self.give_to((socket, START), upgrade, (acceptors, context));
                match given.await {
                    Ok(pid) => Ok(pid),
                    Err(error) => Err(failure(child, error).await),
                }
            }
            Err(error) => Err(error),
        };
        let told = given.as_ref().map(|_| ()).map_err(ToString::to_string);
        upgrade.end(told);
        if given.is_ok() {
            let deadline = Instant::now() + ANSWER;
            while !upgrade.is_answered() && Instant::now() < deadline {
                tokio::time::sleep(PERIOD).await;
            }
        }
        given
    }

    /// Gives everything to a successor that may take so long for its first word. Who waits for an upgrade is told when it is
    /// as good as done.
    async fn give_to(
        &self,
        (socket, patience): (UnixStream, Duration),
        upgrade: &Upgrade,
        (acceptors, context): (&Acceptors, &Arc<Context>),
    ) -> Result<u32, Error> {
        let parcels = Arc::new(Parcels::over(socket)?);
        parcels.socket().set_read_timeout(Some(patience))?;
        if let Err(error) = self.introduce(&parcels, acceptors, context).await {
            return Err(last_word(parcels).await.unwrap_or(error));
        }
        let (talking, patience) = (parcels.clone(), Some(START));
        let word: Word = blocking(move || {
            talking.socket().set_read_timeout(patience)?;
            let word = expect(&talking, Kind::Go)?;
            talking.socket().set_read_timeout(None)?;
            talking.socket().set_write_timeout(Some(START))?;
            Ok(word)
        })
        .await?;
        acceptors.leave();
        self.left.send_replace(true);
        context.manager.end_suspension();
        drop(self.pidfile.lock().take());
        self.service.leave(word.pid);
        tracing::info!("process {} takes over", word.pid);
        let mut giving = pin!(self.give_all(&parcels, acceptors, context));
        let given = match timeout(SETTLED, &mut giving).await {
            Ok(given) => given,
            Err(_) => {
                upgrade.end(Ok(()));
                giving.await
            }
        };
        if let Err(error) = given {
            // It hears of it, if it is still there.
            let _ = parcels.socket().shutdown(std::net::Shutdown::Both);
            if ends(word.pid).await {
                self.stay(word.pid, acceptors, context);
                return Err(error);
            }
            // It has the sockets and serves whom it has: there must not be two of us.
            tracing::error!("the takeover ended early: {error}; sending the rest away");
            upgrade.end(Err(error.to_string()));
            context.set_exit(None);
            if !self.shutdown.is_sent() {
                self.shutdown.send(Shutdown::Drain(None));
            }
            std::future::pending::<()>().await;
        }
        Ok(word.pid)
    }

    async fn give_all(
        &self,
        parcels: &Arc<Parcels>,
        acceptors: &Acceptors,
        context: &Arc<Context>,
    ) -> Result<(), Error> {
        // By its name each client and server finds its pool.
        let pools = context.manager.pools();
        let known = pools.iter().map(|pool| pool.name()).collect();
        let pools: Vec<_> = pools.iter().map(|pool| pool.carry()).collect();
        let (state, talking) = (state(context), parcels.clone());
        blocking(move || {
            for pool in &pools {
                say(&talking, Kind::Pool, pool, &[])?;
            }
            Ok(say(&talking, Kind::Yielded, &state, &[])?)
        })
        .await?;
        let handover = Handover::begin(parcels, known, context)?;
        handover.carry_out(acceptors, context).await
    }

    /// Says who we are and what there is.
    async fn introduce(
        &self,
        parcels: &Arc<Parcels>,
        acceptors: &Acceptors,
        context: &Arc<Context>,
    ) -> Result<(), Error> {
        let state = state(context);
        let mut listening = acceptors.listening()?;
        if let Some((address, socket)) = &self.http {
            listening.push((
                Listening {
                    purpose: Purpose::Http as i32,
                    place: address.clone(),
                    is_passed: false,
                },
                socket.try_clone()?.into(),
            ));
        }
        let (parcels, is_ending) = (parcels.clone(), context.is_shutting_down());
        let is_taking = context.is_taking_over();
        blocking(move || {
            parcels.socket().set_write_timeout(Some(WORD))?;
            say(&parcels, Kind::Hello, &Hello::new(), &[])?;
            let hello: Hello = expect(&parcels, Kind::Hello)?;
            let refusal = match hello.check() {
                Err(error) => Some(error.to_string()),
                Ok(()) if is_ending => Some("it is shutting down".to_owned()),
                Ok(()) if is_taking => Some("it is still taking over itself".to_owned()),
                Ok(()) => None,
            };
            if let Some(text) = refusal {
                let word = Word { text, pid: 0 };
                say(&parcels, Kind::Refused, &word, &[])?;
                return Err(Error::Refused(word.text));
            }
            tracing::info!("{} wants to take over", hello.version);
            say(&parcels, Kind::State, &state, &[])?;
            for (what, socket) in &listening {
                say(&parcels, Kind::Listener, what, &[socket.as_fd()])?;
            }
            Ok(say(&parcels, Kind::Ready, &Word::default(), &[])?)
        })
        .await
    }

    /// The successor has failed: everything is as before, but for those who are gone with it.
    fn stay(&self, successor: u32, acceptors: &Acceptors, context: &Context) {
        context.set_exit(None);
        context.stay();
        self.left.send_replace(false);
        for pool in context.manager.pools() {
            pool.set_leaving(false);
            pool.listener().stay();
        }
        if let Err(error) = acceptors.take_back() {
            tracing::error!("can't listen again: {error}");
        }
        let path = context.config.load().settings.pidfile.clone();
        let reclaim = |path: &Path| Pidfile::reclaim(path, successor);
        match path.as_deref().map(reclaim).transpose() {
            Ok(pidfile) => *self.pidfile.lock() = pidfile,
            Err(error) => tracing::error!("{error}"),
        }
        self.service.stay();
    }
}

fn state(context: &Context) -> State {
    let manager = &context.manager;
    State {
        now: manager.parts().registry.now(),
        prefix: manager.parts().statements.prefix().to_owned(),
        is_paused: manager.is_all_paused(),
        paused: manager.paused(),
        disabled: manager.disabled(),
    }
}

/// Why a successor gives up, if it has said so: what was to be said to it may have failed before that was heard.
async fn last_word(parcels: Arc<Parcels>) -> Option<Error> {
    let hearing = blocking(move || {
        parcels.socket().set_read_timeout(Some(PERIOD))?;
        loop {
            let parcel = hear(&parcels)?;
            if parcel.kind == Kind::Failed as u8 {
                let word: Word = read(&parcel)?;
                return Ok(Error::Failed(word.text));
            }
        }
    });
    hearing.await.ok()
}

/// What there is to be said of a successor that was started and has not taken over. It is not left running.
async fn failure(mut child: Child, error: Error) -> Error {
    let is_late = matches!(&error, Error::Io(error) if error.kind() == io::ErrorKind::WouldBlock);
    let deadline = Instant::now() + ENDING;
    while !is_late && Instant::now() < deadline {
        match child.try_wait() {
            Ok(None) => tokio::time::sleep(PERIOD).await,
            // It has said why, or it can't.
            Ok(Some(status)) if !matches!(error, Error::Failed(_)) => return Error::Ended(status),
            Ok(Some(_)) | Err(_) => return error,
        }
    }
    // An error: it is gone by now.
    let _ = child.kill();
    let _ = child.wait();
    if is_late { Error::Late } else { error }
}

/// Does the process end, or has it?
async fn ends(pid: u32) -> bool {
    let Ok(pid) = i32::try_from(pid) else {
        return true;
    };
    let path = format!("/proc/{pid}/stat");
    // What has ended and nobody has asked about yet is a zombie.
    let is_there = || {
        let stat = std::fs::read_to_string(&path).unwrap_or_default();
        let state = stat.rsplit(')').next().unwrap_or_default();
        !stat.is_empty() && !state.trim_start().starts_with('Z')
    };
    let deadline = Instant::now() + ENDING;
    while is_there() {
        if Instant::now() >= deadline {
            return false;
        }
        tokio::time::sleep(PERIOD).await;
    }
    true
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    spawn_blocking(work).await.map_err(|_| Error::Nonsense)?
}
