//! The status page: what an operator looks at first, as one page of HTML that needs no script and fetches nothing.

use std::fmt::Write;
use std::time::Duration;

use crate::admin::show::{self, View};
use crate::admin::value::Cell;
use crate::admin::{Console, Rights};
use crate::stats::Totals;
use crate::stats::histogram::Distribution;

const HEAD: &str = include_str!("status_page.html");

/// The tables of SHOW that are on it.
const TABLES: [&str; 5] = ["advice", "pools", "pins", "errors", "stats"];

/// The whole page.
pub fn html(console: &Console) -> String {
    let mut out = String::from(HEAD);
    let totals = console
        .manager
        .pools()
        .iter()
        .fold(Totals::default(), |mut sum, pool| {
            sum.merge(&pool.totals());
            sum
        });
    let mut query = Distribution::default();
    let mut wait = Distribution::default();
    for pool in console.manager.pools() {
        query.merge(&pool.times(|times| &times.query, |totals| totals.query_time));
        wait.merge(&pool.times(|times| &times.wait, |totals| totals.wait_time));
    }
    let waiting: usize = console
        .manager
        .pools()
        .iter()
        .map(|pool| pool.queue().0)
        .sum();
    let uptime = Duration::from_secs(console.manager.started().elapsed().as_secs());
    let facts = [
        ("version", console.version.to_owned()),
        ("up for", format!("{uptime:?}")),
        (
            "state",
            if console.control.is_shutting_down() {
                "shutting down"
            } else {
                "active"
            }
            .to_owned(),
        ),
        ("clients", console.manager.active_clients().to_string()),
        ("waiting", waiting.to_string()),
        ("transactions", totals.transactions.to_string()),
        (
            "prepared hits",
            percentage(totals.prepare_cache_hits, totals.prepare_cache_misses),
        ),
        ("query p50 / p99", quantiles(&query)),
        ("wait p50 / p99", quantiles(&wait)),
        (
            "errors of the pooler's own",
            totals.pooler_errors.to_string(),
        ),
    ];
    out.push_str("<h1>pgferry</h1>\n<dl>\n");
    for (name, value) in facts {
        // Writing to a string does not fail.
        let _ = writeln!(
            out,
            "<div><dt>{name}</dt><dd>{}</dd></div>",
            escaped(&value)
        );
    }
    out.push_str("</dl>\n");
    // Nobody has logged in: what only administrators see is not here.
    let view = View::new(console, Rights::Stats);
    for name in TABLES {
        if let Some(table) = show::find(name) {
            put_table(&mut out, table, &view);
        }
    }
    out.push_str("</body>\n</html>\n");
    out
}

fn put_table(out: &mut String, table: &show::Show, view: &View<'_>) {
    let rows = (table.rows)(view);
    if rows.is_empty() {
        return;
    }
    let _ = write!(
        out,
        "<h2>{}</h2>\n<div class=\"table\"><table>\n<tr>",
        table.name
    );
    for heading in (table.headings)() {
        let _ = write!(out, "<th>{}</th>", heading.name);
    }
    out.push_str("</tr>\n");
    for row in rows {
        out.push_str("<tr>");
        for cell in row {
            let class = if matches!(cell, Cell::Number(_)) {
                " class=\"n\""
            } else {
                ""
            };
            let text = cell.to_text().unwrap_or_default();
            let _ = write!(out, "<td{class}>{}</td>", escaped(&text));
        }
        out.push_str("</tr>\n");
    }
    out.push_str("</table></div>\n");
}

fn percentage(hits: u64, misses: u64) -> String {
    match (hits * 1000).checked_div(hits + misses) {
        Some(permille) => format!("{}.{} %", permille / 10, permille % 10),
        None => "-".to_owned(),
    }
}

fn quantiles(times: &Distribution) -> String {
    let one = |share| match times.quantile(share) {
        Some(seconds) => format!("{:.3} ms", seconds * 1e3),
        None => "-".to_owned(),
    };
    format!("{} / {}", one(0.5), one(0.99))
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
}
