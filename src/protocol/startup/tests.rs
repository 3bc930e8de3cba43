use super::*;
use crate::protocol::frontend;
use bytes::BytesMut;
use postgres_protocol::message::frontend as oracle;
use proptest::prelude::*;

fn packet(version: u32, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len() + 8).unwrap();
    [&length.to_be_bytes(), &version.to_be_bytes(), body].concat()
}

fn pairs(expected: &[(&str, &str)]) -> Vec<(Vec<u8>, Vec<u8>)> {
    let bytes = |text: &str| text.as_bytes().to_vec();
    expected
        .iter()
        .map(|(name, value)| (bytes(name), bytes(value)))
        .collect()
}

#[test]
fn the_packets_of_postgres_protocol_are_read() {
    let mut bytes = BytesMut::new();
    oracle::ssl_request(&mut bytes);
    assert_eq!(read(&bytes), Ok(Some((FirstPacket::Ssl, 8))));

    bytes.clear();
    oracle::cancel_request(42, 7, &mut bytes);
    let cancel = FirstPacket::Cancel {
        pid: 42,
        key: vec![0, 0, 0, 7],
    };
    assert_eq!(read(&bytes), Ok(Some((cancel, 16))));

    bytes.clear();
    oracle::startup_message([("user", "me"), ("database", "db")], &mut bytes).unwrap();
    let expected = StartupMessage {
        major: 3,
        minor: 0,
        parameters: pairs(&[("user", "me"), ("database", "db")]),
    };
    assert_eq!(
        read(&bytes),
        Ok(Some((FirstPacket::Startup(expected), bytes.len())))
    );
}

#[test]
fn a_gss_encryption_request_is_read() {
    let request = packet(code::GSSENC, b"");
    assert_eq!(read(&request), Ok(Some((FirstPacket::GssEnc, 8))));
}

#[test]
fn the_packet_of_a_successor_is_read() {
    let mut bytes = Vec::new();
    successor(&mut bytes);
    assert_eq!(read(&bytes), Ok(Some((FirstPacket::Successor, 8))));
}

#[test]
fn an_encryption_request_with_anything_inside_is_refused() {
    for code in [code::SSL, code::GSSENC, code::SUCCESSOR] {
        assert_eq!(
            read(&packet(code, b"x")),
            Err(Error::TrailingBytes { count: 1 })
        );
    }
}

#[test]
fn every_minor_version_is_read_and_bytes_after_the_packet_are_left() {
    let mut bytes = Vec::new();
    frontend::startup(&mut bytes, 9999, &[(b"user", b"me")]);
    let length = bytes.len();
    bytes.extend_from_slice(b"p\0\0");
    let Ok(Some((FirstPacket::Startup(message), consumed))) = read(&bytes) else {
        panic!("not a StartupMessage");
    };
    assert_eq!((message.major, message.minor, consumed), (3, 9999, length));
}

#[test]
fn the_last_of_two_parameters_counts() {
    let message = StartupMessage {
        major: 3,
        minor: 0,
        parameters: pairs(&[("user", "a"), ("user", "b")]),
    };
    assert_eq!(message.get(b"user"), Some(&b"b"[..]));
    assert_eq!(message.get(b"USER"), None);
}

#[test]
fn every_prefix_of_a_packet_is_incomplete() {
    let mut bytes = Vec::new();
    frontend::startup(&mut bytes, 0, &[(b"user", b"me")]);
    for end in 0..bytes.len() {
        assert_eq!(read(&bytes[..end]), Ok(None));
    }
}

#[test]
fn a_length_out_of_range_is_refused_before_the_rest_comes() {
    for length in [0u32, 3, 7, 10_005, u32::MAX] {
        let bytes = length.to_be_bytes();
        assert_eq!(
            read(&bytes),
            Err(Error::BadHeader {
                header: bytes.to_vec()
            })
        );
    }
    for length in [8u32, 10_004] {
        assert_eq!(read(&length.to_be_bytes()), Ok(None));
    }
}

#[test]
fn garbage_is_refused_with_its_first_eight_bytes_in_hex() {
    let refused = read(b"GET / HTTP/1.1\r\n\r\n").unwrap_err();
    assert_eq!(refused.to_string(), "bad packet header: '474554202f204854'");
    let refused = read(&packet(4 << 16, b"user\0me\0\0")).unwrap_err();
    assert_eq!(refused.to_string(), "bad packet header: '0000001100040000'");
    assert_eq!(
        read(b"p\0\0\0\x06x\0"),
        Err(Error::PasswordFirst),
        "the answer to a request that nobody made"
    );
}

#[test]
fn protocol_two_is_refused_by_name() {
    assert_eq!(read(&packet(2 << 16, &[0; 288])), Err(Error::ProtocolTwo));
}

#[test]
fn parameters_must_end_with_the_packet() {
    for body in [
        &b""[..],
        b"user\0me\0",
        b"user\0me",
        b"user\0",
        b"user",
        b"user\0me\0\0x",
        b"\0\0",
    ] {
        assert_eq!(read(&packet(3 << 16, body)), Err(Error::StartupTerminator));
    }
    assert!(read(&packet(3 << 16, b"\0")).is_ok());
    assert!(read(&packet(3 << 16, b"options\0\0\0")).is_ok());
}

#[test]
fn cancel_keys_have_four_to_256_bytes() {
    for (length, fits) in [(0, false), (3, false), (4, true), (256, true), (257, false)] {
        let mut bytes = Vec::new();
        frontend::cancel_request(&mut bytes, -5, &vec![1; length]);
        match read(&bytes) {
            Ok(Some((FirstPacket::Cancel { pid, key }, consumed))) => {
                assert!(fits);
                assert_eq!((pid, key.len(), consumed), (-5, length, bytes.len()));
            }
            refused => {
                assert!(!fits);
                assert_eq!(refused, Err(Error::BadCancelKey { length }));
            }
        }
    }
    assert_eq!(read(&packet(code::CANCEL, b"\0")), Err(Error::Truncated));
}

#[test]
fn a_cancel_key_is_not_shown() {
    let cancel = FirstPacket::Cancel {
        pid: 1,
        key: vec![200; 4],
    };
    assert_eq!(format!("{cancel:?}"), "Cancel { pid: 1, key: (..) }");
}

#[test]
fn options_are_read_in_every_allowed_form() {
    let table: &[(&str, &[(&str, &str)])] = &[
        ("", &[]),
        (" \t\n\u{b}\u{c}\r ", &[]),
        ("-c a=1", &[("a", "1")]),
        ("-ca=1", &[("a", "1")]),
        ("--a=1", &[("a", "1")]),
        (
            "  -c   a=1\t--b=2 -cc=3 ",
            &[("a", "1"), ("b", "2"), ("c", "3")],
        ),
        ("--a=", &[("a", "")]),
        ("--a=b=c", &[("a", "b=c")]),
        ("--search-path=x-y", &[("search_path", "x-y")]),
        (r"-c a=1\ 2\\3 -c b=\4", &[("a", r"1 2\3"), ("b", "4")]),
        (r"--a=1\", &[("a", "1")]),
    ];
    for (value, expected) in table {
        let read = parse_options(value.as_bytes());
        assert_eq!(read, Ok(pairs(expected)), "{value:?}");
    }
}

#[test]
fn options_that_are_not_settings_are_refused() {
    for value in [
        "-c",
        "-c a",
        "a=1",
        "-B 5",
        "--",
        "--=1",
        "-c =1",
        "-c a=1 -d 2",
        "-",
    ] {
        let refused = parse_options(value.as_bytes());
        assert_eq!(refused, Err(Error::UnsupportedOptions), "{value:?}");
    }
}

proptest! {
    #[test]
    fn reading_never_panics(bytes: Vec<u8>) {
        let _ = read(&bytes);
        let _ = parse_options(&bytes);
        let length = u32::try_from(bytes.len() + 8).unwrap();
        for code in [3 << 16, code::CANCEL, code::SSL] {
            let bytes = packet(code, &bytes);
            prop_assert_eq!(&bytes[..4], &length.to_be_bytes());
            if let Ok(read) = read(&bytes) {
                prop_assert_eq!(read.unwrap().1, bytes.len());
            }
        }
    }

    #[test]
    fn an_escaped_option_reads_back(value: String) {
        let escaped: String = value
            .chars()
            .flat_map(|c| (c == '\\' || c.is_ascii() && is_blank(c as u8)).then_some('\\').into_iter().chain([c]))
            .collect();
        let read = parse_options(format!("-c a={escaped} --b=2").as_bytes()).unwrap();
        prop_assert_eq!(read, pairs(&[("a", &value), ("b", "2")]));
    }
}
