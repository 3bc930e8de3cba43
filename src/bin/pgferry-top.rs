//! The `pgferry-top` command, which `pgferry top` runs.

use std::process::ExitCode;

fn main() -> ExitCode {
    pgferry::top::main(std::env::args_os().collect())
}
