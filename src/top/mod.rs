//! `pgferry top`: a pooler's console as a view in the terminal that renews itself. A program of its own, `pgferry-top`,
//! built with the feature `top`.
//!
//! Owns the terminal, the keys and what they do. Asks by [`crate::operator`]'s client, and so can watch a PgBouncer as
//! well; a console that has not what a view shows says so in its place.
//!
//! ```text
//!   terminal ── keys ──▶ App ── draw ──▶ terminal
//!                         ▲ │
//!                 Sample  │ ▼  which view
//!                        Feed ── SHOW … ──▶ console     (a thread: the keys work while it waits)
//! ```

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use ratatui::crossterm::event::{self, Event, KeyEventKind};

use crate::operator::Error;
use crate::operator::options::Options;
use crate::operator::target::Target;
use crate::operator::{complain, told};

mod app;
mod draw;
mod feed;
mod views;

use app::App;
use feed::Feed;

/// Longest that the loop waits for a key before it looks for an answer of the console.
const TURN: Duration = Duration::from_millis(50);

/// Watch a pooler: pools, clients, servers, waits, statistics, prepared statements and pins
// The doc comments are what `--help` shows.
#[derive(Debug, Parser)]
#[command(
    name = "pgferry top",
    bin_name = "pgferry top",
    disable_help_flag = true
)]
struct Arguments {
    /// Seconds between two looks
    #[arg(short, long, value_name = "SECONDS", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=3600))]
    interval: u32,

    #[command(flatten)]
    options: Options,
}

/// The whole program: from the command line to the exit code.
pub fn main(argv: Vec<OsString>) -> ExitCode {
    let arguments = match Arguments::try_parse_from(argv) {
        Ok(arguments) => arguments,
        Err(error) => return told(&error),
    };
    complain(run(&arguments)).err().unwrap_or(ExitCode::SUCCESS)
}

fn run(arguments: &Arguments) -> Result<(), Error> {
    let target = Target::of_process(&arguments.options)?;
    let mut app = App::new(&target, arguments.interval);
    // Before the terminal is ours: who can't connect at all reads why on the screen that stays.
    let feed = Feed::start(target)?;
    let mut terminal = ratatui::try_init()?;
    let outcome = watch(&mut terminal, &mut app, &feed);
    ratatui::try_restore()?;
    outcome
}

fn watch(terminal: &mut ratatui::DefaultTerminal, app: &mut App, feed: &Feed) -> Result<(), Error> {
    let interval = Duration::from_secs(u64::from(app.interval()));
    let (mut asked, mut is_stale) = (None, true);
    loop {
        // Not at every turn: a long list is sorted for each drawing.
        if std::mem::take(&mut is_stale) {
            terminal.draw(|frame| draw::draw(frame, app))?;
        }
        if event::poll(TURN)? {
            if let Event::Key(key) = event::read()?
                && key.kind != KeyEventKind::Release
            {
                app.key(key);
            }
            // The terminal may have another size, too.
            is_stale = true;
        }
        if app.is_over() {
            return Ok(());
        }
        if let Some(sample) = feed.take() {
            app.sample(sample);
            is_stale = true;
        }
        let now = tokio::time::Instant::now();
        let is_due = asked.is_none_or(|asked| now.duration_since(asked) >= interval);
        if app.is_asking(is_due) && feed.ask(app.view()) {
            app.asked();
            asked = Some(now);
        }
    }
}

#[cfg(test)]
mod tests;
