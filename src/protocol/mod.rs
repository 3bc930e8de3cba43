//! The bytes of `PostgreSQL`'s frontend/backend protocol. Pure: no tokio, no clock, no I/O, no config.

pub mod authentication;
