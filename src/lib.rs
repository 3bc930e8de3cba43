//! pgferry.

pub mod daemon;
