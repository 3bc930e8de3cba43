//! Commands of the console, and SQL.

use pgferry::admin::parse::{self, Command, VERBS};
use pgferry::sql::classify::{StatementChange, statement_changes};
use pgferry::sql::lexer::{Lexer, Token, TokenKind};
use pgferry::sql::normalize::{self, normalize};
use pgferry::sql::touches::{self, Found, Setting, Touches};
use pgferry::sql::traceparent::TraceParent;

use super::texts;

pub fn console(input: &[u8]) {
    let [text] = texts(input);
    let _ = parse::is_empty(&text);
    match parse::parse(&text) {
        Ok(command) => {
            let shown = format!("{command:?}");
            let again = |text: &str| {
                parse::parse(text)
                    .map(|command| format!("{command:?}"))
                    .ok()
            };
            if let Some(written) = written(&command) {
                assert_eq!(again(&written), Some(shown), "{written:?}");
            }
        }
        Err(error) => {
            assert!(error.to_string().len() <= text.len() + 100);
            assert!(parse::parse(&format!(" {text}")).is_err());
        }
    }
}

/// The command in words; `None` if they are too long for the console.
fn written(command: &Command) -> Option<String> {
    let quoted = |text: &str, quote: char, most: usize| {
        let doubled = text.replace(quote, &String::from_iter([quote, quote]));
        let written = format!("{quote}{doubled}{quote}");
        (written.len() <= most).then_some(written)
    };
    let with = |verb: &str, argument: &Option<String>| match argument {
        None => Some(format!("\t{verb}\n;")),
        Some(argument) => Some(format!("{verb} {}", quoted(argument, '"', 63)?)),
    };
    match command {
        Command::Show(show) => Some(format!("show \"{}\" ;", show.name)),
        Command::Help => Some("Show Help".to_owned()),
        Command::ShowParameter(parameter) => Some(format!("select {}", parameter.name)),
        Command::SetIgnored => None,
        Command::Set { key, value } => Some(format!(
            " set\t{}TO{};",
            quoted(key, '"', 63)?,
            quoted(value, '\'', 255)?
        )),
        Command::Reload => with("RELOAD", &None),
        Command::Suspend => with("suspend", &None),
        Command::Upgrade => with("upgrade", &None),
        Command::ResetStatements => with("reset", &Some("statements".to_owned())),
        Command::Pause(database) => with("pause", database),
        Command::Resume(database) => with("resume", database),
        Command::Kill(database) => with("kill", database),
        Command::Reconnect(database) => with("reconnect", database),
        Command::WaitClose(database) => with("wait_close", database),
        Command::Disable(database) => with("disable", database),
        Command::Enable(database) => with("enable", database),
        Command::KillClient(id) => with("kill_client", &Some(id.clone())),
        Command::Shutdown(_) => {
            assert!(VERBS.iter().any(|verb| verb.word == "shutdown"));
            None
        }
        Command::Nothing => Some("-- x".to_owned()),
    }
}

pub fn sql(input: &[u8]) {
    let mut last = None;
    let mut at = 0;
    for token in Lexer::new(input) {
        assert!(token.span.start == at && token.span.end > at);
        assert_eq!(token.of(input).len(), token.span.len());
        at = token.span.end;
        last = Some(token);
    }
    assert_eq!(at, input.len());
    let changes = statement_changes(input);
    for change in &changes {
        if let StatementChange::Deallocate { name, span } = change {
            let written = &input[span.clone()];
            // As it is written, or shorter by its quotes.
            assert!(name.len() <= written.len() && !written.is_empty());
        }
    }
    let before = [b"\x0b /* ;'/**/ */ ", input].concat();
    assert_eq!(plain(statement_changes(&before)), plain(changes.clone()));
    if ends_well(input, last.as_ref()) {
        let after = [input, b" ;\n"].concat();
        assert_eq!(statement_changes(&after), changes);
        let twice = [input, b" ; deallocate all"].concat();
        let count = statement_changes(&twice).len();
        assert_eq!(count, changes.len() + 1);
    }
}

pub fn touches(input: &[u8]) {
    let is_stateful = |name: &[u8]| {
        assert!(name.len() < 64);
        name == b"mine"
    };
    let found = touches::touches(input, &is_stateful);
    // The first look hides nothing.
    assert_eq!(found, touches::look_closely(input, &is_stateful));
    if let Some(found) = &found {
        assert!(!found.touches.is_empty() && found.settings.len() <= 64);
        for setting in &found.settings {
            match setting {
                Setting::Named(name) => {
                    assert!(name.contains(&b'.') && name.len() <= 1024);
                    assert!(!name.iter().any(u8::is_ascii_uppercase));
                }
                Setting::Parameter(number) => assert!(*number > 0),
            }
        }
    }
    let kinds = |found: Option<Box<Found>>| found.map_or(Touches::NONE, |found| found.touches);
    let before = [b"listen x; ", input].concat();
    let more = kinds(touches::touches(&before, &is_stateful));
    assert_eq!(more, kinds(found).union(Touches::CHANNELS));
    let body = [b"do $fuzz$", input].concat();
    let more = kinds(touches::touches(&body, &is_stateful));
    assert!(more.contains(Touches::BODY));
    // A body is a part of its text that is prepared as it stands there, and would be found again.
    if let Some(body) = touches::prepared_body(input, b"p") {
        let again = [b"PREPARE p AS ", body].concat();
        assert_eq!(touches::prepared_body(&again, b"p"), Some(body));
    }
    if let Some(executed) = touches::executed(input) {
        assert!(input.ends_with(executed.values()));
    }
}

pub fn normalized(input: &[u8]) {
    let once = normalize(input);
    assert!(once.len() <= normalize::LONGEST.min(input.len() + 3));
    assert!(!once.chars().any(char::is_control));
    assert_eq!(normalize(once.as_bytes()), once);
    // Nothing gets out of such a constant.
    if !input.contains(&b'$') && input.len() < normalize::READ / 2 {
        let inside = [b"select $fuzz$7SECRET7", input, b"$fuzz$"].concat();
        assert_eq!(normalize(&inside), "select ?");
    }
    let line = normalize::one_line(input, 100);
    assert!(!line.chars().any(char::is_control));
}

pub fn traceparent(input: &[u8]) {
    for found in [
        TraceParent::read(input),
        TraceParent::of_name(input),
        TraceParent::of_text(input),
    ]
    .into_iter()
    .flatten()
    {
        assert!(found.trace != [0; 16] && found.span != [0; 8]);
    }
    // What stands between a text and its end says it, unless the text says so first.
    let last = b"/*traceparent='00-11111111111111111111111111111111-2222222222222222-01'*/";
    let after = [input, b" ", last, b" ;\n"].concat();
    if !input.trim_ascii_start().starts_with(b"/*") {
        let found = TraceParent::of_text(&after);
        assert!(found.is_some_and(|it| it.trace == [0x11; 16] && it.is_sampled));
    }
    let before = [&last[..], input].concat();
    let found = TraceParent::of_text(&before);
    assert!(found.is_some_and(|it| it.span == [0x22; 8]));
}

/// Would a semicolon at its end be one?
fn ends_well(input: &[u8], last: Option<&Token>) -> bool {
    last.is_none_or(|token| match token.kind {
        TokenKind::Unterminated => false,
        TokenKind::Comment => token.of(input).starts_with(b"/*"),
        _ => true,
    })
}

/// Without the places.
fn plain(changes: Vec<StatementChange>) -> Vec<(u8, Vec<u8>)> {
    let plain = |change| match change {
        StatementChange::Deallocate { name, .. } => (0, name),
        StatementChange::DeallocateAll => (1, Vec::new()),
        StatementChange::DiscardAll => (2, Vec::new()),
    };
    changes.into_iter().map(plain).collect()
}
