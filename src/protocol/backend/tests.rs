use super::*;
use bytes::BytesMut;
use postgres_protocol::message::backend::Message;
use proptest::prelude::*;
use tokio_postgres::fallible_iterator::FallibleIterator as _;

/// Encodes one message and lets `postgres-protocol` read it.
fn reread(encode: impl FnOnce(&mut Vec<u8>)) -> Message {
    // Something is in the buffer already: a message starts where the one before it ends.
    let mut out = b"before".to_vec();
    encode(&mut out);
    let mut bytes = BytesMut::from(&out[6..]);
    let message = Message::parse(&mut bytes).unwrap().unwrap();
    assert!(bytes.is_empty());
    message
}

/// The body of one encoded message, whose length must be right.
fn body(encode: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut out = Vec::new();
    encode(&mut out);
    let length = u32::from_be_bytes(out[1..5].try_into().unwrap());
    assert_eq!(length as usize + 1, out.len());
    out.split_off(5)
}

#[test]
fn messages_without_a_body_are_read_by_postgres_protocol() {
    assert!(matches!(reread(parse_complete), Message::ParseComplete));
    assert!(matches!(reread(bind_complete), Message::BindComplete));
    assert!(matches!(reread(close_complete), Message::CloseComplete));
    assert!(matches!(reread(no_data), Message::NoData));
    assert!(matches!(
        reread(empty_query_response),
        Message::EmptyQueryResponse
    ));
}

#[test]
fn session_messages_are_read_by_postgres_protocol() {
    for status in [TxStatus::Idle, TxStatus::InTransaction, TxStatus::Failed] {
        let Message::ReadyForQuery(read) = reread(|out| ready_for_query(out, status)) else {
            panic!("not a ReadyForQuery");
        };
        assert_eq!(read.status(), status.as_byte());
        assert_eq!(
            read_ready_for_query(&body(|out| ready_for_query(out, status))),
            Ok(status)
        );
    }
    let Message::ParameterStatus(read) = reread(|out| parameter_status(out, b"TimeZone", b"UTC"))
    else {
        panic!("not a ParameterStatus");
    };
    assert_eq!(
        (read.name().unwrap(), read.value().unwrap()),
        ("TimeZone", "UTC")
    );
    let Message::BackendKeyData(read) = reread(|out| backend_key_data(out, 42, &[0, 0, 0, 7]))
    else {
        panic!("not a BackendKeyData");
    };
    assert_eq!((read.process_id(), read.secret_key()), (42, 7));
}

#[test]
fn results_are_read_by_postgres_protocol() {
    let Message::CommandComplete(read) = reread(|out| command_complete(out, "SHOW")) else {
        panic!("not a CommandComplete");
    };
    assert_eq!(read.tag().unwrap(), "SHOW");

    let columns = [
        Column {
            name: "database",
            type_oid: 25,
            type_len: -1,
        },
        Column {
            name: "port",
            type_oid: 23,
            type_len: 4,
        },
    ];
    let Message::RowDescription(read) = reread(|out| row_description(out, &columns)) else {
        panic!("not a RowDescription");
    };
    let mut fields = read.fields();
    for column in columns {
        let field = fields.next().unwrap().unwrap();
        assert_eq!(field.name(), column.name);
        assert_eq!(field.type_oid(), column.type_oid);
        assert_eq!(field.type_size(), column.type_len);
        assert_eq!((field.type_modifier(), field.format()), (-1, 0));
        assert_eq!((field.table_oid(), field.column_id()), (0, 0));
    }
    assert!(fields.next().unwrap().is_none());

    let Message::DataRow(read) = reread(|out| data_row(out, &[Some(b"one"), None, Some(b"")]))
    else {
        panic!("not a DataRow");
    };
    let ranges: Vec<_> = read.ranges().collect().unwrap();
    assert_eq!(&read.buffer()[ranges[0].clone().unwrap()], b"one");
    assert!(ranges[1].is_none());
    assert_eq!(ranges[2].clone().unwrap().len(), 0);

    let Message::ParameterDescription(read) = reread(|out| parameter_description(out, &[23, 25]))
    else {
        panic!("not a ParameterDescription");
    };
    assert_eq!(read.parameters().collect::<Vec<_>>().unwrap(), [23, 25]);
}

#[test]
fn errors_and_notices_are_read_by_postgres_protocol() {
    let error = ErrorMessage {
        detail: Some("detail"),
        hint: Some("hint"),
        with_v: true,
        ..ErrorMessage::new("FATAL", "08P01", "no such user")
    };
    let expected = "SFATAL VFATAL C08P01 Mno such user Ddetail Hhint";
    let Message::ErrorResponse(read) = reread(|out| error_response(out, &error)) else {
        panic!("not an ErrorResponse");
    };
    let fields = read.fields().map(|field| {
        let text = str::from_utf8(field.value_bytes()).unwrap();
        Ok(format!("{}{text}", char::from(field.type_())))
    });
    assert_eq!(fields.collect::<Vec<_>>().unwrap().join(" "), expected);
    assert!(matches!(
        reread(|out| notice_response(out, &error)),
        Message::NoticeResponse(_)
    ));
}

#[test]
fn a_plain_error_has_the_three_fields_of_pgbouncer() {
    let plain = ErrorMessage::new("FATAL", "08P01", "query_wait_timeout");
    assert_eq!(
        body(|out| error_response(out, &plain)),
        b"SFATAL\0C08P01\0Mquery_wait_timeout\0\0"
    );
}

#[test]
fn the_untranslated_severity_comes_first() {
    let fields = ErrorFields::read(b"SFEHLER\0VERROR\0C26000\0Mweg\0\0").unwrap();
    assert_eq!(fields.severity(), Some(&b"ERROR"[..]));
    assert_eq!(fields.sqlstate(), Some(&b"26000"[..]));
    assert_eq!(fields.message(), Some(&b"weg"[..]));
    assert_eq!(fields.get(b'H'), None);
    assert_eq!(fields.iter().count(), 4);
}

#[test]
fn an_error_without_a_sqlstate_can_be_read() {
    let fields = ErrorFields::read(b"SFATAL\0Mno\0\0").unwrap();
    assert_eq!(fields.sqlstate(), None);
    assert_eq!(fields.severity(), Some(&b"FATAL"[..]));
    assert_eq!(ErrorFields::read(b"\0").unwrap().iter().count(), 0);
}

#[test]
fn an_error_whose_list_does_not_end_is_refused() {
    assert!(matches!(ErrorFields::read(b""), Err(Error::Truncated)));
    assert!(matches!(
        ErrorFields::read(b"SERROR\0"),
        Err(Error::Truncated)
    ));
    assert!(matches!(
        ErrorFields::read(b"SERROR"),
        Err(Error::MissingNul)
    ));
    assert!(matches!(
        ErrorFields::read(b"SERROR\0\0x"),
        Err(Error::TrailingBytes { count: 1 })
    ));
}

#[test]
fn a_global_name_in_an_error_becomes_the_clients() {
    let told = b"SERROR\0C26000\0Mstatement \"G_1\" and \"G_1\" do not exist\0Rf\0\0";
    assert_eq!(
        body(|out| rename_in_error(out, told, b"G_1", b"my statement")),
        b"SERROR\0C26000\0Mstatement \"my statement\" and \"my statement\" do not exist\0Rf\0\0"
    );
    // Nothing to replace, or nothing that can be read: as it was.
    for (told, from) in [(&told[..], &b"G_2"[..]), (told, b""), (b"MG_1", b"G_1")] {
        assert_eq!(body(|out| rename_in_error(out, told, from, b"x")), told);
    }
}

#[test]
fn a_negotiation_lists_what_is_unknown() {
    assert_eq!(
        body(|out| negotiate_protocol_version(out, 0x0003_0000, &[b"_pq_.a", b"_pq_.b"])),
        b"\0\x03\0\0\0\0\0\x02_pq_.a\0_pq_.b\0"
    );
}

#[test]
fn keys_of_four_to_256_bytes_are_read() {
    for (length, fits) in [(0, false), (3, false), (4, true), (256, true), (257, false)] {
        let key = vec![7; length];
        let body = body(|out| backend_key_data(out, -1, &key));
        let expected = if fits {
            Ok((-1, &key[..]))
        } else {
            Err(Error::BadCancelKey { length })
        };
        assert_eq!(read_backend_key_data(&body), expected);
    }
}

#[test]
fn small_views_refuse_what_does_not_end_where_it_should() {
    assert_eq!(read_ready_for_query(b""), Err(Error::Truncated));
    assert_eq!(
        read_ready_for_query(b"X"),
        Err(Error::BadTxStatus { byte: b'X' })
    );
    assert_eq!(
        read_ready_for_query(b"II"),
        Err(Error::TrailingBytes { count: 1 })
    );
    assert_eq!(command_tag(b"SELECT 1\0"), Ok(&b"SELECT 1"[..]));
    assert_eq!(command_tag(b"SELECT 1"), Err(Error::MissingNul));
    assert_eq!(read_parameter_status(b"a\0b"), Err(Error::MissingNul));
    assert_eq!(read_parameter_status(b"a\0b\0"), Ok((&b"a"[..], &b"b"[..])));
}

#[test]
fn a_list_longer_than_its_count_can_say_is_cut() {
    let types = vec![0; 70_000];
    let body = body(|out| parameter_description(out, &types));
    assert_eq!(body.len(), 2 + 4 * 65_535);
}

proptest! {
    #[test]
    fn views_never_panic(body: Vec<u8>) {
        let _ = read_ready_for_query(&body);
        let _ = read_parameter_status(&body);
        let _ = read_backend_key_data(&body);
        let _ = command_tag(&body);
        if let Ok(fields) = ErrorFields::read(&body) {
            let length: usize = fields.iter().map(|(_, text)| text.len() + 2).sum();
            prop_assert_eq!(length + 1, body.len());
        }
        let mut out = Vec::new();
        rename_in_error(&mut out, &body, b"a", b"b");
        prop_assert_eq!(out.len(), body.len() + 5);
    }
}

#[test]
fn a_row_description_is_read_as_it_was_written() {
    let columns = [("id", 20, 8), ("query", 25, -1)].map(|(name, type_oid, type_len)| Column {
        name,
        type_oid,
        type_len,
    });
    let mut out = Vec::new();
    row_description(&mut out, &columns);
    let read = read_row_description(&out[5..]).unwrap();
    assert_eq!(read, [(b"id".to_vec(), 20), (b"query".to_vec(), 25)]);
    assert_eq!(
        read_row_description(&out[5..out.len() - 1]),
        Err(Error::Truncated)
    );
    assert_eq!(read_row_description(&[0xff, 0xff]), Err(Error::MissingNul));
}
