//! Search filters: their text (RFC 4515), read once, and their bytes (RFC 4511 section 4.5.1.7), made for each user.
//!
//! The user's name takes the place of `$username` in a value that was cut out of the text before. Thus it never meets
//! the grammar, and needs no escaping: an asterisk in it is an asterisk.

use super::Error;
use super::ber::{OCTET_STRING, SEQUENCE, Writer};

/// What stands for the user's name (PostgreSQL docs: auth-ldap, `ldapsearchfilter`).
const USER: &str = "$username";

/// How deep filters may be nested.
const MAX_DEPTH: usize = 32;

/// Which entries are looked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Filter(Node);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Node {
    /// `(&…)` and `(|…)`, by their tag.
    Set(u8, Vec<Node>),
    Not(Box<Node>),
    /// `=`, `>=`, `<=` and `~=`, by their tag.
    Compare(u8, String, Value),
    Present(String),
    Substrings(String, Vec<Part>),
    Extensible {
        attribute: String,
        rule: String,
        value: Value,
        with_dn: bool,
    },
}

/// A part of a value with asterisks, by its tag: initial, any or final.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Part(u8, Value);

/// A value in pieces, between which the user's name belongs.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Value(Vec<Vec<u8>>);

impl Filter {
    /// Reads a filter. The outermost parentheses may be missing, as with libldap.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let text = text.trim();
        let mut parser = Parser { rest: text };
        let node = if text.starts_with('(') {
            parser.filter(0)?
        } else {
            parser.item()?
        };
        if parser.rest.is_empty() {
            Ok(Self(node))
        } else {
            Err(Error::Filter("something follows its end"))
        }
    }

    /// The entries whose attribute of this name is the user's.
    pub fn is_user(attribute: &str) -> Result<Self, Error> {
        Self::parse(&format!("({attribute}={USER})"))
    }

    /// Does it ask for the user at all? If not, it finds the same entry for everybody.
    pub fn names_user(&self) -> bool {
        self.0.names_user()
    }

    pub(super) fn encode(&self, user: &str, out: &mut Writer) {
        self.0.encode(user, out);
    }
}

impl Node {
    fn names_user(&self) -> bool {
        match self {
            Self::Set(_, nodes) => nodes.iter().any(Self::names_user),
            Self::Not(node) => node.names_user(),
            Self::Compare(_, _, value) | Self::Extensible { value, .. } => value.names_user(),
            Self::Present(_) => false,
            Self::Substrings(_, parts) => parts.iter().any(|Part(_, value)| value.names_user()),
        }
    }

    fn encode(&self, user: &str, out: &mut Writer) {
        match self {
            Self::Set(tag, nodes) => out.within(*tag, |out| {
                for node in nodes {
                    node.encode(user, out);
                }
            }),
            Self::Not(node) => out.within(0xa2, |out| node.encode(user, out)),
            Self::Compare(tag, attribute, value) => out.within(*tag, |out| {
                out.octets(OCTET_STRING, attribute.as_bytes());
                out.octets(OCTET_STRING, &value.fill(user));
            }),
            Self::Present(attribute) => out.octets(0x87, attribute.as_bytes()),
            Self::Substrings(attribute, parts) => out.within(0xa4, |out| {
                out.octets(OCTET_STRING, attribute.as_bytes());
                out.within(SEQUENCE, |out| {
                    for Part(tag, value) in parts {
                        out.octets(*tag, &value.fill(user));
                    }
                });
            }),
            Self::Extensible {
                attribute,
                rule,
                value,
                with_dn,
            } => out.within(0xa9, |out| {
                for (tag, text) in [(0x81, rule), (0x82, attribute)] {
                    if !text.is_empty() {
                        out.octets(tag, text.as_bytes());
                    }
                }
                out.octets(0x83, &value.fill(user));
                if *with_dn {
                    out.boolean(0x84, true);
                }
            }),
        }
    }
}

impl Value {
    /// Reads a value without asterisks: `\2a` and the like stand for bytes.
    fn parse(text: &str) -> Result<Self, Error> {
        text.split(USER)
            .map(unescape)
            .collect::<Result<_, _>>()
            .map(Self)
    }

    fn names_user(&self) -> bool {
        self.0.len() > 1
    }

    fn fill(&self, user: &str) -> Vec<u8> {
        self.0.join(user.as_bytes())
    }
}

fn unescape(text: &str) -> Result<Vec<u8>, Error> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut parts = text.split('\\');
    bytes.extend_from_slice(parts.next().unwrap_or_default().as_bytes());
    for part in parts {
        let digits = part
            .get(..2)
            .filter(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()));
        let byte = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        bytes.push(byte.ok_or(Error::Filter(
            "two hexadecimal digits must follow a backslash",
        ))?);
        bytes.extend_from_slice(part.get(2..).unwrap_or_default().as_bytes());
    }
    Ok(bytes)
}

struct Parser<'a> {
    rest: &'a str,
}

impl Parser<'_> {
    fn take(&mut self, character: char) -> bool {
        let rest = self.rest.strip_prefix(character);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    /// A filter in its parentheses.
    fn filter(&mut self, depth: usize) -> Result<Node, Error> {
        if depth > MAX_DEPTH {
            return Err(Error::Filter("too deeply nested"));
        }
        if !self.take('(') {
            return Err(Error::Filter("an opening parenthesis is missing"));
        }
        let node = if self.take('&') {
            Node::Set(0xa0, self.filters(depth)?)
        } else if self.take('|') {
            Node::Set(0xa1, self.filters(depth)?)
        } else if self.take('!') {
            Node::Not(Box::new(self.filter(depth + 1)?))
        } else {
            self.item()?
        };
        if self.take(')') {
            Ok(node)
        } else {
            Err(Error::Filter("a closing parenthesis is missing"))
        }
    }

    fn filters(&mut self, depth: usize) -> Result<Vec<Node>, Error> {
        let mut nodes = Vec::new();
        while !self.rest.starts_with(')') {
            nodes.push(self.filter(depth + 1)?);
        }
        Ok(nodes)
    }

    /// An attribute, what is asked of it, and a value.
    fn item(&mut self) -> Result<Node, Error> {
        let end = self.rest.find(['(', ')']).unwrap_or(self.rest.len());
        let (text, rest) = self.rest.split_at_checked(end).unwrap_or((self.rest, ""));
        self.rest = rest;
        let (left, value) = text
            .split_once('=')
            .ok_or(Error::Filter("a condition without an equals sign"))?;
        match left.char_indices().last() {
            Some((at, '>')) => compare(0xa5, left.get(..at), value),
            Some((at, '<')) => compare(0xa6, left.get(..at), value),
            Some((at, '~')) => compare(0xa8, left.get(..at), value),
            Some((at, ':')) => extensible(left.get(..at).unwrap_or_default(), value),
            _ if value == "*" => Ok(Node::Present(attribute(left)?)),
            _ if value.contains('*') => substrings(left, value),
            _ => compare(0xa3, Some(left), value),
        }
    }
}

fn compare(tag: u8, left: Option<&str>, value: &str) -> Result<Node, Error> {
    let attribute = attribute(left.unwrap_or_default())?;
    if value.contains('*') {
        return Err(Error::Filter("an asterisk goes with an equals sign only"));
    }
    Ok(Node::Compare(tag, attribute, Value::parse(value)?))
}

fn substrings(left: &str, value: &str) -> Result<Node, Error> {
    let last = value.matches('*').count();
    let mut parts = Vec::new();
    for (at, text) in value.split('*').enumerate() {
        let tag = match at {
            0 => 0x80,
            at if at == last => 0x82,
            _ => 0x81,
        };
        if !text.is_empty() {
            parts.push(Part(tag, Value::parse(text)?));
        }
    }
    if parts.is_empty() {
        return Err(Error::Filter("asterisks with nothing between them"));
    }
    Ok(Node::Substrings(attribute(left)?, parts))
}

/// `attribute:dn:rule:=value`, where `:dn` and one of the others may be missing.
fn extensible(left: &str, value: &str) -> Result<Node, Error> {
    let mut words = left.split(':');
    let name = words.next().unwrap_or_default();
    let mut words: Vec<&str> = words.collect();
    let with_dn = words
        .first()
        .is_some_and(|word| word.eq_ignore_ascii_case("dn"));
    if with_dn {
        words.remove(0);
    }
    let rule = match words.as_slice() {
        [] if !name.is_empty() => String::new(),
        [rule] => attribute(rule)?,
        _ => return Err(Error::Filter("a matching rule that cannot be read")),
    };
    if value.contains('*') {
        return Err(Error::Filter("an asterisk goes with an equals sign only"));
    }
    Ok(Node::Extensible {
        attribute: if name.is_empty() {
            String::new()
        } else {
            attribute(name)?
        },
        rule,
        value: Value::parse(value)?,
        with_dn,
    })
}

/// The name of an attribute or a rule, in words or in numbers, with options behind semicolons.
fn attribute(text: &str) -> Result<String, Error> {
    let is_name = text.starts_with(|first: char| first.is_ascii_alphanumeric())
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-.;_".contains(&byte));
    if is_name {
        Ok(text.to_owned())
    } else {
        Err(Error::Filter("a name of an attribute that cannot be one"))
    }
}
