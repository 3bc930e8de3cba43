use proptest::prelude::*;

use super::*;

/// Replaces the four-byte lengths that we write by one-byte ones, which read better.
fn short(bytes: &[u8]) -> Vec<u8> {
    let mut elements = Elements(bytes);
    let mut out = Vec::new();
    while !elements.0.is_empty() {
        let (tag, content) = elements.next().unwrap();
        // A context tag with bit 6 holds elements, and so do SEQUENCE and the operations.
        let content = if tag & 0x20 == 0 {
            content.to_vec()
        } else {
            short(content)
        };
        out.extend([tag, u8::try_from(content.len()).unwrap()]);
        out.extend(content);
    }
    out
}

fn filter(text: &str, user: &str) -> Vec<u8> {
    let mut out = Writer::with_capacity(64);
    Filter::parse(text).unwrap().encode(user, &mut out);
    short(&out.finish())
}

#[test]
fn a_bind_has_version_3_the_name_and_the_password() {
    let expected = b"\x30\x13\x02\x01\x01\x60\x0e\x02\x01\x03\x04\x04cn=a\x80\x03pwd";
    assert_eq!(short(&bind(1, "cn=a", b"pwd")), expected);
}

#[test]
fn a_bind_is_written_where_it_is_wiped() {
    let message = bind(i32::MAX, &"n".repeat(300), &[b'p'; 500]);
    assert!(
        message.len() <= 300 + 500 + 64,
        "it has not been moved while it was written: {}",
        message.len()
    );
}

#[test]
fn a_search_asks_for_two_names_and_no_attributes() {
    let wanted = Search {
        base: "dc=x",
        scope: Scope::Subtree,
        filter: &Filter::is_user("uid").unwrap(),
        user: "jo",
    };
    let expected =
        b"\x30\x2d\x02\x02\x00\x80\x63\x27\x04\x04dc=x\x0a\x01\x02\x0a\x01\x00\x02\x01\x02\
        \x02\x01\x00\x01\x01\xff\xa3\x09\x04\x03uid\x04\x02jo\x30\x05\x04\x031.1";
    assert_eq!(short(&search(128, &wanted)), expected);
}

#[test]
fn start_tls_and_the_farewell_are_what_the_rfc_says() {
    let expected = b"\x30\x1d\x02\x01\x01\x77\x18\x80\x161.3.6.1.4.1.1466.20037";
    assert_eq!(short(&start_tls(1)), expected);
    assert_eq!(short(&unbind(3)), b"\x30\x05\x02\x01\x03\x42\x00");
}

#[test]
fn every_kind_of_filter_is_written_with_its_tag() {
    let table: &[(&str, &[u8])] = &[
        ("(a=b)", b"\xa3\x06\x04\x01a\x04\x01b"),
        ("a=b", b"\xa3\x06\x04\x01a\x04\x01b"),
        ("(a=)", b"\xa3\x05\x04\x01a\x04\x00"),
        ("(a>=b)", b"\xa5\x06\x04\x01a\x04\x01b"),
        ("(a<=b)", b"\xa6\x06\x04\x01a\x04\x01b"),
        ("(a~=b)", b"\xa8\x06\x04\x01a\x04\x01b"),
        ("(a=*)", b"\x87\x01a"),
        ("(a=b*)", b"\xa4\x08\x04\x01a\x30\x03\x80\x01b"),
        ("(a=*b)", b"\xa4\x08\x04\x01a\x30\x03\x82\x01b"),
        (
            "(a=b*c*d*e)",
            b"\xa4\x11\x04\x01a\x30\x0c\x80\x01b\x81\x01c\x81\x01d\x82\x01e",
        ),
        (
            "(&(a=b)(!(c=d)))",
            b"\xa0\x12\xa3\x06\x04\x01a\x04\x01b\xa2\x08\xa3\x06\x04\x01c\x04\x01d",
        ),
        ("(|(a=b))", b"\xa1\x08\xa3\x06\x04\x01a\x04\x01b"),
        ("(&)", b"\xa0\x00"),
        (
            "(a:dn:2.5.13.5:=b)",
            b"\xa9\x13\x81\x082.5.13.5\x82\x01a\x83\x01b\x84\x01\xff",
        ),
        ("(:caseIgnore:=b)", b"\xa9\x0f\x81\x0acaseIgnore\x83\x01b"),
        ("(a:=b)", b"\xa9\x06\x82\x01a\x83\x01b"),
        (r"(a=\2a\28\5C)", b"\xa3\x08\x04\x01a\x04\x03*(\\"),
        ("(a=$username)", b"\xa3\x07\x04\x01a\x04\x02jo"),
        (
            "(a=$username.$username@x)",
            b"\xa3\x0c\x04\x01a\x04\x07jo.jo@x",
        ),
        ("(a=*$username*)", b"\xa4\x09\x04\x01a\x30\x04\x81\x02jo"),
    ];
    for (text, expected) in table {
        assert_eq!(filter(text, "jo"), *expected, "{text}");
    }
}

#[test]
fn a_filter_against_the_grammar_is_refused() {
    for text in [
        "",
        "()",
        "(a=b",
        "(a=b))",
        "a=b)",
        "(a=b)(c=d)",
        "(&(a=b)c=d)",
        "(!)",
        "(a)",
        "(=b)",
        "(a b=c)",
        "(a=b(c)",
        "(a>=b*)",
        "(a=**)",
        r"(a=\2)",
        r"(a=\zz)",
        r"(a=\+1)",
        r"(a=\é)",
        "(:=b)",
        "(:dn:=b)",
        "(a:b:c:=d)",
    ] {
        assert!(Filter::parse(text).is_err(), "{text}");
    }
    let deep = format!("{}(a=b){}", "(!".repeat(100), ")".repeat(100));
    assert!(Filter::parse(&deep).is_err());
}

#[test]
fn a_filter_tells_whether_it_asks_for_the_user() {
    for (text, expected) in [
        ("(uid=$username)", true),
        (
            "(&(objectClass=person)(|(uid=$username)(mail=$username)))",
            true,
        ),
        ("(!(uid=$username))", true),
        ("(uid=*$username)", true),
        ("(cn:=$username)", true),
        ("(uid=*)", false),
        ("(&(uid=jo)(cn=$user))", false),
    ] {
        assert_eq!(
            Filter::parse(text).unwrap().names_user(),
            expected,
            "{text}"
        );
    }
}

#[test]
fn answers_are_told_apart_by_their_tags() {
    let success = b"\x0a\x01\x00\x04\x00\x04\x00";
    let failed = b"\x0a\x01\x31\x04\x00\x04\x04no\"\0";
    let outcome = |code, words: &str| Outcome {
        code,
        words: words.to_owned(),
    };
    let table: &[(u8, &[u8], Reply)] = &[
        (0x61, success, Reply::Bind(outcome(0, ""))),
        (0x61, failed, Reply::Bind(outcome(49, "no\""))),
        (0x64, b"\x04\x02cn\x30\x00", Reply::Entry("cn".to_owned())),
        (0x65, success, Reply::Done(outcome(0, ""))),
        (0x73, b"\x04\x01x", Reply::Other),
        (0x78, success, Reply::Extended(outcome(0, ""))),
        (0x79, b"", Reply::Other),
    ];
    for (tag, body, expected) in table {
        let mut bytes = vec![0x30, u8::try_from(body.len()).unwrap() + 5, 2, 1, 7, *tag];
        bytes.push(u8::try_from(body.len()).unwrap());
        bytes.extend_from_slice(body);
        for end in 0..bytes.len() {
            assert_eq!(read(&bytes[..end]), Ok(None), "{tag:#x}");
        }
        let length = bytes.len();
        bytes.extend_from_slice(b"\x30more");
        let message = Message {
            id: 7,
            reply: expected.clone(),
        };
        assert_eq!(read(&bytes), Ok(Some((message, length))), "{tag:#x}");
    }
}

#[test]
fn an_outcome_says_what_it_means_and_hides_control_characters() {
    let outcome = |code, words: &str| Outcome {
        code,
        words: words.to_owned(),
    };
    assert_eq!(outcome(49, "").to_string(), "invalid credentials (49)");
    assert_eq!(outcome(80, "a\nb").to_string(), "failed (80): a\\nb");
}

#[test]
fn what_is_no_message_is_refused_before_memory_is_taken_for_it() {
    let table: &[(&[u8], Error)] = &[
        (
            b"HT",
            Error::Unexpected {
                tag: b'H',
                expected: "a message",
            },
        ),
        (b"\x30\x80", Error::BadLength),
        (b"\x30\x85", Error::BadLength),
        (
            b"\x30\x84\xff\xff\xff\xff",
            Error::TooLong {
                length: 0xffff_ffff + 6,
            },
        ),
        (b"\x30\x02\x02\x05", Error::Truncated),
        (b"\x30\x03\x02\x01\x01", Error::Truncated),
        (
            b"\x30\x03\x04\x01\x01",
            Error::Unexpected {
                tag: 4,
                expected: "the number of a message",
            },
        ),
        (b"\x30\x04\x02\x00\x61\x00", Error::BadNumber),
        (b"\x30\x05\x02\x01\x01\x61\x00", Error::Truncated),
        (
            b"\x30\x05\x02\x01\x01\x30\x00",
            Error::Unexpected {
                tag: 0x30,
                expected: "the answer to a bind, a search or StartTLS",
            },
        ),
        (b"\x30\x08\x02\x01\x01\x64\x03\x04\x01\xff", Error::BadName),
    ];
    for (bytes, expected) in table {
        assert_eq!(read(bytes), Err(expected.clone()), "{bytes:x?}");
    }
}

#[test]
fn nothing_in_a_name_has_a_meaning_in_a_distinguished_name() {
    for (value, expected) in [
        ("jo", "jo"),
        ("jo,dc=admin", "jo\\2Cdc\\3Dadmin"),
        ("jo+cn=admin", "jo\\2Bcn\\3Dadmin"),
        ("a\\b\"c<d>e;f", "a\\5Cb\\22c\\3Cd\\3Ee\\3Bf"),
        (" a b ", "\\20a b\\20"),
        (" ", "\\20"),
        ("#1#2", "\\231#2"),
        ("jörg", "jörg"),
        ("a\nb", "a\\0Ab"),
        ("", ""),
    ] {
        assert_eq!(escape_dn(value), expected, "{value:?}");
    }
}

proptest! {
    #[test]
    fn a_name_stays_one_value_in_a_filter(user in any::<String>()) {
        let mut out = Writer::with_capacity(64);
        Filter::parse("(&(a=b)(uid=$username))").unwrap().encode(&user, &mut out);
        let bytes = out.finish();
        let mut all = Elements(&bytes);
        let mut set = Elements(all.expect(0xa0, "").unwrap());
        set.expect(0xa3, "").unwrap();
        let mut pair = Elements(set.expect(0xa3, "").unwrap());
        prop_assert_eq!(pair.expect(0x04, "").unwrap(), b"uid");
        prop_assert_eq!(pair.expect(0x04, "").unwrap(), user.as_bytes());
        prop_assert!(pair.0.is_empty() && set.0.is_empty() && all.0.is_empty());
    }

    #[test]
    fn an_escaped_name_is_one_value_and_the_same(name in any::<String>()) {
        let escaped = escape_dn(&name);
        let mut rest = escaped.as_str();
        let mut read = String::new();
        while let Some(character) = rest.chars().next() {
            if character == '\\' {
                read.push(char::from(u8::from_str_radix(&rest[1..3], 16).unwrap()));
                rest = &rest[3..];
            } else {
                prop_assert!(!"\"+,;<=>\0".contains(character));
                read.push(character);
                rest = &rest[character.len_utf8()..];
            }
        }
        prop_assert_eq!(read, name);
        prop_assert!(!escaped.starts_with([' ', '#']) && !escaped.ends_with(' '));
    }

    #[test]
    fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
        let _ = read(&bytes);
        // With a proper head, so that what is inside is looked at.
        let mut framed = vec![0x30, u8::try_from(bytes.len()).unwrap()];
        framed.extend(&bytes);
        let _ = read(&framed);
    }

    #[test]
    fn numbers_are_written_as_they_are_read(value in any::<i32>()) {
        let mut out = Writer::with_capacity(64);
        out.integer(ber::INTEGER, value);
        let bytes = out.finish();
        let content = Elements(&bytes).expect(ber::INTEGER, "").unwrap();
        prop_assert_eq!(ber::number(content), Ok(value));
    }
}
