//! The status page: what an operator looks at first, as one page of HTML that needs no script and fetches nothing.
//!
//! SHOW POOLS and SHOW STATS are wide, and have what programs ask for. Here a pool is one row that fits on a screen.

use std::fmt::Write;
use std::time::Duration;

use crate::admin::numbers::Numbers;
use crate::admin::show::{self, View, statements};
use crate::admin::{Console, Rights, value};
use crate::pool::Pool;
use crate::stats::histogram::Distribution;

const HEAD: &str = include_str!("status_page.html");

/// So many pools, and so many pins, have a row; who has more asks the console.
const MOST_ROWS: usize = 500;

/// A client that waits for so long stands out.
const LONG_WAIT: Duration = Duration::from_secs(1);

/// A cell of a table.
enum Cell {
    Text(String),
    Number(String),
    /// A number that somebody should look at.
    Notable(String),
    /// A word that somebody should look at.
    Warning(String),
}

/// The whole page.
pub fn html(console: &Console) -> String {
    let pools = console.manager.pools();
    let mut all = Numbers::default();
    let mut pool_rows = Vec::new();
    for pool in &pools {
        let numbers = Numbers::of(pool);
        all.merge(&numbers);
        if pool_rows.len() < MOST_ROWS {
            pool_rows.push(pool_row(pool, &numbers));
        }
    }
    let mut out = String::from(HEAD);
    out.push_str("<h1>pgferry</h1>\n");
    put_facts(&mut out, console, &all);
    // Nobody has logged in: what only administrators see is not here.
    let view = View::new(console, Rights::Stats);
    put_shown(&mut out, "Advice", "advice", &view);
    put_table(&mut out, "Pools", &POOL_HEADINGS, pool_rows.into_iter());
    put_table(&mut out, "Kept servers", &PIN_HEADINGS, pin_rows(console));
    let statements = statement_rows(&view);
    put_table(&mut out, "Top statements", &STATEMENT_HEADINGS, statements);
    put_shown(&mut out, "Errors", "errors", &view);
    out.push_str(
        "<p>Times are since the start, in milliseconds: the median and the 99th percentile. More is on the console \
         (<code>SHOW POOLS</code>, <code>SHOW CLIENTS</code>) and in <a href=\"/metrics\">/metrics</a>.</p>\n</body>\n</html>\n",
    );
    out
}

fn put_facts(out: &mut String, console: &Console, all: &Numbers) {
    let totals = &all.totals;
    let limit = console
        .manager
        .parts()
        .config
        .load()
        .settings
        .max_client_conn;
    let state = if console.control.is_shutting_down() {
        "shutting down"
    } else {
        "active"
    };
    let facts = [
        ("version", env!("CARGO_PKG_VERSION").to_owned()),
        ("up for", uptime(console.manager.started().elapsed())),
        ("state", state.to_owned()),
        (
            "clients",
            format!("{} of {limit}", console.manager.active_clients()),
        ),
        ("waiting", all.waiting.to_string()),
        ("transactions", totals.transactions.to_string()),
        (
            "prepared hits",
            percentage(totals.prepare_cache_hits, totals.prepare_cache_misses),
        ),
        ("query ms", quantiles(&all.query)),
        ("wait ms", quantiles(&all.wait)),
        ("errors of its own", totals.pooler_errors.to_string()),
    ];
    out.push_str("<dl>\n");
    for (name, value) in facts {
        // Writing to a string does not fail.
        let _ = writeln!(
            out,
            "<div><dt>{name}</dt><dd>{}</dd></div>",
            escaped(&value)
        );
    }
    out.push_str("</dl>\n");
}

const POOL_HEADINGS: [&str; 14] = [
    "database",
    "user",
    "mode",
    "state",
    "waiting",
    "longest",
    "busy",
    "idle",
    "most",
    "kept",
    "transactions",
    "query ms",
    "wait ms",
    "errors",
];

/// A pool, in the order of [`POOL_HEADINGS`].
fn pool_row(pool: &Pool, numbers: &Numbers) -> Vec<Cell> {
    let number = |count: usize| Cell::Number(count.to_string());
    vec![
        Cell::Text(pool.database.clone()),
        Cell::Text(pool.user.clone()),
        Cell::Text(pool.settings().mode.as_str().to_owned()),
        state(pool, numbers.waiting > 0 && numbers.servers == 0),
        number(numbers.waiting),
        wait(numbers.waiting, numbers.longest_wait),
        number(numbers.busy()),
        number(numbers.idle),
        if numbers.size == 0 {
            Cell::Number("no limit".to_owned())
        } else {
            number(numbers.size)
        },
        number(numbers.pinned),
        Cell::Number(numbers.totals.transactions.to_string()),
        Cell::Number(quantiles(&numbers.query)),
        Cell::Number(quantiles(&numbers.wait)),
        Cell::Number(numbers.totals.pooler_errors.to_string()),
    ]
}

/// How long the first of those that wait has waited. A moment is nothing to look at: that is what a pool is for.
fn wait(waiting: usize, longest: Duration) -> Cell {
    let told = format!("{:.1} s", longest.as_secs_f64());
    if waiting == 0 {
        Cell::Number("-".to_owned())
    } else if longest < LONG_WAIT {
        Cell::Number(told)
    } else {
        Cell::Notable(told)
    }
}

fn state(pool: &Pool, is_stuck: bool) -> Cell {
    if pool.is_paused() {
        Cell::Warning("paused".to_owned())
    } else if pool.cached_error().is_some() {
        // What PostgreSQL said may name what is nobody's business; the log and the clients have it.
        Cell::Warning("no login".to_owned())
    } else if is_stuck {
        Cell::Warning("no server".to_owned())
    } else {
        Cell::Text("active".to_owned())
    }
}

const PIN_HEADINGS: [&str; 6] = ["client", "user", "database", "server", "reason", "since"];

/// Who keeps a server, the longest first, in the order of [`PIN_HEADINGS`].
fn pin_rows(console: &Console) -> impl Iterator<Item = Vec<Cell>> {
    let registry = &console.manager.parts().registry;
    let now = registry.now();
    let mut pins = registry.pins();
    pins.sort_by_key(|pin| (pin.info.since, pin.client.id));
    pins.into_iter().take(MOST_ROWS).map(move |pin| {
        let age = Duration::from_micros(now.saturating_sub(pin.info.since));
        vec![
            Cell::Number(pin.client.id.to_string()),
            Cell::Text(pin.client.user.clone()),
            Cell::Text(pin.client.database.clone()),
            Cell::Number(pin.info.server.to_string()),
            Cell::Text(pin.info.holds.to_string()),
            Cell::Number(uptime(age)),
        ]
    })
}

const STATEMENT_HEADINGS: [&str; 9] = [
    "database", "user", "calls", "errors", "seconds", "mean ms", "most ms", "rows", "query",
];

/// So many statements have a row.
const MOST_STATEMENTS: usize = 20;

/// What takes the time, in the order of [`STATEMENT_HEADINGS`].
fn statement_rows(view: &View<'_>) -> impl Iterator<Item = Vec<Cell>> {
    let rows = statements::rows(view).into_iter().take(MOST_STATEMENTS);
    rows.map(|(row, _)| {
        let sums = &row.sums;
        let number = |count: u64| Cell::Number(count.to_string());
        let time = |micros: u64| Duration::from_micros(micros).as_secs_f64();
        vec![
            Cell::Text(row.database.to_string()),
            Cell::Text(row.user.to_string()),
            number(sums.calls),
            number(sums.errors),
            Cell::Number(format!("{:.1}", time(sums.time))),
            Cell::Number(milliseconds(time(statements::mean(sums)) * 1e3)),
            Cell::Number(milliseconds(time(sums.longest) * 1e3)),
            number(sums.rows),
            Cell::Text(row.text.to_string()),
        ]
    })
}

/// A table of SHOW, as it is.
fn put_shown(out: &mut String, title: &str, name: &str, view: &View<'_>) {
    let Some(table) = show::find(name) else {
        return;
    };
    let headings: Vec<&str> = (table.headings)()
        .iter()
        .map(|heading| heading.name)
        .collect();
    let cell = |cell: value::Cell| {
        let text = cell.to_text().unwrap_or_default();
        match cell {
            value::Cell::Number(_) => Cell::Number(text),
            value::Cell::Null | value::Cell::Text(_) => Cell::Text(text),
        }
    };
    let rows = (table.rows)(view).into_iter().take(MOST_ROWS);
    let rows = rows.map(|row| row.into_iter().map(cell).collect());
    put_table(out, title, &headings, rows);
}

/// A table, or nothing where it would have no rows.
fn put_table(
    out: &mut String,
    title: &str,
    headings: &[&str],
    rows: impl Iterator<Item = Vec<Cell>>,
) {
    let mut rows = rows.peekable();
    let Some(first) = rows.peek() else {
        return;
    };
    let _ = write!(out, "<h2>{title}</h2>\n<div class=\"table\"><table>\n<tr>");
    for (heading, cell) in headings.iter().zip(first) {
        let class = match cell {
            Cell::Text(_) | Cell::Warning(_) => "",
            Cell::Number(_) | Cell::Notable(_) => " class=\"n\"",
        };
        let _ = write!(out, "<th{class}>{heading}</th>");
    }
    out.push_str("</tr>\n");
    for row in rows {
        out.push_str("<tr>");
        for cell in row {
            let class = class(&cell);
            let (Cell::Text(text) | Cell::Number(text) | Cell::Notable(text) | Cell::Warning(text)) =
                cell;
            let _ = write!(out, "<td{class}>{}</td>", escaped(&text));
        }
        out.push_str("</tr>\n");
    }
    out.push_str("</table></div>\n");
}

fn class(cell: &Cell) -> &'static str {
    match cell {
        Cell::Text(_) => "",
        Cell::Number(_) => " class=\"n\"",
        Cell::Notable(_) => " class=\"n look\"",
        Cell::Warning(_) => " class=\"look\"",
    }
}

/// How long, in two units at most.
fn uptime(time: Duration) -> String {
    let seconds = time.as_secs();
    let (minutes, hours) = (seconds / 60, seconds / 3600);
    if hours >= 24 {
        format!("{} d {} h", hours / 24, hours % 24)
    } else if hours > 0 {
        format!("{hours} h {} min", minutes % 60)
    } else if minutes > 0 {
        format!("{minutes} min {} s", seconds % 60)
    } else {
        format!("{seconds} s")
    }
}

fn percentage(hits: u64, misses: u64) -> String {
    match (hits * 1000).checked_div(hits + misses) {
        Some(permille) => format!("{}.{} %", permille / 10, permille % 10),
        None => "-".to_owned(),
    }
}

/// The median and the 99th percentile, in milliseconds.
fn quantiles(times: &Distribution) -> String {
    let one = |share| {
        times
            .quantile(share)
            .map(|seconds| milliseconds(seconds * 1e3))
    };
    match (one(0.5), one(0.99)) {
        (Some(half), Some(most)) => format!("{half} / {most}"),
        _ => "-".to_owned(),
    }
}

/// With about the three digits that a histogram's buckets can tell.
fn milliseconds(value: f64) -> String {
    let places = match value {
        ..1.0 => 3,
        ..10.0 => 2,
        ..100.0 => 1,
        _ => 0,
    };
    format!("{value:.places$}")
}

/// Text that can't be markup. Names of databases and users come from clients.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for char in text.chars() {
        match char {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            char => out.push(char),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_name_is_markup() {
        assert_eq!(escaped("<b a='\"'>&"), "&lt;b a=&#39;&quot;&#39;&gt;&amp;");
    }

    #[test]
    fn shares_have_one_place_behind_the_point() {
        assert_eq!(percentage(2, 1), "66.6 %");
        assert_eq!(percentage(0, 0), "-");
    }

    #[test]
    fn long_times_are_told_in_days_and_short_ones_in_seconds() {
        for (seconds, told) in [
            (0, "0 s"),
            (61, "1 min 1 s"),
            (3_660, "1 h 1 min"),
            (90_000, "1 d 1 h"),
        ] {
            assert_eq!(uptime(Duration::from_secs(seconds)), told);
        }
    }

    #[test]
    fn milliseconds_have_three_digits() {
        for (value, told) in [
            (0.0625, "0.062"),
            (1.0, "1.00"),
            (11.049, "11.0"),
            (1500.0, "1500"),
        ] {
            assert_eq!(milliseconds(value), told);
        }
    }

    #[test]
    fn only_long_waits_stand_out() {
        for (waiting, seconds, told) in [
            (0, 0, " class=\"n\""),
            (3, 0, " class=\"n\""),
            (1, 9, " class=\"n look\""),
        ] {
            assert_eq!(class(&wait(waiting, Duration::from_secs(seconds))), told);
        }
    }

    #[test]
    fn a_table_without_rows_is_left_out() {
        let mut out = String::new();
        put_table(&mut out, "Nothing", &["one"], std::iter::empty());
        assert_eq!(out, "");
    }
}
