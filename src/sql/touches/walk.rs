//! Reads a whole text: its statements, the functions they call and the settings they name.
//!
//! Memory is bounded by the settings that are kept, time by the text's length: what is looked at ahead of its
//! turn is a fixed number of tokens.

use super::name::{self, Name, Reading};
use super::{Found, Setting, Touches};
use crate::sql::lexer::{Lexer, Token, TokenKind};

/// Dynamic SQL in dynamic SQL is followed so far.
const DEEPEST: usize = 3;

/// Most settings that are kept; with more of them any setting may have changed.
const MOST_SETTINGS: usize = 64;

/// Most bytes of a setting's name.
const LONGEST_SETTING: usize = 1024;

/// Most tokens of the arguments of `set_config` that are looked at; with more the worst is assumed.
const MOST_ARGUMENT_TOKENS: usize = 64;

/// As [`super::touches`], with the long way for every text: its measure in tests.
pub fn look_closely(sql: &[u8], is_stateful: &dyn Fn(&[u8]) -> bool) -> Option<Box<Found>> {
    let mut walk = Walk {
        sql,
        is_stateful,
        passes_names: false,
        found: Found::default(),
        verb: Verb::Start,
        last: None,
        before_last: None,
    };
    let mut lexer = Lexer::new(sql);
    while let Some(token) = lexer.next() {
        if !token.is_trivia() {
            walk.step(&token, &lexer);
            walk.before_last = walk.last.replace(token);
        }
    }
    (!walk.found.touches.is_empty()).then(|| Box::new(walk.found))
}

/// Which statement is being read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Verb {
    /// Not known yet.
    Start,
    /// EXPLAIN; that of what it explains comes.
    Explain,
    Select,
    With,
    /// PREPARE, of a query or a change.
    Prepare,
    /// CREATE, of what is not known yet.
    Create,
    /// CREATE, of what may have been made from a prepared statement.
    Make,
    /// CREATE FUNCTION or PROCEDURE, whose text does not run.
    Define,
    /// ALTER, or CREATE of what is temporary only where `pg_temp` is named.
    Alter,
    Declare,
    Do,
    /// CALL or EXECUTE: what runs may get names from arguments.
    Run,
    /// Any other: it may call functions.
    Calls,
}

struct Walk<'a> {
    sql: &'a [u8],
    is_stateful: &'a dyn Fn(&[u8]) -> bool,
    /// A function of that kind was called: it may be given the name of a setting.
    passes_names: bool,
    found: Found,
    verb: Verb,
    last: Option<Token>,
    before_last: Option<Token>,
}

impl Walk<'_> {
    /// Takes one token that is no trivia; `ahead` is at the next.
    fn step(&mut self, token: &Token, ahead: &Lexer<'_>) {
        if token.kind == TokenKind::Semicolon {
            self.verb = Verb::Start;
            return;
        }
        if token.of(self.sql) == b"(" {
            self.call(ahead);
            return;
        }
        if self.passes_names {
            self.constant(self.sql, token);
        }
        match self.verb {
            Verb::Start | Verb::Explain => self.begin(token, ahead),
            Verb::Select | Verb::With => {
                let inserts = self.last_is(b"insert") || self.last_is(b"merge");
                if self.is(token, b"into") && !inserts {
                    self.touch(Touches::TEMPORARY);
                }
                if self.verb == Verb::With {
                    self.update(token, ahead);
                }
            }
            Verb::Prepare => self.update(token, ahead),
            Verb::Create => self.create(token),
            Verb::Make => {
                if self.is(token, b"execute") {
                    self.touch(Touches::BODY);
                }
            }
            Verb::Define | Verb::Alter => {
                let temporary = match name::read(self.sql, token) {
                    Reading::Name(name) => name.as_bytes().starts_with(b"pg_temp"),
                    Reading::Escaped => true,
                    Reading::Other => false,
                };
                if temporary || self.is(token, b"uescape") {
                    self.touch(Touches::TEMPORARY);
                }
            }
            Verb::Declare => {
                if self.is(token, b"hold") && self.last_is(b"with") {
                    self.touch(Touches::CURSORS);
                }
            }
            Verb::Do => self.block(token),
            Verb::Run => self.constant(self.sql, token),
            Verb::Calls => {}
        }
    }

    /// The first word of a statement.
    fn begin(&mut self, token: &Token, ahead: &Lexer<'_>) {
        let word = match name::read(self.sql, token) {
            Reading::Name(name) if token.kind == TokenKind::Word => name,
            // Options of EXPLAIN.
            _ if self.verb == Verb::Explain => return,
            _ => return self.verb = Verb::Calls,
        };
        let verb = match word.as_bytes() {
            b"explain" => Verb::Explain,
            b"select" => Verb::Select,
            b"with" => Verb::With,
            b"prepare" => Verb::Prepare,
            b"create" => Verb::Create,
            b"alter" => Verb::Alter,
            b"declare" => Verb::Declare,
            b"do" => Verb::Do,
            b"call" | b"execute" => Verb::Run,
            b"insert" | b"update" | b"delete" | b"merge" | b"values" | b"table" | b"refresh" => {
                Verb::Calls
            }
            // Words of EXPLAIN's options.
            _ if self.verb == Verb::Explain => return,
            _ => Verb::Calls,
        };
        self.verb = verb;
        match word.as_bytes() {
            b"set" => self.set(self.sql, ahead),
            b"reset" => {
                self.touch(Touches::SETTINGS);
                self.dotted(self.sql, ahead.clone().significant());
            }
            b"update" => self.update(token, ahead),
            b"prepare" => {
                let mut ahead = ahead.clone().significant();
                let transaction = ahead.next().is_some_and(|it| self.is(&it, b"transaction"))
                    && ahead.next().is_some_and(|it| it.kind == TokenKind::Text);
                if !transaction {
                    self.touch(Touches::STATEMENTS);
                }
            }
            b"drop" => self.touch(Touches::TEMPORARY),
            b"do" | b"call" | b"execute" | b"discard" => self.touch(Touches::BODY),
            b"deallocate" => self.touch(Touches::STATEMENTS),
            b"close" => self.touch(Touches::CURSORS),
            b"listen" | b"unlisten" => self.touch(Touches::CHANNELS),
            b"load" => self.touch(Touches::LIBRARY),
            _ => {}
        }
    }

    /// What comes after CREATE. Nearly everything is temporary if `pg_temp` is first in the search path.
    fn create(&mut self, token: &Token) {
        let Reading::Name(word) = name::read(self.sql, token) else {
            return;
        };
        self.verb = match word.as_bytes() {
            b"or" | b"replace" => Verb::Create,
            b"function" | b"procedure" => Verb::Define,
            b"index" | b"unique" | b"trigger" | b"role" | b"user" | b"group" | b"database"
            | b"extension" | b"policy" => Verb::Alter,
            _ => {
                self.touch(Touches::TEMPORARY);
                Verb::Make
            }
        };
    }

    /// A parenthesis: a function may be called.
    fn call(&mut self, ahead: &Lexer<'_>) {
        if self.verb == Verb::Define {
            return;
        }
        let Some(last) = &self.last else { return };
        match name::read(self.sql, last) {
            Reading::Name(name) => {
                if name.as_bytes() == b"set_config" {
                    let arguments = arguments(self.sql, ahead);
                    if !arguments.is_local(self.sql) {
                        self.touch(Touches::SETTINGS);
                        // Parameters of a prepared statement are not those of the Bind.
                        self.set_config(self.sql, &arguments, self.verb != Verb::Prepare);
                    }
                } else {
                    self.touch(name::known(name.as_bytes()));
                }
                if (self.is_stateful)(name.as_bytes()) {
                    self.passes_names = true;
                    self.touch(Touches::BODY);
                }
            }
            Reading::Escaped => self.touch(Touches::ALL),
            // What else ends before a parenthesis is no call, but for the escape character of a name.
            Reading::Other => {
                let escape = self.before_last.as_ref();
                if escape.is_some_and(|it| self.is(it, b"uescape")) {
                    self.touch(Touches::ALL);
                }
            }
        }
    }

    /// SET in `text`, which `ahead` goes on with.
    fn set(&mut self, text: &[u8], ahead: &Lexer<'_>) {
        let mut name = ahead.clone().significant();
        let mut after = name.clone();
        let first = after.next();
        // These words are no keywords where they are, or begin, a setting's name.
        let scope = first.filter(|first| {
            let next = after.clone().next();
            let names = next.is_some_and(|next| {
                matches!(next.of(text), b"." | b"=") || next.is_word(text, b"to")
            });
            first.kind == TokenKind::Word && !names
        });
        if let Some(scope) = scope {
            match Name::folded(scope.of(text)).as_bytes() {
                b"local" | b"transaction" | b"constraints" => return,
                b"session" => name = after,
                _ => {}
            }
        }
        self.touch(Touches::SETTINGS);
        self.dotted(text, name);
    }

    /// Keeps the setting whose name `ahead` goes on with, if it has a dot.
    fn dotted(&mut self, text: &[u8], mut ahead: impl Iterator<Item = Token>) {
        let mut whole = Vec::new();
        while let Some(part) = ahead.next() {
            match name::read(text, &part) {
                Reading::Name(name) => whole.extend_from_slice(name.as_bytes()),
                Reading::Escaped => return self.touch(Touches::UNKNOWN_NAME),
                Reading::Other => break,
            }
            match ahead.next() {
                Some(dot) if dot.of(text) == b"." && whole.len() <= LONGEST_SETTING => {
                    whole.push(b'.');
                }
                Some(next) if next.is_word(text, b"uescape") => {
                    return self.touch(Touches::UNKNOWN_NAME);
                }
                _ => break,
            }
        }
        self.keep_name(&whole);
    }

    /// UPDATE of `pg_settings` is a SET, if `token` is one.
    fn update(&mut self, token: &Token, ahead: &Lexer<'_>) {
        if !self.is(token, b"update") {
            return;
        }
        let sql = self.sql;
        let mut table = ahead
            .clone()
            .significant()
            .skip_while(|token| token.is_word(sql, b"only") || token.of(sql) == b"(")
            .take(3);
        let mut is_settings = false;
        while let Some(token) = table.next() {
            is_settings |= match name::read(sql, &token) {
                _ if token.kind == TokenKind::UnicodeName => true,
                Reading::Name(name) if name.as_bytes() == b"pg_catalog" => {
                    table.next();
                    continue;
                }
                Reading::Name(name) => name.as_bytes() == b"pg_settings",
                Reading::Escaped | Reading::Other => false,
            };
            break;
        }
        if is_settings {
            self.touch(Touches::SETTINGS);
        }
    }

    /// A token of a DO statement.
    fn block(&mut self, token: &Token) {
        let sql = self.sql;
        let language = self.last_is(b"language");
        match (token.kind, name::read(sql, token)) {
            (TokenKind::Text, _) if language => {
                if plain(token.of(sql)) != Some(b"plpgsql") {
                    self.touch(Touches::UNKNOWN_NAME);
                }
            }
            (TokenKind::Text, _) => match inside(token.of(sql)) {
                Some(body) => self.body(&body, 0),
                None => self.touch(Touches::UNKNOWN_NAME),
            },
            (_, Reading::Name(name)) if language && name.as_bytes() == b"plpgsql" => {}
            (_, Reading::Name(name)) if name.as_bytes() == b"language" => {}
            _ => self.touch(Touches::UNKNOWN_NAME),
        }
    }

    /// The settings that the body of a DO block names, or that it may change without naming them.
    fn body(&mut self, body: &[u8], depth: usize) {
        let mut lexer = Lexer::new(body);
        let mut last = None;
        while let Some(token) = lexer.next() {
            if token.is_trivia() {
                continue;
            }
            self.constant(body, &token);
            match name::read(body, &token) {
                Reading::Name(name) => match name.as_bytes() {
                    b"set" => self.set(body, &lexer),
                    b"reset" => self.dotted(body, lexer.clone().significant()),
                    b"execute" => self.dynamic(body, lexer.clone().significant(), depth),
                    b"load" => self.touch(Touches::LIBRARY),
                    name => {
                        let told = Touches::UNKNOWN_NAME.union(Touches::SEQUENCES);
                        self.touch(name::known(name).also_in(told));
                    }
                },
                Reading::Escaped => self.touch(Touches::UNKNOWN_NAME),
                Reading::Other if token.kind == TokenKind::Unterminated => {
                    self.touch(Touches::UNKNOWN_NAME);
                }
                Reading::Other if token.of(body) == b"(" && is_set_config(body, last.as_ref()) => {
                    self.set_config(body, &arguments(body, &lexer), false);
                }
                Reading::Other => {}
            }
            last = Some(token);
        }
    }

    /// EXECUTE in the body of a DO block. What is put together there can do anything; what is said as one constant, or
    /// by `format` with nothing but names and values filled in, shows what it does.
    fn dynamic(&mut self, body: &[u8], mut ahead: impl Iterator<Item = Token>, depth: usize) {
        let mut first = ahead.next();
        let is_format = first
            .as_ref()
            .is_some_and(|token| token.is_word(body, b"format"));
        if is_format {
            first = ahead
                .next()
                .filter(|token| token.of(body) == b"(")
                .and_then(|_| ahead.next());
        }
        let constant = first.filter(|token| token.kind == TokenKind::Text);
        let text = constant.and_then(|token| inside(token.of(body)));
        let ends = ahead.next().is_none_or(|next| {
            next.kind == TokenKind::Semicolon
                || next.is_word(body, b"into")
                || next.is_word(body, b"using")
                || is_format && matches!(next.of(body), b"," | b")")
        });
        match text {
            Some(text) if ends && depth < DEEPEST && (!is_format || fills_in_only(&text)) => {
                self.body(&text, depth + 1);
            }
            _ => self.touch(Touches::UNKNOWN_NAME),
        }
    }

    /// Keeps the setting that is the first argument of `set_config`.
    fn set_config(&mut self, text: &[u8], arguments: &Arguments, binds: bool) {
        let first = arguments
            .get(0)
            .map(|it| without_cast(text, it, &[b"text", b"varchar"]));
        let Some([name]) = first else {
            return self.touch(Touches::UNKNOWN_NAME);
        };
        let written = name.of(text);
        match (name.kind, written) {
            (TokenKind::Text, _) => match plain(written) {
                Some(name) => self.keep_name(name),
                None => self.touch(Touches::UNKNOWN_NAME),
            },
            (TokenKind::Number, [b'$', digits @ ..]) if binds => {
                let number = std::str::from_utf8(digits)
                    .ok()
                    .and_then(|it| it.parse().ok());
                match number {
                    Some(number) if number > 0 => self.keep(Setting::Parameter(number)),
                    _ => self.touch(Touches::UNKNOWN_NAME),
                }
            }
            _ => self.touch(Touches::UNKNOWN_NAME),
        }
    }

    /// Keeps what a string constant says if it looks like the name of a setting.
    fn constant(&mut self, text: &[u8], token: &Token) {
        if token.kind != TokenKind::Text {
            return;
        }
        let Some(name) = plain(token.of(text)) else {
            return;
        };
        let parts = name.split(|&byte| byte == b'.');
        let is_name = |part: &[u8]| {
            part.first().is_some_and(|it| !it.is_ascii_digit())
                && part.iter().all(|&byte| name::goes_on_name(byte))
        };
        if name.len() <= LONGEST_SETTING && parts.clone().all(is_name) {
            self.keep_name(name);
        }
    }

    fn keep_name(&mut self, name: &[u8]) {
        if name.len() > LONGEST_SETTING {
            self.touch(Touches::UNKNOWN_NAME);
        } else if name.contains(&b'.') {
            self.keep(Setting::Named(name.to_ascii_lowercase().into()));
        }
    }

    fn keep(&mut self, setting: Setting) {
        if self.found.settings.contains(&setting) {
            return;
        }
        if self.found.settings.len() == MOST_SETTINGS {
            return self.touch(Touches::UNKNOWN_NAME);
        }
        self.found.settings.push(setting);
    }

    fn touch(&mut self, more: Touches) {
        self.found.touches = self.found.touches.union(more);
    }

    fn is(&self, token: &Token, word: &[u8]) -> bool {
        token.is_word(self.sql, word)
    }

    fn last_is(&self, word: &[u8]) -> bool {
        self.last.as_ref().is_some_and(|last| self.is(last, word))
    }
}

fn is_set_config(text: &[u8], token: Option<&Token>) -> bool {
    let name = token.map(|token| name::read(text, token));
    matches!(name, Some(Reading::Name(name)) if name.as_bytes() == b"set_config")
}

/// What is between the parentheses of a call.
struct Arguments {
    /// Their tokens; each but the last is whole.
    parts: Vec<Vec<Token>>,
    /// Whether the last is whole, too.
    whole: bool,
}

impl Arguments {
    /// That of this number, if it is known whole.
    fn get(&self, number: usize) -> Option<&[Token]> {
        let known = self.whole || number + 1 < self.parts.len();
        self.parts.get(number).filter(|_| known).map(Vec::as_slice)
    }

    /// Whether the third and last is the constant true.
    fn is_local(&self, text: &[u8]) -> bool {
        let third = self
            .get(2)
            .map(|it| without_cast(text, it, &[b"bool", b"boolean"]));
        let (3, Some([token])) = (self.parts.len(), third) else {
            return false;
        };
        let yes: &[&[u8]] = &[b"true", b"t", b"yes", b"y", b"on", b"1"];
        let is_yes = |word: &[u8]| yes.iter().any(|yes| word.eq_ignore_ascii_case(yes));
        match token.kind {
            TokenKind::Word => token.is_word(text, b"true"),
            TokenKind::Text => plain(token.of(text)).is_some_and(is_yes),
            _ => false,
        }
    }
}

/// The arguments that `ahead` goes on with, as far as they are looked at.
fn arguments(text: &[u8], ahead: &Lexer<'_>) -> Arguments {
    let mut parts = vec![Vec::new()];
    let mut depth = 0usize;
    for token in ahead.clone().significant().take(MOST_ARGUMENT_TOKENS) {
        match token.of(text) {
            b")" if depth == 0 => return Arguments { parts, whole: true },
            b"," if depth == 0 => {
                parts.push(Vec::new());
                continue;
            }
            b";" => break,
            b"(" | b"[" => depth += 1,
            b")" | b"]" => depth = depth.saturating_sub(1),
            _ => {}
        }
        if let Some(part) = parts.last_mut() {
            part.push(token);
        }
    }
    Arguments {
        parts,
        whole: false,
    }
}

/// An argument without `::type` at its end, if that is one of these.
fn without_cast<'t>(text: &[u8], argument: &'t [Token], types: &[&[u8]]) -> &'t [Token] {
    match argument {
        [first, one, two, cast]
            if one.of(text) == b":"
                && two.of(text) == b":"
                && types.iter().any(|name| cast.is_word(text, name)) =>
        {
            std::slice::from_ref(first)
        }
        _ => argument,
    }
}

/// What a string constant says, if there is nothing in it that its kind writes in another way.
fn plain(written: &[u8]) -> Option<&[u8]> {
    let (inside, escapes) = parts(written)?;
    let special = |byte: &u8| match escapes {
        Escapes::None => false,
        Escapes::Quotes => *byte == b'\'',
        Escapes::Backslashes => matches!(byte, b'\'' | b'\\'),
    };
    (!inside.iter().any(special)).then_some(inside)
}

/// Does this first argument of `format` take names (`%I`) and values (`%L`) and nothing else, and is none of the names
/// that of a setting?
fn fills_in_only(text: &[u8]) -> bool {
    let mut parts = text.split(|&byte| byte == b'%').skip(1);
    let fills_in = parts.all(|part| matches!(part.first(), Some(b'I' | b'L')));
    let sets = |token: &Token| {
        [&b"set"[..], b"reset"]
            .iter()
            .any(|word| token.is_word(text, word))
    };
    fills_in && !Lexer::new(text).any(|token| sets(&token))
}

/// What a string constant says, if it can be told without the server's encoding.
fn inside(written: &[u8]) -> Option<Vec<u8>> {
    let (inside, escapes) = parts(written)?;
    if matches!(escapes, Escapes::None) {
        return Some(inside.to_vec());
    }
    if matches!(escapes, Escapes::Backslashes) && inside.contains(&b'\\') {
        return None;
    }
    let mut text = Vec::with_capacity(inside.len());
    let mut bytes = inside.iter();
    while let Some(&byte) = bytes.next() {
        text.push(byte);
        // Anything else after a quote is where the constant goes on in another line.
        if byte == b'\'' && bytes.next() != Some(&b'\'') {
            return None;
        }
    }
    Some(text)
}

/// How a string constant writes what it cannot have as it is.
#[derive(Clone, Copy)]
enum Escapes {
    None,
    /// A quote as two.
    Quotes,
    /// That and backslashes.
    Backslashes,
}

/// What is between the quotes; `None` for bits and for Unicode escapes.
fn parts(written: &[u8]) -> Option<(&[u8], Escapes)> {
    let (rest, escapes) = match written {
        [b'\'', rest @ ..] | [b'n' | b'N', b'\'', rest @ ..] => (rest, Escapes::Quotes),
        [b'e' | b'E', b'\'', rest @ ..] => (rest, Escapes::Backslashes),
        [b'$', rest @ ..] => {
            let delimiter = memchr::memchr(b'$', rest)? + 2;
            let end = written.len().checked_sub(delimiter)?;
            return Some((written.get(delimiter..end)?, Escapes::None));
        }
        _ => return None,
    };
    Some((rest.strip_suffix(b"'")?, escapes))
}
