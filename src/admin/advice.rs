//! Advice: where a number says that a setting does not fit what happens.
//!
//! Looked for when somebody asks (SHOW ADVICE, the status page), and once in a statistics period for the log, which has each piece
//! of advice when it is new and once an hour for as long as it holds.

use std::collections::HashMap;
use std::time::{Duration, SystemTime};

use tokio::time::Instant;

use crate::admin::{Console, metrics};
use crate::config::Config;
use crate::pool::{Manager, Pool};
use crate::protocol::sqlstate;
use crate::stats::{Fault, Totals};

/// Whoever waits so long has been forgotten, or the pool is far too small.
const LONG_WAIT: Duration = Duration::from_secs(60);

/// An error is of interest for so long, and advice is repeated so often.
const HOUR: Duration = Duration::from_secs(3600);

/// Below so many uses of prepared statements nothing can be said of them.
const MANY_USES: u64 = 10_000;

/// A setting that should be looked at, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Advice {
    /// The setting.
    pub setting: &'static str,
    /// Whose pool it is about; empty: all.
    pub database: String,
    /// The same.
    pub user: String,
    /// What was seen, and what could be done.
    pub text: String,
}

impl Advice {
    fn of_all(setting: &'static str, text: String) -> Self {
        Self {
            setting,
            database: String::new(),
            user: String::new(),
            text,
        }
    }
}

/// All that there is now.
pub fn advise(console: &Console) -> Vec<Advice> {
    let manager = &console.manager;
    let config = manager.parts().config.load();
    let mut all: Vec<Advice> = manager.pools().iter().flat_map(|it| of_pool(it)).collect();
    let clients = (manager.active_clients(), config.settings.max_client_conn);
    all.extend(clients_near_limit(clients));
    all.extend(too_few_descriptors(
        metrics::max_files(),
        expected_descriptors(&config),
    ));
    all.extend(refusals(manager, SystemTime::now()));
    if !manager.parts().registry.reloads.is_latest_done() {
        let text = "the latest reload was rejected, and what runs is not what the files say: see SHOW RELOADS";
        all.push(Advice::of_all("conffile", text.to_owned()));
    }
    all
}

fn of_pool(pool: &Pool) -> Vec<Advice> {
    let (waiting, longest) = pool.queue();
    let size = pool.settings().sizes.size;
    let statements = pool.settings().max_prepared_statements;
    let found = [
        too_small((waiting, longest), size).map(|text| ("default_pool_size", text)),
        too_few_statements(&pool.totals(), statements)
            .map(|text| ("max_prepared_statements", text)),
    ];
    let advice = |(setting, text)| Advice {
        setting,
        database: pool.database.clone(),
        user: pool.user.clone(),
        text,
    };
    found.into_iter().flatten().map(advice).collect()
}

fn too_small((waiting, longest): (usize, Duration), size: usize) -> Option<String> {
    (longest >= LONG_WAIT).then(|| {
        format!(
            "{waiting} clients wait for one of {size} servers, the first for {} s: servers are kept in transactions for long, \
             PostgreSQL is down, or the pool is too small",
            longest.as_secs()
        )
    })
}

fn too_few_statements(totals: &Totals, most: usize) -> Option<String> {
    let uses = totals.prepare_cache_hits + totals.prepare_cache_misses;
    let is_low = most > 0 && uses >= MANY_USES && totals.prepare_cache_misses * 4 > uses;
    is_low.then(|| {
        let share = totals.prepare_cache_hits * 100 / uses;
        format!(
            "only {share} % of prepared statements were on the server already: there are more than {most}, or their texts differ \
             each time"
        )
    })
}

fn clients_near_limit((clients, most): (usize, usize)) -> Option<Advice> {
    (clients.saturating_mul(10) >= most.saturating_mul(9)).then(|| {
        let text =
            format!("{clients} of at most {most} clients are connected: others will be refused");
        Advice::of_all("max_client_conn", text)
    })
}

fn too_few_descriptors(limit: u64, expected: usize) -> Option<Advice> {
    (limit > 0 && limit < expected as u64).then(|| {
        let text = format!(
            "the process may open {limit} files, and needs up to {expected} for its clients and servers: raise its limit (LimitNOFILE, \
             ulimit -n)"
        );
        Advice::of_all("max_client_conn", text)
    })
}

/// PostgreSQL had no room for connections of ours.
fn refusals(manager: &Manager, now: SystemTime) -> Option<Advice> {
    let is_recent = |last: SystemTime| now.duration_since(last).is_ok_and(|ago| ago < HOUR);
    let errors = manager.parts().registry.errors.rows();
    let row = errors.into_iter().find(|row| {
        let is_theirs = row.fault == Fault::Server;
        is_theirs && row.sqlstate == sqlstate::TOO_MANY_CONNECTIONS && is_recent(row.last)
    })?;
    Some(Advice {
        setting: "max_db_connections",
        text: "PostgreSQL has refused connections because it has too many (53300): the pools together may be larger than its \
               max_connections"
            .to_owned(),
        database: row.database,
        user: row.user,
    })
}

/// The files that are open with clients and servers at their limits, and a few of our own.
pub fn expected_descriptors(config: &Config) -> usize {
    let settings = &config.settings;
    let servers: usize = config
        .databases
        .values()
        .map(|database| {
            database.pool_size.unwrap_or(settings.default_pool_size) + settings.reserve_pool_size
        })
        .sum();
    settings.max_client_conn + servers + 32
}

/// What the log has had already.
#[derive(Debug, Default)]
pub struct Adviser {
    said: HashMap<(&'static str, String, String), Instant>,
}

impl Adviser {
    /// What the log is to have of this.
    pub fn news(&mut self, advice: Vec<Advice>, now: Instant) -> Vec<Advice> {
        self.said
            .retain(|_, said| now.saturating_duration_since(*said) < HOUR);
        let mut news = advice;
        news.retain(|it| {
            let key = (it.setting, it.database.clone(), it.user.clone());
            let is_new = !self.said.contains_key(&key);
            self.said.entry(key).or_insert(now);
            is_new
        });
        news
    }

    /// Looks, and puts it there.
    pub fn log(&mut self, console: &Console) {
        for advice in self.news(advise(console), Instant::now()) {
            let Advice {
                setting,
                database,
                user,
                text,
            } = advice;
            if database.is_empty() {
                tracing::warn!("advice: {setting}: {text}");
            } else {
                tracing::warn!("advice: {setting} ({database}/{user}): {text}");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin::tests::console;
    use crate::stats::errors::Seen;

    #[test]
    fn a_pool_whose_clients_wait_for_a_minute_is_too_small() {
        assert_eq!(too_small((9, Duration::from_secs(59)), 5), None);
        let text = too_small((9, Duration::from_secs(61)), 5).unwrap();
        assert!(text.starts_with("9 clients wait for one of 5 servers, the first for 61 s"));
    }

    #[test]
    fn statements_that_are_prepared_again_and_again_are_too_many() {
        let totals = |hits, misses| Totals {
            prepare_cache_hits: hits,
            prepare_cache_misses: misses,
            ..Totals::default()
        };
        assert_eq!(too_few_statements(&totals(5_000, 4_000), 200), None);
        assert_eq!(too_few_statements(&totals(90_000, 10_000), 200), None);
        assert_eq!(too_few_statements(&totals(5_000, 5_000), 0), None);
        let text = too_few_statements(&totals(5_000, 5_000), 200).unwrap();
        assert!(text.starts_with("only 50 % "), "{text}");
    }

    #[test]
    fn limits_that_are_nearly_reached_are_told() {
        assert_eq!(clients_near_limit((89, 100)), None);
        assert!(clients_near_limit((90, 100)).is_some());
        assert_eq!(too_few_descriptors(1024, 1000), None);
        assert!(too_few_descriptors(1024, 1025).is_some());
    }

    #[tokio::test]
    async fn a_server_that_is_full_and_a_file_that_is_wrong_are_told_and_logged_once() {
        let (console, _) = console();
        let registry = &console.manager.parts().registry;
        let reload = crate::stats::reloads::Outcome::Rejected("a.ini:1".into());
        registry.reloads.note(reload);
        registry.errors.note(Seen {
            sqlstate: b"53300",
            fault: Some(Fault::Server),
            database: "app",
            user: "joe",
            message: b"sorry, too many clients already",
        });
        let settings = |advice: &[Advice]| {
            let names = advice.iter().map(|it| it.setting);
            names.collect::<Vec<_>>()
        };
        let mut advice = advise(&console);
        // (As many files as whoever runs this test may open.)
        advice.retain(|it| it.setting != "max_client_conn");
        assert_eq!(settings(&advice), ["max_db_connections", "conffile"]);
        let (mut adviser, now) = (Adviser::default(), Instant::now());
        assert_eq!(adviser.news(advice.clone(), now), advice);
        assert_eq!(adviser.news(advice.clone(), now + HOUR / 2), []);
        assert_eq!(adviser.news(advice.clone(), now + HOUR), advice);
    }
}
