//! `pgferry upgrade`: the console's UPGRADE, for scripts. Ends when the new process has taken over, or with the reason why not.

use std::time::Duration;

use clap::Parser;

use super::Error;
use super::console::Console;
use super::options::Options;
use super::target::Target;

/// Longer than a successor may take to start.
const PATIENCE: Duration = Duration::from_secs(150);

/// Start the program anew in the place of the process that runs: a new version of it, and nobody who is connected notices
// The doc comments are what `--help` shows.
#[derive(Debug, Parser)]
#[command(
    name = "pgferry upgrade",
    bin_name = "pgferry upgrade",
    disable_help_flag = true
)]
pub(super) struct Arguments {
    #[command(flatten)]
    options: Options,
}

pub(super) fn run(arguments: &Arguments) -> Result<(), Error> {
    let target = Target::of_process(&arguments.options)?;
    let mut console = Console::connect(&target)?;
    console.wait_for(PATIENCE)?;
    console.run("UPGRADE").map(|_| ())
}
