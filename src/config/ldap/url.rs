//! `ldapurl`: several options in one (RFC 4516): `ldap[s]://host[:port]/base[?attribute[?scope[?filter]]]`.

use super::{Scheme, Scope, Words, port};

/// Reads a URL into the options that it stands for.
pub(super) fn read(text: &str, words: &mut Words) -> Result<(), String> {
    let (scheme, rest) = text
        .split_once("://")
        .ok_or("expected a URL that begins with ldap:// or ldaps://")?;
    words.scheme = Some(Scheme::parse(scheme)?);
    let (place, rest) = rest.split_once('/').unwrap_or((rest, ""));
    read_place(place, words)?;
    let mut parts = rest.split('?');
    let mut next = || parts.next().map(decode).transpose();
    words.base = next()?
        .filter(|base| !base.is_empty())
        .or(words.base.take());
    if let Some(attributes) = next()?.filter(|it| !it.is_empty()) {
        // The first counts, as with PostgreSQL.
        words.attribute = attributes.split(',').next().map(str::to_owned);
    }
    // Without a word the base alone is looked at: RFC 4516 wants it so, and PostgreSQL has it so.
    words.scope = Some(match next()?.as_deref() {
        None | Some("" | "base") => Scope::Base,
        Some("one") => Scope::OneLevel,
        Some("sub") => Scope::Subtree,
        Some(_) => return Err("the scope must be base, one or sub".to_owned()),
    });
    if let Some(filter) = next()?.filter(|it| !it.is_empty()) {
        words.filter = Some(filter);
    }
    match next()? {
        None => Ok(()),
        Some(_) => Err("extensions are not supported".to_owned()),
    }
}

/// `host[:port]`, which may be empty where `ldapserver` says it.
fn read_place(place: &str, words: &mut Words) -> Result<(), String> {
    if place.contains('@') {
        return Err("a URL of LDAP has no user in it".to_owned());
    }
    let host_ends = match place.rfind(']') {
        Some(bracket) => place
            .get(bracket..)
            .and_then(|rest| rest.find(':'))
            .map(|at| bracket + at),
        None => place.find(':'),
    };
    let (host, number) = match host_ends {
        Some(at) => (place.get(..at), place.get(at + 1..)),
        None => (Some(place), None),
    };
    if let Some(host) = host.filter(|host| !host.is_empty()) {
        words.servers = Some(decode(host)?);
    }
    if let Some(number) = number {
        words.port = Some(port(number)?);
    }
    Ok(())
}

/// Puts bytes in the place of `%20` and the like.
fn decode(text: &str) -> Result<String, String> {
    let mut parts = text.split('%');
    let mut bytes = parts.next().unwrap_or_default().as_bytes().to_vec();
    for part in parts {
        let digits = part
            .get(..2)
            .filter(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()));
        let byte = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        bytes.push(byte.ok_or("two hexadecimal digits must follow a percent sign")?);
        bytes.extend_from_slice(part.get(2..).unwrap_or_default().as_bytes());
    }
    String::from_utf8(bytes).map_err(|_| "not UTF-8".to_owned())
}
