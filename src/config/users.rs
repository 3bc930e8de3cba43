//! Users: the `[users]` section, the `auth_file`, and the text of a secret.
//!
//! Owns how both are written (PgBouncer: "Section \[users\]", "Authentication file format"). What kind of
//! secret a text is and what it proves belongs to `auth`.

use std::collections::HashMap;
use std::fmt;
use std::time::Duration;

use subtle::ConstantTimeEq;
use zeroize::Zeroize;

use crate::config::databases::{count, pairs, typed, whole_seconds};
use crate::config::error::{Error, Place, Problem};
use crate::config::kind::{PinPolicy, PoolMode, quoted};

/// A password or verifier as it was written. `Debug` hides it, equality takes the same time for every
/// text of one length, and its memory is overwritten when it is dropped.
#[derive(Clone)]
pub struct SecretText(String);

impl SecretText {
    /// Wraps the text.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The text itself; never log it.
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// True for `""`, which matches no password.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Debug for SecretText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(..)")
    }
}

impl PartialEq for SecretText {
    fn eq(&self, other: &Self) -> bool {
        self.0.as_bytes().ct_eq(other.0.as_bytes()).into()
    }
}

impl Eq for SecretText {}

impl Drop for SecretText {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

/// What `[users]` says about one user; `None`: as the database or everybody.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UserSettings {
    /// Servers per pool of this server-side user.
    pub pool_size: Option<usize>,
    /// Extra servers per pool of this server-side user.
    pub reserve_pool_size: Option<usize>,
    /// When a server goes back to its pool, for this server-side user.
    pub pool_mode: Option<PoolMode>,
    /// What becomes of a client whose session can't move, for this server-side user.
    pub pin_policy: Option<PinPolicy>,
    /// Most servers of this server-side user; 0: no limit.
    pub max_user_connections: Option<usize>,
    /// Most connections of clients that log in with this name; 0: no limit.
    pub max_user_client_connections: Option<usize>,
    /// Longest a query may run, for this server-side user.
    pub query_timeout: Option<Duration>,
    /// Longest a query of a client with this name may wait for a server.
    pub query_wait_timeout: Option<Duration>,
    /// Longest idling within a transaction, for this server-side user.
    pub idle_transaction_timeout: Option<Duration>,
    /// Longest transaction, for this server-side user.
    pub transaction_timeout: Option<Duration>,
    /// Longest silence of a client with this name that has no server.
    pub client_idle_timeout: Option<Duration>,
}

/// The keys of a `[users]` line.
pub(crate) const KEYS: &[&str] = &[
    "pool_size",
    "reserve_pool_size",
    "pool_mode",
    "pin_policy",
    "max_user_connections",
    "max_user_client_connections",
    "query_timeout",
    "query_wait_timeout",
    "idle_transaction_timeout",
    "transaction_timeout",
    "client_idle_timeout",
];

/// Reads the right-hand side of a `[users]` line.
pub(crate) fn parse(line: &str) -> Result<UserSettings, Problem> {
    let mut user = UserSettings::default();
    for (key, value) in pairs(line)? {
        let (key, value) = (key.as_str(), value.as_str());
        // As in PgBouncer, a limit of no seconds leaves the global one in force.
        let limit = || whole_seconds(key, value).map(|time| time.filter(|time| !time.is_zero()));
        match key {
            "pool_size" => user.pool_size = count(key, value)?,
            "reserve_pool_size" => user.reserve_pool_size = count(key, value)?,
            "pool_mode" => user.pool_mode = Some(typed(key, value)?),
            "pin_policy" => user.pin_policy = Some(typed(key, value)?),
            "max_user_connections" => user.max_user_connections = count(key, value)?,
            "max_user_client_connections" => user.max_user_client_connections = count(key, value)?,
            "query_timeout" => user.query_timeout = limit()?,
            "query_wait_timeout" => user.query_wait_timeout = whole_seconds(key, value)?,
            "idle_transaction_timeout" => user.idle_transaction_timeout = limit()?,
            "transaction_timeout" => user.transaction_timeout = limit()?,
            "client_idle_timeout" => user.client_idle_timeout = limit()?,
            _ => return Err(Problem::unknown_key(key, KEYS.iter().copied())),
        }
    }
    Ok(user)
}

/// Longest user name in an `auth_file`, in bytes.
const MAX_USER: usize = 127;

/// Longest secret in an `auth_file`, in bytes.
/// Something for each of some users, by their names. Every login looks here.
pub type ByUser<T> = HashMap<String, T, ahash::RandomState>;

const MAX_SECRET: usize = 65530;

/// Reads an `auth_file`: `"user" "secret"` a line. A later entry of a user replaces an earlier one.
///
/// PgBouncer stops in silence at the first line it cannot read, so that the users below it can no longer
/// log in; here such a line refuses the file, and one beginning with `#` is a comment with a warning.
pub(crate) fn parse_auth_file(
    text: &str,
    file: &str,
    warnings: &mut Vec<String>,
) -> Result<ByUser<SecretText>, Error> {
    let mut secrets = ByUser::default();
    for (line, number) in text.lines().zip(1..) {
        let line = line.trim_start();
        if line.is_empty() || line.starts_with(';') {
            continue;
        }
        let place = Place::line(file, number);
        if line.starts_with('#') {
            warnings.push(format!(
                "{place}a comment begins with ; in an auth_file, PgBouncer would stop here"
            ));
            continue;
        }
        let broken =
            |what: &str| Problem::Syntax(format!("broken auth file: {what}")).at(place.clone());
        let (user, rest) = quoted(line, '"').ok_or_else(|| broken("expected \"user\""))?;
        let (secret, _) = quoted(rest.trim_start(), '"')
            .ok_or_else(|| broken("expected \"secret\" after the user"))?;
        let secret = SecretText(secret);
        if user.is_empty() || user.len() > MAX_USER {
            return Err(broken("a user name has 1 to 127 bytes"));
        }
        if secret.0.len() > MAX_SECRET {
            return Err(broken("a secret has at most 65530 bytes"));
        }
        secrets.insert(user, secret);
    }
    Ok(secrets)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> (ByUser<SecretText>, Vec<String>) {
        let mut warnings = Vec::new();
        (
            parse_auth_file(text, "users.txt", &mut warnings).unwrap(),
            warnings,
        )
    }

    fn refused(text: &str) -> String {
        parse_auth_file(text, "users.txt", &mut Vec::new())
            .unwrap_err()
            .to_string()
    }

    #[test]
    fn a_line_is_user_secret_and_anything() {
        let (secrets, warnings) =
            read("\n  \"a\" \"one\" rest\n\"b\"\t\"md5x\"\n; comment\n\"c\" \"\"\r\n");
        assert_eq!(secrets["a"].expose(), "one");
        assert_eq!(secrets["b"].expose(), "md5x");
        assert!(secrets["c"].is_empty());
        assert_eq!((secrets.len(), warnings.len()), (3, 0));
    }

    #[test]
    fn two_quotes_are_one_and_the_later_entry_wins() {
        let (secrets, _) = read("\"a\"\"b\" \"x\"\"y\"\n\"a\"\"b\" \"z\"\"\"\n");
        assert_eq!(secrets["a\"b"].expose(), "z\"");
        assert_eq!(secrets.len(), 1);
    }

    #[test]
    fn a_hash_is_a_comment_with_a_warning_and_what_follows_is_read() {
        let (secrets, warnings) = read("# users\n\"a\" \"one\"\n");
        assert_eq!(secrets.len(), 1);
        assert_eq!(
            warnings,
            ["users.txt:1: a comment begins with ; in an auth_file, PgBouncer would stop here"]
        );
    }

    #[test]
    fn a_broken_line_is_named_without_its_secret() {
        for (text, line) in [
            ("\"a\" \"1\"\nroot s3cret\n", 2),
            ("\"a\"\n", 1),
            ("\"a\" \"s3cret\n", 1),
        ] {
            let error = refused(text);
            assert!(
                error.starts_with(&format!("users.txt:{line}: syntax error: broken auth file")),
                "{error}"
            );
            assert!(!error.contains("s3cret"), "{error}");
        }
        refused(&format!("\"{}\" \"x\"", "u".repeat(128)));
        refused(&format!("\"u\" \"{}\"", "x".repeat(65531)));
        read(&format!(
            "\"{}\" \"{}\"",
            "u".repeat(127),
            "x".repeat(65530)
        ));
    }

    #[test]
    fn every_key_of_a_user_is_read() {
        let user = parse(
            "pool_size=5 reserve_pool_size=1 pool_mode=statement max_user_connections=0 \
             max_user_client_connections=9 query_timeout=1 query_wait_timeout=0 idle_transaction_timeout=3 \
             transaction_timeout=4 client_idle_timeout=0",
        )
        .unwrap();
        assert_eq!((user.pool_size, user.reserve_pool_size), (Some(5), Some(1)));
        assert_eq!(user.pool_mode, Some(PoolMode::Statement));
        assert_eq!(
            (user.max_user_connections, user.max_user_client_connections),
            (Some(0), Some(9))
        );
        assert_eq!(user.query_wait_timeout, Some(Duration::ZERO));
        assert_eq!(user.client_idle_timeout, None);
        assert_eq!(user.transaction_timeout, Some(Duration::from_secs(4)));
        assert_eq!(parse("").unwrap(), UserSettings::default());
    }

    #[test]
    fn an_unknown_key_of_a_user_names_the_nearest() {
        let error = parse("pool_sise=1").unwrap_err().to_string();
        assert_eq!(
            error,
            "unknown key \"pool_sise\"; did you mean \"pool_size\"?"
        );
    }

    #[test]
    fn a_secret_is_never_printed() {
        assert_eq!(format!("{:?}", SecretText::new("s3cret")), "(..)");
    }
}
