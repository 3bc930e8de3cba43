//! The way of clients and servers to a successor: who may go now, who can't and is sent away, and in what order it is said.

use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::time::{Instant, interval, timeout};

use super::{Cancel, Error, Kind, Word, read, say};
use crate::client::carried::{Departure, Moved};
use crate::client::{Conn, Context, cancel};
use crate::daemon::accept::Acceptors;
use crate::daemon::drain::Drain;
use crate::net::{Parcel, Parcels};
use crate::pool::{Elsewhere, Pool, PoolName};
use crate::protocol::startup::Replication;
use crate::stats::registry::Peer;
use crate::stats::{ClientEntry, Order, Phase};

/// How long a successor may take to hang up.
const HANGING_UP: Duration = Duration::from_secs(10);

/// How often it is looked who stands still by now. (Clients say so themselves; servers have to be fetched.)
const PERIOD: Duration = Duration::from_millis(2);

/// How long those who are logging in are waited for, before the ones who can't go over are sent away.
const LOGINS: Duration = Duration::from_secs(1);

/// Many clients are told at a time: if the successor fails, those on their way are lost.
const AHEAD: usize = 64;

/// How often those who could not go yet are told again.
const AGAIN: Duration = Duration::from_millis(200);

/// How long nobody is in a hurry any more; those who are left end something that takes long.
const HURRY: Duration = Duration::from_millis(500);

/// How often the log says whom the end waits for.
const REMINDER: Duration = Duration::from_secs(60);

/// How long the successor may take to listen to what is listened to.
const LISTENING: Duration = Duration::from_secs(3);

/// How long servers that are being cleaned are waited for at the end.
const CLEANING: Duration = Duration::from_secs(2);

/// The way of clients and servers to a successor.
pub struct Handover {
    exit: Sender<Departure>,
    parcels: Arc<Parcels>,
    /// Comes when everything was sent, or with what has failed.
    sent: oneshot::Receiver<Result<(), Error>>,
    /// Comes when the successor is gone.
    gone: oneshot::Receiver<()>,
    /// Who was told, and when.
    told: HashMap<u64, Instant>,
    /// Clients that were sent.
    gone_over: Arc<AtomicUsize>,
    /// Pools that the successor knows.
    known: HashSet<PoolName>,
    /// Pools whose listeners have not found the place up to which they tell; nobody leaves these before.
    listening: Arc<Mutex<HashSet<PoolName>>>,
    reported: HashMap<PoolName, u64>,
}

impl Handover {
    /// Begins; the successor has been told of `known` pools.
    pub fn begin(
        parcels: &Arc<Parcels>,
        known: HashSet<PoolName>,
        context: &Arc<Context>,
    ) -> Result<Self, Error> {
        let (exit, departures) = mpsc::channel();
        let (tell_sent, sent) = oneshot::channel();
        let (tell_gone, gone) = oneshot::channel();
        let out = parcels.clone();
        let gone_over = Arc::new(AtomicUsize::new(0));
        let counted = gone_over.clone();
        let sender = std::thread::Builder::new().name("takeover-out".to_owned());
        sender.spawn(move || {
            // Nobody listens any more only when the process ends.
            let _ = tell_sent.send(send_all(&out, &departures, &counted));
        })?;
        let (back, context) = (parcels.try_clone()?, context.clone());
        let workers = context.manager.parts().workers.clone();
        let answers = exit.clone();
        let listener = std::thread::Builder::new().name("takeover-back".to_owned());
        listener.spawn(move || {
            while let Ok(Some(parcel)) = back.receive() {
                let Ok(request) = cancel_of(&parcel) else {
                    break;
                };
                let (context, answers) = (context.clone(), answers.clone());
                workers.spawn_on(0, async move {
                    let port = context.config.load().settings.listen_port;
                    let conn = Conn::new(0, Peer::Unix(None), port);
                    cancel::request(&context, &conn, request.pid, &request.key).await;
                    send(&answers, Moved::Canceled(request.number));
                });
            }
            let _ = tell_gone.send(());
        })?;
        Ok(Self {
            exit,
            parcels: parcels.clone(),
            sent,
            gone,
            told: HashMap::new(),
            gone_over,
            known,
            listening: Arc::default(),
            reported: HashMap::new(),
        })
    }

    /// Gives all that can be given, and sends the others away.
    pub async fn carry_out(
        mut self,
        acceptors: &Acceptors,
        context: &Arc<Context>,
    ) -> Result<(), Error> {
        context.set_exit(Some(self.exit.clone()));
        self.leave_listeners(context);
        let (began, mut reminded) = (Instant::now(), Instant::now());
        let limit = context.config.load().settings.drain_timeout;
        let mut drain: Option<Drain> = None;
        loop {
            let pause = if began.elapsed() < HURRY {
                PERIOD
            } else {
                AGAIN / 4
            };
            tokio::select! {
                result = &mut self.sent => return result.unwrap_or(Err(Error::Gone)),
                _ = &mut self.gone => return Err(Error::Gone),
                () = tokio::time::sleep(pause) => {}
            }
            self.introduce_pools(context);
            let clients = context.clients();
            let listening = self.listening.lock().clone();
            let (mut going, mut needed) = (Vec::new(), HashSet::new());
            for client in &clients {
                let pool = PoolName::of(&client.database, &client.pool_user);
                if may_move(client, context) && !listening.contains(&pool) {
                    going.push(client);
                } else {
                    needed.insert(pool);
                }
            }
            // In this order: a client that goes leaves room for a server, which is not to be opened for one that is about to go.
            self.fetch_servers(context, &needed);
            self.tell(&going);
            // Whoever has not got through a login by then has no part in it.
            let may_come = !acceptors.has_left() || !nobody_logs_in(context);
            if clients.is_empty() && (!may_come || began.elapsed() > limit) {
                break;
            }
            if let Some(drain) = &mut drain {
                // However long others take: their queries end here.
                drain.go_on(acceptors, context);
            } else if began.elapsed() >= LOGINS {
                drain = Some(Drain::begin(None, may_not_move, context));
            }
            if reminded.elapsed() >= REMINDER {
                reminded = Instant::now();
                tracing::info!("{} clients are not over yet", clients.len());
            }
        }
        self.finish(context).await
    }

    /// The last servers, and the last word.
    async fn finish(mut self, context: &Arc<Context>) -> Result<(), Error> {
        let deadline = Instant::now() + CLEANING;
        let mut tick = interval(PERIOD);
        while context.manager.active_servers(None) > 0 && Instant::now() < deadline {
            self.fetch_servers(context, &HashSet::new());
            tick.tick().await;
        }
        context.set_exit(None);
        send(&self.exit, Moved::Nothing);
        let sent = self.sent.await.unwrap_or(Err(Error::Gone));
        // It has read everything when it hangs up.
        let _ = self.parcels.socket().shutdown(std::net::Shutdown::Write);
        let _ = timeout(HANGING_UP, self.gone).await;
        sent
    }

    /// Has the successor listen to what is listened to here, and stops to tell of it where the successor begins.
    fn leave_listeners(&self, context: &Arc<Context>) {
        for pool in context.manager.pools() {
            let Some((carried, last)) = pool.listener().carry(&pool) else {
                continue;
            };
            let name = pool.name();
            self.listening.lock().insert(name.clone());
            send(&self.exit, Moved::Listener(carried.clone()));
            let (exit, listening) = (self.exit.clone(), self.listening.clone());
            pool.workers().spawn_on(0, async move {
                if !last.comes(LISTENING).await {
                    tracing::warn!("listeners of {name} may miss something");
                    send(&exit, Moved::Listener(carried.given_up()));
                }
                listening.lock().remove(&name);
            });
        }
    }

    /// Has clients go: those who would at once no more than so many ahead of what was sent.
    fn tell(&mut self, clients: &[&Arc<ClientEntry>]) {
        let now = Instant::now();
        let mut under_way = self
            .told
            .len()
            .saturating_sub(self.gone_over.load(Ordering::Relaxed));
        for client in clients {
            let is_silent = matches!(client.phase(), Phase::Idle | Phase::Waiting);
            match self.told.get(&client.id) {
                Some(told) if now - *told < AGAIN => continue,
                None if is_silent && under_way >= AHEAD => continue,
                None => under_way += 1,
                Some(_) => {}
            }
            self.told.insert(client.id, now);
            client.order(Order::GoOver);
        }
    }

    /// Says what there is to be known of pools that the successor has not heard of.
    fn introduce_pools(&mut self, context: &Context) {
        for pool in context.manager.pools() {
            if self.known.insert(pool.name()) {
                send(&self.exit, Moved::Pool(pool.carry()));
            }
        }
    }

    /// Sends the servers that are free, but of pools that are needed here, and says how many are left.
    fn fetch_servers(&mut self, context: &Arc<Context>, needed: &HashSet<PoolName>) {
        for pool in context.manager.pools() {
            let is_needed = needed.contains(&pool.name());
            pool.set_leaving(!is_needed);
            let mut left = 0;
            if !is_needed {
                for pooled in pool.take_idle_servers() {
                    give_server(&pool, pooled, self.exit.clone());
                }
                left = pool.open_servers() + pool.connecting();
            }
            self.report(&pool, left as u64);
        }
    }

    fn report(&mut self, pool: &Pool, servers: u64) {
        let name = pool.name();
        if self.reported.get(&name) == Some(&servers) {
            return;
        }
        let elsewhere = Elsewhere {
            database: name.database.clone(),
            user: name.user.clone(),
            servers,
        };
        self.reported.insert(name, servers);
        send(&self.exit, Moved::Elsewhere(elsewhere));
    }
}

/// Sends what has no sockets.
fn send(exit: &Sender<Departure>, what: Moved) {
    // An error is noticed elsewhere.
    let _ = exit.send(Departure {
        what,
        sockets: Vec::new(),
        counts: Box::new(()),
    });
}

fn nobody_logs_in(context: &Context) -> bool {
    let listed = context.manager.parts().registry.clients().len();
    context.manager.active_clients() <= listed
}

/// May it go over? Else it is sent away in the end.
fn may_move(client: &ClientEntry, context: &Context) -> bool {
    let is_apart = |id| {
        let server = context.manager.parts().registry.server(id);
        server.is_some_and(|server| !server.tls.is_empty())
    };
    client.tls.is_empty() && client.replication == Replication::None && !is_apart(client.server())
}

fn may_not_move(client: &ClientEntry, context: &Context) -> bool {
    !may_move(client, context)
}

/// Sends a server that is free, once nothing of ours is prepared on it.
fn give_server(pool: &Arc<Pool>, mut pooled: crate::pool::Pooled, exit: Sender<Departure>) {
    let pool = pool.clone();
    let home = pooled.server.home;
    pool.clone().workers().spawn_on(home, async move {
        let closing = timeout(CLEANING, pooled.server.close_statements());
        if !matches!(closing.await, Ok(Ok(()))) || !pooled.server.may_be_carried() {
            pooled.close("not handed over");
            return;
        }
        let (server, slot) = pooled.into_parts();
        if let Ok((server, socket)) = server.carry((pool.fingerprint(), pool.generation()), 0) {
            // An error: the successor is gone, and so is the server.
            let _ = exit.send(Departure {
                what: Moved::Server(server),
                sockets: vec![socket],
                counts: Box::new(slot),
            });
        }
    });
}

/// Sends what leaves, up to the last word.
fn send_all(
    parcels: &Parcels,
    departures: &Receiver<Departure>,
    gone_over: &AtomicUsize,
) -> Result<(), Error> {
    while let Ok(departure) = departures.recv() {
        let Departure {
            what,
            sockets,
            counts,
        } = departure;
        let sockets: Vec<_> = sockets.iter().map(AsFd::as_fd).collect();
        let sent: io::Result<()> = match &what {
            Moved::Client(client) => {
                gone_over.fetch_add(1, Ordering::Relaxed);
                say(parcels, Kind::Client, &**client, &sockets)
            }
            Moved::Pool(pool) => say(parcels, Kind::Pool, pool, &[]),
            Moved::Canceled(number) => {
                let answer = Cancel {
                    number: *number,
                    ..Cancel::default()
                };
                say(parcels, Kind::Canceled, &answer, &[])
            }
            Moved::Server(server) => say(parcels, Kind::Server, server, &sockets),
            Moved::Listener(listener) => say(parcels, Kind::Listeners, listener, &[]),
            Moved::Elsewhere(elsewhere) => say(parcels, Kind::Elsewhere, elsewhere, &[]),
            Moved::Nothing => {
                say(parcels, Kind::Done, &Word::default(), &[])?;
                return Ok(());
            }
        };
        match sent {
            // Too long, whatever it is; nothing of it was sent.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
                tracing::error!("a client can't be handed over: {error}");
            }
            sent => sent?,
        }
        drop(counts);
    }
    Err(Error::Gone)
}

fn cancel_of(parcel: &Parcel) -> Result<Cancel, Error> {
    if parcel.kind == Kind::Cancel as u8 {
        read(parcel)
    } else {
        Err(Error::Nonsense)
    }
}
