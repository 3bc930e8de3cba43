//! What the fuzz targets do with an input: one function each, which panics where a promise is broken.
//!
//! `fuzz_targets/` runs them under libFuzzer, `tests/fuzz_corpus.rs` under `cargo test`: on the corpus, and on
//! mutations of it that are the same in each run.

mod auth;
mod config;
mod ldap;
mod protocol;
mod server;
mod text;

/// Does everything with an input.
pub type Body = fn(&[u8]);

/// All targets, by their names.
pub const TARGETS: &[(&str, Body)] = &[
    ("startup", protocol::startup),
    ("frontend", protocol::frontend),
    ("backend", protocol::backend),
    ("client_login", auth::client_login),
    ("server_login", auth::server_login),
    ("pipeline", server::pipeline),
    ("parameters", server::parameters),
    ("ldap_reply", ldap::ldap_reply),
    ("ldap_filter", ldap::ldap_filter),
    ("ldap_options", ldap::ldap_options),
    ("ini", config::ini),
    ("toml", config::toml),
    ("hba", config::hba),
    ("userlist", config::userlist),
    ("connection_string", config::connection_string),
    ("url", config::url),
    ("console", text::console),
    ("sql", text::sql),
    ("touches", text::touches),
    ("normalized", text::normalized),
    ("traceparent", text::traceparent),
];

/// Runs the target of this name.
pub fn run(target: &str, input: &[u8]) {
    let (_, body) = TARGETS
        .iter()
        .find(|(name, _)| *name == target)
        .expect("a target of this name");
    body(input);
}

/// What is left of an input.
struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    /// The next byte; 0 at the end.
    fn byte(&mut self) -> u8 {
        let Some((&byte, rest)) = self.0.split_first() else {
            return 0;
        };
        self.0 = rest;
        byte
    }

    /// As many bytes as the next one says.
    fn piece(&mut self) -> &'a [u8] {
        let length = usize::from(self.byte()).min(self.0.len());
        let (piece, rest) = self.0.split_at(length);
        self.0 = rest;
        piece
    }
}

/// The texts that zero bytes separate, as many as are asked for.
fn texts<const N: usize>(input: &[u8]) -> [String; N] {
    let mut pieces = input.splitn(N, |&byte| byte == 0);
    std::array::from_fn(|_| {
        let piece = pieces.next().unwrap_or_default();
        String::from_utf8_lossy(piece).replace('\0', " ")
    })
}
