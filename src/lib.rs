//! pgferry.

pub mod protocol;
pub mod sql;
