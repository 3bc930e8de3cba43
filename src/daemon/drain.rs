//! The bounded end: clients are sent away between transactions, at a pace, and after a time it is over in any case.
//!
//! ```text
//!   0            1/3            2/3             1       of the time
//!   │  Silent     │  Between     │  Finishing    │  Over
//!   │  those who  │  also others,│  everybody    │  whoever is left
//!   │  have been  │  when their  │  who is out-  │
//!   │  silent     │  transaction │  side of a    │
//!   │             │  ends        │  transaction  │
//! ```
//!
//! Those that are sent away come again, elsewhere, which is work for whoever takes them: so not all at once. How a client is
//! told, and when that can't hurt it, is `client::parting`'s.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::accept::Acceptors;
use crate::client::Context;
use crate::protocol::startup::Replication;
use crate::stats::{ClientEntry, Order, Phase};

/// Pools of connections look whether one lives before they lend it, if it has not been used for a while: HikariCP after half a
/// second, pgxpool after one. Who has been silent for longer than that can be told at any time.
const SILENT: Duration = Duration::from_millis(1250);

/// Clients in a second that are told at least, however much time there is.
const SLOWEST: f64 = 50.0;

/// How long the end of what is left may take after the time: to tell the clients and to cancel their queries.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// What is done at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Clients are told that have been silent.
    Silent,
    /// Others as well, when their next transaction ends.
    Between,
    /// Everybody who is outside of a transaction; others when they are.
    Finishing,
    /// Everybody.
    Over,
}

/// Who is told when.
#[derive(Debug, Clone, Copy)]
struct Plan {
    /// All the time there is.
    limit: Duration,
}

impl Plan {
    fn third(self) -> Duration {
        self.limit / 3
    }

    fn stage(self, passed: Duration) -> Stage {
        if passed >= self.limit {
            Stage::Over
        } else if passed >= self.third() * 2 {
            Stage::Finishing
        } else if passed >= self.third() {
            Stage::Between
        } else {
            Stage::Silent
        }
    }

    /// For how long a client must have been silent.
    fn silent(self) -> Duration {
        SILENT.min(self.limit / 6)
    }

    /// How many of `clients` may have been told when so much of a stage has passed.
    #[allow(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "numbers of clients are small, and a cast of what is too large is the largest"
    )]
    fn allowed(self, clients: usize, passed: Duration) -> usize {
        let pace = (clients as f64 / self.third().as_secs_f64()).max(SLOWEST);
        (pace * passed.as_secs_f64()).ceil() as usize
    }
}

/// Which clients are meant.
pub type Whose = fn(&ClientEntry, &Context) -> bool;

/// A drain under way.
#[derive(Debug)]
pub struct Drain {
    plan: Plan,
    /// Whose it is.
    of_those: Whose,
    began: Instant,
    stage: Stage,
    /// When the stage began, and how many clients there were.
    stage_began: (Instant, usize),
    /// Clients told in this stage, and since when they had been silent.
    told: HashMap<u64, u64>,
}

impl Drain {
    /// Begins, of those clients: nobody new gets in, save those who are in the queue already.
    pub fn begin(limit: Option<Duration>, of_those: Whose, context: &Context) -> Self {
        let limit = limit.unwrap_or_else(|| context.config.load().settings.drain_timeout);
        tracing::info!(
            "draining {} clients within {} s",
            clients(context, of_those).len(),
            limit.as_secs_f64()
        );
        context.drain();
        context.manager.end_suspension();
        let now = Instant::now();
        Self {
            plan: Plan { limit },
            of_those,
            began: now,
            stage: Stage::Silent,
            stage_began: (now, clients(context, of_those).len()),
            told: HashMap::new(),
        }
    }

    /// Tells those whose time has come. True: it is over.
    pub fn go_on(&mut self, acceptors: &Acceptors, context: &Context) -> bool {
        let passed = self.began.elapsed();
        let stage = self.plan.stage(passed);
        if stage != self.stage {
            self.stage = stage;
            self.stage_began = (Instant::now(), clients(context, self.of_those).len());
            self.told.clear();
            if stage != Stage::Between {
                // Who has not got through its login by now would only have to go again.
                context.shut_down();
            }
        }
        if self.has_ended(passed, acceptors, context) {
            return true;
        }
        match stage {
            Stage::Silent => self.tell_silent(context),
            Stage::Between => self.tell_between(context),
            Stage::Finishing => self.tell_at_once(context, Order::LeaveSoon),
            Stage::Over => self.tell_at_once(context, Order::LeaveNow),
        }
        false
    }

    fn has_ended(&self, passed: Duration, acceptors: &Acceptors, context: &Context) -> bool {
        let present = clients(context, self.of_those).len();
        if present == 0 {
            // (Those of the console are counted as well.)
            let others = context.manager.parts().registry.clients().len();
            let may_come = acceptors.accept_tcp() || context.manager.active_clients() > others;
            return !may_come || self.stage != Stage::Silent;
        }
        let is_late = passed >= self.plan.limit + LAST_WORDS;
        if is_late {
            tracing::warn!("drain: {present} clients are still there, ending them");
        }
        is_late
    }

    /// May one more be told by now?
    fn may_tell(&self) -> bool {
        let (began, present) = self.stage_began;
        self.told.len() < self.plan.allowed(present, began.elapsed())
    }

    fn tell_silent(&mut self, context: &Context) {
        for client in with_sessions(context, self.of_those) {
            let since = client.since();
            let is_told = self.told.get(&client.id) == Some(&since);
            if is_told || client.phase() != Phase::Idle || !self.is_silent(&client, context) {
                continue;
            }
            if !self.may_tell() {
                return;
            }
            self.told.insert(client.id, since);
            client.order_end(Order::LeaveSilent, since);
        }
    }

    fn tell_between(&mut self, context: &Context) {
        for client in with_sessions(context, self.of_those) {
            if !self.told.contains_key(&client.id) {
                if !self.may_tell() {
                    continue;
                }
                self.told.insert(client.id, 0);
                client.order(Order::LeaveNext);
            }
            // The next transaction of one that is silent may be far away.
            let (since, phase) = (client.since(), client.phase());
            if matches!(phase, Phase::Idle | Phase::LinkedIdle) && self.is_silent(&client, context)
            {
                client.order_end(Order::LeaveSilent, since);
            }
        }
    }

    fn is_silent(&self, client: &ClientEntry, context: &Context) -> bool {
        let now = context.manager.parts().registry.now();
        Duration::from_micros(now.saturating_sub(client.since())) >= self.plan.silent()
    }

    fn tell_at_once(&mut self, context: &Context, order: Order) {
        for client in clients(context, self.of_those) {
            if self.told.insert(client.id, 0).is_none() {
                client.order(order);
            }
        }
    }
}

/// Whoever is meant, and not on the console: that stays to the end.
fn clients(context: &Context, of_those: Whose) -> Vec<Arc<ClientEntry>> {
    let mut clients = context.clients();
    clients.retain(|client| of_those(client, context));
    clients
}

/// Those whose work has ends and beginnings. Replication goes on until there is not much time left.
fn with_sessions(context: &Context, of_those: Whose) -> impl Iterator<Item = Arc<ClientEntry>> {
    clients(context, of_those)
        .into_iter()
        .filter(|client| client.replication == Replication::None)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(seconds: u64) -> Plan {
        Plan {
            limit: Duration::from_secs(seconds),
        }
    }

    #[test]
    fn each_stage_has_a_third_of_the_time() {
        let at = |millis| plan(30).stage(Duration::from_millis(millis));
        assert_eq!([at(0), at(9_999)], [Stage::Silent; 2]);
        assert_eq!([at(10_000), at(19_999)], [Stage::Between; 2]);
        assert_eq!([at(20_000), at(29_999)], [Stage::Finishing; 2]);
        assert_eq!(at(30_000), Stage::Over);
        assert_eq!(plan(0).stage(Duration::ZERO), Stage::Over);
    }

    #[test]
    fn many_clients_are_told_evenly_over_a_stage_and_few_without_delay() {
        let allowed = |clients, millis| plan(30).allowed(clients, Duration::from_millis(millis));
        assert_eq!(allowed(10_000, 0), 0);
        assert_eq!(allowed(10_000, 50), 50);
        assert_eq!(allowed(10_000, 5_000), 5_000);
        assert_eq!(allowed(10_000, 10_000), 10_000);
        assert_eq!(allowed(10, 200), 10);
        // There is no time at all.
        assert_eq!(plan(0).allowed(10, Duration::from_millis(1)), usize::MAX);
    }

    #[test]
    fn nobody_counts_as_silent_who_is_within_the_trust_of_pools_unless_time_is_short() {
        assert_eq!(plan(30).silent(), SILENT);
        assert!(SILENT > Duration::from_secs(1));
        assert_eq!(plan(3).silent(), Duration::from_millis(500));
    }
}
