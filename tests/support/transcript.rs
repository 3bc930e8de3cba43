//! Transcripts: what a frontend sends, one message a line, played against any server.
//!
//! ```text
//! # A comment. Blank lines are free.
//! Setup "create table t(a int)"             run beforehand, on a direct connection
//! Query "select 1"
//! Parse "s1" "select $1::int" [23]          name, text, parameter types (optional)
//! Bind "portal" "s1" ["42" null] formats=[1] results=[0 1]
//! Describe S "s1"                           S a statement, P a portal
//! Execute "portal" 0                        0 is: all rows
//! Close S "s1"
//! Flush
//! Sync
//! CopyData "1\tone\n"
//! CopyDone
//! CopyFail "reason"
//! FunctionCall 177 ["1" "2"]
//! send                                      what was queued leaves in one write
//! expect-until-ready 2                      read replies up to the second ReadyForQuery
//! expect-until CopyInResponse               read replies up to this message
//! ```
//!
//! A string may hold `\n \t \0 \\ \" \xHH` and be repeated: `"ab"*1000`.

use super::frontend::{self, Value};
use super::message::Message;
use super::wire::Wire;

/// One step of a transcript.
#[derive(Debug, PartialEq)]
enum Step {
    Message(Vec<u8>),
    Send,
    UntilReady(usize),
    Until(String),
}

/// A parsed transcript.
#[derive(Debug, Default)]
pub struct Transcript {
    setup: Vec<String>,
    steps: Vec<Step>,
}

impl Transcript {
    pub fn parse(text: &str) -> Self {
        let mut transcript = Self::default();
        for (number, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let mut words = Words {
                rest: line.as_bytes(),
                line: number + 1,
            };
            transcript.add(&mut words);
            assert!(
                words.blank(),
                "line {}: more than expected in {line}",
                number + 1
            );
        }
        transcript
    }

    fn add(&mut self, words: &mut Words) {
        let word = words.word();
        let step = match word.as_str() {
            "Setup" => {
                self.setup.push(words.text());
                return;
            }
            "send" => Step::Send,
            "expect-until-ready" => Step::UntilReady(words.number() as usize),
            "expect-until" => Step::Until(words.word()),
            name => Step::Message(frontend_message(name, words)),
        };
        self.steps.push(step);
    }

    /// The statements to run beforehand, on a connection of their own.
    pub fn setup(&self) -> &[String] {
        &self.setup
    }

    /// Plays it; `before_send` is called ahead of every write while nothing is owed to the client
    /// outside a transaction, so that the caller may have it served by another server.
    pub fn play(&self, wire: &mut Wire, mut before_send: impl FnMut()) -> Vec<Message> {
        let mut replies = Vec::new();
        let mut tables = Vec::new();
        let mut queue = Vec::new();
        let mut settled = true;
        for step in &self.steps {
            match step {
                Step::Message(bytes) => queue.extend(bytes),
                Step::Send => {
                    if settled && wire.status != b'T' && wire.status != b'E' {
                        before_send();
                    }
                    settled = false;
                    // A server that has hung up shows in the replies.
                    let _ = wire.try_send(&std::mem::take(&mut queue));
                }
                Step::UntilReady(count) => {
                    for _ in 0..*count {
                        read_until("ReadyForQuery", wire, &mut replies);
                    }
                    settled = true;
                }
                Step::Until(name) => read_until(name, wire, &mut replies),
            }
            if replies.last() == Some(&Message::silence()) {
                return replies;
            }
        }
        assert!(queue.is_empty(), "the transcript ends without `send`");
        replies
            .iter()
            .map(|message| message.comparable(&mut tables))
            .collect()
    }
}

/// Ends at a silence, too, so that the caller can show what came before it.
fn read_until(name: &str, wire: &mut Wire, replies: &mut Vec<Message>) {
    loop {
        let message = match wire.try_read_message() {
            Ok(Some(message)) => message,
            Ok(None) => return,
            Err(_) => Message::silence(),
        };
        let last = message.name() == name || message == Message::silence();
        replies.push(message);
        if last {
            return;
        }
    }
}

fn frontend_message(name: &str, words: &mut Words) -> Vec<u8> {
    match name {
        "Query" => frontend::query(&words.text()),
        "Parse" => {
            let (name, sql) = (words.text(), words.text());
            frontend::parse(&name, &sql, &words.numbers())
        }
        "Bind" => {
            let (portal, statement, values) = (words.text(), words.text(), words.values());
            let formats = words.codes("formats=");
            let results = words.codes("results=");
            frontend::bind_with_formats(&portal, &statement, &formats, &values, &results)
        }
        "Describe" => frontend::describe(words.word().as_bytes()[0], &words.text()),
        "Close" => frontend::close(words.word().as_bytes()[0], &words.text()),
        "Execute" => frontend::execute(&words.text(), words.number()),
        "Flush" => frontend::flush(),
        "Sync" => frontend::sync(),
        "CopyData" => frontend::copy_data(&words.string()),
        "CopyDone" => frontend::copy_done(),
        "CopyFail" => frontend::copy_fail(&words.text()),
        "FunctionCall" => frontend::function_call(words.number(), &words.values()),
        other => panic!("line {}: no message is called {other}", words.line),
    }
}

/// The words of a line.
struct Words<'a> {
    rest: &'a [u8],
    line: usize,
}

impl Words<'_> {
    fn blank(&mut self) -> bool {
        self.rest = self.rest.trim_ascii_start();
        self.rest.is_empty()
    }

    fn take(&mut self, prefix: &str) -> bool {
        self.rest = self.rest.trim_ascii_start();
        let rest = self.rest.strip_prefix(prefix.as_bytes());
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    fn word(&mut self) -> String {
        assert!(!self.blank(), "line {}: something is missing", self.line);
        let end = self
            .rest
            .iter()
            .position(|byte| b" \t]".contains(byte))
            .unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest;
        String::from_utf8(word.to_vec()).unwrap()
    }

    fn number(&mut self) -> u32 {
        let word = self.word();
        word.parse()
            .unwrap_or_else(|_| panic!("line {}: {word} is no number", self.line))
    }

    /// `[1 2]`, or nothing.
    fn numbers(&mut self) -> Vec<u32> {
        let mut numbers = Vec::new();
        if self.take("[") {
            while !self.take("]") {
                numbers.push(self.number());
            }
        }
        numbers
    }

    fn codes(&mut self, prefix: &str) -> Vec<u16> {
        if !self.take(prefix) {
            return Vec::new();
        }
        self.numbers()
            .into_iter()
            .map(|code| u16::try_from(code).unwrap())
            .collect()
    }

    /// `["42" null]`, or nothing.
    fn values(&mut self) -> Vec<Value> {
        let mut values = Vec::new();
        if self.take("[") {
            while !self.take("]") {
                values.push(if self.take("null") {
                    None
                } else {
                    Some(self.string())
                });
            }
        }
        values
    }

    fn text(&mut self) -> String {
        String::from_utf8(self.string()).unwrap()
    }

    /// `"..."` or `"..."*1000`.
    fn string(&mut self) -> Vec<u8> {
        assert!(self.take("\""), "line {}: a string is missing", self.line);
        let mut bytes = Vec::new();
        loop {
            match self.next() {
                b'"' => break,
                b'\\' => {
                    let escaped = self.escaped();
                    bytes.push(escaped);
                }
                byte => bytes.push(byte),
            }
        }
        if self.rest.starts_with(b"*") {
            self.next();
            bytes = bytes.repeat(self.number() as usize);
        }
        bytes
    }

    fn escaped(&mut self) -> u8 {
        match self.next() {
            b'n' => b'\n',
            b't' => b'\t',
            b'0' => 0,
            b'x' => {
                let digits = [self.next(), self.next()];
                u8::from_str_radix(std::str::from_utf8(&digits).unwrap(), 16).unwrap()
            }
            byte => byte,
        }
    }

    fn next(&mut self) -> u8 {
        let (first, rest) = self.rest.split_first().unwrap_or_else(|| {
            panic!("line {}: a string does not end", self.line);
        });
        self.rest = rest;
        *first
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_becomes_the_message_it_names() {
        let transcript = Transcript::parse("Bind \"\" \"s\" [\"a\\x00\"*2 null] results=[1]\nsend");
        let values = [Some(b"a\0a\0".to_vec()), None];
        let expected = frontend::bind_with_formats("", "s", &[], &values, &[1]);
        assert_eq!(transcript.steps, [Step::Message(expected), Step::Send]);
    }

    #[test]
    #[should_panic(expected = "line 2: no message is called Prase")]
    fn a_misspelt_message_is_named_with_its_line() {
        Transcript::parse("Sync\nPrase \"\" \"select 1\"");
    }
}
