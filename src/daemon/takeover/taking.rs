//! A new process takes everything from the one whose place it takes.

use std::collections::HashMap;
use std::io::{self, Write};
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

use nix::unistd::geteuid;
use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::{
    Cancel, Error, Hello, Kind, Listening, Purpose, State, Word, expect, hear, read, say, starting,
};
use crate::client::{Asked, Context, carried};
use crate::daemon::listen::{self, ListenOptions, Listeners, UnixSocket};
use crate::net::stream::peer_uid;
use crate::net::{Parcel, Parcels};
use crate::pool::listener::{CarriedListener, Hold};
use crate::pool::{CarriedPool, Elsewhere, Pool, PoolName};
use crate::protocol::startup;
use crate::server;
use crate::stats::registry::Epoch;

/// How long the process that runs may take for a word.
const WORD: Duration = Duration::from_secs(15);

/// How long the last ones may take from here to their workers.
const ARRIVING: Duration = Duration::from_secs(2);

/// The process whose place is to be taken, and what it has said of itself.
#[derive(Debug)]
pub struct Predecessor {
    parcels: Parcels,
    pid: u32,
    epoch: Epoch,
    prefix: String,
    listening: Vec<(Listening, OwnedFd)>,
}

/// Asks the process that has started this one as its successor for its place. `None`: nobody has.
pub fn of_parent() -> Option<Result<Predecessor, Error>> {
    let socket = starting::by_parent()?;
    Some(socket.map_err(Error::from).and_then(|socket| {
        check(&socket)?;
        introduce(socket)
    }))
}

/// Asks the process that listens on our Unix socket for its place. `None`: there is none.
pub fn knock(dir: &Path, port: u16) -> Result<Option<Predecessor>, Error> {
    let mut socket = match listen::connect_unix(dir, port) {
        Ok(socket) => socket,
        Err(error) => {
            return match error.kind() {
                io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => Ok(None),
                _ => Err(error.into()),
            };
        }
    };
    check(&socket)?;
    let mut packet = Vec::new();
    startup::successor(&mut packet);
    socket.write_all(&packet)?;
    introduce(socket).map(Some)
}

/// Whoever can make a socket there would get the passwords of pools, and could make clients up.
fn check(socket: &UnixStream) -> Result<(), Error> {
    let uid = peer_uid(socket).ok_or(io::ErrorKind::NotConnected);
    let uid = uid.map_err(io::Error::from)?;
    if uid == geteuid().as_raw() {
        Ok(())
    } else {
        Err(Error::Stranger { uid })
    }
}

fn introduce(socket: UnixStream) -> Result<Predecessor, Error> {
    let parcels = Parcels::over(socket)?;
    parcels.socket().set_read_timeout(Some(WORD))?;
    let hello: Hello = match expect(&parcels, Kind::Hello) {
        Ok(hello) => hello,
        Err(Error::Io(error)) if error.kind() == io::ErrorKind::WouldBlock => {
            return Err(Error::Silent);
        }
        // It hangs up, or speaks another protocol.
        Err(_) => return Err(Error::NotOurs),
    };
    say(&parcels, Kind::Hello, &Hello::new(), &[])?;
    hello.check()?;
    let state: State = expect(&parcels, Kind::State)?;
    let epoch = Epoch::taken_over(state.now);
    let mut listening = Vec::new();
    loop {
        let mut parcel = hear(&parcels)?;
        match parcel.kind {
            kind if kind == Kind::Listener as u8 => {
                let socket = parcel.descriptors.pop().ok_or(Error::Nonsense)?;
                listening.push((read(&parcel)?, socket));
            }
            kind if kind == Kind::Ready as u8 => break,
            _ => return Err(Error::Nonsense),
        }
    }
    tracing::info!("taking over from process {}: {}", hello.pid, hello.version);
    Ok(Predecessor {
        parcels,
        pid: hello.pid,
        epoch,
        prefix: state.prefix,
        listening,
    })
}

impl Predecessor {
    /// Its epoch, so that times can go along.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// What the names of its statements begin with.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    fn take(&mut self, purpose: Purpose) -> Vec<(Listening, OwnedFd)> {
        let is_meant = |it: &mut (Listening, OwnedFd)| it.0.purpose == purpose as i32;
        self.listening.extract_if(.., is_meant).collect()
    }

    /// Its listening sockets, as far as they are where this process is to listen, and new ones for the rest.
    pub fn listeners(
        &mut self,
        options: &ListenOptions,
    ) -> Result<Listeners, crate::daemon::Error> {
        let given = self.take(Purpose::Tcp);
        let is_passed = given.iter().any(|(what, _)| what.is_passed);
        let tcp = given.into_iter().map(|(_, socket)| socket.into());
        let unix = self.take(Purpose::Unix).into_iter();
        let unix = unix.map(|(_, socket)| UnixListener::from(socket));
        if is_passed {
            // By systemd: they are where its unit says.
            let unix = unix.map(|listener| UnixSocket {
                listener,
                file: None,
            });
            return Ok(Listeners {
                tcp: tcp.collect(),
                owns_tcp: false,
                unix: unix.collect(),
            });
        }
        Listeners::complete((tcp.collect(), unix.collect()), options)
    }

    /// The socket of its pages, if it is at this address.
    pub fn http(&mut self, address: &str) -> Option<TcpListener> {
        let given = self.take(Purpose::Http).into_iter();
        let mut fitting = given.filter(|(what, _)| what.place == address);
        fitting.next().map(|(_, socket)| socket.into())
    }

    /// Says that we are ready. When this returns, nobody is accepted there any more, and its pidfile is gone. From then on
    /// clients and servers come.
    pub fn go(self, context: &Arc<Context>) -> Result<Arrivals, Error> {
        let manager = &context.manager;
        let word = Word {
            text: String::new(),
            pid: std::process::id(),
        };
        say(&self.parcels, Kind::Go, &word, &[])?;
        let mut pools = HashMap::new();
        // As it is now, not when we began to start.
        let state: State = loop {
            let parcel = hear(&self.parcels)?;
            match parcel.kind {
                kind if kind == Kind::Pool as u8 => {
                    let carried: CarriedPool = read(&parcel)?;
                    if let Some(pool) = manager.take_over(&carried) {
                        pools.insert(carried.name(), pool);
                    }
                }
                kind if kind == Kind::Yielded as u8 => break read(&parcel)?,
                _ => return Err(Error::Nonsense),
            }
        };
        if state.is_paused {
            manager.pause(None);
        }
        for database in &state.paused {
            manager.pause(Some(database));
        }
        for database in &state.disabled {
            manager.set_disabled(database, true);
        }
        self.parcels.socket().set_read_timeout(None)?;
        Ok(Arrivals {
            parcels: self.parcels,
            pid: self.pid,
            pools,
            context: context.clone(),
            came: [0, 0],
            holds: Arc::default(),
            asked: Arc::default(),
            arrived: None,
        })
    }
}

/// What comes.
pub struct Arrivals {
    parcels: Parcels,
    pid: u32,
    pools: HashMap<PoolName, Arc<Pool>>,
    context: Arc<Context>,
    /// Clients and servers.
    came: [usize; 2],
    /// What is listened to for those who are still to come.
    holds: Arc<Mutex<Vec<Hold>>>,
    /// Cancel requests that are not answered.
    asked: Arc<Mutex<HashMap<u64, oneshot::Sender<()>>>>,
    /// To be told when all have come.
    arrived: Option<oneshot::Sender<()>>,
}

impl Arrivals {
    /// Takes in whoever comes, in a thread of its own. What comes back is told when all have come.
    pub fn begin(mut self) -> io::Result<oneshot::Receiver<()>> {
        let (arrived, all) = oneshot::channel();
        self.arrived = Some(arrived);
        let (before, requests) = mpsc::channel::<Asked>();
        let asked = self.asked.clone();
        let back = self.parcels.try_clone()?;
        self.context.set_before(Some(before));
        let asking = std::thread::Builder::new().name("takeover-back".to_owned());
        asking.spawn(move || {
            for (request, number) in requests.into_iter().zip(0..) {
                let Asked { pid, key, done } = request;
                asked.lock().insert(number, done);
                let cancel = Cancel { pid, key, number };
                if say(&back, Kind::Cancel, &cancel, &[]).is_err() {
                    return;
                }
            }
        })?;
        // For what is begun on workers from there.
        let runtime = tokio::runtime::Handle::current();
        let taking = std::thread::Builder::new().name("takeover-in".to_owned());
        taking.spawn(move || {
            let _entered = runtime.enter();
            let ended = self.take_all();
            self.end(&ended);
        })?;
        Ok(all)
    }

    fn take_all(&mut self) -> Result<(), Error> {
        loop {
            let parcel = hear(&self.parcels)?;
            match parcel.kind {
                kind if kind == Kind::Client as u8 => self.take_client(parcel)?,
                kind if kind == Kind::Server as u8 => self.take_server(parcel)?,
                kind if kind == Kind::Elsewhere as u8 => {
                    let it: Elsewhere = read(&parcel)?;
                    if let Some(pool) = self.pools.get(&PoolName::of(&it.database, &it.user)) {
                        pool.set_elsewhere(usize::try_from(it.servers).unwrap_or(usize::MAX));
                    }
                }
                kind if kind == Kind::Pool as u8 => self.take_pool(&read(&parcel)?),
                kind if kind == Kind::Canceled as u8 => {
                    let answer: Cancel = read(&parcel)?;
                    if let Some(done) = self.asked.lock().remove(&answer.number) {
                        // Whoever asked may be gone.
                        let _ = done.send(());
                    }
                }
                kind if kind == Kind::Listeners as u8 => self.take_listeners(read(&parcel)?),
                kind if kind == Kind::Done as u8 => return Ok(()),
                _ => return Err(Error::Nonsense),
            }
        }
    }

    fn take_client(&mut self, parcel: Parcel) -> Result<(), Error> {
        let client: carried::Carried = read(&parcel)?;
        let context = self.context.clone();
        let workers = &context.manager.parts().workers;
        let pool = self.pools.get(&client.pool());
        let home = pool.map_or(0, |pool| workers.least_loaded(pool.homes()));
        let count = workers.count_client(home);
        // Now, not on the worker: what comes next may be that there is one less elsewhere.
        let seat = pool.filter(|_| client.has_server()).map(Pool::seat);
        self.came[0] += 1;
        let context = context.clone();
        workers.spawn_on(home, async move {
            match client.arrive(&context, (parcel.descriptors, seat), count) {
                Ok(resident) => resident.await,
                Err(error) => tracing::warn!("a client was not taken over: {error}"),
            }
        });
        Ok(())
    }

    fn take_pool(&mut self, carried: &CarriedPool) {
        if let Some(pool) = self.context.manager.take_over(carried) {
            self.pools.insert(carried.name(), pool);
        }
    }

    fn take_listeners(&self, carried: CarriedListener) {
        let name = PoolName::of(&carried.database, &carried.user);
        let Some(pool) = self.pools.get(&name).cloned() else {
            return;
        };
        if carried.channels.is_empty() {
            pool.end_coming();
            return;
        }
        let (worker, holds) = (pool.homes().next().unwrap_or(0), self.holds.clone());
        let workers = &self.context.manager.parts().workers;
        workers.spawn_on(worker, async move {
            // If it does not come about, the process before gives it up.
            if let Ok(hold) = pool.await_listeners(&carried).await {
                holds.lock().push(hold);
            }
        });
    }

    fn take_server(&mut self, mut parcel: Parcel) -> Result<(), Error> {
        let server: server::carried::Carried = read(&parcel)?;
        let socket = parcel.descriptors.pop().ok_or(Error::Nonsense)?;
        let name = PoolName::of(&server.database, &server.user);
        let Some(pool) = self.pools.get(&name).cloned() else {
            // Its database is gone: dropping the socket closes it.
            return Ok(());
        };
        self.came[1] += 1;
        let (worker, seat) = (pool.homes().next().unwrap_or(0), pool.seat());
        let workers = &self.context.manager.parts().workers;
        workers.spawn_on(worker, async move {
            match pool.take_over((server, socket), seat, (worker, 0)) {
                Ok(Some(pooled)) => pool.admit_taken_over(pooled, worker).await,
                Ok(None) => {}
                Err(error) => tracing::warn!("a server was not taken over: {error}"),
            }
        });
        Ok(())
    }

    fn end(&mut self, ended: &Result<(), Error>) {
        self.context.set_before(None);
        self.asked.lock().clear();
        if let Some(arrived) = self.arrived.take() {
            // Nobody waits only when the process ends.
            let _ = arrived.send(());
        }
        for pool in self.pools.values() {
            pool.set_elsewhere(0);
        }
        // Behind the clients, which arrive on their workers.
        let (pools, holds) = (self.pools.clone(), self.holds.clone());
        self.context
            .manager
            .parts()
            .workers
            .spawn_on(0, async move {
                tokio::time::sleep(ARRIVING).await;
                pools.values().for_each(Pool::end_coming);
                holds.lock().clear();
            });
        let [clients, servers] = self.came;
        let pid = self.pid;
        match ended {
            Ok(()) => tracing::info!(
                "took over {clients} clients and {servers} servers from process {pid}"
            ),
            Err(error) => tracing::error!(
                "the takeover ended early: {error} ({clients} clients and {servers} servers came from process {pid})"
            ),
        }
        // The other side waits for that.
        let _ = self.parcels.socket().shutdown(std::net::Shutdown::Both);
    }
}
