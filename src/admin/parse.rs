//! The console's grammar: one command a text, in PgBouncer's words.
//!
//! Owns what a command looks like, the table of commands (from which help and documentation are made) and
//! PgBouncer's limits on words. What a command does is `control`'s and `show`'s.
//!
//! ```text
//!   command = WORD [ WORD ] [ ";" ]                   WORD   = [0-9a-zA-Z_]+ | '"' … '"'
//!   drain   = "shutdown" "drain" SECONDS [ ";" ]
//!   set     = "set" WORD ( "=" | "to" ) VALUE [ ";" ]   VALUE  = WORD | "'" … "'"
//! ```
//!
//! PgBouncer matches these with regular expressions (its doc: "Admin console"); what is between words is blank.

use std::time::Duration;

use crate::admin::show::{self, Show};
use crate::admin::{Error, Shutdown};

/// A command.
#[derive(Debug, Clone)]
pub enum Command {
    /// `SHOW` of one of our tables.
    Show(&'static Show),
    /// `SHOW HELP`.
    Help,
    /// `SHOW` of a parameter that drivers ask PostgreSQL for.
    ShowParameter(&'static Parameter),
    /// `SET` of a parameter that drivers set in PostgreSQL.
    SetIgnored,
    /// `SET` of one of our settings.
    Set {
        /// Its name.
        key: String,
        /// Its new value.
        value: String,
    },
    /// `RELOAD`.
    Reload,
    /// `PAUSE`, of one database or all.
    Pause(Option<String>),
    /// `RESUME`, of one database or all.
    Resume(Option<String>),
    /// `KILL`, of one database or all.
    Kill(Option<String>),
    /// `RECONNECT`, of one database or all.
    Reconnect(Option<String>),
    /// `WAIT_CLOSE`, of one database or all.
    WaitClose(Option<String>),
    /// `DISABLE` of a database.
    Disable(Option<String>),
    /// `ENABLE` of a database.
    Enable(Option<String>),
    /// `KILL_CLIENT` of an id as SHOW CLIENTS shows it.
    KillClient(String),
    /// `RESET STATEMENTS`.
    ResetStatements,
    /// `SUSPEND`.
    Suspend,
    /// `UPGRADE`.
    Upgrade,
    /// `SHUTDOWN`.
    Shutdown(Shutdown),
    /// Only a comment: how some drivers find out whether the connection is alive.
    Nothing,
}

/// A command word, other than SHOW and SET, with what the help says about it.
#[derive(Debug)]
pub struct Verb {
    /// The word, in lower case.
    pub word: &'static str,
    /// How it is written.
    pub usage: &'static str,
    /// What it does.
    pub doc: &'static str,
    /// The command with this argument; `None` if there is none such.
    make: fn(Option<String>) -> Option<Command>,
}

/// All command words but SHOW (also written SELECT) and SET.
pub static VERBS: &[Verb] = &[
    Verb {
        word: "reload",
        usage: "RELOAD",
        doc: "Reads the configuration files again. If there is an error in them, nothing changes.",
        make: |argument| argument.is_none().then_some(Command::Reload),
    },
    Verb {
        word: "pause",
        usage: "PAUSE [<db>]",
        doc: "Lends no more servers and answers when the last one is closed. Clients stay and wait.",
        make: |argument| Some(Command::Pause(argument)),
    },
    Verb {
        word: "resume",
        usage: "RESUME [<db>]",
        doc: "Ends PAUSE and KILL; without a name, also those of single databases.",
        make: |argument| Some(Command::Resume(argument)),
    },
    Verb {
        word: "disable",
        usage: "DISABLE <db>",
        doc: "Refuses new logins to a database. Clients that are connected go on.",
        make: |argument| Some(Command::Disable(argument)),
    },
    Verb {
        word: "enable",
        usage: "ENABLE <db>",
        doc: "Ends DISABLE.",
        make: |argument| Some(Command::Enable(argument)),
    },
    Verb {
        word: "reconnect",
        usage: "RECONNECT [<db>]",
        doc: "Replaces every server, each as soon as it is free. Answers at once.",
        make: |argument| Some(Command::Reconnect(argument)),
    },
    Verb {
        word: "wait_close",
        usage: "WAIT_CLOSE [<db>]",
        doc: "Answers when RECONNECT has no server left to replace.",
        make: |argument| Some(Command::WaitClose(argument)),
    },
    Verb {
        word: "kill",
        usage: "KILL [<db>]",
        doc: "Drops clients at once and leaves the database paused. A server that was in use is first brought to a clean end, which may take up to 10 seconds, and then closed.",
        make: |argument| Some(Command::Kill(argument)),
    },
    Verb {
        word: "kill_client",
        usage: "KILL_CLIENT <id>",
        doc: "Drops the client that has this id in SHOW CLIENTS.",
        make: |argument| Some(Command::KillClient(argument.unwrap_or_default())),
    },
    Verb {
        word: "reset",
        usage: "RESET STATEMENTS",
        doc: "Forgets what SHOW STATEMENTS shows, and counts anew. Not in PgBouncer.",
        make: |argument| {
            let what = argument?;
            let is_known = what.eq_ignore_ascii_case("statements");
            is_known.then_some(Command::ResetStatements)
        },
    },
    Verb {
        word: "suspend",
        usage: "SUSPEND",
        doc: "Stops accepting and reading clients, and answers when nothing is under way. Who goes on for longer than `suspend_timeout` is sent away. Ends with RESUME, or with the console connection that gave it.",
        make: |argument| argument.is_none().then_some(Command::Suspend),
    },
    Verb {
        word: "upgrade",
        usage: "UPGRADE",
        doc: "Starts the program anew, with the same arguments, to take the place of this process: listening sockets, clients and servers go over as with `-R`. Answers when it has taken over, or with the reason why everything is as it was. Not in PgBouncer.",
        make: |argument| argument.is_none().then_some(Command::Upgrade),
    },
    Verb {
        word: "shutdown",
        usage: "SHUTDOWN [WAIT_FOR_SERVERS|WAIT_FOR_CLIENTS|DRAIN [<seconds>]]",
        doc: "Ends the process: at once, when the last server is released, or with the last client. `DRAIN` sends clients away between transactions, and ends after `drain_timeout`, or so many seconds, at the latest.",
        make: shutdown,
    },
];

fn shutdown(argument: Option<String>) -> Option<Command> {
    let mode = match argument.unwrap_or_default().to_ascii_lowercase().as_str() {
        "" => Shutdown::Now,
        "wait_for_servers" => Shutdown::WaitForServers,
        "wait_for_clients" => Shutdown::WaitForClients,
        "drain" => Shutdown::Drain(None),
        _ => return None,
    };
    Some(Command::Shutdown(mode))
}

/// The one command of three words: `SHUTDOWN DRAIN` and whole seconds.
fn timed(words: [&str; 3]) -> Option<Command> {
    let [word, argument, limit] = words;
    let known = word.eq_ignore_ascii_case("shutdown") && argument.eq_ignore_ascii_case("drain");
    let seconds: u32 = limit.parse().ok().filter(|_| known)?;
    let limit = Duration::from_secs(seconds.into());
    Some(Command::Shutdown(Shutdown::Drain(Some(limit))))
}

/// A parameter of PostgreSQL's that drivers ask for right after login.
#[derive(Debug)]
pub struct Parameter {
    /// Its name.
    pub name: &'static str,
    /// What we answer; `None`: only SET of it is put up with.
    pub value: Option<&'static str>,
}

/// The parameters that PgBouncer puts up with, and two more that drivers set.
static PARAMETERS: &[Parameter] = &[
    Parameter {
        name: "client_encoding",
        value: Some("UTF-8"),
    },
    Parameter {
        name: "default_transaction_isolation",
        value: Some("read committed"),
    },
    Parameter {
        name: "standard_conforming_strings",
        value: Some("on"),
    },
    Parameter {
        name: "datestyle",
        value: Some("ISO"),
    },
    Parameter {
        name: "timezone",
        value: Some("GMT"),
    },
    Parameter {
        name: "application_name",
        value: None,
    },
    Parameter {
        name: "extra_float_digits",
        value: None,
    },
];

fn parameter(name: &str) -> Option<&'static Parameter> {
    PARAMETERS
        .iter()
        .find(|known| known.name.eq_ignore_ascii_case(name))
}

/// Most bytes of a command word, of an argument and of a value, quotes included.
const LONGEST: (usize, usize, usize) = (15, 63, 255);

/// Reads a command.
pub fn parse(text: &str) -> Result<Command, Error> {
    let invalid = || Error::InvalidCommand {
        text: text.to_owned(),
    };
    if is_comment(text) {
        return Ok(Command::Nothing);
    }
    if let Some((word, argument)) = Scanner(text).command() {
        let word = word.unquoted(LONGEST.0)?;
        let argument = argument
            .map(|argument| argument.unquoted(LONGEST.1))
            .transpose()?;
        let argument = argument.filter(|argument| !argument.is_empty());
        return command(&word, argument).ok_or_else(invalid);
    }
    if let Some(command) = Scanner(text).three_words().and_then(timed) {
        return Ok(command);
    }
    let (key, value) = Scanner(text).set().ok_or_else(invalid)?;
    let key = key.unquoted(LONGEST.1)?;
    let value = value.unquoted(LONGEST.2)?;
    if parameter(&key).is_some() {
        return Ok(Command::SetIgnored);
    }
    Ok(Command::Set { key, value })
}

fn command(word: &str, argument: Option<String>) -> Option<Command> {
    let is = |known: &str| known.eq_ignore_ascii_case(word);
    if is("show") || is("select") {
        let what = argument?;
        if what.eq_ignore_ascii_case("help") {
            return Some(Command::Help);
        }
        let asked = parameter(&what).filter(|parameter| parameter.value.is_some());
        return asked
            .map(Command::ShowParameter)
            .or_else(|| show::find(&what).map(Command::Show));
    }
    let verb = VERBS.iter().find(|verb| is(verb.word))?;
    (verb.make)(argument)
}

/// Is there nothing but a comment to the end of the line? pgx asks `-- ping`.
fn is_comment(text: &str) -> bool {
    let text = text.trim_matches(is_blank);
    text.starts_with("--") && !text.contains(['\n', '\r'])
}

/// Is there nothing at all? PgBouncer refuses that as a simple query.
pub fn is_empty(text: &str) -> bool {
    text.trim_matches(|c| is_blank(c) || c == ';').is_empty()
}

fn is_blank(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\n' | '\r')
}

/// A word as it was written.
#[derive(Debug, Clone, Copy)]
struct Word<'a> {
    raw: &'a str,
    quote: Option<char>,
}

impl Word<'_> {
    /// Without its quotes, if it is no longer than `most` bytes with them.
    fn unquoted(self, most: usize) -> Result<String, Error> {
        if self.raw.len() > most {
            return Err(Error::BadArguments);
        }
        let Some(quote) = self.quote else {
            return Ok(self.raw.to_owned());
        };
        let inner = self
            .raw
            .strip_prefix(quote)
            .and_then(|rest| rest.strip_suffix(quote));
        Ok(inner
            .unwrap_or_default()
            .replace(&String::from_iter([quote, quote]), &quote.to_string()))
    }
}

/// The rest of a text.
struct Scanner<'a>(&'a str);

impl<'a> Scanner<'a> {
    fn command(mut self) -> Option<(Word<'a>, Option<Word<'a>>)> {
        self.blanks();
        let word = self.word()?;
        let argument = if self.blanks() { self.word() } else { None };
        self.end().then_some((word, argument))
    }

    fn three_words(mut self) -> Option<[&'a str; 3]> {
        self.blanks();
        let mut words = [""; 3];
        for word in &mut words {
            *word = self.word().filter(|word| word.quote.is_none())?.raw;
            self.blanks();
        }
        self.end().then_some(words)
    }

    fn set(mut self) -> Option<(Word<'a>, Word<'a>)> {
        self.blanks();
        self.keyword("set")?;
        if !self.blanks() {
            return None;
        }
        let key = self.word()?;
        self.blanks();
        self.keyword("=").or_else(|| self.keyword("to"))?;
        self.blanks();
        let value = self.quoted('\'').or_else(|| self.word())?;
        self.end().then_some((key, value))
    }

    /// Passes over blanks; were there any?
    fn blanks(&mut self) -> bool {
        let rest = self.0.trim_start_matches(is_blank);
        let any = rest.len() < self.0.len();
        self.0 = rest;
        any
    }

    /// Is there nothing more, but perhaps a semicolon?
    fn end(mut self) -> bool {
        self.blanks();
        self.0 = self.0.strip_prefix(';').unwrap_or(self.0);
        self.blanks();
        self.0.is_empty()
    }

    fn keyword(&mut self, keyword: &str) -> Option<()> {
        let (found, rest) = self.0.split_at_checked(keyword.len())?;
        if !found.eq_ignore_ascii_case(keyword) {
            return None;
        }
        self.0 = rest;
        Some(())
    }

    fn word(&mut self) -> Option<Word<'a>> {
        self.quoted('"').or_else(|| {
            let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
            let length = self.0.find(|c| !is_part(c)).unwrap_or(self.0.len());
            let raw = self.take(length)?;
            (!raw.is_empty()).then_some(Word { raw, quote: None })
        })
    }

    fn quoted(&mut self, quote: char) -> Option<Word<'a>> {
        let mut rest = self.0.strip_prefix(quote)?;
        // A doubled quote stands for itself.
        loop {
            let (_, after) = rest.split_once(quote)?;
            let Some(more) = after.strip_prefix(quote) else {
                let raw = self.take(self.0.len() - after.len())?;
                return Some(Word {
                    raw,
                    quote: Some(quote),
                });
            };
            rest = more;
        }
    }

    fn take(&mut self, length: usize) -> Option<&'a str> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a text is taken for, short enough to be compared.
    fn read(text: &str) -> String {
        match parse(text) {
            Ok(Command::Show(show)) => format!("Show {}", show.name),
            Ok(Command::ShowParameter(parameter)) => format!("ShowParameter {}", parameter.name),
            Ok(command) => format!("{command:?}"),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn commands_are_read_as_pgbouncer_reads_them() {
        let long = |n: usize| "x".repeat(n);
        let table = [
            ("SHOW POOLS", "Show pools".to_owned()),
            ("show pools;", "Show pools".to_owned()),
            (" \t\r\nShOw\n\"pools\" ; ", "Show pools".to_owned()),
            ("select stats", "Show stats".to_owned()),
            ("\"show\" version", "Show version".to_owned()),
            ("SHOW HELP", "Help".to_owned()),
            ("SHOW TimeZone", "ShowParameter timezone".to_owned()),
            (
                "SHOW client_encoding;",
                "ShowParameter client_encoding".to_owned(),
            ),
            ("set datestyle to 'ISO, MDY'", "SetIgnored".to_owned()),
            ("SET extra_float_digits = 3", "SetIgnored".to_owned()),
            ("set a=b", r#"Set { key: "a", value: "b" }"#.to_owned()),
            (
                "SET a TO 'it''s 1.5';",
                r#"Set { key: "a", value: "it's 1.5" }"#.to_owned(),
            ),
            (
                "SET \"a\" = \"b\"\"c\"",
                r#"Set { key: "a", value: "b\"c" }"#.to_owned(),
            ),
            ("SET a = ''", r#"Set { key: "a", value: "" }"#.to_owned()),
            ("reload", "Reload".to_owned()),
            ("PAUSE", "Pause(None)".to_owned()),
            ("PAUSE \"\"", "Pause(None)".to_owned()),
            (
                "PAUSE \"My \"\"db\"\"\"",
                r#"Pause(Some("My \"db\""))"#.to_owned(),
            ),
            ("RESUME app", r#"Resume(Some("app"))"#.to_owned()),
            ("kill app", r#"Kill(Some("app"))"#.to_owned()),
            ("KILL_CLIENT 12", r#"KillClient("12")"#.to_owned()),
            ("reconnect", "Reconnect(None)".to_owned()),
            ("wait_close app", r#"WaitClose(Some("app"))"#.to_owned()),
            ("disable app", r#"Disable(Some("app"))"#.to_owned()),
            ("enable", "Enable(None)".to_owned()),
            ("upgrade;", "Upgrade".to_owned()),
            ("shutdown", "Shutdown(Now)".to_owned()),
            (
                "SHUTDOWN wait_for_servers",
                "Shutdown(WaitForServers)".to_owned(),
            ),
            (
                "SHUTDOWN WAIT_FOR_CLIENTS;",
                "Shutdown(WaitForClients)".to_owned(),
            ),
            ("shutdown drain", "Shutdown(Drain(None))".to_owned()),
            (
                "SHUTDOWN DRAIN 15;",
                "Shutdown(Drain(Some(15s)))".to_owned(),
            ),
            ("-- ping", "Nothing".to_owned()),
        ];
        for (text, wanted) in table {
            assert_eq!(read(text), wanted, "{text:?}");
        }
        assert_eq!(
            read(&format!("PAUSE {}", long(63))),
            format!("Pause(Some({:?}))", long(63))
        );
        assert_eq!(read(&format!("PAUSE {}", long(64))), "bad arguments");
        assert_eq!(read(&format!("PAUSE \"{}\"", long(62))), "bad arguments");
        assert_eq!(read(&long(16)), "bad arguments");
        assert_eq!(read(&format!("SET a = '{}'", long(254))), "bad arguments");
        assert!(read(&format!("SET a = '{}'", long(253))).starts_with("Set {"));
    }

    #[test]
    fn everything_else_is_an_invalid_command_and_is_repeated() {
        let texts = [
            "",
            ";",
            "SHOW",
            "SHOW nothing",
            "SHOW application_name",
            "SHOW POOLS; SHOW STATS",
            "SHOW POOLS;;",
            "SHOW POOLS extra",
            "SHOW\"pools\"",
            "SHOW \"pools",
            "SHOW 'pools'",
            "SET a = 1.5",
            "SET a",
            "SET a = ",
            "SETa = b",
            "set scram-sha-256",
            "RELOAD now",
            "UPGRADE now",
            "SHUTDOWN NOW",
            "SHUTDOWN DRAIN soon",
            "SHUTDOWN DRAIN -1",
            "SHUTDOWN DRAIN 1 2",
            "SHUTDOWN WAIT_FOR_CLIENTS 5",
            "BEGIN",
            "größe",
            "-- ping\nSHOW POOLS",
            "/* app */ SHOW POOLS",
        ];
        for text in texts {
            assert_eq!(
                read(text),
                format!("invalid command '{text}', use SHOW HELP;")
            );
        }
    }
}
