//! PgBouncer's ini dialect, and how its four sections become a configuration.
//!
//! Owns the syntax exactly as PgBouncer reads it: sections, `key = value` to the end of the line without
//! quoting or inline comments, whole-line comments, `%include`. Differs in one thing: the whole file is read
//! before anything is applied, so a bad line changes nothing.

use std::path::Path;

use crate::config::error::{Error, Place, Problem};
use crate::config::kind::quoted;
use crate::config::settings::{Reload, Setting, Settings, TABLE};
use crate::config::{Draft, databases, peers, read_file, users};

/// Deepest nesting of `%include`.
const MAX_INCLUDE: usize = 10;

const SECTIONS: [&str; 4] = ["pgbouncer", "databases", "users", "peers"];

/// One meaningful line.
#[derive(Debug, PartialEq, Eq)]
enum Item {
    Section { name: String },
    Value { key: String, value: String },
}

/// Reads a file's text; `file` is its name for error messages.
pub(crate) fn read(text: &str, file: &str) -> Result<Draft, Error> {
    read_with(text, file, &mut |name| read_file(Path::new(name)))
}

/// The same with the texts of included files from elsewhere.
pub(crate) fn read_with(text: &str, file: &str, include: Include<'_>) -> Result<Draft, Error> {
    let mut lines = Vec::new();
    parse(text, file, include, &mut lines)?;
    let mut loader = Loader::default();
    for (place, item) in lines {
        loader.apply(place, item)?;
    }
    if !loader.seen_main {
        return Err(Problem::NoMainSection.at(Place::line(file, 0)));
    }
    Ok(loader.draft)
}

#[derive(Default)]
struct Loader {
    draft: Draft,
    section: Option<String>,
    seen_main: bool,
}

impl Loader {
    fn apply(&mut self, place: Place, item: Item) -> Result<(), Error> {
        match item {
            Item::Section { name } => {
                if !SECTIONS.contains(&name.as_str()) {
                    return Err(Problem::unknown_section(&name, SECTIONS).at(place));
                }
                if name == "pgbouncer" {
                    self.begin_main(&place);
                }
                self.section = Some(name);
                Ok(())
            }
            Item::Value { key, value } => self.value(place, &key, &value),
        }
    }

    fn value(&mut self, place: Place, key: &str, value: &str) -> Result<(), Error> {
        let Some(section) = &self.section else {
            return Err(Problem::NoSection {
                key: key.to_owned(),
            }
            .at(place));
        };
        let place = place.in_section(section);
        match section.as_str() {
            "databases" => {
                let database =
                    databases::parse(key, value).map_err(|problem| problem.at(place.about(key)))?;
                self.draft.databases.insert(key.to_owned(), database);
                Ok(())
            }
            "users" => {
                let user = users::parse(value).map_err(|problem| problem.at(place.about(key)))?;
                self.draft.users.insert(key.to_owned(), user);
                Ok(())
            }
            "peers" => {
                let (id, peer) =
                    peers::parse(key, value).map_err(|problem| problem.at(place.about(key)))?;
                self.draft.peers.insert(id, peer);
                Ok(())
            }
            _ => self.draft.assign(key, value, &place),
        }
    }

    /// PgBouncer puts the settings that have a default back to it each time `[pgbouncer]` begins. That is a
    /// surprise to somebody who splits the section over two files, so it is said.
    fn begin_main(&mut self, place: &Place) {
        if !std::mem::replace(&mut self.seen_main, true) {
            return;
        }
        let defaults = Settings::default();
        let settings = &mut self.draft.settings;
        let lost: Vec<&'static Setting> = TABLE
            .iter()
            .filter(|row| row.default.is_some() && row.reload != Reload::Restart)
            .filter(|row| settings.get(row.name) != defaults.get(row.name))
            .collect();
        for row in &lost {
            settings.reset(row);
        }
        if !lost.is_empty() {
            let names: Vec<&str> = lost.iter().map(|row| row.name).collect();
            let names = names.join(", ");
            self.draft.warnings.push(format!(
                "{place}[pgbouncer] begins again, which undoes: {names}"
            ));
        }
    }
}

/// Where the text of an included file comes from.
pub(crate) type Include<'a> = &'a mut dyn FnMut(&str) -> Result<String, Problem>;

/// Cuts a text into its meaningful lines, those of included files in their place.
fn parse(
    text: &str,
    file: &str,
    include: Include<'_>,
    lines: &mut Vec<(Place, Item)>,
) -> Result<(), Error> {
    parse_nested(text, file, include, (lines, 0))
}

fn parse_nested(
    text: &str,
    file: &str,
    include: Include<'_>,
    (lines, depth): (&mut Vec<(Place, Item)>, usize),
) -> Result<(), Error> {
    for (line, number) in text.split('\n').zip(1..) {
        let place = || Place::line(file, number);
        let mut rest = line.trim();
        // More may follow a section header on its line.
        while !rest.is_empty() && !rest.starts_with([';', '#']) {
            if let Some(name) = included(rest).map_err(|problem| problem.at(place()))? {
                if depth == MAX_INCLUDE {
                    return Err(Problem::IncludeTooDeep { limit: MAX_INCLUDE }.at(place()));
                }
                let text = include(name).map_err(|problem| problem.at(place()))?;
                parse_nested(&text, name, include, (lines, depth + 1))?;
                break;
            }
            if let Some(after) = rest.strip_prefix('[') {
                let Some((name, after)) = after.split_once(']') else {
                    return Err(
                        Problem::Syntax("expected ] after the section".to_owned()).at(place())
                    );
                };
                lines.push((
                    place(),
                    Item::Section {
                        name: name.to_owned(),
                    },
                ));
                rest = after.trim_start();
                continue;
            }
            let (key, value) = key_value(rest).map_err(|problem| problem.at(place()))?;
            lines.push((
                place(),
                Item::Value {
                    key,
                    value: value.to_owned(),
                },
            ));
            break;
        }
    }
    Ok(())
}

/// The file of an `%include` line.
fn included(line: &str) -> Result<Option<&str>, Problem> {
    let Some(after) = line.strip_prefix("%include") else {
        return Ok(None);
    };
    let name = after.trim();
    if name.is_empty() || !after.starts_with([' ', '\t']) {
        return Err(Problem::Syntax("expected a file after %include".to_owned()));
    }
    Ok(Some(name))
}

/// `key = value`, where the key is bare or in single or double quotes; the value is the rest of the line.
///
/// The manual has double quotes and the parser single ones, so both are read.
fn key_value(line: &str) -> Result<(String, &str), Problem> {
    // Not the line itself: what was meant as a value may be a password.
    let bad = |what: &str| Problem::Syntax(what.to_owned());
    let (key, rest) = if let Some(quote @ ('\'' | '"')) = line.chars().next() {
        quoted(line, quote).ok_or_else(|| bad("unterminated quote in the key"))?
    } else {
        let is_bare = |c: char| c.is_ascii_alphanumeric() || "_.-*".contains(c);
        let end = line.find(|c| !is_bare(c)).unwrap_or(line.len());
        let (key, rest) = line.split_at(end);
        (key.to_owned(), rest)
    };
    if key.is_empty() {
        return Err(bad("expected key = value"));
    }
    match rest.trim_start_matches([' ', '\t']).strip_prefix('=') {
        Some(value) => Ok((key, value.trim_start_matches([' ', '\t']))),
        None => Err(bad("expected = after the key")),
    }
}

#[cfg(test)]
mod tests;
