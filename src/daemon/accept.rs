//! Accepting, in one place: connections are dealt out to the workers in turn for their handshake.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use socket2::{SockFilter, SockRef};
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::defer;
use super::listen::{Listeners, SocketFile};
use super::rarely::Rarely;
use super::takeover::giving::Succession;
use super::takeover::{Listening, Purpose};
use crate::admin::{self, Console};
use crate::client::{self, Arrival, Context, Operator, Resident, Rights};
use crate::net::{Accepted, Connection, Listener};
use crate::pool::tcp_options;

/// How long accepting pauses when the process is out of file descriptors.
const PAUSE: Duration = Duration::from_secs(5);

/// For how long connections that have begun may still get into the queue of a socket that is to be closed.
const QUEUE_EMPTIES: Duration = Duration::from_millis(200);

/// What a connection is served with.
#[derive(Clone)]
pub struct Reception {
    /// For clients.
    pub context: Arc<Context>,
    /// For the console.
    pub console: Arc<Console>,
    /// Is `tcp_defer_accept` on?
    defers: watch::Receiver<bool>,
    /// Processes that want to take this one's place go here.
    succession: Succession,
    turn: Arc<AtomicUsize>,
}

impl Reception {
    /// Serves clients and the console with these.
    pub fn new(
        context: Arc<Context>,
        console: Arc<Console>,
        defers: watch::Receiver<bool>,
        succession: Succession,
    ) -> Self {
        Self {
            context,
            console,
            defers,
            succession,
            turn: Arc::default(),
        }
    }

    fn receive(&self, accepted: Accepted) {
        let admission = self.context.manager.admit();
        let workers = &self.context.manager.parts().workers;
        let worker = self.turn.fetch_add(1, Ordering::Relaxed) % workers.in_use();
        let (context, console) = (self.context.clone(), self.console.clone());
        let succession = self.succession.clone();
        let login = async move {
            match client::log_in(context.clone(), accepted, admission, worker).await? {
                Arrival::Client(resident) => Some(resident),
                Arrival::Successor(connection) => {
                    succeed(connection, &succession);
                    None
                }
                Arrival::Operator(operator) => {
                    Box::pin(serve_operator(&context, &console, operator)).await;
                    None
                }
            }
        };
        workers.spawn_on(worker, Resident::logging_in(Box::pin(login)));
    }
}

/// Another process wants to take this one's place.
fn succeed(connection: Connection, succession: &Succession) {
    // It waits for us to speak.
    if let Ok((socket, early)) = connection.into_descriptor()
        && early.is_empty()
    {
        succession.knock(socket.into());
    }
}

async fn serve_operator(context: &Context, console: &Console, operator: Operator) {
    let _counted = operator.admission;
    let rights = match operator.rights {
        Rights::Admin => admin::Rights::Admin,
        Rights::Stats => admin::Rights::Stats,
    };
    let reason = admin::serve(console, operator.connection, rights, operator.entry).await;
    operator.conn.closes(context, &reason);
}

/// The listening sockets at work.
pub struct Acceptors {
    reception: Reception,
    open: Mutex<Open>,
}

/// What is open.
struct Open {
    tcp: CancellationToken,
    /// Whoever comes is not let in any more, but who is in the queue is.
    drain: CancellationToken,
    /// Held by every TCP socket, and by us.
    held: Arc<()>,
    /// Held by whatever accepts, and by us.
    running: Arc<()>,
    /// Ends what accepts when dropped.
    all: Option<DropGuard>,
    /// Removed from the file system when we go.
    files: Vec<SocketFile>,
    /// Other handles of the same sockets, as long as they listen, for a process that takes our place.
    spare: Listeners,
}

impl Acceptors {
    /// Begins to accept.
    pub fn start(listeners: Listeners, reception: &Reception) -> io::Result<Self> {
        Ok(Self {
            open: Mutex::new(Open::start(listeners, reception)?),
            reception: reception.clone(),
        })
    }

    /// Closes the TCP sockets as soon as nobody is in their queues. The Unix socket stays, for the console.
    pub fn drain_tcp(&self) {
        let mut open = self.open.lock();
        open.drain.cancel();
        open.spare.tcp.clear();
    }

    /// May somebody still come by TCP?
    pub fn accept_tcp(&self) -> bool {
        Arc::strong_count(&self.open.lock().held) > 1
    }

    /// Closes the TCP sockets. The Unix socket stays, for the console.
    pub fn close_tcp(&self) {
        let mut open = self.open.lock();
        open.tcp.cancel();
        open.spare.tcp.clear();
    }

    /// What listens, for a process that takes our place.
    pub(super) fn listening(&self) -> io::Result<Vec<(Listening, OwnedFd)>> {
        let Listeners {
            tcp,
            owns_tcp,
            unix,
        } = self.open.lock().spare.try_clone()?;
        let what = |purpose: Purpose| Listening {
            purpose: purpose as i32,
            is_passed: !owns_tcp,
            ..Listening::default()
        };
        let tcp = tcp
            .into_iter()
            .map(|it| (what(Purpose::Tcp), OwnedFd::from(it)));
        let unix = unix.into_iter().map(|it| it.listener.into());
        Ok(tcp
            .chain(unix.map(|it| (what(Purpose::Unix), it)))
            .collect())
    }

    /// Accepts nobody any more: another process does. The sockets and their files stay as they are.
    pub fn leave(&self) {
        let mut open = self.open.lock();
        open.all = None;
        open.files.drain(..).for_each(SocketFile::leave);
    }

    /// Has whatever accepted ended, so that whoever got in is counted?
    pub fn has_left(&self) -> bool {
        Arc::strong_count(&self.open.lock().running) == 1
    }

    /// Accepts again after [`leave`](Self::leave).
    pub fn take_back(&self) -> io::Result<()> {
        let mut open = self.open.lock();
        let mut listeners = open.spare.try_clone()?;
        if listeners.owns_tcp {
            for socket in &mut listeners.unix {
                socket.file = SocketFile::claim(&socket.listener);
            }
        }
        *open = Open::start(listeners, &self.reception)?;
        Ok(())
    }

    /// The files of Unix sockets that another process has made and left to us are ours now.
    pub fn claim_files(&self) {
        let mut open = self.open.lock();
        if open.spare.owns_tcp && open.files.is_empty() {
            let sockets = open.spare.unix.iter();
            let files = sockets.filter_map(|it| SocketFile::claim(&it.listener));
            open.files = files.collect();
        }
    }
}

impl Open {
    fn start(listeners: Listeners, reception: &Reception) -> io::Result<Self> {
        let spare = listeners.try_clone()?;
        let all = CancellationToken::new();
        let (tcp, drain) = (all.child_token(), all.child_token());
        let (held, owned) = (Arc::new(()), listeners.owns_tcp);
        let running = Arc::new(());
        // On the first worker, which is always in use: with few of them most connections need not change threads.
        let worker = reception.context.manager.parts().workers.worker(0);
        for listener in listeners.tcp {
            let config = reception.context.config.load();
            let listener = Listener::tcp(listener, &tcp_options(&config), worker.reactor())?;
            let (reception, stop) = (reception.clone(), tcp.clone());
            let (drain, open) = (drain.clone(), (held.clone(), running.clone()));
            worker.spawn(async move {
                let follows = Rarely::new(defer::follow(&listener, reception.defers.clone()));
                tokio::select! {
                    biased;
                    // Closing it makes new connections fail at once.
                    () = Rarely::new(stop.cancelled()) => {
                        listener.close();
                        return drop(open);
                    }
                    () = Rarely::new(drain.cancelled()) => {}
                    () = follows => {}
                    () = accept_all(&listener, &reception) => {}
                }
                if owned {
                    empty(&listener, &reception).await;
                }
                listener.close();
                drop(open);
            });
        }
        let mut files = Vec::new();
        for socket in listeners.unix {
            files.extend(socket.file);
            let listener = Listener::unix(socket.listener, worker.reactor())?;
            let (reception, stop) = (reception.clone(), all.clone());
            let open = running.clone();
            worker.spawn(async move {
                tokio::select! {
                    biased;
                    () = Rarely::new(stop.cancelled()) => {}
                    () = accept_all(&listener, &reception) => {}
                }
                listener.close();
                drop(open);
            });
        }
        Ok(Self {
            tcp,
            drain,
            held,
            running,
            all: Some(all.drop_guard()),
            files,
            spare,
        })
    }
}

/// Accepts who is in the queue of a socket that is about to be closed: the kernel would reset these connections. Who knocks
/// meanwhile is not heard, and knocks again after a second, when another process that listens on the port gets it.
async fn empty(listener: &Listener, reception: &Reception) {
    if let Err(error) = SockRef::from(listener).attach_filter(&WITHOUT_SYN) {
        tracing::debug!("could not attach a filter to a listening socket: {error}");
    }
    // An error: the time is over.
    let _ = timeout(QUEUE_EMPTIES, accept_all(listener, reception)).await;
}

/// Passes everything but a SYN without an ACK: the flags are byte 13 of the header, 2 and 16 among them (RFC 9293 section
/// 3.1). The numbers in front are `bpf`'s: load a byte, mask it, skip one instruction if it is not equal, return a length.
static WITHOUT_SYN: [SockFilter; 5] = [
    SockFilter::new(0x30, 0, 0, 13),
    SockFilter::new(0x54, 0, 0, 2 | 16),
    SockFilter::new(0x15, 0, 1, 2),
    SockFilter::new(0x06, 0, 0, 0),
    SockFilter::new(0x06, 0, 0, u32::MAX),
];

/// Will it fail again until others have gone?
fn is_exhaustion(error: &io::Error) -> bool {
    let errno = error.raw_os_error().map(nix::errno::Errno::from_raw);
    matches!(
        errno,
        Some(
            nix::errno::Errno::EMFILE
                | nix::errno::Errno::ENFILE
                | nix::errno::Errno::ENOBUFS
                | nix::errno::Errno::ENOMEM
        )
    )
}

async fn accept_all(listener: &Listener, reception: &Reception) {
    let mut suspension = reception.context.manager.suspension();
    loop {
        // SUSPEND: who wants in waits in the kernel's queue. An error would mean that the process ends.
        let _ = suspension.wait_for(|suspended| !suspended).await;
        let suspended = async {
            let _ = suspension.wait_for(|&suspended| suspended).await;
        };
        tokio::select! {
            biased;
            () = Rarely::new(suspended) => {}
            () = accept_on(listener, reception) => {}
        }
    }
}

async fn accept_on(listener: &Listener, reception: &Reception) {
    let options = || tcp_options(&reception.context.config.load());
    loop {
        let accepted = listener.accept(options, |accepted| reception.receive(accepted));
        match accepted.await {
            // (Not after every round: the reactor is asked for news then, which is a system call.)
            Ok(true) => tokio::task::yield_now().await,
            Ok(false) => {}
            Err(error) if is_exhaustion(&error) => {
                tracing::error!("accept() failed: {error}");
                tokio::time::sleep(PAUSE).await;
            }
            // accept(2): the one that wanted in has left already, or its network failed.
            Err(error) => tracing::debug!("accept() failed: {error}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn who_knocks_at_a_closing_socket_is_not_heard_and_who_is_in_stays_in() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let early = TcpStream::connect(address).unwrap();
        SockRef::from(&listener)
            .attach_filter(&WITHOUT_SYN)
            .unwrap();
        let knock = || TcpStream::connect_timeout(&address, Duration::from_millis(50));
        assert_eq!(knock().unwrap_err().kind(), io::ErrorKind::TimedOut);
        let (accepted, peer) = listener.accept().unwrap();
        assert_eq!(peer, early.local_addr().unwrap());
        listener.set_nonblocking(true).unwrap();
        assert_eq!(
            listener.accept().unwrap_err().kind(),
            io::ErrorKind::WouldBlock
        );
        // What is accepted hears everything.
        drop(early);
        assert_eq!(io::Read::read(&mut &accepted, &mut [0]).unwrap(), 0);
    }
}
