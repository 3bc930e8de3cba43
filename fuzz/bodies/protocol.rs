//! The wire protocol: what is read can be written again, byte for byte; how the bytes arrive makes no difference;
//! and nothing takes more memory than came in.

use pgferry::protocol::authentication::{
    Authentication, SaslInitialResponse, encode_password, parse_password,
};
use pgferry::protocol::frame::{self, HEADER_LEN};
use pgferry::protocol::frontend::{self, BindHead, Execute, Named, Parse, Query};
use pgferry::protocol::startup::{self, FirstPacket, MAX_LENGTH, Parameters, Replication};
use pgferry::protocol::{backend, rewrite};
use pgferry::sql::classify;

use super::Input;

pub fn startup(input: &[u8]) {
    options(input);
    match startup::read(input) {
        Ok(None) => assert!(input.len() < MAX_LENGTH + 4, "it would wait for ever"),
        Ok(Some((packet, used))) => {
            let bytes = &input[..used];
            for end in 0..used {
                assert_eq!(
                    startup::read(&bytes[..end]),
                    Ok(None),
                    "not before it is complete"
                );
            }
            assert_eq!(startup::read(bytes), Ok(Some((packet.clone(), used))));
            let mut again = Vec::new();
            match &packet {
                FirstPacket::Ssl => frontend::ssl_request(&mut again),
                FirstPacket::GssEnc => again.extend_from_slice(bytes),
                FirstPacket::Successor => startup::successor(&mut again),
                FirstPacket::Cancel { pid, key } => {
                    frontend::cancel_request(&mut again, *pid, key);
                }
                FirstPacket::Startup(message) => {
                    assert!(size(&message.parameters) <= used);
                    for (name, value) in &message.parameters {
                        message.get(name).expect("it is there");
                        let _ = Replication::read(value);
                        options(value);
                    }
                    let parameters: Vec<_> = message
                        .parameters
                        .iter()
                        .map(|(name, value)| (name.as_slice(), value.as_slice()))
                        .collect();
                    frontend::startup(&mut again, message.minor, &parameters);
                }
            }
            assert_eq!(again, bytes, "{packet:?}");
        }
        Err(error) => {
            assert!(error.to_string().len() < 200);
            assert!(startup::read(&[input, b"more"].concat()).is_err());
        }
    }
}

/// What `options` says, written in one way, is the same.
fn options(value: &[u8]) {
    let Ok(settings) = startup::parse_options(value) else {
        return;
    };
    assert!(size(&settings) <= value.len());
    let mut again = Vec::new();
    for (name, value) in &settings {
        again.extend_from_slice(b"\t-c ");
        for (at, &byte) in [name.as_slice(), b"=", value.as_slice()]
            .concat()
            .iter()
            .enumerate()
        {
            if at != name.len() && (byte.is_ascii_whitespace() || byte == 0x0b || byte == b'\\') {
                again.push(b'\\');
            }
            again.push(byte);
        }
    }
    assert_eq!(startup::parse_options(&again), Ok(settings));
}

fn size(parameters: &Parameters) -> usize {
    parameters
        .iter()
        .map(|(name, value)| name.len() + value.len())
        .sum()
}

/// The messages of a stream, and whether it ended in an error. The first byte says which length is the most, the
/// second how large the pieces are in which it comes.
fn messages(input: &[u8]) -> Vec<&[u8]> {
    let mut input = Input(input);
    let max = [64, 1 << 10, 1 << 16, usize::MAX][usize::from(input.byte() % 4)];
    let piece = usize::from(input.byte()) + 1;
    let stream = input.0;
    let mut found = Vec::new();
    let mut rest = stream;
    let fails = loop {
        match frame::cut(rest, max) {
            Ok(Some(frame)) => {
                assert!(frame.len <= max && frame.bytes.len() <= rest.len());
                assert_eq!(frame.bytes, &rest[..frame.len.min(rest.len())]);
                assert_eq!(frame.missing(), frame.len - frame.bytes.len());
                assert_eq!(frame.is_complete(), frame.missing() == 0);
                if !frame.is_complete() {
                    break false;
                }
                assert_eq!(frame.body().len(), frame.len - HEADER_LEN);
                found.push(frame.bytes);
                rest = &rest[frame.len..];
            }
            Ok(None) => {
                assert!(rest.len() < HEADER_LEN);
                break false;
            }
            Err(_) => break true,
        }
    };
    assert_eq!(in_pieces(stream, piece, max), (found.clone(), fails));
    found
}

/// The same, read piece by piece.
fn in_pieces(stream: &[u8], piece: usize, max: usize) -> (Vec<&[u8]>, bool) {
    let (mut found, mut start) = (Vec::new(), 0);
    for end in (piece..stream.len()).step_by(piece).chain([stream.len()]) {
        loop {
            match frame::cut(&stream[start..end], max) {
                Ok(Some(frame)) if frame.is_complete() => {
                    found.push(frame.bytes);
                    start += frame.len;
                }
                Ok(_) => break,
                Err(_) => return (found, true),
            }
        }
    }
    (found, false)
}

pub fn frontend(input: &[u8]) {
    for message in messages(input) {
        let body = &message[HEADER_LEN..];
        let mut again = Vec::new();
        match message[0] {
            frontend::tag::QUERY => {
                if let Ok(query) = Query::read(body) {
                    let _ = classify::statement_changes(query.sql);
                    frontend::query(&mut again, query.sql);
                }
            }
            frontend::tag::PARSE => {
                if let Ok(parse) = Parse::read(body) {
                    frontend::parse(&mut again, parse.name, parse.rest);
                    renamed_parse(&parse);
                }
            }
            frontend::tag::BIND => bind(message),
            frontend::tag::DESCRIBE => {
                if let Ok(named) = Named::read(body) {
                    frontend::describe(&mut again, named.target, named.name);
                }
            }
            frontend::tag::CLOSE => {
                if let Ok(named) = Named::read(body) {
                    rewrite::named(&mut again, frontend::tag::CLOSE, named.target, named.name);
                }
            }
            frontend::tag::EXECUTE => {
                if let Ok(execute) = Execute::read(body) {
                    frontend::execute(&mut again, execute.portal, execute.max_rows);
                }
            }
            frontend::tag::PASSWORD => {
                if let Ok(password) = parse_password(body) {
                    assert_eq!(encode_password(password), message);
                }
                if let Ok(response) = SaslInitialResponse::parse(body) {
                    assert_eq!(response.encode(), message);
                }
            }
            _ => {}
        }
        assert!(
            again.is_empty() || again == message,
            "{message:?} became {again:?}"
        );
    }
}

const GLOBAL: &[u8] = b"pgferry_0123_456";

/// A renamed Parse has the name, and else nothing new.
fn renamed_parse(parse: &Parse<'_>) {
    let mut renamed = Vec::new();
    rewrite::parse(&mut renamed, GLOBAL, parse.rest).unwrap();
    let frame = whole(&renamed);
    let read = Parse::read(frame.body()).unwrap();
    assert_eq!(
        (read.name, read.sql, read.types),
        (GLOBAL, parse.sql, parse.types)
    );
    assert_eq!(read.rest, parse.rest);
}

fn bind(message: &[u8]) {
    let body = &message[HEADER_LEN..];
    let Ok(Some(head)) = BindHead::read(body) else {
        return;
    };
    // It is read from the beginning of a message that is not yet complete, too.
    for end in 0..body.len().min(2 * head.len) {
        let read = BindHead::read(&body[..end]).unwrap();
        assert_eq!(read, (end >= head.len).then_some(head));
    }
    let length = i64::try_from(message.len() - 1).unwrap();
    let mut renamed = Vec::new();
    rewrite::bind_head(&mut renamed, &head, GLOBAL, length).unwrap();
    renamed.extend_from_slice(&body[head.len..]);
    let frame = whole(&renamed);
    let read = BindHead::read(frame.body()).unwrap().unwrap();
    assert_eq!((read.portal, read.statement), (head.portal, GLOBAL));
    assert_eq!(frame.body()[read.len..], body[head.len..]);
    let mut back = Vec::new();
    let length = i64::try_from(renamed.len() - 1).unwrap();
    rewrite::bind_head(&mut back, &read, head.statement, length).unwrap();
    back.extend_from_slice(&frame.body()[read.len..]);
    assert_eq!(back, message);
}

/// The one message that these bytes are.
fn whole(bytes: &[u8]) -> frame::Frame<'_> {
    let frame = frame::cut(bytes, usize::MAX).unwrap().unwrap();
    assert!(frame.is_complete() && frame.len == bytes.len());
    frame
}

pub fn backend(input: &[u8]) {
    for message in messages(input) {
        let body = &message[HEADER_LEN..];
        let mut again = Vec::new();
        match message[0] {
            backend::tag::READY_FOR_QUERY => {
                if let Ok(status) = backend::read_ready_for_query(body) {
                    backend::ready_for_query(&mut again, status);
                }
            }
            backend::tag::PARAMETER_STATUS => {
                if let Ok((name, value)) = backend::read_parameter_status(body) {
                    backend::parameter_status(&mut again, name, value);
                }
            }
            backend::tag::BACKEND_KEY_DATA => {
                if let Ok((pid, key)) = backend::read_backend_key_data(body) {
                    backend::backend_key_data(&mut again, pid, key);
                }
            }
            backend::tag::COMMAND_COMPLETE => {
                let tag = backend::command_tag(body).ok();
                if let Some(tag) = tag.and_then(|tag| str::from_utf8(tag).ok()) {
                    backend::command_complete(&mut again, tag);
                }
            }
            backend::tag::DATA_ROW => {
                if let Ok(row) = backend::read_data_row(body) {
                    assert!(row.len() * 4 <= body.len());
                    // A negative length is NULL, but only -1 is written.
                    let values: Vec<_> = row.iter().map(Option::as_deref).collect();
                    backend::data_row(&mut again, &values);
                    assert_eq!(backend::read_data_row(whole(&again).body()), Ok(row));
                    again.clear();
                }
            }
            backend::tag::ERROR_RESPONSE | backend::tag::NOTICE_RESPONSE => error(body),
            backend::tag::AUTHENTICATION => {
                if let Ok(request) = Authentication::parse(body) {
                    let parsed = request.encode();
                    if !matches!(request, Authentication::Unsupported(_)) {
                        again = parsed;
                    }
                }
            }
            _ => {}
        }
        assert!(
            again.is_empty() || again == message,
            "{message:?} became {again:?}"
        );
    }
}

fn error(body: &[u8]) {
    let mut renamed = Vec::new();
    backend::rename_in_error(&mut renamed, body, GLOBAL, b"mine");
    let new = whole(&renamed).body();
    let Ok(fields) = backend::ErrorFields::read(body) else {
        assert_eq!(new, body, "what cannot be read is passed on");
        return;
    };
    let texts: Vec<_> = fields
        .iter()
        .flat_map(|(code, text)| [&[code], text, &[0]].concat())
        .collect();
    assert_eq!([texts.as_slice(), &[0]].concat(), body);
    let _ = (fields.severity(), fields.sqlstate(), fields.message());
    let new = backend::ErrorFields::read(new).expect("still a list of fields");
    let codes =
        |fields: &backend::ErrorFields<'_>| fields.iter().map(|(code, _)| code).collect::<Vec<_>>();
    assert_eq!(codes(&new), codes(&fields));
    if memchr::memmem::find(body, GLOBAL).is_none() {
        assert!(new.iter().eq(fields.iter()));
    }
}
