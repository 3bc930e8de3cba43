//! Looks at how busy the workers are, a few times a second, and has the clients spread accordingly.

use std::time::Duration;

use nix::unistd::Pid;
use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::pool::Manager;
use crate::pool::balance::{Balance, spread};

/// How often it looks.
const PERIOD: Duration = Duration::from_millis(200);

/// For so many rounds after a change it is made sure that everybody is where they should be: those who were
/// logging in during the change.
const AFTERWARDS: u32 = 10;

/// Runs for the life of the process. `threads` are the workers', in their order.
pub async fn run(manager: &Manager, threads: &[Pid]) {
    let mut tick = interval(PERIOD);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut balance = Balance::default();
    let mut seen: Option<(Instant, Duration)> = None;
    let mut afterwards = 0;
    loop {
        let now = tick.tick().await;
        let workers = &manager.parts().workers;
        let (in_use, most) = (workers.in_use(), workers.count());
        let least = manager
            .parts()
            .config
            .load()
            .settings
            .min_worker_threads
            .clamp(1, most);
        let Some(busy) = threads.iter().copied().map(time_of).sum() else {
            // The system does not tell: all of them, then.
            if in_use < most {
                spread(manager, most);
            }
            continue;
        };
        let work = seen.map_or(0.0, |(then, before)| {
            let passed = now.saturating_duration_since(then).as_secs_f64();
            let busy: Duration = busy;
            busy.saturating_sub(before).as_secs_f64() / passed.max(0.001)
        });
        seen = Some((now, busy));
        let wanted = balance.wanted(work, in_use, (least, most));
        if wanted != in_use {
            tracing::debug!("workers in use: {wanted} (work: {work:.2})");
            afterwards = AFTERWARDS;
        }
        if wanted != in_use || afterwards > 0 {
            afterwards = afterwards.saturating_sub(1);
            spread(manager, wanted);
        }
    }
}

/// How long a thread of ours has run (proc(5): the first number of its schedstat, in nanoseconds).
fn time_of(thread: Pid) -> Option<Duration> {
    let path = format!("/proc/self/task/{thread}/schedstat");
    let text = std::fs::read_to_string(path).ok()?;
    text.split_whitespace()
        .next()?
        .parse()
        .ok()
        .map(Duration::from_nanos)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_a_thread_can_be_read() {
        assert!(time_of(nix::unistd::gettid()).is_some());
    }
}
