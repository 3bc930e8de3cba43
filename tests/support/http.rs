//! A client of the pages of `http_listen`: one request, one answer.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};

use super::PATIENCE;

/// An answer: its status, its head and its body.
pub struct Answer {
    pub status: u16,
    /// In lower case.
    pub head: String,
    pub body: String,
}

/// Asks on this port; `request` is the request line, and may have lines of the head behind it.
pub fn ask(port: u16, request: &str) -> Answer {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let text = format!("{request}\r\nHost: x\r\nConnection: close\r\n\r\n");
    stream.write_all(text.as_bytes()).unwrap();
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).unwrap();
    let text = String::from_utf8_lossy(&bytes).into_owned();
    let (head, body) = text.split_once("\r\n\r\n").expect("a head and a body");
    Answer {
        status: head.split(' ').nth(1).unwrap().parse().unwrap(),
        head: head.to_ascii_lowercase(),
        body: body.to_owned(),
    }
}

/// A page.
pub fn get(port: u16, path: &str) -> Answer {
    ask(port, &format!("GET {path} HTTP/1.1"))
}
