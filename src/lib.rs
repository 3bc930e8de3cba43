//! pgferry.

pub mod protocol;
