//! pgferry.

pub mod auth;
pub mod protocol;
