//! The kinds of value a setting can have: how each is read, checked and printed.
//!
//! Owns PgBouncer's reading of numbers, times, words and lists (its documented "ini" types), and the
//! small types that the settings are made of. Knows no setting by name.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

/// The kind of a setting's value, as written in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A whole number, 0 or more: decimal, `0x` hexadecimal or `0` octal, as C's `strtol` reads it.
    Int,
    /// A TCP port, 0 to 65535.
    Port,
    /// PgBouncer's boolean: an integer, 0 is off; `yes` and `true` are errors.
    Bool01,
    /// Seconds with an optional decimal fraction, kept to the microsecond.
    Seconds,
    /// Whole milliseconds.
    Millis,
    /// Text, verbatim.
    Text,
    /// Words separated by commas or blanks.
    List,
    /// One of these words, case ignored.
    Enum(&'static [&'static str]),
    /// A number of bytes, optionally followed by kB, MB or GB (powers of 1024).
    Bytes,
    /// A file mode; octal because it is written with a leading 0.
    Mode,
    /// A number that fits the place it has in a cancel key, 0 to 16383.
    PeerId,
}

impl Kind {
    /// Checks `text` and returns it as SHOW CONFIG prints it.
    pub fn normalise(self, text: &str) -> Result<String, Fault> {
        match self {
            Self::Int => usize::parse(text).map(|value| value.print()),
            Self::Port => u16::parse(text).map(|value| value.print()),
            Self::Bool01 => bool::parse(text).map(|value| value.print()),
            Self::Seconds => seconds(text).map(print_seconds),
            Self::Millis => millis(text).map(|value| value.as_millis().to_string()),
            Self::Text => Ok(text.to_owned()),
            Self::List => Vec::parse(text).map(|value: Vec<String>| value.print()),
            Self::Enum(words) => word(text, words).map(str::to_owned),
            Self::Bytes => ByteSize::parse(text).map(|value| value.print()),
            Self::Mode => Mode::parse(text).map(|value| value.print()),
            Self::PeerId => PeerId::parse(text).map(|value| value.print()),
        }
    }

    /// What a value of this kind looks like, for documentation.
    pub fn describe(self) -> String {
        match self {
            Self::Int => "integer".to_owned(),
            Self::Port => "port".to_owned(),
            Self::Bool01 => "0 or 1".to_owned(),
            Self::Seconds => "seconds".to_owned(),
            Self::Millis => "milliseconds".to_owned(),
            Self::Text => "text".to_owned(),
            Self::List => "list".to_owned(),
            Self::Enum(words) => words.join(", "),
            Self::Bytes => "bytes".to_owned(),
            Self::Mode => "octal mode".to_owned(),
            Self::PeerId => "0 to 16383".to_owned(),
        }
    }
}

/// Why a value cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// Not of the kind; the text says what is.
    Expected(String),
    /// We have it, and it was left out when this program was built: the feature, and its name for Cargo.
    NotBuiltIn(&'static str, &'static str),
    /// Wrong for this reason; the value may hold a secret and must not be shown.
    Hidden(String),
}

impl Fault {
    fn expected<T>(what: &str) -> Result<T, Self> {
        Err(Self::Expected(what.to_owned()))
    }
}

/// A type that a setting's text can be read into.
pub trait Value: Sized {
    /// Reads the text of a file.
    fn parse(text: &str) -> Result<Self, Fault>;

    /// Prints the value as SHOW CONFIG does.
    fn print(&self) -> String;

    /// False for an optional value that is not set, which SHOW CONFIG prints as NULL.
    fn is_set(&self) -> bool {
        true
    }
}

/// An integer as C's `strtol(…, 0)` reads it; the range of a C `int`, which PgBouncer stores most of them in.
fn int(text: &str) -> Option<i64> {
    long(text).filter(|value| i32::try_from(*value).is_ok())
}

/// The same in any range.
fn long(text: &str) -> Option<i64> {
    let (negative, digits) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let (radix, digits) = match digits
        .strip_prefix("0x")
        .or_else(|| digits.strip_prefix("0X"))
    {
        Some(rest) => (16, rest),
        None if digits.len() > 1 && digits.starts_with('0') => (8, digits),
        None => (10, digits),
    };
    // from_str_radix would accept a second sign.
    if !digits.chars().all(|c| c.is_digit(radix)) {
        return None;
    }
    let value = i64::from_str_radix(digits, radix).ok()?;
    Some(if negative { -value } else { value })
}

/// An integer of any sign, for keys where a negative number means "as everywhere else".
pub fn signed_int(text: &str) -> Result<i64, Fault> {
    int(text).ok_or_else(|| Fault::Expected("a whole number".to_owned()))
}

fn seconds(text: &str) -> Result<Duration, Fault> {
    const EXPECTED: &str = "seconds, 0 or more, such as 15 or 0.5";
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let is_number = (!whole.is_empty() || !fraction.is_empty())
        && whole
            .bytes()
            .chain(fraction.bytes())
            .all(|b| b.is_ascii_digit());
    if !is_number {
        return Fault::expected(EXPECTED);
    }
    // The limit keeps every deadline (now + value) far from overflow; it is some 68 years.
    let whole: u32 = if whole.is_empty() {
        0
    } else {
        whole.parse().unwrap_or(u32::MAX)
    };
    if i32::try_from(whole).is_err() {
        return Fault::expected("at most 2147483647 seconds");
    }
    let micros: String = fraction.chars().chain("000000".chars()).take(6).collect();
    let micros: u64 = micros.parse().unwrap_or(0);
    Ok(Duration::from_secs(u64::from(whole)) + Duration::from_micros(micros))
}

fn millis(text: &str) -> Result<Duration, Fault> {
    match int(text).map(u64::try_from) {
        Some(Ok(value)) => Ok(Duration::from_millis(value)),
        _ => Fault::expected("whole milliseconds, 0 or more"),
    }
}

/// Prints a time in seconds with as many decimals as it has.
pub(crate) fn print_seconds(value: Duration) -> String {
    match value.subsec_micros() {
        0 => value.as_secs().to_string(),
        micros => format!("{}.{micros:06}", value.as_secs())
            .trim_end_matches('0')
            .to_owned(),
    }
}

/// A text that begins with `quote` and ends with another, in which two stand for one; and what follows it.
pub(crate) fn quoted(text: &str, quote: char) -> Option<(String, &str)> {
    let mut rest = text.strip_prefix(quote)?;
    let mut value = String::new();
    loop {
        let (part, after) = rest.split_once(quote)?;
        value.push_str(part);
        match after.strip_prefix(quote) {
            Some(more) => {
                value.push(quote);
                rest = more;
            }
            None => return Some((value, after)),
        }
    }
}

fn word(text: &str, words: &[&'static str]) -> Result<&'static str, Fault> {
    words
        .iter()
        .find(|known| known.eq_ignore_ascii_case(text))
        .copied()
        .ok_or_else(|| Fault::Expected(format!("one of {}", words.join(", "))))
}

impl Value for usize {
    fn parse(text: &str) -> Result<Self, Fault> {
        // PgBouncer's `max_packet_size` is unsigned, the others need no more.
        match long(text).map(u32::try_from) {
            Some(Ok(value)) => Ok(value as Self),
            _ => Fault::expected("a whole number, 0 or more"),
        }
    }

    fn print(&self) -> String {
        self.to_string()
    }
}

impl Value for u16 {
    fn parse(text: &str) -> Result<Self, Fault> {
        match int(text).map(Self::try_from) {
            Some(Ok(value)) => Ok(value),
            _ => Fault::expected("a port, 0 to 65535"),
        }
    }

    fn print(&self) -> String {
        self.to_string()
    }
}

impl Value for bool {
    fn parse(text: &str) -> Result<Self, Fault> {
        int(text)
            .map(|value| value != 0)
            .ok_or_else(|| Fault::Expected("0 or 1".to_owned()))
    }

    fn print(&self) -> String {
        u8::from(*self).to_string()
    }
}

impl Value for Duration {
    fn parse(text: &str) -> Result<Self, Fault> {
        seconds(text)
    }

    fn print(&self) -> String {
        print_seconds(*self)
    }
}

impl Value for String {
    fn parse(text: &str) -> Result<Self, Fault> {
        Ok(text.to_owned())
    }

    fn print(&self) -> String {
        self.clone()
    }
}

/// An optional text; an empty one is not set.
impl Value for Option<String> {
    fn parse(text: &str) -> Result<Self, Fault> {
        Ok((!text.is_empty()).then(|| text.to_owned()))
    }

    fn print(&self) -> String {
        self.clone().unwrap_or_default()
    }

    fn is_set(&self) -> bool {
        self.is_some()
    }
}

/// An optional file; an empty name is not set.
impl Value for Option<PathBuf> {
    fn parse(text: &str) -> Result<Self, Fault> {
        Ok((!text.is_empty()).then(|| PathBuf::from(text)))
    }

    fn print(&self) -> String {
        self.as_ref()
            .map(|path| path.display().to_string())
            .unwrap_or_default()
    }

    fn is_set(&self) -> bool {
        self.is_some()
    }
}

impl Value for Vec<String> {
    fn parse(text: &str) -> Result<Self, Fault> {
        let words = text.split(|c: char| c == ',' || c.is_whitespace());
        Ok(words
            .filter(|word| !word.is_empty())
            .map(str::to_owned)
            .collect())
    }

    fn print(&self) -> String {
        self.join(", ")
    }
}

/// A time that is written in whole milliseconds, where PgBouncer and the socket option do so.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Millis(pub Duration);

impl Value for Millis {
    fn parse(text: &str) -> Result<Self, Fault> {
        millis(text).map(Self)
    }

    fn print(&self) -> String {
        self.0.as_millis().to_string()
    }
}

/// A number of bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ByteSize(pub u64);

const UNITS: [(&str, u64); 4] = [("GB", 1 << 30), ("MB", 1 << 20), ("kB", 1 << 10), ("B", 1)];

impl Value for ByteSize {
    fn parse(text: &str) -> Result<Self, Fault> {
        let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
        let unit = text.strip_prefix(digits).unwrap_or_default();
        let factor = match UNITS
            .iter()
            .find(|(name, _)| name.eq_ignore_ascii_case(unit))
        {
            Some((_, factor)) => Some(*factor),
            None => unit.is_empty().then_some(1),
        };
        let digits = digits.trim_end();
        let number = digits
            .bytes()
            .all(|b| b.is_ascii_digit())
            .then(|| digits.parse().ok())
            .flatten();
        match number
            .zip(factor)
            .and_then(|(number, factor): (u64, u64)| number.checked_mul(factor))
        {
            Some(bytes) => Ok(Self(bytes)),
            None => Fault::expected("a size such as 1048576, 512kB or 256MB"),
        }
    }

    fn print(&self) -> String {
        let unit = UNITS
            .iter()
            .find(|(_, factor)| self.0 > 0 && self.0.is_multiple_of(*factor));
        match unit {
            Some((name, factor)) if *factor > 1 => format!("{}{name}", self.0 / factor),
            _ => self.0.to_string(),
        }
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.print())
    }
}

/// The permission bits of a file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Mode(pub u32);

impl Value for Mode {
    fn parse(text: &str) -> Result<Self, Fault> {
        match int(text).map(u32::try_from) {
            Some(Ok(bits)) if bits <= 0o7777 => Ok(Self(bits)),
            _ => Fault::expected("a file mode such as 0777"),
        }
    }

    /// Decimal, as PgBouncer's SHOW CONFIG prints it.
    fn print(&self) -> String {
        self.0.to_string()
    }
}

/// A process's number among its peers (PgBouncer setting `peer_id`); 0: it has none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PeerId(pub u16);

impl PeerId {
    /// PgBouncer's largest.
    const MAX: u16 = (1 << 14) - 1;
}

impl Value for PeerId {
    fn parse(text: &str) -> Result<Self, Fault> {
        match int(text).map(u16::try_from) {
            Some(Ok(id)) if id <= Self::MAX => Ok(Self(id)),
            _ => Fault::expected("a number from 0 to 16383"),
        }
    }

    fn print(&self) -> String {
        self.0.to_string()
    }
}

/// Makes an enum whose variants are words of a file.
macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $word:literal,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
        pub enum $name {
            $($(#[$variant_doc])* $variant,)*
        }

        impl $name {
            /// The words of the setting, in the order of the variants.
            pub const WORDS: &'static [&'static str] = &[$($word,)*];

            /// The word a file uses and SHOW prints.
            pub fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $word,)*
                }
            }
        }

        impl Value for $name {
            fn parse(text: &str) -> Result<Self, Fault> {
                let found = word(text, Self::WORDS)?;
                let all = [$(Self::$variant,)*];
                Ok(all.into_iter().find(|it| it.as_str() == found).unwrap_or_default())
            }

            fn print(&self) -> String {
                self.as_str().to_owned()
            }
        }
    };
}

words! {
    /// Where syslog files our lines (PgBouncer setting `syslog_facility`, RFC 5424 section 6.2.1).
    Facility {
        /// Logins and permissions.
        Auth = "auth",
        /// The same, not for everybody's eyes.
        Authpriv = "authpriv",
        /// Processes in the background.
        #[default]
        Daemon = "daemon",
        /// Programs of users.
        User = "user",
        /// For local use.
        Local0 = "local0",
        /// For local use.
        Local1 = "local1",
        /// For local use.
        Local2 = "local2",
        /// For local use.
        Local3 = "local3",
        /// For local use.
        Local4 = "local4",
        /// For local use.
        Local5 = "local5",
        /// For local use.
        Local6 = "local6",
        /// For local use.
        Local7 = "local7",
    }
}

impl Facility {
    /// Its number in the head of a message (RFC 5424 section 6.2.1, table 1).
    pub fn number(self) -> u8 {
        match self {
            Self::User => 1,
            Self::Daemon => 3,
            Self::Auth => 4,
            Self::Authpriv => 10,
            Self::Local0 => 16,
            Self::Local1 => 17,
            Self::Local2 => 18,
            Self::Local3 => 19,
            Self::Local4 => 20,
            Self::Local5 => 21,
            Self::Local6 => 22,
            Self::Local7 => 23,
        }
    }
}

words! {
    /// Which of several hosts a new server is made at (PgBouncer: `load_balance_hosts` of a database).
    LoadBalance {
        /// The next one, each time.
        #[default]
        RoundRobin = "round-robin",
        /// The same one, as long as it can be reached.
        Disable = "disable",
    }
}

/// When a server goes back to its pool (PgBouncer setting `pool_mode`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum PoolMode {
    /// When the client leaves.
    #[default]
    Session,
    /// At the end of each transaction.
    Transaction,
    /// At the end of each statement; transaction blocks are refused.
    Statement,
}

impl PoolMode {
    /// The words of the setting, in the order of the variants.
    pub const WORDS: &'static [&'static str] = &["session", "transaction", "statement"];

    /// The word a file uses and SHOW prints.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Session => "session",
            Self::Transaction => "transaction",
            Self::Statement => "statement",
        }
    }
}

impl fmt::Display for PoolMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Value for PoolMode {
    fn parse(text: &str) -> Result<Self, Fault> {
        let modes = [Self::Session, Self::Transaction, Self::Statement];
        let found = word(text, Self::WORDS)?;
        Ok(modes
            .into_iter()
            .find(|mode| mode.as_str() == found)
            .unwrap_or_default())
    }

    fn print(&self) -> String {
        self.as_str().to_owned()
    }
}

/// How far a side of the pooler insists on TLS (PgBouncer settings `client_tls_sslmode` and `server_tls_sslmode`),
/// from least to most.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SslMode {
    /// Never.
    #[default]
    Disable,
    /// As `prefer`.
    Allow,
    /// If the other side can.
    Prefer,
    /// Always; certificates are not looked at.
    Require,
    /// Always, and the other side's certificate must come from an authority we trust.
    VerifyCa,
    /// As `verify-ca`, and a server's certificate must be for its host name.
    VerifyFull,
}

impl SslMode {
    const ALL: [Self; 6] = [
        Self::Disable,
        Self::Allow,
        Self::Prefer,
        Self::Require,
        Self::VerifyCa,
        Self::VerifyFull,
    ];

    /// The words of the settings, in the order of the variants.
    pub const WORDS: &'static [&'static str] = &[
        "disable",
        "allow",
        "prefer",
        "require",
        "verify-ca",
        "verify-full",
    ];

    /// The word a file uses and SHOW prints.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Disable => "disable",
            Self::Allow => "allow",
            Self::Prefer => "prefer",
            Self::Require => "require",
            Self::VerifyCa => "verify-ca",
            Self::VerifyFull => "verify-full",
        }
    }
}

impl fmt::Display for SslMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Value for SslMode {
    fn parse(text: &str) -> Result<Self, Fault> {
        let found = word(text, Self::WORDS)?;
        Ok(Self::ALL
            .into_iter()
            .find(|mode| mode.as_str() == found)
            .unwrap_or_default())
    }

    fn print(&self) -> String {
        self.as_str().to_owned()
    }
}

/// How a client proves who it is (PgBouncer setting `auth_type`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum AuthType {
    /// No proof, and the name is ignored: every database needs a forced user.
    Any,
    /// No proof; the name must be known.
    Trust,
    /// The password in clear text.
    Plain,
    /// The MD5 challenge; SCRAM where the stored secret is a SCRAM one.
    #[default]
    Md5,
    /// SCRAM-SHA-256 (RFC 7677).
    ScramSha256,
    /// A TLS certificate made out to the user's name.
    Cert,
    /// As the first line of `auth_hba_file` says that matches.
    Hba,
    /// The password in clear text, which a directory checks (RFC 4511).
    Ldap,
    /// The password in clear text, which the system checks (PAM service `pgbouncer`).
    Pam,
}

impl AuthType {
    /// The words of the setting, built in or not.
    pub const WORDS: &'static [&'static str] = &[
        "any",
        "trust",
        "plain",
        "md5",
        "cert",
        "hba",
        "ldap",
        "pam",
        "scram-sha-256",
    ];

    /// The word a file uses and SHOW prints.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Any => "any",
            Self::Trust => "trust",
            Self::Plain => "plain",
            Self::Md5 => "md5",
            Self::ScramSha256 => "scram-sha-256",
            Self::Cert => "cert",
            Self::Hba => "hba",
            Self::Ldap => "ldap",
            Self::Pam => "pam",
        }
    }

    /// Is the password checked by somebody else, so that no secret is stored here?
    pub fn asks_others(self) -> bool {
        matches!(self, Self::Ldap | Self::Pam)
    }

    /// Itself, unless this program was built without what it takes.
    fn if_built(self, with_pam: bool) -> Result<Self, Fault> {
        match self {
            Self::Pam if !with_pam => Err(Fault::NotBuiltIn("PAM", "pam")),
            built => Ok(built),
        }
    }
}

impl fmt::Display for AuthType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Value for AuthType {
    fn parse(text: &str) -> Result<Self, Fault> {
        let types = [
            Self::Any,
            Self::Trust,
            Self::Plain,
            Self::Md5,
            Self::ScramSha256,
            Self::Cert,
            Self::Hba,
            Self::Ldap,
            Self::Pam,
        ];
        let found = word(text, Self::WORDS)?;
        types
            .into_iter()
            .find(|auth| auth.as_str() == found)
            .unwrap_or_default()
            .if_built(cfg!(feature = "pam"))
    }

    fn print(&self) -> String {
        self.as_str().to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expected<T: std::fmt::Debug>(result: Result<T, Fault>) -> String {
        match result {
            Err(Fault::Expected(text)) => text,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn integers_are_read_in_any_base_c_knows() {
        assert_eq!(usize::parse("20"), Ok(20));
        assert_eq!(usize::parse("0x10"), Ok(16));
        assert_eq!(usize::parse("010"), Ok(8));
        assert_eq!(usize::parse("0"), Ok(0));
        assert_eq!(usize::parse("4294967295"), Ok(4_294_967_295));
        assert!(signed_int("2147483648").is_err());
        for bad in [
            "",
            "-1",
            "08",
            "1.5",
            "ten",
            "0x",
            "+-1",
            "4294967296",
            "1 2",
        ] {
            assert!(usize::parse(bad).is_err(), "{bad}");
        }
        assert_eq!(signed_int("-1"), Ok(-1));
    }

    #[test]
    fn booleans_are_integers() {
        assert_eq!(bool::parse("1"), Ok(true));
        assert_eq!(bool::parse("0"), Ok(false));
        assert_eq!(expected(bool::parse("yes")), "0 or 1");
        assert_eq!(expected(bool::parse("true")), "0 or 1");
    }

    #[test]
    fn times_are_decimal_seconds_kept_to_the_microsecond() {
        assert_eq!(Duration::parse("1.5"), Ok(Duration::from_millis(1500)));
        assert_eq!(Duration::parse(".25"), Ok(Duration::from_millis(250)));
        assert_eq!(Duration::parse("0.0000019"), Ok(Duration::from_micros(1)));
        for bad in ["", ".", "-1", "1s", "1,5", "inf", "1e3", "99999999999"] {
            assert!(Duration::parse(bad).is_err(), "{bad}");
        }
        assert_eq!(Duration::from_millis(1500).print(), "1.5");
        assert_eq!(Duration::from_secs(3600).print(), "3600");
    }

    #[test]
    fn sizes_take_units_and_print_in_the_largest_that_is_exact() {
        assert_eq!(ByteSize::parse("256MB"), Ok(ByteSize(256 << 20)));
        assert_eq!(ByteSize::parse("64 kb"), Ok(ByteSize(64 << 10)));
        assert_eq!(ByteSize::parse("1000"), Ok(ByteSize(1000)));
        for bad in ["", "MB", "1TB", "-1", "99999999999999GB"] {
            assert!(ByteSize::parse(bad).is_err(), "{bad}");
        }
        assert_eq!(ByteSize(256 << 20).to_string(), "256MB");
        assert_eq!(ByteSize(1000).to_string(), "1000");
        assert_eq!(ByteSize(0).to_string(), "0");
    }

    #[test]
    fn words_ignore_case_and_a_mode_is_octal_by_its_leading_zero() {
        assert_eq!(PoolMode::parse("Transaction"), Ok(PoolMode::Transaction));
        assert_eq!(
            expected(PoolMode::parse("x")),
            "one of session, transaction, statement"
        );
        assert_eq!(AuthType::parse("scram-sha-256"), Ok(AuthType::ScramSha256));
        assert_eq!(AuthType::parse("ldap"), Ok(AuthType::Ldap));
        assert_eq!(AuthType::Pam.if_built(true), Ok(AuthType::Pam));
        assert_eq!(
            AuthType::Pam.if_built(false),
            Err(Fault::NotBuiltIn("PAM", "pam"))
        );
        assert_eq!(
            AuthType::parse("pam"),
            AuthType::Pam.if_built(cfg!(feature = "pam"))
        );
        assert_eq!(
            Mode::parse("0777").map(|mode| mode.print()),
            Ok("511".to_owned())
        );
        assert!(Mode::parse("rwx").is_err());
    }

    #[test]
    fn lists_are_separated_by_commas_or_blanks() {
        assert_eq!(
            Vec::parse("a, b c,,d"),
            Ok(vec!["a".into(), "b".into(), "c".into(), "d".into()])
        );
        assert_eq!(Vec::<String>::parse(""), Ok(vec![]));
    }
}
