//! Statement text, as far as a pooler needs to understand it.
//!
//! Owns the tokens of `PostgreSQL`'s SQL, the few statements whose text changes what the pooler keeps, and what
//! a text may leave behind in its session. There is no grammar: a text that `PostgreSQL` will refuse may well be
//! given a meaning here, so what is found is only a guess ahead, and the server's answer decides. Pure: bytes
//! in, values out.

pub mod classify;
pub mod functions;
pub mod lexer;
pub mod normalize;
pub mod quote;
pub mod steady;
pub mod touches;
pub mod traceparent;
