//! The client against a console of a few lines, in a thread.

use std::net::TcpListener;
use std::thread::JoinHandle;

use super::*;
use crate::auth::{PlainSecret, Secret};
use crate::config::Config;
use crate::protocol::authentication::Authentication;
use crate::protocol::backend::{ErrorMessage, TxStatus};

/// Listens, reads what `talk` needs and says what it says. The first packet is read by then.
fn console(talk: impl FnOnce(&mut TcpStream) + Send + 'static) -> (Target, JoinHandle<()>) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let mut tls = Config::default();
    tls.settings
        .assign("server_tls_sslmode", "disable")
        .unwrap();
    let target = Target {
        address: Address::Tcp {
            host: "127.0.0.1".to_owned(),
            port,
        },
        user: "admin".to_owned(),
        secret: Some(Secret::Plain(PlainSecret::new("pw"))),
        database: "pgbouncer".to_owned(),
        tls,
    };
    let thread = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut length = [0; 4];
        stream.read_exact(&mut length).unwrap();
        let mut packet = vec![0; u32::from_be_bytes(length) as usize - 4];
        stream.read_exact(&mut packet).unwrap();
        talk(&mut stream);
    });
    (target, thread)
}

fn read(stream: &mut TcpStream) -> (u8, Vec<u8>) {
    let mut head = [0; 5];
    stream.read_exact(&mut head).unwrap();
    let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize;
    let mut body = vec![0; length - 4];
    stream.read_exact(&mut body).unwrap();
    (head[0], body)
}

fn greet(stream: &mut TcpStream) {
    let mut out = Authentication::Ok.encode();
    backend::parameter_status(&mut out, b"server_version", b"1.25.2/bouncer");
    backend::ready_for_query(&mut out, TxStatus::Idle);
    stream.write_all(&out).unwrap();
}

#[test]
fn rows_come_with_their_types_and_nulls() {
    let (target, thread) = console(|stream| {
        stream
            .write_all(&Authentication::CleartextPassword.encode())
            .unwrap();
        assert_eq!(read(stream), (b'p', b"pw\0".to_vec()));
        greet(stream);
        assert_eq!(read(stream), (b'Q', b"SHOW POOLS\0".to_vec()));
        let columns = [("database", 25, -1), ("cl_active", 20, 8)];
        let columns = columns.map(|(name, type_oid, type_len)| backend::Column {
            name,
            type_oid,
            type_len,
        });
        let mut out = Vec::new();
        backend::row_description(&mut out, &columns);
        backend::data_row(&mut out, &[Some(b"app"), None]);
        backend::data_row(&mut out, &[Some(b"b\x1b[2J"), Some(b"7")]);
        backend::command_complete(&mut out, "SHOW");
        backend::ready_for_query(&mut out, TxStatus::Idle);
        // In two halves, in the midst of a message.
        let (first, second) = out.split_at(out.len() / 2);
        stream.write_all(first).unwrap();
        stream.flush().unwrap();
        stream.write_all(second).unwrap();
        assert_eq!(read(stream).0, b'X');
    });
    let rows = Console::connect(&target).unwrap().show("POOLS").unwrap();
    thread.join().unwrap();
    assert_eq!(
        (rows.column("cl_active"), rows.column("x")),
        (Some(1), None)
    );
    assert!(rows.columns[1].is_number && !rows.columns[0].is_number);
    let text = |text: &str| Some(text.to_owned());
    assert_eq!(rows.rows[0], [text("app"), None]);
    assert_eq!(rows.rows[1], [text("b\x1b[2J"), text("7")]);
}

#[test]
fn an_error_leaves_the_connection_and_a_fatal_one_ends_it() {
    let (target, thread) = console(|stream| {
        greet(stream);
        read(stream);
        let mut out = Vec::new();
        let message = "invalid command 'SHOW PINS', use SHOW HELP;";
        backend::error_response(&mut out, &ErrorMessage::new("ERROR", "08P01", message));
        backend::ready_for_query(&mut out, TxStatus::Idle);
        stream.write_all(&out).unwrap();
        read(stream);
        out.clear();
        backend::error_response(&mut out, &ErrorMessage::new("FATAL", "08P01", "bye\x1b[0m"));
        stream.write_all(&out).unwrap();
    });
    let mut console = Console::connect(&target).unwrap();
    assert_eq!(
        console.show("PINS").unwrap_err().to_string(),
        "ERROR: invalid command 'SHOW PINS', use SHOW HELP;"
    );
    assert_eq!(
        console.show("POOLS").unwrap_err().to_string(),
        "FATAL: bye\\u{1b}[0m"
    );
    thread.join().unwrap();
}

#[test]
fn a_refused_login_has_the_poolers_words() {
    let (target, thread) = console(|stream| {
        let mut out = Vec::new();
        let error = ErrorMessage::new("FATAL", "28P01", "password authentication failed");
        backend::error_response(&mut out, &error);
        stream.write_all(&out).unwrap();
    });
    let error = Console::connect(&target).unwrap_err().to_string();
    assert_eq!(error, "FATAL: password authentication failed");
    thread.join().unwrap();
}

#[test]
fn what_is_no_console_is_refused() {
    let answers: [&[u8]; 5] = [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"R\0\0\0\x03",
        b"Z\0\0\0\x05I",
        b"T\x7f\xff\xff\xff",
        b"",
    ];
    for answer in answers {
        let (target, thread) = console(move |stream| stream.write_all(answer).unwrap());
        Console::connect(&target).unwrap_err();
        thread.join().unwrap();
    }
}

#[test]
fn a_row_is_as_long_as_the_headings() {
    let mut out = Vec::new();
    backend::data_row(&mut out, &[Some(b"1"), Some(b"2")]);
    assert!(row(&out[5..], 2).is_ok());
    assert!(matches!(row(&out[5..], 3), Err(Error::Unexpected(b'D'))));
}

#[test]
fn nothing_that_is_shown_steers_the_terminal() {
    assert_eq!(printable("plain é"), "plain é");
    assert_eq!(printable("a\nb\u{9b}2J\u{7f}"), "a\\nb\\u{9b}2J\\u{7f}");
}
