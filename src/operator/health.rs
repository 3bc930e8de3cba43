//! `pgferry health`: asks `/readyz` of `http_listen`, for a container's HEALTHCHECK. HTTP without TLS; a status line is
//! all that is read.

use std::io::{Read, Write};
use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;

use super::Error;
use super::console::{printable, tcp};
use super::target::{Address, reachable};
use crate::config::Config;

/// For each read and write.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Most bytes of an answer that are looked at.
const LIMIT: u64 = 4096;

/// Ask a pooler with http_listen whether it is ready: ends with 0, or with 1 and the reason
// The doc comments are what `--help` shows.
#[derive(Debug, Parser)]
#[command(name = "pgferry health", bin_name = "pgferry health")]
#[expect(clippy::doc_markdown, reason = "help texts, shown as they are")]
pub(super) struct Arguments {
    /// The page [default: /readyz of http_listen in --config, or of the variable HTTP_LISTEN]
    #[arg(value_name = "URL")]
    url: Option<String>,

    /// The pooler's file (ini or TOML), for its http_listen
    #[arg(short, long, value_name = "FILE", conflicts_with = "url")]
    config: Option<PathBuf>,
}

/// Where and what to ask.
#[derive(Debug, PartialEq, Eq)]
struct Page {
    host: String,
    port: u16,
    path: String,
}

pub(super) fn run(arguments: &Arguments) -> Result<(), Error> {
    let page = match (&arguments.url, &arguments.config) {
        (Some(url), _) => Page::of_url(url)?,
        (None, Some(file)) => Page::of_listener(&Config::load(file)?.settings.http_listen)?,
        (None, None) => Page::of_listener(&std::env::var("HTTP_LISTEN").unwrap_or_default())?,
    };
    page.ask()
}

impl Page {
    fn of_url(url: &str) -> Result<Self, Error> {
        let bad = || {
            Error::Usage(format!(
                "'{}': expected http://host:port/path",
                printable(url)
            ))
        };
        let rest = url.strip_prefix("http://").ok_or_else(bad)?;
        let (address, path) = rest.split_once('/').unwrap_or((rest, "readyz"));
        let path = if path.is_empty() { "readyz" } else { path };
        // A blank or a line break would end the request line.
        if path.contains(|char: char| char.is_control() || char == ' ') {
            return Err(bad());
        }
        let (host, port) = parts(address).unwrap_or((address, "80"));
        Ok(Self {
            host: host.trim_matches(['[', ']']).to_owned(),
            port: port.parse().map_err(|_| bad())?,
            path: format!("/{path}"),
        })
    }

    /// By the value of the setting.
    fn of_listener(address: &str) -> Result<Self, Error> {
        let missing = || {
            Error::Usage(
                "http_listen is not set: name it by --config FILE, HTTP_LISTEN or a URL".into(),
            )
        };
        let (host, port) = parts(address).ok_or_else(missing)?;
        let host = reachable(host).trim_matches(['[', ']']);
        Ok(Self {
            host: host.to_owned(),
            port: port.parse().map_err(|_| missing())?,
            path: "/readyz".to_owned(),
        })
    }

    fn ask(&self) -> Result<(), Error> {
        let address = Address::Tcp {
            host: self.host.clone(),
            port: self.port,
        };
        let address = address.to_string();
        let connected = tcp(&self.host, self.port);
        let mut stream = connected.map_err(|source| Error::Connect {
            address: address.clone(),
            source,
        })?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.set_write_timeout(Some(TIMEOUT))?;
        let request = format!(
            "GET {} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n",
            self.path
        );
        stream.write_all(request.as_bytes())?;
        let mut answer = Vec::new();
        stream.take(LIMIT).read_to_end(&mut answer)?;
        judge(&String::from_utf8_lossy(&answer))
    }
}

/// Host and port of `host:port`, if there is a `:` that is not a part of the host.
fn parts(address: &str) -> Option<(&str, &str)> {
    address
        .rsplit_once(':')
        .filter(|(_, port)| !port.contains(']'))
}

/// By the status line: 200 is well, all else is told with the first line of the body.
fn judge(answer: &str) -> Result<(), Error> {
    let status = answer.lines().next().unwrap_or_default();
    let mut words = status.split(' ');
    let is_http = words.next().is_some_and(|word| word.starts_with("HTTP/1."));
    match words.next() {
        Some("200") if is_http => Ok(()),
        _ => {
            let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
            let why = format!("{status} {}", body.lines().next().unwrap_or_default());
            Err(Error::NotReady(printable(why.trim())))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(page: Result<Page, Error>) -> String {
        page.map_or_else(
            |error| error.to_string(),
            |page| format!("{} {} {}", page.host, page.port, page.path),
        )
    }

    #[test]
    fn a_url_names_host_port_and_page() {
        let table = [
            ("http://h:9127/healthz", "h 9127 /healthz"),
            ("http://h:9127", "h 9127 /readyz"),
            ("http://[::1]:9127/", "::1 9127 /readyz"),
            ("http://h", "h 80 /readyz"),
            ("http://[::1]", "::1 80 /readyz"),
            ("https://h/", "'https://h/': expected http://host:port/path"),
            (
                "http://h:x/",
                "'http://h:x/': expected http://host:port/path",
            ),
            (
                "http://h/a b",
                "'http://h/a b': expected http://host:port/path",
            ),
        ];
        for (url, expected) in table {
            assert_eq!(shown(Page::of_url(url)), expected);
        }
    }

    #[test]
    fn the_setting_is_turned_into_an_address_of_this_machine() {
        let table = [
            ("127.0.0.1:9127", "127.0.0.1 9127 /readyz"),
            (":9127", "127.0.0.1 9127 /readyz"),
            ("0.0.0.0:9127", "127.0.0.1 9127 /readyz"),
            ("[::]:9127", "::1 9127 /readyz"),
            ("10.0.0.1:9127", "10.0.0.1 9127 /readyz"),
        ];
        for (setting, expected) in table {
            assert_eq!(shown(Page::of_listener(setting)), expected);
        }
        assert!(shown(Page::of_listener("")).contains("http_listen is not set"));
    }

    #[test]
    fn only_200_is_well() {
        judge("HTTP/1.1 200 OK\r\n\r\nready\n").unwrap();
        let why = |answer| judge(answer).unwrap_err().to_string();
        let answer = "HTTP/1.1 503 Service Unavailable\r\na: b\r\n\r\nshutting down\n";
        assert_eq!(
            why(answer),
            "not ready: HTTP/1.1 503 Service Unavailable shutting down"
        );
        assert_eq!(why("SSH-2.0 200"), "not ready: SSH-2.0 200");
        assert_eq!(why(""), "not ready: ");
    }
}
