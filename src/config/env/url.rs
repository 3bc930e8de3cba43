//! The grammar of a connection URI (PostgreSQL docs, `libpq-connstring-uris`). Owns nothing of what is done with it.

use super::{Target, bad};
use crate::config::error::Problem;

/// What a URL says of TLS, by the settings that say the same.
const TLS: [(&str, &str); 4] = [
    ("sslmode", "server_tls_sslmode"),
    ("sslrootcert", "server_tls_ca_file"),
    ("sslkey", "server_tls_key_file"),
    ("sslcert", "server_tls_cert_file"),
];

/// `postgres://user:password@host:port/dbname?key=value`, every part of it optional. `idle` gets the
/// keys that have no effect.
pub fn parse(url: &str, idle: &mut Vec<String>) -> Result<Target, Problem> {
    let rest = url
        .strip_prefix("postgres://")
        .or_else(|| url.strip_prefix("postgresql://"))
        .ok_or_else(|| bad("expected postgres://user:password@host:port/dbname"))?;
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
    let (login, address) = authority.rsplit_once('@').unwrap_or(("", authority));
    let (user, password) = login.split_once(':').unwrap_or((login, ""));
    if address.contains(',') {
        return Err(Problem::not_yet("several hosts"));
    }
    let (host, port) = match address.strip_prefix('[') {
        Some(v6) => {
            let (host, after) = v6
                .split_once(']')
                .ok_or_else(|| bad("expected ] after the address"))?;
            (host, after.strip_prefix(':').unwrap_or(after))
        }
        None => address.split_once(':').unwrap_or((address, "")),
    };
    let mut target = Target {
        name: None,
        user: decode(user)?,
        password: decode(password)?,
        host: decode(host)?,
        port: decode(port)?,
        dbname: decode(path)?,
        application_name: None,
        tls: Vec::new(),
    };
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        let value = decode(value)?;
        match key {
            "user" => target.user = value,
            "password" => target.password = value,
            "host" => target.host = value,
            "port" => target.port = value,
            "dbname" => target.dbname = value,
            "application_name" => target.application_name = value,
            _ => match TLS.iter().find(|(ours, _)| *ours == key) {
                Some((_, setting)) => target.tls.extend(value.map(|value| (*setting, value))),
                None => idle.push(shown(pair, key).to_owned()),
            },
        }
    }
    Ok(target)
}

/// How a key is told. What is no name may be the rest of a password with a `?` in it.
fn shown<'a>(pair: &str, key: &'a str) -> &'a str {
    let is_name = |byte: u8| byte.is_ascii_lowercase() || byte == b'_';
    if pair.contains('=') && key.bytes().all(is_name) {
        key
    } else {
        "what follows the ?"
    }
}

/// Undoes percent encoding (RFC 3986, section 2.1); an empty text is nothing.
pub(crate) fn decode(text: &str) -> Result<Option<String>, Problem> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let mut digit = || rest.next().and_then(|byte| char::from(byte).to_digit(16));
        let value = digit()
            .zip(digit())
            .and_then(|(high, low)| u8::try_from(high * 16 + low).ok());
        bytes.push(value.ok_or_else(|| bad("expected two hexadecimal digits after %"))?);
    }
    let text = String::from_utf8(bytes).map_err(|_| bad("not UTF-8"))?;
    if text.contains('\0') {
        return Err(bad("a zero byte"));
    }
    Ok((!text.is_empty()).then_some(text))
}
