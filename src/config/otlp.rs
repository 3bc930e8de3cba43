//! Where telemetry goes, and what goes along: the values of the `otlp_*` settings (OpenTelemetry).
//!
//! Owns the grammar of a collector's address, of the headers that are sent to it, and of the attributes that name this process.
//! Sends nothing: that is `admin`'s.

use crate::config::env::decode;
use crate::config::kind::{Fault, Value};
use crate::config::users::SecretText;

/// An address of a collector (OTLP specification: "OTLP/HTTP Request"); the paths of the signals are put behind it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Url {
    /// With TLS?
    pub is_https: bool,
    /// Host name or address, without brackets.
    pub host: String,
    /// TCP port.
    pub port: u16,
    /// What stands before `/v1/...`: empty, or with a slash in front and none behind.
    pub path: String,
}

impl Url {
    fn parse(text: &str) -> Result<Self, String> {
        let (scheme, rest) = text
            .split_once("://")
            .ok_or("expected http://host:4318 or https://host")?;
        let is_https = match scheme.to_ascii_lowercase().as_str() {
            "http" => false,
            "https" => true,
            _ => return Err("expected http:// or https://".to_owned()),
        };
        if rest.contains(['?', '#', '@']) {
            return Err(
                "expected only host, port and path; what proves who we are goes into otlp_headers"
                    .to_owned(),
            );
        }
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (host, port) = match authority.strip_prefix('[') {
            Some(v6) => {
                let (host, after) = v6.split_once(']').ok_or("expected ] after the address")?;
                if host.parse::<std::net::Ipv6Addr>().is_err() {
                    return Err("expected an IPv6 address between the brackets".to_owned());
                }
                (host, after)
            }
            None => authority.split_at(authority.find(':').unwrap_or(authority.len())),
        };
        let is_host = |c: char| c.is_ascii_alphanumeric() || ".-_:".contains(c);
        if host.is_empty() || !host.chars().all(is_host) {
            return Err("expected a host".to_owned());
        }
        let port = match (port, port.strip_prefix(':')) {
            ("", _) => Some(if is_https { 443 } else { 80 }),
            (_, Some(number)) => number.parse().ok().filter(|port| *port > 0),
            (_, None) => None,
        };
        let port = port.ok_or("expected a port, 1 to 65535")?;
        if !path.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err("expected a path without blanks".to_owned());
        }
        Ok(Self {
            is_https,
            host: host.to_owned(),
            port,
            path: base(path),
        })
    }

    /// `host:port`, as the Host header has it (RFC 9110 section 7.2).
    pub fn authority(&self) -> String {
        let Self { host, port, .. } = self;
        if host.contains(':') {
            format!("[{host}]:{port}")
        } else {
            format!("{host}:{port}")
        }
    }
}

/// The path without what is put behind it, should that be there already.
fn base(path: &str) -> String {
    let path = format!("/{}", path.trim_matches('/'));
    let signals = ["/v1/metrics", "/v1/traces"];
    let base = signals.iter().find_map(|end| path.strip_suffix(end));
    base.unwrap_or(&path).trim_end_matches('/').to_owned()
}

/// The value of `otlp_endpoint`; `None`: nothing is sent.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Endpoint(pub Option<Url>, String);

impl Value for Endpoint {
    fn parse(text: &str) -> Result<Self, Fault> {
        if text.is_empty() {
            return Ok(Self::default());
        }
        // What is mistaken may have a password in it.
        let url = Url::parse(text).map_err(Fault::Hidden)?;
        Ok(Self(Some(url), text.to_owned()))
    }

    fn print(&self) -> String {
        self.1.clone()
    }
}

/// `name=value` between commas, the values percent-encoded where they have commas or blanks (W3C Baggage, as in
/// `OTEL_EXPORTER_OTLP_HEADERS` and `OTEL_RESOURCE_ATTRIBUTES`).
fn pairs(text: &str) -> Result<Vec<(String, String)>, String> {
    let items = text.split(',').map(str::trim);
    let items = items.filter(|item| !item.is_empty());
    items
        .map(|item| {
            let (name, value) = item
                .split_once('=')
                .ok_or("expected name=value, and commas between them")?;
            let value = decode(value.trim()).map_err(|problem| problem.to_string())?;
            Ok((name.trim().to_owned(), value.unwrap_or_default()))
        })
        .collect()
}

/// The value of `otlp_headers`: what is sent along with each request. It shows the names only.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Headers(Vec<(String, SecretText)>);

impl Headers {
    /// Each with its value, which must not be shown.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        let headers = self.0.iter();
        headers.map(|(name, value)| (name.as_str(), value.expose()))
    }
}

impl Value for Headers {
    fn parse(text: &str) -> Result<Self, Fault> {
        let pairs = pairs(text).map_err(Fault::Hidden)?;
        let headers = pairs.into_iter().map(|(name, value)| {
            // RFC 9110 sections 5.6.2 and 5.5.
            let is_token =
                |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
            let is_name = !name.is_empty() && name.bytes().all(is_token);
            if is_name && value.bytes().all(|byte| (b' '..=b'~').contains(&byte)) {
                Ok((name.to_ascii_lowercase(), SecretText::new(value)))
            } else {
                let words = "expected names and values of HTTP headers";
                Err(Fault::Hidden(words.to_owned()))
            }
        });
        headers.collect::<Result<_, _>>().map(Self)
    }

    fn print(&self) -> String {
        let names = self.0.iter().map(|(name, _)| format!("{name}=(..)"));
        names.collect::<Vec<_>>().join(",")
    }
}

/// The value of `otlp_resource_attributes`: what names this process besides `service.name`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Attributes(pub Vec<(String, String)>, String);

impl Value for Attributes {
    fn parse(text: &str) -> Result<Self, Fault> {
        let pairs = pairs(text).map_err(Fault::Expected)?;
        if pairs.iter().any(|(name, _)| name.is_empty()) {
            return Err(Fault::Expected("name=value, with a name".to_owned()));
        }
        Ok(Self(pairs, text.to_owned()))
    }

    fn print(&self) -> String {
        self.1.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(text: &str) -> Url {
        Endpoint::parse(text).unwrap().0.unwrap()
    }

    #[test]
    fn a_path_stands_before_those_of_the_signals() {
        for (text, path) in [
            ("http://c:4318", ""),
            ("http://c:4318/", ""),
            ("https://c/otlp", "/otlp"),
            ("https://c/otlp/v1/traces", "/otlp"),
            ("http://c:4318/v1/metrics/", ""),
            ("http://c:4318/av1/metrics", "/av1/metrics"),
        ] {
            assert_eq!(url(text).path, path, "{text}");
        }
    }

    #[test]
    fn ports_are_those_of_the_scheme_if_none_is_given() {
        for (text, is_https, authority) in [
            ("http://c", false, "c:80"),
            ("HTTPS://c.example", true, "c.example:443"),
            ("http://[::1]:4318", false, "[::1]:4318"),
            ("https://10.0.0.1:1", true, "10.0.0.1:1"),
        ] {
            let url = url(text);
            assert_eq!(
                (url.is_https, url.authority().as_str()),
                (is_https, authority)
            );
        }
    }

    #[test]
    fn what_is_no_address_is_refused_and_not_shown() {
        for text in [
            "c:4318",
            "grpc://c",
            "http://",
            "http://user:secret@c",
            "http://c?key=secret",
            "http://c:0",
            "http://c:port",
            "http://[::1",
            "http://[c]:1",
            "http://a b",
            "http://c/a b",
            "http://c\r\nx",
        ] {
            let fault = Endpoint::parse(text).unwrap_err();
            assert!(matches!(fault, Fault::Hidden(_)), "{text}");
        }
        assert_eq!(Endpoint::parse("").unwrap(), Endpoint::default());
    }

    #[test]
    fn headers_show_their_names_alone() {
        let headers = Headers::parse("Authorization=Basic%20Zm9v==, x-scope-orgid = 7,").unwrap();
        let found: Vec<_> = headers.iter().collect();
        let wanted = [("authorization", "Basic Zm9v=="), ("x-scope-orgid", "7")];
        assert_eq!(found, wanted);
        assert_eq!(headers.print(), "authorization=(..),x-scope-orgid=(..)");
        assert!(!format!("{headers:?}").contains("Zm9v"));
        for text in ["secret", "a b=secret", "a=secret%0d%0a", "=secret", "a=%zz"] {
            let Err(Fault::Hidden(words)) = Headers::parse(text) else {
                panic!("{text}");
            };
            assert!(!words.contains("secret"), "{words}");
        }
    }

    #[test]
    fn attributes_are_pairs() {
        let text = "service.namespace=shop,deployment.environment.name=a%2Cb";
        let attributes = Attributes::parse(text).unwrap();
        assert_eq!(attributes.0[1].1, "a,b");
        assert_eq!(attributes.print(), text);
        assert!(Attributes::parse("=x").is_err() && Attributes::parse("x").is_err());
    }
}
