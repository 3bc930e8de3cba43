//! What a real directory does not do: lies, half messages, and the end in between.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::*;
use crate::config::kind::Value;
use crate::config::ldap::Options;

/// Answers the requests of each connection in turn, whatever they are, and hangs up behind the last; tells what it has
/// read.
async fn server(answers: &'static [&'static [u8]]) -> (u16, Arc<Mutex<Vec<u8>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let heard = seen.clone();
    let mut connections = tokio::task::JoinSet::new();
    connections.spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            for answer in answers {
                let mut request = [0; 4096];
                let length = stream.read(&mut request).await.unwrap();
                heard.lock().extend(&request[..length]);
                stream.write_all(answer).await.unwrap();
            }
        }
    });
    connections.detach_all();
    (port, seen)
}

const NAMED: &str = "ldapprefix=uid=";
const FOUND: &str = "ldapbasedn=\"\"";

const BOUND: &[u8] = b"\x30\x0c\x02\x01\x01\x61\x07\x0a\x01\x00\x04\x00\x04\x00";
const BUSY: &[u8] = b"\x30\x0c\x02\x01\x01\x61\x07\x0a\x01\x33\x04\x00\x04\x00";
const DONE: &[u8] = b"\x30\x0c\x02\x01\x01\x65\x07\x0a\x01\x00\x04\x00\x04\x00";

/// What a directory comes to that answers so.
async fn outcome(way: &str, answers: &'static [&'static [u8]]) -> String {
    let (port, _) = server(answers).await;
    ask_all(&format!("ldapserver=127.0.0.1 ldapport={port} {way}")).await
}

async fn ask_all(options: &str) -> String {
    let options = Options::parse(options).unwrap();
    let password = PlainSecret::new("secret");
    let question = Question {
        directory: options.directory().unwrap(),
        user: "jo",
        password: &password,
    };
    let names = Names::default();
    let reach = Reach {
        names: &names,
        ttl: Ttl::default(),
        tcp: TcpOptions::default(),
        tls: &WithDirectories::default(),
    };
    let deadline = Instant::now() + Duration::from_secs(60);
    match check(question, &reach, deadline).await {
        Ok(()) => "in".to_owned(),
        Err(error) => error.to_string(),
    }
}

#[tokio::test]
async fn nobody_comes_in_but_by_a_success_that_answers_the_bind() {
    let table: &[(&'static [&'static [u8]], &str)] = &[
        (&[BOUND], "in"),
        (&[BUSY], "busy (51)"),
        (&[DONE], "unexpected answer"),
        // The number of another request.
        (
            &[b"\x30\x0c\x02\x01\x02\x61\x07\x0a\x01\x00\x04\x00\x04\x00"],
            "unexpected answer",
        ),
        // Notice of disconnection.
        (
            &[b"\x30\x0c\x02\x01\x00\x78\x07\x0a\x01\x34\x04\x00\x04\x00"],
            "the server hangs up: unavailable (52)",
        ),
        (&[b""], "the server closed the connection"),
        (
            &[b"\x30\x0c\x02\x01\x01\x61"],
            "the server closed the connection",
        ),
        (
            &[b"HTTP/1.1 400 Bad Request\r\n"],
            "byte 0x48 where a message should begin",
        ),
        (
            &[b"\x30\x84\x7f\xff\xff\xff"],
            "message of 2147483653 bytes",
        ),
        // A referral is no success.
        (
            &[b"\x30\x0c\x02\x01\x01\x61\x07\x0a\x01\x0a\x04\x00\x04\x00"],
            "bind as \"uid=jo\": referral (10)",
        ),
    ];
    for (answers, expected) in table {
        assert_eq!(outcome(NAMED, answers).await, *expected, "{answers:x?}");
    }
}

#[tokio::test]
async fn a_search_ends_with_one_entry_that_has_a_name_or_lets_nobody_in() {
    let table: &[(&'static [&'static [u8]], &str)] = &[
        (&[DONE], "no such user in the directory"),
        (
            // The root of the tree: a bind without a name proves nothing.
            &[
                b"\x30\x09\x02\x01\x01\x64\x04\x04\x00\x30\x00\x30\x0c\x02\x01\x01\x65\x07\x0a\x01\x00\x04\x00\x04\x00",
                b"\x30\x0c\x02\x01\x02\x61\x07\x0a\x01\x00\x04\x00\x04\x00",
            ],
            "the entry that is found has no name",
        ),
        (
            &[
                b"\x30\x0a\x02\x01\x01\x64\x05\x04\x01x\x30\x00\x30\x0c\x02\x01\x01\x65\x07\x0a\x01\x00\x04\x00\x04\x00",
                b"\x30\x0c\x02\x01\x02\x61\x07\x0a\x01\x00\x04\x00\x04\x00",
            ],
            "in",
        ),
        (
            // References to other servers are passed over.
            &[
                b"\x30\x08\x02\x01\x01\x73\x03\x04\x01x\x30\x0a\x02\x01\x01\x64\x05\x04\x01x\x30\x00\x30\x0c\x02\x01\x01\x65\x07\x0a\x01\x00\x04\x00\x04\x00",
                b"\x30\x0c\x02\x01\x02\x61\x07\x0a\x01\x00\x04\x00\x04\x00",
            ],
            "in",
        ),
        (
            &[b"\x30\x0a\x02\x01\x01\x64\x05\x04\x01x\x30\x00\x30\x0a\x02\x01\x01\x64\x05\x04\x01x\x30\x00"],
            "more than one entry is found for the user",
        ),
        (
            &[b"\x30\x0a\x02\x01\x01\x64\x05\x04\x01x\x30\x00\x30\x0c\x02\x01\x01\x65\x07\x0a\x01\x04\x04\x00\x04\x00"],
            "more than one entry is found for the user",
        ),
        (
            &[b"\x30\x0c\x02\x01\x01\x65\x07\x0a\x01\x20\x04\x00\x04\x00"],
            "search: no such object (32)",
        ),
        (&[BOUND], "unexpected answer"),
    ];
    for (answers, expected) in table {
        assert_eq!(outcome(FOUND, answers).await, *expected, "{answers:x?}");
    }
}

#[tokio::test]
async fn tls_is_not_given_up_and_nothing_that_came_before_it_is_believed() {
    let way = format!("{NAMED} ldaptls=1");
    let table: &[(&'static [&'static [u8]], &str)] = &[
        (
            &[b"\x30\x0c\x02\x01\x01\x78\x07\x0a\x01\x02\x04\x00\x04\x00"],
            "StartTLS: protocol error (2)",
        ),
        (
            &[b"\x30\x0c\x02\x01\x01\x78\x07\x0a\x01\x00\x04\x00\x04\x00\x30\x0c\x02\x01\x02\x61\x07\x0a\x01\x00\x04\x00\x04\x00"],
            "received unencrypted data after StartTLS",
        ),
        (
            &[b"\x30\x0c\x02\x01\x01\x78\x07\x0a\x01\x00\x04\x00\x04\x00"],
            "TLS handshake error: TLS is not set up",
        ),
        (&[BOUND], "unexpected answer"),
    ];
    for (answers, expected) in table {
        assert_eq!(outcome(&way, answers).await, *expected, "{answers:x?}");
    }
}

#[tokio::test]
async fn an_empty_password_is_not_sent() {
    let (port, seen) = server(&[BOUND]).await;
    let options = Options::parse(&format!("ldapserver=127.0.0.1 ldapport={port} {NAMED}")).unwrap();
    let question = Question {
        directory: options.directory().unwrap(),
        user: "jo",
        password: &PlainSecret::new(""),
    };
    let names = Names::default();
    let reach = Reach {
        names: &names,
        ttl: Ttl::default(),
        tcp: TcpOptions::default(),
        tls: &WithDirectories::default(),
    };
    let refused = check(question, &reach, Instant::now()).await;
    assert!(matches!(refused, Err(Error::EmptyPassword)));
    assert!(seen.lock().is_empty());
}
