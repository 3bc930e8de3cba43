//! `pgferry show NAME`: one SHOW of the console, printed.

use std::io::Write;

use clap::Parser;

use super::Error;
use super::console::Console;
use super::options::Options;
use super::target::Target;
use super::write::{self, Format};

/// Print what the console's SHOW NAME says (docs/console.md lists the names)
// The doc comments are what `--help` shows.
#[derive(Debug, Parser)]
#[command(
    name = "pgferry show",
    bin_name = "pgferry show",
    disable_help_flag = true
)]
pub(super) struct Arguments {
    /// What to show: POOLS, CLIENTS, STATS, ...
    #[arg(required = true, value_name = "NAME")]
    words: Vec<String>,

    /// How to print it
    #[arg(short, long, value_enum, default_value_t = Format::Table)]
    format: Format,

    #[command(flatten)]
    options: Options,
}

pub(super) fn run(arguments: &Arguments) -> Result<(), Error> {
    let name = name(&arguments.words)?;
    let target = Target::of_process(&arguments.options)?;
    let rows = Console::connect(&target)?.show(&name)?;
    let text = write::text(&rows, arguments.format);
    match std::io::stdout().write_all(text.as_bytes()) {
        // `pgferry show CLIENTS | head`.
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        written => Ok(written?),
    }
}

/// The name in capitals. Nothing but SHOW can be said by it.
fn name(words: &[String]) -> Result<String, Error> {
    let name = words.join(" ").to_ascii_uppercase();
    let is_part = |char: char| char.is_ascii_alphanumeric() || matches!(char, '_' | ' ');
    if name.chars().all(is_part) {
        Ok(name)
    } else {
        Err(Error::Usage(format!(
            "'{}' is no name of a SHOW",
            super::console::printable(&name)
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_can_say_nothing_but_show() {
        let name = |text: &str| name(&[text.to_owned()]).ok();
        assert_eq!(name("stats_totals").as_deref(), Some("STATS_TOTALS"));
        for text in ["pools; SHUTDOWN", "pools--", "'x'", "a\0b"] {
            assert_eq!(name(text), None, "{text}");
        }
    }

    #[test]
    fn the_letters_are_those_of_psql() {
        let line = "show pools -h db -p 7 -U me -d pgferry --format json";
        let arguments = Arguments::try_parse_from(line.split(' ')).unwrap();
        assert_eq!(arguments.options.host.as_deref(), Some("db"));
        assert_eq!(arguments.options.port, Some(7));
        assert_eq!(arguments.options.user.as_deref(), Some("me"));
        assert_eq!(arguments.options.dbname.as_deref(), Some("pgferry"));
        assert_eq!(arguments.format, Format::Json);
    }
}
