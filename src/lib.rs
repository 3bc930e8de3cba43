//! pgferry.
