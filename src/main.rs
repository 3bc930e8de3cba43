//! The `pgferry` command.

fn main() {}
