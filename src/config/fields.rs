//! What HBA and ident files have in common: lines of fields, fields of names, includes, and patterns.
//!
//! Owns the syntax as PostgreSQL reads it (docs: `auth-pg-hba-conf`): blanks separate fields, commas the names of
//! a field, `"…"` takes away the special meaning of a name, `#` begins a comment, a backslash at the end of a
//! line joins the next one. `@file` stands for the names in a file; `include`, `include_if_exists` and `include_dir` for
//! lines. Names of files are relative to the file they stand in. What a field means is `hba`'s and `ident`'s.

use std::path::{Path, PathBuf};

use regex::Regex;

use crate::config::error::{Error, Place, Problem};
use crate::config::read_file;

/// Deepest nesting of includes, PostgreSQL's.
const MAX_DEPTH: usize = 10;

/// A name as it was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Name {
    /// Its text, without the quotes.
    pub text: String,
    /// It began with a quote, so it is no keyword and no `@file`.
    pub quoted: bool,
}

impl Name {
    /// Is it this keyword?
    pub fn is(&self, keyword: &str) -> bool {
        !self.quoted && self.text == keyword
    }

    /// What follows the slash that makes it a pattern. Quotes do not take that meaning away, for a pattern that has
    /// a comma in it must be quoted.
    pub fn pattern(&self) -> Option<&str> {
        self.text.strip_prefix('/')
    }
}

/// A line that has something to say.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Line {
    /// Where it begins.
    pub place: Place,
    /// Its fields; none is empty.
    pub fields: Vec<Vec<Name>>,
}

/// Where files are read from.
pub(crate) trait Files {
    /// The text of a file.
    fn read(&self, path: &Path) -> Result<String, Problem>;
    /// The `*.conf` of a directory, in the order of their names.
    fn list(&self, directory: &Path) -> Result<Vec<PathBuf>, Problem>;
}

/// The file system.
pub(crate) struct Disk;

impl Files for Disk {
    fn read(&self, path: &Path) -> Result<String, Problem> {
        read_file(path)
    }

    fn list(&self, directory: &Path) -> Result<Vec<PathBuf>, Problem> {
        let unreadable = |reason| Problem::Unreadable {
            file: directory.display().to_string(),
            reason,
        };
        let mut paths = Vec::new();
        for entry in std::fs::read_dir(directory).map_err(unreadable)? {
            let path = entry.map_err(unreadable)?.path();
            let is_hidden = path
                .file_name()
                .is_none_or(|name| name.to_string_lossy().starts_with('.'));
            if !is_hidden && path.extension().is_some_and(|it| it == "conf") && !path.is_dir() {
                paths.push(path);
            }
        }
        paths.sort();
        Ok(paths)
    }
}

/// Reads a file with all that it includes. A file that can't be read is an error at the line that names it; the
/// place of the first one's is for the caller to say.
pub(crate) fn read(path: &Path, files: &dyn Files) -> Result<Vec<Line>, Error> {
    let text = files
        .read(path)
        .map_err(|problem| problem.at(Place::default()))?;
    let mut reader = Reader {
        files,
        lines: Vec::new(),
    };
    reader.file(path, &text, 0)?;
    Ok(reader.lines)
}

struct Reader<'a> {
    files: &'a dyn Files,
    lines: Vec<Line>,
}

impl Reader<'_> {
    fn file(&mut self, path: &Path, text: &str, depth: usize) -> Result<(), Error> {
        let file = path.display().to_string();
        for (number, line) in logical_lines(text) {
            let place = Place::line(&file, number);
            let at = |problem: Problem| problem.at(place.clone());
            let mut fields = Vec::new();
            for names in split(&line).map_err(at)? {
                let names = self.expand(names, path, depth).map_err(at)?;
                if names.is_empty() {
                    return Err(at(Problem::Rule("the list of names is empty".to_owned())));
                }
                fields.push(names);
            }
            if let [directive, target] = fields.as_slice()
                && let ([directive], [target]) = (directive.as_slice(), target.as_slice())
                && is_include(directive)
            {
                let target = beside(path, &target.text);
                self.include(&directive.text, &target, &place, depth + 1)?;
            } else if !fields.is_empty() {
                self.lines.push(Line { place, fields });
            }
        }
        Ok(())
    }

    fn include(
        &mut self,
        directive: &str,
        target: &Path,
        place: &Place,
        depth: usize,
    ) -> Result<(), Error> {
        let at = |problem: Problem| problem.at(place.clone());
        check_depth(depth).map_err(at)?;
        if directive == "include_dir" {
            for path in self.files.list(target).map_err(at)? {
                let text = self.files.read(&path).map_err(at)?;
                self.file(&path, &text, depth)?;
            }
            return Ok(());
        }
        match self.files.read(target) {
            Ok(text) => self.file(target, &text, depth),
            Err(Problem::Unreadable { reason, .. })
                if directive == "include_if_exists"
                    && reason.kind() == std::io::ErrorKind::NotFound =>
            {
                Ok(())
            }
            Err(problem) => Err(at(problem)),
        }
    }

    /// Puts the names of an `@file` in its place.
    fn expand(&self, names: Vec<Name>, path: &Path, depth: usize) -> Result<Vec<Name>, Problem> {
        let mut expanded = Vec::with_capacity(names.len());
        for name in names {
            let file = name.text.strip_prefix('@').filter(|_| !name.quoted);
            let Some(file) = file.filter(|file| !file.is_empty()) else {
                expanded.push(name);
                continue;
            };
            check_depth(depth + 1)?;
            let file = beside(path, file);
            let text = self.files.read(&file)?;
            for (number, line) in logical_lines(&text) {
                let inside = split(&line).and_then(|fields| {
                    self.expand(fields.into_iter().flatten().collect(), &file, depth + 1)
                });
                // The line at fault is in that file, and the place is of the line that names it.
                expanded.extend(inside.map_err(|problem| {
                    Problem::Rule(format!("{}:{number}: {problem}", file.display()))
                })?);
            }
        }
        Ok(expanded)
    }
}

fn is_include(name: &Name) -> bool {
    ["include", "include_if_exists", "include_dir"]
        .iter()
        .any(|directive| name.is(directive))
}

fn check_depth(depth: usize) -> Result<(), Problem> {
    if depth > MAX_DEPTH {
        return Err(Problem::Rule(format!(
            "files include each other more than {MAX_DEPTH} deep"
        )));
    }
    Ok(())
}

/// A file named in another.
fn beside(path: &Path, name: &str) -> PathBuf {
    path.parent()
        .map_or_else(|| PathBuf::from(name), |directory| directory.join(name))
}

/// Lines with their numbers, those that a backslash joins as one.
fn logical_lines(text: &str) -> impl Iterator<Item = (usize, String)> {
    let mut lines = text.lines().zip(1..);
    std::iter::from_fn(move || {
        let (first, number) = lines.next()?;
        let mut line = first.to_owned();
        while line.ends_with('\\') {
            line.pop();
            match lines.next() {
                Some((next, _)) => line.push_str(next),
                None => break,
            }
        }
        Some((number, line))
    })
}

/// Cuts a line into fields, and fields into names.
fn split(line: &str) -> Result<Vec<Vec<Name>>, Problem> {
    let mut fields: Vec<Vec<Name>> = Vec::new();
    let mut rest = line;
    let mut goes_on = false;
    loop {
        rest = rest.trim_start();
        if rest.is_empty() || rest.starts_with('#') {
            break;
        }
        let Some((name, after)) = name(rest)? else {
            return Err(Problem::Rule("expected a name before the comma".to_owned()));
        };
        match fields.last_mut().filter(|_| goes_on) {
            Some(field) => field.push(name),
            None => fields.push(vec![name]),
        }
        // PgBouncer allows blanks before the comma as well.
        let comma = after.trim_start().strip_prefix(',');
        goes_on = comma.is_some();
        rest = comma.unwrap_or(after);
    }
    // A comma at the end is no mistake, for lists in files of their own have them.
    Ok(fields)
}

/// The name that `text` begins with, and what follows it; `None` if there is not a single character.
fn name(text: &str) -> Result<Option<(Name, &str)>, Problem> {
    let mut name = Name {
        text: String::new(),
        quoted: text.starts_with('"'),
    };
    let mut characters = text.char_indices().peekable();
    let mut in_quotes = false;
    let mut end = text.len();
    while let Some((at, character)) = characters.next() {
        match character {
            // Two quotes inside of quotes are one.
            '"' if in_quotes && matches!(characters.peek(), Some((_, '"'))) => {
                name.text.push('"');
                characters.next();
            }
            '"' => in_quotes = !in_quotes,
            '#' | ',' if !in_quotes => {
                end = at;
                break;
            }
            blank if !in_quotes && blank.is_whitespace() => {
                end = at;
                break;
            }
            other => name.text.push(other),
        }
    }
    if in_quotes {
        return Err(Problem::Rule("unterminated quote".to_owned()));
    }
    let rest = text.get(end..).unwrap_or_default();
    Ok((end > 0).then_some((name, rest)))
}

/// Cuts a text into words at its blanks: each as it is written, and without its quotes. Other than in a line of a file,
/// commas and `#` have no meaning.
pub(crate) fn words(text: &str) -> Result<Vec<(&str, String)>, Problem> {
    let mut words = Vec::new();
    let mut rest = text.trim();
    while !rest.is_empty() {
        let mut word = String::new();
        let mut in_quotes = false;
        let mut end = rest.len();
        let mut characters = rest.char_indices().peekable();
        while let Some((at, character)) = characters.next() {
            match character {
                '"' if in_quotes && matches!(characters.peek(), Some((_, '"'))) => {
                    word.push('"');
                    characters.next();
                }
                '"' => in_quotes = !in_quotes,
                blank if !in_quotes && blank.is_whitespace() => {
                    end = at;
                    break;
                }
                other => word.push(other),
            }
        }
        if in_quotes {
            return Err(Problem::Rule("unterminated quote".to_owned()));
        }
        let (written, behind) = rest.split_at_checked(end).unwrap_or((rest, ""));
        words.push((written, word));
        rest = behind.trim_start();
    }
    Ok(words)
}

/// A regular expression, the rest of a name that begins with `/`. It may match anywhere unless anchored.
#[derive(Debug, Clone)]
pub(crate) struct Pattern(Regex);

impl Pattern {
    /// Compiles it.
    pub fn new(text: &str) -> Result<Self, Problem> {
        Regex::new(text).map(Self).map_err(|error| {
            // The last line says what is wrong, those before it show where.
            let error = error.to_string();
            let reason = error.lines().last().unwrap_or_default();
            let reason = reason.trim().trim_start_matches("error: ");
            Problem::Rule(format!("the pattern /{text} cannot be read: {reason}"))
        })
    }

    /// Does the text match?
    pub fn matches(&self, text: &str) -> bool {
        self.0.is_match(text)
    }

    /// Has it a part in parentheses, for `\1`?
    pub fn captures(&self) -> bool {
        self.0.captures_len() > 1
    }

    /// What the first part in parentheses matched, empty if it took no part; `None`: the whole does not match.
    pub fn first_part<'a>(&self, text: &'a str) -> Option<&'a str> {
        let found = self.0.captures(text)?;
        Some(found.get(1).map_or("", |part| part.as_str()))
    }
}

impl PartialEq for Pattern {
    fn eq(&self, other: &Self) -> bool {
        self.0.as_str() == other.0.as_str()
    }
}

impl Eq for Pattern {}

#[cfg(test)]
pub(crate) mod tests;
