//! What is on the screen and what the keys do to it. Pure: keys and samples in, no terminal and no console.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::time::Duration;

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::feed::Sample;
use super::views::{VIEWS, View};
use crate::operator::console::Rows;
use crate::operator::target::Target;

/// Rows that PgUp and PgDn move by.
const PAGE: usize = 10;

/// What the keys mean at the moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keys {
    /// Commands.
    Commands,
    /// The text after `/`.
    Filter,
    /// Any key leaves the help.
    Help,
}

/// How a view is sorted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sort {
    /// The column's name: another sample may have it at another place.
    pub column: String,
    /// The greatest values on top?
    pub descending: bool,
}

/// The state of the whole view.
#[expect(clippy::struct_excessive_bools, reason = "they are independent")]
pub struct App {
    /// Address and user.
    pub who: String,
    /// What the keys mean.
    pub keys: Keys,
    /// Only rows with this text in them are shown.
    pub filter: String,
    /// Nothing is asked for.
    pub is_paused: bool,
    /// All columns, not only the view's own.
    pub has_all_columns: bool,
    /// The first row shown.
    pub top: usize,
    /// The last sample.
    pub sample: Option<Sample>,
    /// Why there is no newer one.
    pub failure: Option<String>,
    /// Transactions and queries per second, between the last two samples.
    pub rates: Option<(f64, f64)>,
    interval: u32,
    view: usize,
    sorts: HashMap<usize, Sort>,
    is_over: bool,
    /// A question is on its way.
    is_waiting: bool,
    /// The view has changed: do not wait for the next second.
    is_urgent: bool,
}

impl App {
    /// The view of this console, renewed each `interval` seconds.
    pub fn new(target: &Target, interval: u32) -> Self {
        Self {
            who: format!("{} as {}", target.address, target.user),
            keys: Keys::Commands,
            filter: String::new(),
            is_paused: false,
            has_all_columns: false,
            top: 0,
            sample: None,
            failure: None,
            rates: None,
            interval,
            view: 0,
            sorts: HashMap::new(),
            is_over: false,
            is_waiting: false,
            is_urgent: false,
        }
    }

    /// Has the user had enough?
    pub fn is_over(&self) -> bool {
        self.is_over
    }

    /// Seconds between two samples.
    pub fn interval(&self) -> u32 {
        self.interval
    }

    /// The view that is shown.
    pub fn view(&self) -> &'static View {
        VIEWS.get(self.view).unwrap_or(&VIEWS[0])
    }

    /// Is the console to be asked now? `is_due`: the interval has passed.
    pub fn is_asking(&self, is_due: bool) -> bool {
        !self.is_waiting && (self.is_urgent || (is_due && !self.is_paused))
    }

    /// It has been asked.
    pub fn asked(&mut self) {
        (self.is_waiting, self.is_urgent) = (true, false);
    }

    /// It has answered.
    pub fn sample(&mut self, sample: Result<Sample, String>) {
        self.is_waiting = false;
        match sample {
            Ok(sample) => {
                let last = self.sample.as_ref();
                self.rates = last.and_then(|last| rates(last, &sample)).or(self.rates);
                self.failure = None;
                self.sample = Some(sample);
            }
            Err(error) => {
                // Whoever comes back may have begun to count anew.
                self.rates = None;
                self.failure = Some(error);
            }
        }
    }

    /// The rows of this view, as far as there are any.
    pub fn rows(&self) -> Option<&Result<Rows, String>> {
        let sample = self.sample.as_ref()?;
        (sample.view == self.view()).then_some(&sample.rows)
    }

    /// How this view is sorted.
    pub fn sort(&self) -> Sort {
        let first = || Sort {
            column: self.view().sort.to_owned(),
            descending: true,
        };
        self.sorts.get(&self.view).cloned().unwrap_or_else(first)
    }

    /// The places of the columns to be shown, in their order.
    pub fn columns(&self, rows: &Rows) -> Vec<usize> {
        let own = self.view().columns.iter();
        let own: Vec<usize> = own.filter_map(|name| rows.column(name)).collect();
        if self.has_all_columns || own.is_empty() {
            return (0..rows.columns.len()).collect();
        }
        own
    }

    /// The rows that the filter lets through, sorted. Equal ones keep the console's order.
    pub fn shown<'a>(&self, rows: &'a Rows) -> Vec<&'a Vec<Option<String>>> {
        let wanted = self.filter.to_lowercase();
        let matches = |row: &&Vec<Option<String>>| {
            let mut texts = row.iter().flatten();
            wanted.is_empty() || texts.any(|text| text.to_lowercase().contains(&wanted))
        };
        let mut shown: Vec<_> = rows.rows.iter().filter(matches).collect();
        let sort = self.sort();
        if let Some(column) = rows.column(&sort.column) {
            // `wait` are the whole seconds of what `wait_us` goes on with.
            let rest = rows.column(&format!("{}_us", sort.column));
            shown.sort_by(|one, other| {
                let order = compare(one, other, column);
                let order = order
                    .then_with(|| rest.map_or(Ordering::Equal, |rest| compare(one, other, rest)));
                if sort.descending {
                    order.reverse()
                } else {
                    order
                }
            });
        }
        shown
    }

    /// A key was pressed.
    pub fn key(&mut self, key: KeyEvent) {
        let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
        if is_control && matches!(key.code, KeyCode::Char('c')) {
            self.is_over = true;
            return;
        }
        match self.keys {
            Keys::Help => self.keys = Keys::Commands,
            Keys::Filter => self.filter_key(key.code),
            Keys::Commands => self.command(key.code),
        }
    }

    fn filter_key(&mut self, code: KeyCode) {
        self.top = 0;
        match code {
            KeyCode::Enter => self.keys = Keys::Commands,
            KeyCode::Esc => {
                self.filter.clear();
                self.keys = Keys::Commands;
            }
            KeyCode::Backspace => {
                self.filter.pop();
            }
            KeyCode::Char(char) => self.filter.push(char),
            _ => {}
        }
    }

    fn command(&mut self, code: KeyCode) {
        match code {
            KeyCode::Char('q') => self.is_over = true,
            KeyCode::Char('?' | 'h') => self.keys = Keys::Help,
            KeyCode::Char('/') => self.keys = Keys::Filter,
            KeyCode::Esc => self.filter.clear(),
            KeyCode::Char('p' | ' ') => self.is_paused = !self.is_paused,
            KeyCode::Char('a') => self.has_all_columns = !self.has_all_columns,
            KeyCode::Char('r') => {
                let mut sort = self.sort();
                sort.descending = !sort.descending;
                self.sorts.insert(self.view, sort);
            }
            KeyCode::Left | KeyCode::Char('<') => self.sort_by(false),
            KeyCode::Right | KeyCode::Char('>') => self.sort_by(true),
            KeyCode::Up | KeyCode::Char('k') => self.up(1),
            KeyCode::Down | KeyCode::Char('j') => self.down(1),
            KeyCode::PageUp => self.up(PAGE),
            KeyCode::PageDown => self.down(PAGE),
            KeyCode::Home | KeyCode::Char('g') => self.top = 0,
            KeyCode::End | KeyCode::Char('G') => self.down(usize::MAX),
            KeyCode::Tab => self.show((self.view + 1) % VIEWS.len()),
            KeyCode::BackTab => self.show((self.view + VIEWS.len() - 1) % VIEWS.len()),
            KeyCode::Char(digit) => {
                let number = digit.to_digit(10).and_then(|digit| digit.checked_sub(1));
                let number = number.and_then(|number| usize::try_from(number).ok());
                if let Some(number) = number.filter(|number| *number < VIEWS.len()) {
                    self.show(number);
                }
            }
            _ => {}
        }
    }

    fn show(&mut self, view: usize) {
        if view != self.view {
            (self.view, self.top, self.is_urgent) = (view, 0, true);
        }
    }

    fn up(&mut self, by: usize) {
        // There may be fewer rows than when we went down.
        self.down(0);
        self.top = self.top.saturating_sub(by);
    }

    fn down(&mut self, by: usize) {
        let count = match self.rows() {
            Some(Ok(rows)) => self.shown(rows).len(),
            _ => 0,
        };
        self.top = self.top.saturating_add(by).min(count.saturating_sub(1));
    }

    /// Sorts by the column beside the one of now.
    fn sort_by(&mut self, is_next: bool) {
        let Some(Ok(rows)) = self.rows() else { return };
        let columns = self.columns(rows);
        let name = |at: &usize| rows.columns.get(*at).map(|column| column.name.clone());
        let names: Vec<String> = columns.iter().filter_map(name).collect();
        let mut sort = self.sort();
        let at = names.iter().position(|name| *name == sort.column);
        let next = match at {
            None => 0,
            Some(at) if is_next => (at + 1).min(names.len().saturating_sub(1)),
            Some(at) => at.saturating_sub(1),
        };
        if let Some(name) = names.get(next) {
            sort.column.clone_from(name);
            self.sorts.insert(self.view, sort);
        }
    }
}

/// NULL before numbers, by their value, before texts, by their letters: one order for all, or a sort would panic.
fn compare(one: &[Option<String>], other: &[Option<String>], column: usize) -> Ordering {
    let one = one.get(column).and_then(Option::as_deref);
    let other = other.get(column).and_then(Option::as_deref);
    let number = |text: Option<&str>| text.and_then(|text| text.parse::<f64>().ok());
    match (number(one), number(other)) {
        (Some(one), Some(other)) => one.total_cmp(&other),
        (Some(_), None) => other.map_or(Ordering::Greater, |_| Ordering::Less),
        (None, Some(_)) => one.map_or(Ordering::Less, |_| Ordering::Greater),
        (None, None) => one.cmp(&other),
    }
}

/// Transactions and queries per second between two samples; `None` if the counters began anew.
fn rates(last: &Sample, now: &Sample) -> Option<(f64, f64)> {
    let elapsed = now.at.saturating_sub(last.at);
    if elapsed < Duration::from_millis(10) {
        return None;
    }
    let rate = |column: &str| {
        let more = sum(&now.stats, column) - sum(&last.stats, column);
        (more >= 0.0).then(|| more / elapsed.as_secs_f64())
    };
    Some((rate("total_xact_count")?, rate("total_query_count")?))
}

/// A column's numbers added up.
pub fn sum(rows: &Rows, column: &str) -> f64 {
    numbers(rows, column).sum()
}

/// A column's greatest number, 0 if there is none.
pub fn greatest(rows: &Rows, column: &str) -> f64 {
    numbers(rows, column).fold(0.0, f64::max)
}

fn numbers<'a>(rows: &'a Rows, column: &str) -> impl Iterator<Item = f64> + use<'a> {
    let column = rows.column(column);
    rows.rows
        .iter()
        .filter_map(move |row| row.get(column?)?.as_ref()?.parse().ok())
}
