//! Bringing a server back to a clean state after its client left it in the middle of something.
//!
//! What the server owes is read to the end, COPY data are broken off, an open batch gets its Sync, an open transaction is
//! rolled back. A query that runs for nobody is cancelled. If all that is not proved done in time, the server is closed.

use std::future::poll_fn;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use super::relay::{Linked, Outgoing, Relay};
use crate::net::scratch;
use crate::pool::Pooled;
use crate::protocol::backend::TxStatus;
use crate::protocol::frontend;
use crate::server::pipeline::{Expect, Request};
use crate::server::{self, Doom, State, Unnamed, cancel};

/// How long a server may take to come clean.
const LIMIT: Duration = Duration::from_secs(10);

/// How long a query may go on for a client that said goodbye before it is cancelled.
const GRACE: Duration = Duration::from_secs(2);

/// Brings the server back, or dooms it. `orderly`: the client said Terminate, so what it asked for before
/// may be finished, as PostgreSQL would.
pub async fn bring_back(pooled: &mut Pooled, relay: &mut Relay, orderly: bool) {
    let deadline = Instant::now() + LIMIT;
    let result = timeout_at(deadline, settle(pooled, relay, orderly)).await;
    let outcome = match result {
        Ok(Ok(())) => Ok(()),
        Ok(Err(doom)) => Err(doom),
        Err(_) => Err(Doom::ClientLeft),
    };
    if let Some(counters) = pooled.pool().clone().counters(pooled.server.home) {
        counters.server_drains.add(1);
    }
    match outcome {
        // A query of ours that fails (no ROLLBACK, say) dooms the server by itself.
        Ok(()) => {}
        Err(doom) => {
            pooled.server.state.doom.get_or_insert(doom);
        }
    }
}

async fn settle(pooled: &mut Pooled, relay: &mut Relay, orderly: bool) -> Result<(), Doom> {
    if relay.inbound.is_under_way() && relay.inbound.forward() {
        // The server got half a message, and the other half is not coming.
        return Err(Doom::ClientLeft);
    }
    if pooled.server.state.doom.is_some() || pooled.server.state.pipeline.is_unsure() {
        return Err(Doom::ClientLeft);
    }
    if pooled.server.is_ahead() {
        pooled
            .server
            .finish_ahead()
            .await
            .map_err(|_| Doom::CheckFailed)?;
        // Its query may have to be cancelled.
        let asked = pooled.server.entry.request_time();
        pooled.server.entry.link(relay.id, asked);
        // More may have come in the same read.
        discard(pooled, relay, &[])?;
    }
    // Breaking off a COPY ends it; a cancel request at the same time would leave it open which of the two did.
    let in_copy = pooled.server.state.pipeline.takes_copy_data();
    let grace = if orderly || in_copy {
        GRACE
    } else {
        Duration::ZERO
    };
    ask(pooled);
    if timeout_at(Instant::now() + grace, read_all(pooled, relay))
        .await
        .is_err()
    {
        cancel_query(pooled, relay.id);
        read_all(pooled, relay).await?;
    }
    end(pooled);
    read_all(pooled, relay).await?;
    // A batch that failed may have had a BEGIN in it, which shows only in the reply to the Sync.
    end(pooled);
    read_all(pooled, relay).await?;
    let state = &pooled.server.state;
    if state.pipeline.is_idle() && state.status == TxStatus::Idle {
        Ok(())
    } else {
        Err(Doom::ClientLeft)
    }
}

/// Makes the server say all that it owes for what was sent: breaks off COPY data, and has it flush the replies of a
/// batch whose Sync never came.
pub(super) fn ask_for_replies(state: &mut State, out: &mut Vec<u8>) {
    // Nobody waits for it.
    state.batch.forget();
    let pipeline = &mut state.pipeline;
    if pipeline.takes_copy_data() {
        pipeline.end_copy();
        frontend::copy_fail(out, b"client disconnected");
    }
    // Not only where a Sync is wanting as far as we know: one that was sent may be ignored for a COPY.
    if !pipeline.is_idle() {
        frontend::flush(out);
    }
}

fn ask(pooled: &mut Pooled) {
    let server = &mut pooled.server;
    let mut out = Vec::new();
    ask_for_replies(&mut server.state, &mut out);
    server.connection.queue(&out);
}

/// Once nothing is owed: whatever transaction is open is rolled back, as PostgreSQL does when a client of its own goes. A
/// Sync in the place of ROLLBACK would commit an open batch; only after an error is it the one way out.
pub(super) fn end_transaction(state: &mut State, out: &mut Vec<u8>) {
    if state.pipeline.is_skipping() {
        frontend::sync(out);
        state.pipeline.push_sync(Expect::Swallow(Request::Sync));
    }
    if state.pipeline.needs_sync() || state.status != TxStatus::Idle {
        frontend::query(out, b"ROLLBACK");
        state.unnamed = Unnamed::Unknown;
        state.pipeline.push(Expect::Swallow(Request::Query), None);
    }
}

fn end(pooled: &mut Pooled) {
    let server = &mut pooled.server;
    let mut out = Vec::new();
    end_transaction(&mut server.state, &mut out);
    server.connection.queue(&out);
}

/// Reads until the server owes nothing.
async fn read_all(pooled: &mut Pooled, relay: &mut Relay) -> Result<(), Doom> {
    poll_fn(|cx| poll_read_all(pooled, relay, cx)).await
}

fn poll_read_all(
    pooled: &mut Pooled,
    relay: &mut Relay,
    cx: &mut Context<'_>,
) -> Poll<Result<(), Doom>> {
    loop {
        if pooled
            .server
            .connection
            .poll_flush(cx)
            .map_err(|_| Doom::Failed)?
            .is_pending()
        {
            // Both directions may be full: reading goes on below.
        }
        let state = &pooled.server.state;
        if state.pipeline.takes_copy_data() {
            // The COPY began only after the client had left.
            ask(pooled);
            continue;
        }
        if state.pipeline.owes_nothing() && !pooled.server.connection.has_backlog() {
            return Poll::Ready(Ok(()));
        }
        let read = scratch::with(|scratch| {
            match pooled
                .server
                .connection
                .stream
                .poll_read(cx, &mut scratch.read)
            {
                Poll::Pending => Poll::Pending,
                Poll::Ready(Ok(n)) if n > 0 => Poll::Ready(discard(
                    pooled,
                    relay,
                    scratch.read.get(..n).unwrap_or_default(),
                )),
                Poll::Ready(_) => Poll::Ready(Err(Doom::Failed)),
            }
        });
        match read {
            Poll::Pending => return Poll::Pending,
            Poll::Ready(Ok(())) => {}
            Poll::Ready(Err(doom)) => return Poll::Ready(Err(doom)),
        }
    }
}

/// Follows the server's stream; what was for the client goes nowhere.
fn discard(pooled: &mut Pooled, relay: &mut Relay, bytes: &[u8]) -> Result<(), Doom> {
    let pool = pooled.pool().clone();
    let server: &mut server::Server = &mut pooled.server;
    let Some(counters) = pool.counters(server.home) else {
        return Err(Doom::ClientLeft);
    };
    let mut input = std::mem::take(&mut server.connection.kept);
    input.extend_from_slice(bytes);
    let mut nowhere = Vec::new();
    let mut linked = Linked {
        server: &mut server.state,
        entry: &server.entry,
        counters,
    };
    let used = relay.from_server(
        &mut linked,
        &input,
        &mut Outgoing::new(&input, &mut nowhere),
    );
    let used = used.map_err(|_| Doom::Desync)?;
    // The Sync that ends a failed COPY's batch.
    server.connection.queue(&std::mem::take(&mut relay.own));
    server
        .connection
        .keep(input.get(used..).unwrap_or_default());
    Ok(())
}

/// Cancels what runs for a client that is gone. The server is not lent again before that is through.
fn cancel_query(pooled: &Pooled, client: u64) {
    let Some(guard) = pooled.server.entry.begin_cancel(client) else {
        return;
    };
    let pool = pooled.pool().clone();
    let tcp = pool.settings().target.tcp;
    let tls = pool.tls();
    pool.workers().spawn_on(pooled.server.home, async move {
        let route = cancel::Route {
            tcp: &tcp,
            tls: &tls.servers,
        };
        if let Err(error) = cancel::send(guard, &route, LIMIT).await {
            tracing::debug!("cancel of an abandoned query: {error}");
        }
    });
}
