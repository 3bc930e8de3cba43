//! The task that holds the connection: opens it, has it listen to what is wanted, reads it, and replaces it.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep_until, timeout};

use super::{Name, Unavailable, read_notification};
use crate::pool::{Pool, Pooled};
use crate::protocol::backend::tag;
use crate::protocol::frontend;
use crate::sql::quote::put_identifier;
use crate::stats::ServerState;

/// How long the connection stays when nobody listens.
const LINGER: Duration = Duration::from_secs(60);

/// How long it waits before it is opened again, at first and at most.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(15));

/// How long PostgreSQL may take for a login or a LISTEN.
const LIMIT: Duration = Duration::from_secs(10);

/// How long it may take until another connection has taken over from an outdated one.
const SWAP: Duration = Duration::from_secs(3);

/// Longest message accepted: a payload is shorter than 8000 bytes.
const MAX_MESSAGE: usize = 1 << 20;

/// Holds the connection for as long as there is somebody to listen for.
pub(super) async fn run(pool: Arc<Pool>, worker: usize) {
    let listener = pool.listener.clone();
    let mut backoff = BACKOFF.0;
    let mut is_new = false;
    loop {
        let opened = match timeout(LIMIT, pool.open_beside(worker)).await {
            Ok(Ok(opened)) => opened,
            // The log has it.
            Ok(Err(_)) | Err(_) => None,
        };
        let was_connected = opened.is_some();
        if let Some(pooled) = opened {
            let began = Instant::now();
            if serve(&pool, pooled, is_new).await.is_ok() {
                return;
            }
            if began.elapsed() > BACKOFF.1 {
                backoff = BACKOFF.0;
            }
            is_new = true;
            tracing::warn!(db = %pool.database, user = %pool.user, "the connection that listens is lost");
        }
        let over = {
            let mut state = listener.state.lock();
            state.lose();
            // Those whose hand-over is under way are told, and their clients keep their servers instead.
            state
                .channels
                .retain(|_, channel| !channel.subscribers.is_empty());
            state.runs = !state.channels.is_empty() && !pool.is_removed();
            !state.runs
        };
        listener.progress.notify_waiters();
        if over {
            return;
        }
        if !pool.is_open() {
            // RESUME nudges.
            listener.work.notified().await;
            continue;
        }
        let until = Instant::now() + if was_connected { BACKOFF.0 } else { backoff };
        sleep_until(until).await;
        backoff = (backoff * 2).min(BACKOFF.1);
    }
}

/// Serves those who listen by a fresh connection. `Ok`: there are none any more. `is_new`: they had another one.
async fn serve(pool: &Arc<Pool>, mut pooled: Pooled, is_new: bool) -> Result<(), Unavailable> {
    let listener = &pool.listener;
    pooled.server.entry.set_state(ServerState::Active);
    let mut first = b"LISTEN ".to_vec();
    put_identifier(&mut first, listener.marker.as_bytes());
    first.push(b';');
    let mut is_first = true;
    let mut unused: Option<Instant> = None;
    loop {
        let (due, names, is_used) = {
            let mut state = listener.state.lock();
            let mut due = std::mem::take(&mut first);
            due.extend_from_slice(&state.due());
            let names: Vec<Name> = state.channels.keys().cloned().collect();
            (due, names, !state.channels.is_empty())
        };
        if !due.is_empty() {
            ask(pool, &mut pooled, &due).await?;
            {
                let mut state = listener.state.lock();
                (state.server, state.is_down) = (pooled.server.entry.id, false);
                for name in &names {
                    if let Some(channel) = state.channels.get_mut(name) {
                        channel.listening = true;
                    }
                }
            }
            let missed = std::mem::take(&mut listener.state.lock().missed);
            if std::mem::take(&mut is_first) || missed {
                listener.confirm(is_new || missed);
            }
            listener.progress.notify_waiters();
            continue;
        }
        listener.progress.notify_waiters();
        if !pool.is_open() || pooled.server.generation != pool.generation() {
            let next = if pool.is_open() && is_used {
                replace(pool, &mut pooled).await
            } else {
                None
            };
            pooled.close("database configuration changed");
            pooled = next.ok_or(Unavailable)?;
            listener.state.lock().server = pooled.server.entry.id;
            continue;
        }
        unused = if is_used {
            None
        } else {
            unused.or(Some(Instant::now()))
        };
        if unused.is_some_and(|since| since.elapsed() >= LINGER) {
            let mut state = listener.state.lock();
            if state.channels.is_empty() {
                (state.runs, state.server) = (false, 0);
                drop(state);
                pooled.close("nobody listens");
                return Ok(());
            }
        }
        let rest = unused.map_or(LINGER, |since| LINGER.saturating_sub(since.elapsed()));
        let message = tokio::select! {
            message = pooled.server.connection.read_message(MAX_MESSAGE) => message.map_err(|_| Unavailable)?,
            () = listener.work.notified() => continue,
            () = sleep_until(Instant::now() + rest) => continue,
        };
        // After an error the connection will end.
        if message.tag == tag::NOTIFICATION_RESPONSE {
            listener.tell(pool, &message.body);
        }
    }
}

/// Opens another connection in the place of one that is outdated. A token tells where what the old one tells ends and what
/// the new one tells begins. `None`: there is none, or it does not see what the old one sees.
async fn replace(pool: &Arc<Pool>, old: &mut Pooled) -> Option<Pooled> {
    let swap = async {
        let mut new = pool.open_beside(old.server.home).await.ok()??;
        new.server.entry.set_state(ServerState::Active);
        let listener = &pool.listener;
        let token = format!("from {}", old.server.entry.id);
        let mut sql = Vec::new();
        let channels = listener.state.lock().listening();
        for name in channels
            .iter()
            .map(|it| &**it)
            .chain([listener.marker.as_bytes()])
        {
            sql.extend_from_slice(b"LISTEN ");
            put_identifier(&mut sql, name);
            sql.push(b';');
        }
        sql.extend_from_slice(format!("NOTIFY {}, '{token}'", listener.marker).as_bytes());
        let is_token = |body: &[u8]| {
            read_notification(body).is_some_and(|(_, channel, payload)| {
                channel == listener.marker.as_bytes() && payload == token.as_bytes()
            })
        };
        // What the new one says before the token is the old one's to tell.
        let (mut is_due, mut behind) = (false, Vec::new());
        let mut hear = |body: &[u8]| {
            if is_due {
                behind.push(body.to_vec());
            }
            is_due |= is_token(body);
        };
        converse(&mut new, &sql, &mut hear).await.ok()?;
        loop {
            let message = old.server.connection.read_message(MAX_MESSAGE).await.ok()?;
            if message.tag == tag::NOTIFICATION_RESPONSE {
                if is_token(&message.body) {
                    break;
                }
                listener.tell(pool, &message.body);
            }
        }
        for body in &behind {
            listener.tell(pool, body);
        }
        is_due.then_some(new)
    };
    timeout(SWAP, swap).await.ok()?
}

/// Runs a text, and tells what comes meanwhile.
async fn ask(pool: &Pool, pooled: &mut Pooled, sql: &[u8]) -> Result<(), Unavailable> {
    converse(pooled, sql, &mut |body| pool.listener.tell(pool, body)).await
}

/// Runs a text; `hear` gets the notifications that come meanwhile.
async fn converse(
    pooled: &mut Pooled,
    sql: &[u8],
    hear: &mut (dyn FnMut(&[u8]) + Send),
) -> Result<(), Unavailable> {
    let mut out = Vec::new();
    frontend::query(&mut out, sql);
    let connection = &mut pooled.server.connection;
    let talk = async {
        connection.send_all(&out).await.map_err(|_| Unavailable)?;
        loop {
            let message = connection.read_message(MAX_MESSAGE).await;
            let message = message.map_err(|_| Unavailable)?;
            match message.tag {
                tag::NOTIFICATION_RESPONSE => hear(&message.body),
                tag::READY_FOR_QUERY => return Ok(()),
                tag::ERROR_RESPONSE => return Err(Unavailable),
                _ => {}
            }
        }
    };
    timeout(LIMIT, talk).await.unwrap_or(Err(Unavailable))
}
