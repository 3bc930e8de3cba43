//! The screen: two lines of what the pooler does, the views, a table, and what the keys do.

use std::fmt::Write;

use ratatui::Frame;
use ratatui::layout::{Alignment, Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style, Stylize};
use ratatui::text::{Line, Span, Text};
use ratatui::widgets::{Block, Cell, Clear, Paragraph, Row, Table, Wrap};

use super::app::{App, Keys, greatest, sum};
use super::views::VIEWS;
use crate::operator::console::{Rows, printable, printable_row};

/// A column is no wider, unless it is the last one.
const WIDEST: u16 = 32;

/// Blanks between columns.
const GAP: u16 = 2;

const HELP: &str = "\
1-7, Tab     another view
Left, Right  sort by the column beside
r            the other way round
/            only rows with a text; Enter keeps it, Esc drops it
a            all columns, or the view's own
p, Space     pause, go on
Up, Down, PgUp, PgDn, Home, End
q, Ctrl-C    leave";

/// Draws everything.
pub fn draw(frame: &mut Frame<'_>, app: &App) {
    let areas: [Rect; 4] = Layout::vertical([
        Constraint::Length(2),
        Constraint::Length(1),
        Constraint::Min(0),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    let [head, views, body, foot] = areas;
    frame.render_widget(Paragraph::new(vec![title(app), totals(app)]), head);
    frame.render_widget(tabs(app), views);
    match app.rows() {
        Some(Ok(rows)) => table(frame, body, app, rows),
        Some(Err(message)) => {
            let text = format!(
                "\n  This console has no SHOW {}: {}",
                app.view().show,
                printable(message)
            );
            frame.render_widget(Paragraph::new(text).wrap(Wrap { trim: false }), body);
        }
        None => frame.render_widget(Paragraph::new("\n  …"), body),
    }
    frame.render_widget(footer(app), foot);
    if app.keys == Keys::Help {
        help(frame);
    }
}

fn title(app: &App) -> Line<'static> {
    let sample = app.sample.as_ref();
    let version = sample.map_or("", |sample| sample.version.as_str());
    let clock = sample.map_or("", |sample| sample.clock.as_str());
    Line::from(vec![
        Span::from(" pgferry top ").bold().reversed(),
        Span::from(format!(
            " {}  {}  {clock}",
            printable(&app.who),
            printable(version)
        )),
    ])
}

fn totals(app: &App) -> Line<'static> {
    let Some(sample) = &app.sample else {
        return Line::default();
    };
    let pools = &sample.pools;
    let all = |column| sum(pools, column);
    let wait = greatest(pools, "maxwait") + greatest(pools, "maxwait_us") / 1e6;
    let mut text = format!(
        " clients {} active, {} waiting (longest {wait:.1} s)  servers {} active, {} idle",
        all("cl_active"),
        all("cl_waiting"),
        all("sv_active"),
        all("sv_idle") + all("sv_used"),
    );
    if let Some((transactions, queries)) = app.rates {
        let _ = write!(text, "  {transactions:.0} tx/s, {queries:.0} queries/s");
    }
    Line::from(text)
}

fn tabs(app: &App) -> Line<'static> {
    let mut line = Line::default();
    for (view, number) in VIEWS.iter().zip(1..) {
        let span = Span::from(format!(" {number} {} ", view.name));
        line.push_span(if view == app.view() {
            span.reversed()
        } else {
            span
        });
    }
    line
}

fn footer(app: &App) -> Line<'static> {
    if app.keys == Keys::Filter {
        return Line::from(format!(" /{}_", printable(&app.filter)));
    }
    if let Some(failure) = &app.failure {
        return Line::from(format!(" {}", printable(failure))).bold();
    }
    let mut text =
        String::from(" ? help  q leave  / filter  \u{2190}\u{2192} sort  r reverse  p pause");
    if app.is_paused {
        text = String::from(" PAUSED: p goes on  ? help  q leave");
    }
    if !app.filter.is_empty() {
        let _ = write!(text, "  [/{}]", printable(&app.filter));
    }
    Line::from(text)
}

/// A column as it is drawn.
struct Drawn {
    /// Its place in the rows.
    at: usize,
    heading: String,
    width: u16,
    is_number: bool,
    is_sorted_by: bool,
}

fn table(frame: &mut Frame<'_>, area: Rect, app: &App, rows: &Rows) {
    let shown = app.shown(rows);
    let height = usize::from(area.height.saturating_sub(1));
    let top = app.top.min(shown.len().saturating_sub(1));
    let page = shown.iter().skip(top).take(height);
    let page: Vec<Vec<String>> = page.map(|row| printable_row(row)).collect();
    let columns = visible(drawn(app, rows, &page), area.width);
    let heading = columns.iter().map(|column| {
        let style = if column.is_sorted_by {
            Style::new().add_modifier(Modifier::REVERSED)
        } else {
            Style::new().add_modifier(Modifier::BOLD)
        };
        cell(&column.heading, column).style(style)
    });
    let body = page.iter().map(|row| {
        let text = |column: &Drawn| row.get(column.at).cloned().unwrap_or_default();
        Row::new(columns.iter().map(|column| cell(&text(column), column)))
    });
    let widths = columns
        .iter()
        .map(|column| Constraint::Length(column.width));
    let table = Table::new(body, widths)
        .header(Row::new(heading))
        .column_spacing(GAP);
    frame.render_widget(table, area);
}

fn cell(text: &str, column: &Drawn) -> Cell<'static> {
    let text = Text::from(text.to_owned());
    Cell::from(if column.is_number {
        text.alignment(Alignment::Right)
    } else {
        text
    })
}

fn drawn(app: &App, rows: &Rows, page: &[Vec<String>]) -> Vec<Drawn> {
    let sort = app.sort();
    let column = |at: usize| {
        let column = rows.columns.get(at)?;
        let is_sorted_by = column.name == sort.column;
        let mut heading = printable(&column.name);
        if is_sorted_by {
            heading.push(if sort.descending {
                '\u{2193}'
            } else {
                '\u{2191}'
            });
        }
        let texts = page.iter().filter_map(|row| row.get(at));
        let width = texts.chain([&heading]).map(|text| width(text)).max();
        Some(Drawn {
            at,
            width: width.unwrap_or(0),
            heading,
            is_number: column.is_number,
            is_sorted_by,
        })
    };
    app.columns(rows).into_iter().filter_map(column).collect()
}

/// The columns that fit: always the first one, and the one that is sorted by.
fn visible(mut columns: Vec<Drawn>, width: u16) -> Vec<Drawn> {
    let last = columns.last().map(|column| column.at);
    for column in &mut columns {
        let limit = if Some(column.at) == last {
            width
        } else {
            WIDEST
        };
        column.width = column.width.min(limit);
    }
    let end = |columns: &[Drawn], at: usize| -> u16 {
        let widths = columns.iter().take(at + 1);
        widths.fold(0, |sum, column| sum.saturating_add(column.width + GAP))
    };
    // What is sorted by stays in sight: columns behind the first one go until it does.
    while let Some(at) = columns.iter().position(|column| column.is_sorted_by) {
        if at < 2 || end(&columns, at) <= width.saturating_add(GAP) {
            break;
        }
        columns.remove(1);
    }
    let mut left = width;
    for column in &mut columns {
        // The end of a number would pass for a number.
        let least = if column.is_number { column.width } else { 1 };
        column.width = if left < least {
            0
        } else {
            column.width.min(left)
        };
        left = left.saturating_sub(column.width.max(least) + GAP);
    }
    columns.retain(|column| column.width > 0);
    columns
}

fn width(text: &str) -> u16 {
    u16::try_from(Line::from(text).width()).unwrap_or(u16::MAX)
}

fn help(frame: &mut Frame<'_>) {
    let lines = HELP.lines().count() + 2;
    let area = frame.area();
    let (wide, high) = (
        64.min(area.width),
        u16::try_from(lines).unwrap_or(0).min(area.height),
    );
    let place = Rect {
        x: (area.width - wide) / 2,
        y: (area.height - high) / 2,
        width: wide,
        height: high,
    };
    frame.render_widget(Clear, place);
    frame.render_widget(
        Paragraph::new(HELP).block(Block::bordered().title(" keys ")),
        place,
    );
}
