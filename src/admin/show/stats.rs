//! SHOW STATS, `STATS_TOTALS`, `STATS_AVERAGES` and TOTALS.
//!
//! One table of statistics, since PgBouncer calls each by up to five names.

use crate::admin::averages::{ByDatabase, Period, each};
use crate::admin::show::{Column, View, column, text};
use crate::admin::value::{Cell, Heading, Type};
use crate::stats::Totals;

/// A statistic.
struct Stat {
    /// In SHOW STATS: its sum.
    total: &'static str,
    /// In SHOW STATS: its average.
    average: &'static str,
    /// In SHOW `STATS_TOTALS`.
    in_totals: &'static str,
    /// In SHOW `STATS_AVERAGES`.
    in_averages: &'static str,
    /// In SHOW TOTALS, after `total_` and `avg_`.
    in_list: &'static str,
    read: fn(&Totals) -> u64,
    /// A time is averaged over these, anything else over a second.
    per: Option<fn(&Totals) -> u64>,
}

impl Stat {
    fn average_of(&self, period: &Period) -> u64 {
        let sum = (self.read)(&period.added);
        match self.per {
            Some(count) => each(sum, count(&period.added)),
            None => period.per_second(sum),
        }
    }
}

/// Makes a table of rows: five names, reader, and perhaps what a time is averaged over.
macro_rules! stats {
    ($($total:literal $average:literal $totals:literal $averages:literal $list:literal $field:ident $(/ $per:ident)?;)*) => {
        &[$(Stat {
            total: $total, average: $average, in_totals: $totals, in_averages: $averages, in_list: $list,
            read: |totals| totals.$field,
            per: stats!(@per $($per)?),
        },)*]
    };
    (@per) => { None };
    (@per $per:ident) => { Some(|totals| totals.$per) };
}

/// PgBouncer's statistics in its order.
static STATS: &[Stat] = stats! {
    "total_server_assignment_count" "avg_server_assignment_count" "server_assignment_count" "server_assignment_count"
        "server_assignment_count" server_assignments;
    "total_xact_count" "avg_xact_count" "xact_count" "xact_count" "xact_count" transactions;
    "total_query_count" "avg_query_count" "query_count" "query_count" "query_count" queries;
    "total_received" "avg_recv" "bytes_received" "bytes_received" "client_bytes" received;
    "total_sent" "avg_sent" "bytes_sent" "bytes_sent" "server_bytes" sent;
    "total_xact_time" "avg_xact_time" "xact_time" "xact_time" "xact_time" transaction_time / transactions;
    "total_query_time" "avg_query_time" "query_time" "query_time" "query_time" query_time / queries;
    "total_wait_time" "avg_wait_time" "wait_time" "wait_time" "wait_time" wait_time / server_assignments;
    "total_client_parse_count" "avg_client_parse_count" "client_parse_count" "avg_client_parse_count"
        "ps_client_parse_count" client_parses;
    "total_server_parse_count" "avg_server_parse_count" "server_parse_count" "avg_server_parse_count"
        "ps_server_parse_count" server_parses;
    "total_bind_count" "avg_bind_count" "bind_count" "avg_bind_count" "ps_bind_count" binds;
    "total_client_login_count" "avg_client_login_count" "client_login_count" "avg_client_login_count"
        "client_login_count" client_logins;
};

/// A sum that only we have. It stands after all of PgBouncer's columns.
struct Own {
    total: &'static str,
    in_totals: &'static str,
    read: fn(&Totals) -> u64,
}

/// Makes a table of rows: its name in SHOW STATS and SHOW TOTALS, that in SHOW `STATS_TOTALS`, reader.
macro_rules! own {
    ($($total:literal $totals:literal $field:ident;)*) => {
        &[$(Own { total: $total, in_totals: $totals, read: |totals| totals.$field },)*]
    };
}

static OWN: &[Own] = own! {
    "total_prepare_cache_hit" "prepare_cache_hit" prepare_cache_hits;
    "total_prepare_cache_miss" "prepare_cache_miss" prepare_cache_misses;
    "total_session_look_count" "session_look_count" looks;
    "total_pin_count" "pin_count" pins;
    "total_replan_count" "replan_count" replans;
    "total_slow_listener_count" "slow_listener_count" slow_listeners;
    "total_unnamed_reuse_count" "unnamed_reuse_count" unnamed_reuses;
    "total_unnamed_demotion_count" "unnamed_demotion_count" unnamed_demotions;
};

fn totals_by_database(view: &View<'_>) -> ByDatabase {
    view.console.averages.totals(&view.console.manager)
}

fn numeric_headings<'a>(names: impl Iterator<Item = &'a &'static str>) -> Vec<Heading> {
    let database = Heading {
        name: "database",
        kind: Type::Text,
    };
    std::iter::once(database)
        .chain(names.map(|name| Heading {
            name,
            kind: Type::Numeric,
        }))
        .collect()
}

pub(super) fn headings() -> Vec<Heading> {
    let sums = STATS.iter().map(|stat| &stat.total);
    let averages = STATS.iter().map(|stat| &stat.average);
    numeric_headings(sums.chain(averages).chain(OWN.iter().map(|own| &own.total)))
}

pub(super) fn totals_headings() -> Vec<Heading> {
    let sums = STATS.iter().map(|stat| &stat.in_totals);
    numeric_headings(sums.chain(OWN.iter().map(|own| &own.in_totals)))
}

pub(super) fn averages_headings() -> Vec<Heading> {
    numeric_headings(STATS.iter().map(|stat| &stat.in_averages))
}

/// A row for each database: its name, and the numbers that `cells` makes of its counters and its last period.
fn by_database(view: &View<'_>, cells: fn(&Totals, &Period) -> Vec<Cell>) -> Vec<Vec<Cell>> {
    let rows = totals_by_database(view).into_iter().map(|(name, totals)| {
        let period = view.console.averages.of(&name);
        let mut row = vec![Cell::Text(name)];
        row.extend(cells(&totals, &period));
        row
    });
    rows.collect()
}

fn sums(totals: &Totals) -> impl Iterator<Item = Cell> + use<'_> {
    STATS.iter().map(|stat| (stat.read)(totals).into())
}

fn averages(period: &Period) -> impl Iterator<Item = Cell> + use<'_> {
    STATS.iter().map(|stat| stat.average_of(period).into())
}

fn own(totals: &Totals) -> impl Iterator<Item = Cell> + use<'_> {
    OWN.iter().map(|own| (own.read)(totals).into())
}

pub(super) fn rows(view: &View<'_>) -> Vec<Vec<Cell>> {
    by_database(view, |totals, period| {
        sums(totals)
            .chain(averages(period))
            .chain(own(totals))
            .collect()
    })
}

pub(super) fn totals_rows(view: &View<'_>) -> Vec<Vec<Cell>> {
    by_database(view, |totals, _| sums(totals).chain(own(totals)).collect())
}

pub(super) fn averages_rows(view: &View<'_>) -> Vec<Vec<Cell>> {
    by_database(view, |_, period| averages(period).collect())
}

/// A line of SHOW TOTALS.
#[derive(Debug)]
pub(super) struct Line {
    name: String,
    value: u64,
}

pub(super) static TOTALS: &[Column<Line>] = &[
    text("name", |line| line.name.as_str().into()),
    column("value", Type::Numeric, |line| line.value.into()),
];

/// All databases together.
pub(super) fn list(view: &View<'_>) -> Vec<Line> {
    let (mut totals, mut period) = (Totals::default(), Period::default());
    for (name, of_database) in totals_by_database(view) {
        totals.merge(&of_database);
        let last = view.console.averages.of(&name);
        period.added.merge(&last.added);
        period.length = last.length;
    }
    let sums = STATS.iter().map(|stat| Line {
        name: format!("total_{}", stat.in_list),
        value: (stat.read)(&totals),
    });
    let averages = STATS.iter().map(|stat| Line {
        name: format!("avg_{}", stat.in_list),
        value: stat.average_of(&period),
    });
    let own = OWN.iter().map(|own| Line {
        name: own.total.to_owned(),
        value: (own.read)(&totals),
    });
    sums.chain(averages).chain(own).collect()
}
