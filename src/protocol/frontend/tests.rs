use super::*;
use bytes::BytesMut;
use postgres_protocol::{IsNull, message::frontend as oracle};
use proptest::prelude::*;

/// What we encode must be what `postgres-protocol` encodes.
fn same(ours: impl FnOnce(&mut Vec<u8>), theirs: impl FnOnce(&mut BytesMut)) {
    let mut expected = BytesMut::new();
    theirs(&mut expected);
    // Something is in the buffer already: a message starts where the one before it ends.
    let mut out = b"before".to_vec();
    ours(&mut out);
    assert_eq!(&out[6..], &expected[..]);
}

#[test]
fn every_encoder_writes_what_postgres_protocol_writes() {
    same(
        |out| query(out, b"select 1"),
        |out| oracle::query("select 1", out).unwrap(),
    );
    same(
        |out| parse(out, b"s", b"select $1\0\0\x01\0\0\0\x17"),
        |out| oracle::parse("s", "select $1", [23], out).unwrap(),
    );
    same(
        |out| describe(out, Target::Portal, b"p"),
        |out| oracle::describe(b'P', "p", out).unwrap(),
    );
    same(
        |out| close(out, Target::Statement, b"s"),
        |out| oracle::close(b'S', "s", out).unwrap(),
    );
    same(
        |out| execute(out, b"p", -7),
        |out| oracle::execute("p", -7, out).unwrap(),
    );
    same(sync, oracle::sync);
    same(flush, oracle::flush);
    same(terminate, oracle::terminate);
    same(copy_done, oracle::copy_done);
    same(
        |out| copy_fail(out, b"enough"),
        |out| oracle::copy_fail("enough", out).unwrap(),
    );
    same(ssl_request, oracle::ssl_request);
    same(
        |out| cancel_request(out, 42, &7i32.to_be_bytes()),
        |out| oracle::cancel_request(42, 7, out),
    );
    same(
        |out| startup(out, 0, &[(b"user", b"me"), (b"database", b"")]),
        |out| oracle::startup_message([("user", "me"), ("database", "")], out).unwrap(),
    );
}

#[test]
fn a_bind_of_postgres_protocol_reads_and_encodes_back() {
    let mut theirs = BytesMut::new();
    let written = oracle::bind(
        "portal",
        "statement",
        [1],
        [&b"value"[..]],
        |value, out| {
            out.extend_from_slice(value);
            Ok(IsNull::No)
        },
        [1],
        &mut theirs,
    );
    assert!(written.is_ok());
    let body = &theirs[5..];
    let head = BindHead::read(body).unwrap().unwrap();
    assert_eq!(head.portal, b"portal");
    assert_eq!(head.statement, b"statement");
    let mut out = Vec::new();
    bind(&mut out, head.portal, head.statement, &body[head.len..]);
    assert_eq!(out, &theirs[..]);
}

#[test]
fn views_read_what_the_encoders_wrote() {
    let mut out = Vec::new();
    query(&mut out, b"select 1");
    assert_eq!(Query::read(&out[5..]).unwrap().sql, b"select 1");

    out.clear();
    parse(&mut out, b"", b"select 1\0\0\0");
    let read = Parse::read(&out[5..]).unwrap();
    assert_eq!((read.name, read.sql), (&b""[..], &b"select 1"[..]));
    assert_eq!(
        (read.types, read.rest),
        (&[0, 0][..], &b"select 1\0\0\0"[..])
    );

    out.clear();
    describe(&mut out, Target::Statement, b"s1");
    assert_eq!(
        Named::read(&out[5..]),
        Ok(Named {
            target: Target::Statement,
            name: b"s1"
        })
    );

    out.clear();
    execute(&mut out, b"p", 100);
    assert_eq!(
        Execute::read(&out[5..]),
        Ok(Execute {
            portal: b"p",
            max_rows: 100
        })
    );
}

#[test]
fn a_parse_whose_types_do_not_match_their_count_is_refused() {
    for types in [
        &b"\0\x01"[..],
        b"\0\x01\0\0\0",
        b"\0\x01\0\0\0\0\0",
        b"\0\0\0",
    ] {
        let body = [b"s\0select 1\0", types].concat();
        assert!(matches!(
            Parse::read(&body),
            Err(Error::BadTypeCount { .. })
        ));
    }
    assert_eq!(Parse::read(b"s\0select 1\0\0"), Err(Error::Truncated));
    assert_eq!(Parse::read(b"s\0select 1"), Err(Error::MissingNul));
}

#[test]
fn a_parse_may_have_as_many_types_as_sixteen_bits_count() {
    let mut body = b"s\0select 1\0\xff\xff".to_vec();
    body.resize(body.len() + 4 * 65_535, 0);
    assert!(Parse::read(&body).is_ok());
}

#[test]
fn a_query_with_a_nul_inside_is_refused() {
    assert_eq!(
        Query::read(b"select 1\0drop\0"),
        Err(Error::TrailingBytes { count: 5 })
    );
}

#[test]
fn an_unknown_target_is_refused() {
    assert_eq!(Named::read(b"Xs\0"), Err(Error::BadTarget { byte: b'X' }));
    assert_eq!(Named::read(b""), Err(Error::Truncated));
}

#[test]
fn a_bind_head_waits_for_its_second_nul() {
    let body = b"portal\0statement\0\0\0";
    for end in 0..17 {
        assert_eq!(BindHead::read(&body[..end]), Ok(None));
    }
    for end in 17..=body.len() {
        assert_eq!(BindHead::read(&body[..end]).unwrap().unwrap().len, 17);
    }
}

#[test]
fn a_bind_head_does_not_wait_for_ever() {
    let mut body = vec![b'x'; MAX_BIND_NAMES - 1];
    assert_eq!(BindHead::read(&body), Ok(None));
    body.push(b'x');
    assert_eq!(
        BindHead::read(&body),
        Err(Error::NameTooLong {
            limit: MAX_BIND_NAMES
        })
    );
}

#[test]
fn a_nul_inside_a_name_does_not_reach_the_next_field() {
    let mut out = Vec::new();
    close(&mut out, Target::Statement, b"a\0b");
    assert_eq!(Named::read(&out[5..]).unwrap().name, b"a");
}

proptest! {
    #[test]
    fn views_never_panic(body: Vec<u8>) {
        let _ = Query::read(&body);
        let _ = Parse::read(&body);
        let _ = BindHead::read(&body);
        let _ = Named::read(&body);
        let _ = Execute::read(&body);
    }

    #[test]
    fn a_bind_head_is_the_same_whatever_follows(portal in "[a-z]{0,9}", name in "[a-z]{0,9}", rest: Vec<u8>) {
        let mut out = Vec::new();
        bind(&mut out, portal.as_bytes(), name.as_bytes(), &rest);
        let head = BindHead::read(&out[5..]).unwrap().unwrap();
        prop_assert_eq!(head.portal, portal.as_bytes());
        prop_assert_eq!(head.statement, name.as_bytes());
        prop_assert_eq!(&out[5 + head.len..], &rest[..]);
    }
}
