//! Tests of loading whole files.
