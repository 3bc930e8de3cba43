//! Transactions that are traced, on their way to a collector (`otlp_endpoint`).
//!
//! Workers put them down, the exporter on the main thread takes them away. The queue is bounded, and nobody waits: what finds no
//! room is counted and gone. How they are written is [`otlp`](super::otlp)'s.

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use tokio::sync::Notify;

/// The most that wait (the default of OpenTelemetry's batch processors).
const MOST: usize = 2048;

/// When so many wait, they are fetched before it is time to.
const MANY: usize = 512;

/// A transaction, from its first message, or its place in the queue, to the release of its server. Times are microseconds.
#[derive(Debug, Clone, Default)]
pub struct Span {
    /// The trace.
    pub trace: [u8; 16],
    /// Its own number.
    pub id: [u8; 8],
    /// The span that asked for it; `None`: it began the trace.
    pub parent: Option<[u8; 8]>,
    /// After the live list's epoch.
    pub began: u64,
    /// After the live list's epoch.
    pub ended: u64,
    /// What it has waited for a server.
    pub wait: u64,
    /// What the server has worked on it.
    pub work: u64,
    /// The pool's database.
    pub database: String,
    /// The pool's user.
    pub user: String,
    /// The first keyword of what it ran; empty: none that is known.
    pub operation: &'static str,
    /// What it ran first, as `log_statement_text` has it.
    pub text: Option<String>,
    /// The server that it had.
    pub server: Option<Place>,
    /// What the first error was: an SQLSTATE, or a word of ours.
    pub error: Option<String>,
    /// How many queries it was made of.
    pub queries: u64,
    /// Rows that were returned, inserted, changed or deleted.
    pub rows: u64,
    /// Bytes that the server has answered.
    pub bytes: u64,
}

/// Where a server is.
#[derive(Debug, Clone, Default)]
pub struct Place {
    /// Host name, address, or path of a Unix socket.
    pub host: String,
    /// Of TCP.
    pub port: Option<u16>,
    /// The number of PostgreSQL's process.
    pub pid: i32,
}

/// What becomes of them, and of metrics, added up.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Fate {
    /// Spans that a collector has taken.
    pub sent: u64,
    /// Spans that found no room, or that no collector has taken.
    pub dropped: u64,
    /// Requests to a collector that failed, of any kind.
    pub failures: u64,
}

/// Those that wait to be sent.
#[derive(Debug, Default)]
pub struct Spans {
    queue: Mutex<Vec<Span>>,
    bell: Notify,
    sent: AtomicU64,
    dropped: AtomicU64,
    failures: AtomicU64,
}

impl Spans {
    /// Puts one down. Never waits for room.
    pub fn put(&self, span: Span) {
        let mut queue = self.queue.lock();
        if queue.len() >= MOST {
            drop(queue);
            self.note_dropped(1);
            return;
        }
        queue.push(span);
        let waiting = queue.len();
        drop(queue);
        if waiting == MANY {
            self.bell.notify_one();
        }
    }

    /// Takes at most as many as go into one request, the oldest first.
    pub fn take(&self) -> Vec<Span> {
        let mut queue = self.queue.lock();
        let count = queue.len().min(MANY);
        queue.drain(..count).collect()
    }

    /// Waits until there are many. Cancel-safe.
    pub async fn are_many(&self) {
        self.bell.notified().await;
    }

    /// So many were taken by a collector.
    pub fn note_sent(&self, count: u64) {
        self.sent.fetch_add(count, Ordering::Relaxed);
    }

    /// So many are gone.
    pub fn note_dropped(&self, count: u64) {
        self.dropped.fetch_add(count, Ordering::Relaxed);
    }

    /// A request failed.
    pub fn note_failure(&self) {
        self.failures.fetch_add(1, Ordering::Relaxed);
    }

    /// What has become of them so far.
    pub fn fate(&self) -> Fate {
        Fate {
            sent: self.sent.load(Ordering::Relaxed),
            dropped: self.dropped.load(Ordering::Relaxed),
            failures: self.failures.load(Ordering::Relaxed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_finds_no_room_is_counted() {
        let spans = Spans::default();
        for number in 0..MOST + 3 {
            spans.put(Span {
                queries: number as u64,
                ..Span::default()
            });
        }
        assert_eq!(spans.fate().dropped, 3);
        let first = spans.take();
        assert_eq!((first.len(), first[0].queries), (MANY, 0));
        let rest = std::iter::repeat_with(|| spans.take());
        let rest: usize = rest
            .take_while(|some| !some.is_empty())
            .map(|some| some.len())
            .sum();
        assert_eq!(rest, MOST - MANY);
    }

    #[tokio::test]
    async fn whoever_fetches_them_is_told_when_there_are_many() {
        let spans = Spans::default();
        for _ in 0..MANY {
            spans.put(Span::default());
        }
        spans.are_many().await;
        assert_eq!(spans.take().len(), MANY);
    }
}
