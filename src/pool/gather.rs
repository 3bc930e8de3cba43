//! One answer for all who ask the same thing at the same time.
//!
//! Those who come while a question is being answered do not get that answer, which may be older than their own question:
//! together they wait for the next one. So there is one question at a time for each key, however many ask, and every
//! answer is as fresh as if it had been asked for alone.
//!
//! ```text
//!   a ──▶ question ─────────▶ answer for a
//!      b, c, d ─────(turn)──▶ question ─────────▶ answer for b, c, d
//! ```

use std::collections::HashMap;
use std::future::Future;
use std::hash::Hash;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::OnceCell;

/// The questions that are being asked.
#[derive(Debug)]
pub(super) struct Gather<K, V> {
    lines: Mutex<Lines<K, V>>,
}

/// With how many have a seat in each.
type Lines<K, V> = HashMap<K, (usize, Arc<Line<V>>)>;

/// Those who ask one thing.
#[derive(Debug)]
struct Line<V> {
    /// Held while the question is being answered.
    turn: tokio::sync::Mutex<()>,
    /// Whoever comes now takes part in this: its question is not asked yet.
    next: Mutex<Arc<OnceCell<V>>>,
}

impl<K: Clone + Eq + Hash, V: Clone> Gather<K, V> {
    /// Asks, or waits for the answer to somebody else's question. Cancel-safe: if the one who asks is dropped, one of
    /// those who wait asks in its place.
    pub async fn ask<F>(&self, key: K, question: impl FnOnce() -> F) -> V
    where
        F: Future<Output = V>,
    {
        let seat = self.sit_down(key);
        let answer = seat.batch.get_or_init(|| async {
            let _turn = seat.line.turn.lock().await;
            seat.close_batch();
            question().await
        });
        answer.await.clone()
    }

    fn sit_down(&self, key: K) -> Seat<'_, K, V> {
        let mut lines = self.lines.lock();
        let (seats, line) = lines.entry(key.clone()).or_default();
        *seats += 1;
        Seat {
            gather: self,
            key,
            batch: line.next.lock().clone(),
            line: line.clone(),
        }
    }
}

/// A place in a line.
struct Seat<'a, K: Eq + Hash, V> {
    gather: &'a Gather<K, V>,
    key: K,
    line: Arc<Line<V>>,
    batch: Arc<OnceCell<V>>,
}

impl<K: Eq + Hash, V> Seat<'_, K, V> {
    /// Whoever comes from now on is too late for this question. (The batch may be closed already: it was by somebody
    /// who has gone in the middle of it.)
    fn close_batch(&self) {
        let mut next = self.line.next.lock();
        if Arc::ptr_eq(&next, &self.batch) {
            *next = Arc::default();
        }
    }
}

impl<K: Eq + Hash, V> Drop for Seat<'_, K, V> {
    fn drop(&mut self) {
        let mut lines = self.gather.lines.lock();
        if let Some((seats, _)) = lines.get_mut(&self.key) {
            *seats -= 1;
            if *seats == 0 {
                lines.remove(&self.key);
            }
        }
    }
}

impl<K, V> Default for Gather<K, V> {
    fn default() -> Self {
        Self {
            lines: Mutex::default(),
        }
    }
}

impl<V> Default for Line<V> {
    fn default() -> Self {
        Self {
            turn: tokio::sync::Mutex::default(),
            next: Mutex::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Poll;

    use futures_util::future::join_all;
    use futures_util::poll;
    use tokio::sync::Notify;

    use super::*;

    /// Counts the questions and answers each with its number, when it is told to.
    #[derive(Default)]
    struct Oracle {
        asked: AtomicUsize,
        speak: Notify,
    }

    impl Oracle {
        async fn answer(&self) -> usize {
            let number = self.asked.fetch_add(1, Ordering::SeqCst);
            self.speak.notified().await;
            number
        }
    }

    #[tokio::test]
    async fn those_who_come_during_a_question_share_the_next_one() {
        let (gather, oracle) = (Gather::<_, usize>::default(), Oracle::default());
        let ask = |key| gather.ask(key, || oracle.answer());
        let mut first = Box::pin(ask("a"));
        assert_eq!(poll!(&mut first), Poll::Pending);
        let mut others = Box::pin(join_all((0..50).map(|_| ask("a"))));
        assert!(poll!(&mut others).is_pending());
        assert_eq!(oracle.asked.load(Ordering::SeqCst), 1);
        oracle.speak.notify_one();
        assert_eq!(first.await, 0);
        assert!(poll!(&mut others).is_pending());
        oracle.speak.notify_one();
        assert_eq!(others.await, [1; 50]);
        oracle.speak.notify_one();
        assert_eq!(ask("a").await, 2, "an answer is not kept");
        assert!(gather.lines.lock().is_empty());
    }

    #[tokio::test]
    async fn other_questions_do_not_wait() {
        let (gather, oracle) = (Gather::<_, usize>::default(), Oracle::default());
        let ask = |key| gather.ask(key, || oracle.answer());
        let (mut a, mut b) = (Box::pin(ask("a")), Box::pin(ask("b")));
        assert!(poll!(&mut a).is_pending() && poll!(&mut b).is_pending());
        assert_eq!(oracle.asked.load(Ordering::SeqCst), 2);
        drop((a, b));
        assert!(gather.lines.lock().is_empty());
    }

    #[tokio::test]
    async fn if_the_one_who_asks_goes_another_asks() {
        let (gather, oracle) = (Gather::<_, usize>::default(), Oracle::default());
        let ask = || gather.ask("a", || oracle.answer());
        let mut first = Box::pin(ask());
        assert!(poll!(&mut first).is_pending());
        let (mut second, mut third) = (Box::pin(ask()), Box::pin(ask()));
        assert!(poll!(&mut second).is_pending() && poll!(&mut third).is_pending());
        drop(first);
        assert!(poll!(&mut second).is_pending() && poll!(&mut third).is_pending());
        assert_eq!(oracle.asked.load(Ordering::SeqCst), 2);
        // The second has asked; who comes now is too late for it, also when the third takes its place.
        let mut late = Box::pin(ask());
        assert!(poll!(&mut late).is_pending());
        drop(second);
        let speak = async {
            loop {
                oracle.speak.notify_one();
                tokio::task::yield_now().await;
            }
        };
        let mut answers = tokio::select! {
            answers = join_all([third, late]) => answers,
            () = speak => unreachable!("it speaks for ever"),
        };
        answers.sort_unstable();
        assert_eq!(answers, [2, 3], "each by a question of its own");
        assert!(gather.lines.lock().is_empty());
    }
}
