//! The kinds of value a setting can have: how each is read, checked and printed.
//!
//! Owns PgBouncer's reading of numbers, times, words and lists (its documented "ini" types), and the
//! small types that the settings are made of; those that are one of a few words stand in [`words`]. Knows no setting by
//! name.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

mod words;

use words::word;
pub use words::{
    AuthType, Facility, FollowSequences, LoadBalance, LogText, PinPolicy, PoolMode, ShutdownMode,
    SslMode, TraceSource, UnnamedTexts,
};

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
    /// The same, or -1 for never.
    MillisOrNever,
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
    /// A share of all, from 0 to 1.
    Fraction,
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
            Self::MillisOrNever => MillisOrNever::parse(text).map(|value| value.print()),
            Self::Text => Ok(text.to_owned()),
            Self::List => Vec::parse(text).map(|value: Vec<String>| value.print()),
            Self::Enum(words) => word(text, words).map(str::to_owned),
            Self::Bytes => ByteSize::parse(text).map(|value| value.print()),
            Self::Mode => Mode::parse(text).map(|value| value.print()),
            Self::PeerId => PeerId::parse(text).map(|value| value.print()),
            Self::Fraction => Fraction::parse(text).map(|value| value.print()),
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
            Self::MillisOrNever => "milliseconds, or -1".to_owned(),
            Self::Text => "text".to_owned(),
            Self::List => "list".to_owned(),
            Self::Enum(words) => words.join(", "),
            Self::Bytes => "bytes".to_owned(),
            Self::Mode => "octal mode".to_owned(),
            Self::PeerId => "0 to 16383".to_owned(),
            Self::Fraction => "0 to 1".to_owned(),
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

/// A time in whole milliseconds after which something is done; -1: never.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MillisOrNever(pub Option<Duration>);

impl Value for MillisOrNever {
    fn parse(text: &str) -> Result<Self, Fault> {
        if int(text) == Some(-1) {
            return Ok(Self(None));
        }
        match millis(text) {
            Ok(time) => Ok(Self(Some(time))),
            Err(_) => Fault::expected("whole milliseconds, or -1 for never"),
        }
    }

    fn print(&self) -> String {
        match self.0 {
            Some(time) => time.as_millis().to_string(),
            None => "-1".to_owned(),
        }
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

/// A share of all: 0 is none, 1 is all.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Fraction(pub f64);

impl Value for Fraction {
    fn parse(text: &str) -> Result<Self, Fault> {
        let is_plain = text.bytes().all(|b| b.is_ascii_digit() || b == b'.');
        match text.parse() {
            Ok(value) if is_plain && (0.0..=1.0).contains(&value) => Ok(Self(value)),
            _ => Fault::expected("a number from 0 to 1, such as 0.01"),
        }
    }

    fn print(&self) -> String {
        self.0.to_string()
    }
}

#[cfg(test)]
mod tests;
