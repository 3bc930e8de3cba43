//! Telling systemd how we are (`sd_notify(3)`): a line to the datagram socket that `NOTIFY_SOCKET` names.
//!
//! Without that variable all of this does nothing. Sockets that systemd has opened for us are [`activation`](super::activation)'s.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};
use tokio::sync::oneshot;
use tokio::time::{MissedTickBehavior, interval, timeout};

use crate::net::Workers;

/// What systemd is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State<'a> {
    /// Clients are accepted, and the configuration is read.
    Ready,
    /// The configuration is read again, since now. `Ready` follows, whatever comes of it (`Type=notify-reload`).
    Reloading,
    /// The end has begun.
    Stopping,
    /// A line for people, shown by `systemctl status`.
    Status(&'a str),
    /// All is well (`WatchdogSec=`).
    Alive,
    /// The service is this process from now on.
    MainPid(u32),
}

impl State<'_> {
    fn line(self) -> String {
        match self {
            Self::Ready => "READY=1\n".to_owned(),
            // By the time systemd knows whether this answers its own request to reload or one before that.
            Self::Reloading => format!(
                "RELOADING=1\nMONOTONIC_USEC={}\n",
                since_boot().unwrap_or_default().as_micros()
            ),
            Self::Stopping => "STOPPING=1\n".to_owned(),
            Self::Alive => "WATCHDOG=1\n".to_owned(),
            Self::MainPid(pid) => format!("MAINPID={pid}\n"),
            // A line break would begin another assignment.
            Self::Status(text) => format!("STATUS={}\n", text.replace('\n', " ")),
        }
    }
}

/// What the monotonic clock says, which every process reads alike (`clock_gettime(2)`).
fn since_boot() -> nix::Result<Duration> {
    clock_gettime(ClockId::CLOCK_MONOTONIC).map(Duration::from)
}

/// What systemd calls the service: this process, as long as no other one has taken its place.
#[derive(Debug, Clone, Default)]
pub struct Service {
    is_left: Arc<AtomicBool>,
}

impl Service {
    /// Tells systemd, if it wants to know, and if this process is the service.
    pub fn notify(&self, state: State<'_>) {
        if !self.is_left.load(Ordering::Relaxed) {
            notify(state);
        }
    }

    /// From now on the service is another process, and says how it is. This one says nothing any more: a unit hears everyone
    /// in it (`NotifyAccess=all`), and the end of this process is not the end of the service.
    pub fn leave(&self, successor: u32) {
        notify(State::MainPid(successor));
        self.is_left.store(true, Ordering::Relaxed);
    }

    /// The service is this process again.
    pub fn stay(&self) {
        self.is_left.store(false, Ordering::Relaxed);
        notify(State::MainPid(std::process::id()));
    }
}

fn notify(state: State<'_>) {
    let Some(name) = std::env::var_os("NOTIFY_SOCKET") else {
        return;
    };
    if let Err(error) = send(&name, state) {
        tracing::debug!("could not notify systemd: {error}");
    }
}

fn send(name: &OsStr, state: State<'_>) -> io::Result<()> {
    let address = match name.as_bytes() {
        [b'@', rest @ ..] => SocketAddr::from_abstract_name(rest)?,
        _ => SocketAddr::from_pathname(name)?,
    };
    let socket = UnixDatagram::unbound()?;
    socket.set_nonblocking(true)?;
    socket.send_to_addr(state.line().as_bytes(), &address)?;
    Ok(())
}

/// How often systemd is to hear that all is well (`sd_watchdog_enabled(3)`): twice in the time after which it gives us
/// up. `None`: it does not ask us.
pub fn watchdog() -> Option<Duration> {
    let read = |name| std::env::var(name).ok();
    let period = watchdog_period(read("WATCHDOG_USEC"), read("WATCHDOG_PID"));
    period.filter(|_| std::env::var_os("NOTIFY_SOCKET").is_some())
}

fn watchdog_period(limit: Option<String>, pid: Option<String>) -> Option<Duration> {
    let micros: u64 = limit?.parse().ok().filter(|micros| *micros > 0)?;
    // It may be meant for the process that has started us, or for the one we were before we went into the background.
    let is_ours = pid.is_none_or(|pid| pid.parse() == Ok(std::process::id()));
    is_ours.then(|| Duration::from_micros(micros) / 2)
}

/// Calls `tell` every `period`, but only after each worker has done something in between. Who calls this must turn, too.
/// Without a period it does nothing, for ever.
pub async fn watch(workers: &Workers, period: Option<Duration>, tell: impl Fn()) {
    let Some(period) = period else {
        return std::future::pending().await;
    };
    let mut tick = interval(period);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tick.tick().await;
        let asked: Vec<_> = (0..workers.count())
            .map(|worker| {
                let (answer, answered) = oneshot::channel();
                workers.spawn_on(worker, async move {
                    // Nobody listens any more only when the process ends.
                    let _ = answer.send(());
                });
                (worker, answered)
            })
            .collect();
        for (worker, mut answered) in asked {
            if timeout(period, &mut answered).await.is_err() {
                tracing::warn!(
                    "worker {worker} does not answer: systemd's watchdog is not told that all is well"
                );
                let _ = answered.await;
            }
        }
        tell();
    }
}

#[cfg(test)]
mod tests {
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::net::Worker;

    #[test]
    fn each_state_is_one_assignment() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let systemd = UnixDatagram::bind(&path).unwrap();
        let said = |state| {
            send(path.as_os_str(), state).unwrap();
            let mut buffer = [0; 100];
            let length = systemd.recv(&mut buffer).unwrap();
            String::from_utf8(buffer[..length].to_vec()).unwrap()
        };
        assert_eq!(said(State::Ready), "READY=1\n");
        assert_eq!(said(State::Stopping), "STOPPING=1\n");
        assert_eq!(said(State::Alive), "WATCHDOG=1\n");
        assert_eq!(
            said(State::Status("stats: 1\nX=2")),
            "STATUS=stats: 1 X=2\n"
        );
    }

    #[test]
    fn an_abstract_name_begins_with_an_at() {
        let name = format!("pgferry-test-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(name.as_bytes()).unwrap();
        let systemd = UnixDatagram::bind_addr(&address).unwrap();
        send(OsStr::new(&format!("@{name}")), State::Ready).unwrap();
        let mut buffer = [0; 100];
        assert_eq!(systemd.recv(&mut buffer).unwrap(), 8);
        assert!(send(OsStr::new("/no/such/socket"), State::Ready).is_err());
    }

    #[test]
    fn a_reload_says_when_it_began_on_the_clock_that_all_share() {
        let before = since_boot().unwrap();
        let line = State::Reloading.line();
        let micros = line
            .strip_prefix("RELOADING=1\nMONOTONIC_USEC=")
            .and_then(|rest| rest.strip_suffix('\n'));
        let said = Duration::from_micros(micros.unwrap().parse().unwrap());
        let after = since_boot().unwrap();
        assert!(said.as_micros() >= before.as_micros() && said <= after);
    }

    #[test]
    fn the_watchdog_wants_to_hear_us_twice_in_its_time_if_it_means_us() {
        let period = |limit: &str, pid: Option<u32>| {
            watchdog_period(Some(limit.to_owned()), pid.map(|pid| pid.to_string()))
        };
        let (own, half) = (std::process::id(), Some(Duration::from_secs(15)));
        assert_eq!(period("30000000", None), half);
        assert_eq!(period("30000000", Some(own)), half);
        assert_eq!(period("30000000", Some(own + 1)), None);
        assert_eq!(period("0", None), None);
        assert_eq!(period("soon", None), None);
        assert_eq!(watchdog_period(None, Some(own.to_string())), None);
    }

    #[test]
    fn the_watchdog_hears_nothing_while_a_worker_does_not_turn() {
        let main = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let pair = [Worker::new().unwrap(), Worker::new().unwrap()];
        let stop = CancellationToken::new();
        let threads = pair.clone().map(|worker| {
            let stop = stop.clone();
            std::thread::spawn(move || worker.run(stop.cancelled()))
        });
        let workers = Workers::new(pair.to_vec());
        let (told, tells) = std::sync::mpsc::channel();
        let watched = workers.clone();
        let watching = main.spawn(async move {
            let period = Some(Duration::from_millis(5));
            watch(&watched, period, || told.send(()).unwrap()).await;
        });
        let patience = Duration::from_secs(20);
        for _ in 0..3 {
            tells.recv_timeout(patience).unwrap();
        }
        // The second worker is kept busy by something that does not let go.
        let (let_go, held) = std::sync::mpsc::channel::<()>();
        let (busy, is_busy) = std::sync::mpsc::channel();
        workers.spawn_on(1, async move {
            busy.send(()).unwrap();
            let _ = held.recv();
        });
        is_busy.recv_timeout(patience).unwrap();
        // In the round that was under way it may have answered before.
        let moment = Duration::from_millis(100);
        let heard = (0..2)
            .filter(|_| tells.recv_timeout(moment).is_ok())
            .count();
        assert!(heard <= 1);
        let_go.send(()).unwrap();
        tells.recv_timeout(patience).unwrap();
        watching.abort();
        stop.cancel();
        for thread in threads {
            thread.join().unwrap();
        }
    }
}
