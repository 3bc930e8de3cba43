//! pgferry.

pub mod config;
