use super::*;
use crate::admin::tests::console;
use crate::protocol::frame;
use crate::protocol::frontend as front;

/// Feeds messages and returns what is answered, a line for each message.
fn talk(conversation: &mut Conversation<'_>, input: &[u8]) -> Vec<String> {
    let mut rest = input;
    while let Some(frame) = frame::cut(rest, 1 << 20).unwrap() {
        let message = Message {
            tag: frame.tag,
            body: frame.body().to_vec(),
        };
        rest = &rest[frame.len..];
        if conversation.handle(&message) == Step::Close {
            assert!(rest.is_empty());
        }
    }
    let out = std::mem::take(&mut conversation.out);
    let (mut rest, mut lines) = (out.as_slice(), Vec::new());
    while let Some(frame) = frame::cut(rest, 1 << 30).unwrap() {
        lines.push(line(frame.tag, frame.body()));
        rest = &rest[frame.len..];
    }
    lines
}

fn line(tag: u8, body: &[u8]) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    match tag {
        b'1' => "ParseComplete".into(),
        b'2' => "BindComplete".into(),
        b'3' => "CloseComplete".into(),
        b'n' => "NoData".into(),
        b's' => "PortalSuspended".into(),
        b'I' => "EmptyQueryResponse".into(),
        b't' => format!("ParameterDescription {body:?}"),
        b'Z' => format!("ReadyForQuery {}", text(body)),
        b'C' => format!(
            "CommandComplete {}",
            text(backend::command_tag(body).unwrap())
        ),
        b'D' => {
            let cells = backend::read_data_row(body).unwrap().into_iter();
            let cells: Vec<_> = cells
                .map(|cell| cell.map_or("NULL".into(), |cell| text(&cell)))
                .collect();
            format!("DataRow {}", cells.join(","))
        }
        b'T' => format!("RowDescription {}", described(body)),
        b'E' | b'N' => {
            let fields = backend::ErrorFields::read(body).unwrap();
            let all = [fields.severity(), fields.sqlstate(), fields.message()];
            all.map(|field| text(field.unwrap())).join(" ")
        }
        other => panic!("unexpected {}", char::from(other)),
    }
}

/// `name:oid:size:format` of each column.
fn described(body: &[u8]) -> String {
    let mut rest = &body[2..];
    let mut columns = Vec::new();
    while let Some(nul) = rest.iter().position(|&byte| byte == 0) {
        let (name, fields) = (
            String::from_utf8_lossy(&rest[..nul]),
            &rest[nul + 1..nul + 19],
        );
        assert_eq!(
            (&fields[..6], &fields[12..16]),
            (&[0; 6][..], &[0xff; 4][..])
        );
        let oid = u32::from_be_bytes(fields[6..10].try_into().unwrap());
        let size = i16::from_be_bytes([fields[10], fields[11]]);
        columns.push(format!("{name}:{oid}:{size}:{}", fields[17]));
        rest = &rest[nul + 19..];
    }
    columns.join(" ")
}

/// Parse, with types as given.
fn parse(out: &mut Vec<u8>, name: &str, sql: &str) {
    front::parse(out, name.as_bytes(), &[sql.as_bytes(), b"\0\0\0"].concat());
}

/// Bind without parameters, with these formats for the columns.
fn bind(out: &mut Vec<u8>, portal: &str, statement: &str, formats: &[u16]) {
    let mut rest = vec![0, 0, 0, 0];
    rest.extend(u16::try_from(formats.len()).unwrap().to_be_bytes());
    rest.extend(formats.iter().flat_map(|format| format.to_be_bytes()));
    front::bind(out, portal.as_bytes(), statement.as_bytes(), &rest);
}

fn execute(out: &mut Vec<u8>, portal: &str, most: i32) {
    front::execute(out, portal.as_bytes(), most);
}

#[tokio::test]
async fn a_simple_query_is_described_answered_and_ready() {
    let (console, _) = console();
    let mut conversation = Conversation::new(&console, Rights::Admin);
    let mut input = Vec::new();
    front::query(&mut input, b"show version;");
    front::query(&mut input, b"");
    front::query(&mut input, b"SHOW HELP");
    front::query(&mut input, b"PAUSE app");
    front::query(&mut input, b"set client_encoding='UTF8'");
    let answer = [
        "RowDescription version:25:-1:0",
        "DataRow PgBouncer 1.25.2 (pgferry test)",
        "CommandComplete SHOW",
        "ReadyForQuery I",
        "ERROR 08P01 invalid command '', use SHOW HELP;",
        "ReadyForQuery I",
        "NOTICE 00000 Console usage",
        "CommandComplete SHOW",
        "ReadyForQuery I",
        "CommandComplete PAUSE",
        "ReadyForQuery I",
        "NOTICE 00000 SET ignored",
        "CommandComplete SET",
        "ReadyForQuery I",
    ];
    assert_eq!(talk(&mut conversation, &input), answer);
}

#[tokio::test]
async fn the_extended_protocol_works_in_text_and_binary() {
    let (console, _) = console();
    let mut conversation = Conversation::new(&console, Rights::Stats);
    let mut input = Vec::new();
    parse(&mut input, "s", "SHOW LISTS");
    front::describe(&mut input, Target::Statement, b"s");
    front::sync(&mut input);
    bind(&mut input, "", "s", &[0, 1]);
    front::describe(&mut input, Target::Portal, b"");
    execute(&mut input, "", 1);
    front::flush(&mut input);
    execute(&mut input, "", 0);
    front::close(&mut input, Target::Statement, b"s");
    front::close(&mut input, Target::Statement, b"s");
    front::sync(&mut input);
    let lines = talk(&mut conversation, &input);
    let head = [
        "ParseComplete",
        "ParameterDescription [0, 0]",
        "RowDescription list:25:-1:0 items:23:4:0",
        "ReadyForQuery I",
        "BindComplete",
        "RowDescription list:25:-1:0 items:23:4:1",
        "DataRow databases,\0\0\0\x03",
        "PortalSuspended",
    ];
    assert_eq!(lines[..head.len()], head);
    assert_eq!(
        lines
            .iter()
            .filter(|line| line.starts_with("DataRow"))
            .count(),
        14
    );
    let tail = [
        "CommandComplete SHOW",
        "CloseComplete",
        "CloseComplete",
        "ReadyForQuery I",
    ];
    assert_eq!(lines[lines.len() - 4..], tail);
}

#[tokio::test]
async fn commands_without_rows_run_once() {
    let (console, process) = console();
    let mut conversation = Conversation::new(&console, Rights::Admin);
    let mut input = Vec::new();
    parse(&mut input, "", "RELOAD");
    bind(&mut input, "p", "", &[1, 1, 1]);
    front::describe(&mut input, Target::Portal, b"p");
    execute(&mut input, "p", 0);
    execute(&mut input, "p", 0);
    front::sync(&mut input);
    parse(&mut input, "", " ; ");
    bind(&mut input, "", "", &[]);
    execute(&mut input, "", 0);
    front::sync(&mut input);
    let answer = [
        "ParseComplete",
        "BindComplete",
        "NoData",
        "CommandComplete RELOAD",
        "ERROR 08P01 portal \"p\" cannot be run",
        "ReadyForQuery I",
        "ParseComplete",
        "BindComplete",
        "EmptyQueryResponse",
        "ReadyForQuery I",
    ];
    assert_eq!(talk(&mut conversation, &input), answer);
    assert_eq!(process.asked.lock().len(), 1);
}

#[tokio::test]
async fn after_an_error_everything_up_to_sync_is_skipped() {
    let (console, process) = console();
    let mut conversation = Conversation::new(&console, Rights::Admin);
    let mut run = |fill: &dyn Fn(&mut Vec<u8>)| {
        let mut input = Vec::new();
        fill(&mut input);
        execute(&mut input, "", 0);
        front::query(&mut input, b"RELOAD");
        front::sync(&mut input);
        let mut lines = talk(&mut conversation, &input);
        assert_eq!(lines.pop().as_deref(), Some("ReadyForQuery I"));
        lines
    };
    assert_eq!(
        run(&|out| parse(out, "", "BEGIN")),
        ["ERROR 08P01 invalid command 'BEGIN', use SHOW HELP;"]
    );
    assert_eq!(
        run(&|out| bind(out, "", "no", &[])),
        ["ERROR 26000 prepared statement \"no\" does not exist"]
    );
    assert_eq!(
        run(&|out| front::describe(out, Target::Portal, b"no")),
        ["ERROR 08P01 portal \"no\" does not exist"]
    );
    let twice = |out: &mut Vec<u8>| (0..2).for_each(|_| parse(out, "twice", "SHOW STATE"));
    assert_eq!(
        run(&twice),
        [
            "ParseComplete",
            "ERROR 42P05 prepared statement \"twice\" already exists"
        ]
    );
    assert_eq!(
        run(&|out| bind(out, "", "twice", &[0, 0, 0])),
        ["ERROR 08P01 bind message has 3 result formats but query has 2 columns"]
    );
    assert_eq!(
        run(&|out| bind(out, "", "twice", &[2])),
        ["ERROR 08P01 unsupported format code: 2"]
    );
    assert_eq!(
        run(&|out| front::bind(out, b"", b"twice", &[0, 0, 0, 1, 0, 0, 0, 1, b'x', 0, 0])),
        ["ERROR 08P01 bind message supplies 1 parameters, but console commands have none"]
    );
    assert_eq!(run(&|_| {}), ["ERROR 08P01 portal \"\" does not exist"]);
    assert!(process.asked.lock().is_empty());
}

#[tokio::test]
async fn portals_end_at_sync_and_statements_do_not() {
    let (console, _) = console();
    let mut conversation = Conversation::new(&console, Rights::Admin);
    let mut input = Vec::new();
    parse(&mut input, "s", "SHOW STATE");
    bind(&mut input, "p", "s", &[]);
    front::sync(&mut input);
    execute(&mut input, "p", 0);
    front::sync(&mut input);
    let lines = talk(&mut conversation, &input);
    assert_eq!(
        lines[3..],
        ["ERROR 08P01 portal \"p\" does not exist", "ReadyForQuery I"]
    );
    assert_eq!(conversation.statements(), 1);
}

#[tokio::test]
async fn what_no_console_expects_ends_the_connection() {
    let (console, _) = console();
    for (input, answer) in [
        (
            &b"F\0\0\0\x04"[..],
            "ERROR 08P01 unsupported packet type for admin console: 70",
        ),
        (&b"Q\0\0\0\x05x"[..], "ERROR 08P01 bad packet"),
        (&b"B\0\0\0\x05x"[..], "ERROR 08P01 bad packet"),
        (&b"B\0\0\0\x07\0\0\0"[..], "ERROR 08P01 bad packet"),
        (&b"D\0\0\0\x06x\0"[..], "ERROR 08P01 bad packet"),
    ] {
        let mut conversation = Conversation::new(&console, Rights::Admin);
        assert_eq!(
            talk(&mut conversation, input),
            [answer, "ReadyForQuery I", "FATAL 08P01 bad packet"]
        );
    }
    let mut conversation = Conversation::new(&console, Rights::Admin);
    assert!(talk(&mut conversation, b"X\0\0\0\x04").is_empty());
}

#[tokio::test]
async fn names_can_not_fill_the_memory() {
    let (console, _) = console();
    let mut conversation = Conversation::new(&console, Rights::Admin);
    let mut input = Vec::new();
    for number in 0..=MOST_NAMES {
        parse(&mut input, &number.to_string(), "SHOW STATE");
    }
    front::sync(&mut input);
    parse(&mut input, &"x".repeat(LONGEST_NAME + 1), "SHOW STATE");
    let lines = talk(&mut conversation, &input);
    let refused = "ERROR 08P01 too many or too long names of prepared statements and portals";
    assert_eq!(lines[MOST_NAMES..], [refused, "ReadyForQuery I", refused]);
}

#[tokio::test]
async fn a_long_text_is_repeated_in_part() {
    let (console, _) = console();
    let mut conversation = Conversation::new(&console, Rights::Admin);
    let mut input = Vec::new();
    front::query(&mut input, "é".repeat(5000).as_bytes());
    let lines = talk(&mut conversation, &input);
    assert!(lines[0].starts_with("ERROR 08P01 invalid command 'éé") && lines[0].len() < 1100);
}
