//! What can be wrong with a configuration, and where.
//!
//! Owns the words an administrator reads when a file is refused: file, line, section, key, the
//! reason and, for a misspelt name, the nearest known one. It never prints a secret.

use std::fmt;

use crate::config::kind::Fault;

/// Where in the configuration something stands.
///
/// Prints as `file:line: [section] entry: `, leaving out what is not known.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Place {
    /// The file as it was named, or `environment`. Empty: not read from anywhere.
    pub file: String,
    /// Line number from 1; 0 stands for the whole file.
    pub line: usize,
    /// Section name without the brackets; empty outside every section.
    pub section: String,
    /// The database, user or variable that the line is about; empty for a plain setting.
    pub entry: String,
}

impl Place {
    /// A line of a file, outside every section.
    pub fn line(file: &str, line: usize) -> Self {
        Self {
            file: file.to_owned(),
            line,
            ..Self::default()
        }
    }

    /// The same place within the named section.
    #[must_use]
    pub fn in_section(mut self, section: &str) -> Self {
        section.clone_into(&mut self.section);
        self
    }

    /// The same place within the entry of one database, user or variable.
    #[must_use]
    pub fn about(mut self, entry: &str) -> Self {
        entry.clone_into(&mut self.entry);
        self
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.file.is_empty() {
            write!(f, "{}:", self.file)?;
            if self.line > 0 {
                write!(f, "{}:", self.line)?;
            }
            write!(f, " ")?;
        }
        if !self.section.is_empty() {
            write!(f, "[{}] ", self.section)?;
        }
        if !self.entry.is_empty() {
            write!(f, "{}: ", self.entry)?;
        }
        Ok(())
    }
}

/// Why a configuration was refused, with the place.
#[derive(Debug, thiserror::Error)]
#[error("{place}{problem}")]
pub struct Error {
    /// The file, line, section and entry.
    pub place: Box<Place>,
    /// What is wrong there.
    pub problem: Problem,
}

/// What is wrong with one line, key or value.
#[derive(Debug, thiserror::Error)]
pub enum Problem {
    /// A key that neither PgBouncer nor we know at this place.
    #[error("unknown key \"{key}\"{}", suggestion(nearest.as_deref()))]
    UnknownKey {
        /// The key as written.
        key: String,
        /// The known key that is spelt most like it.
        nearest: Option<String>,
    },
    /// A section that the dialect does not have.
    #[error("unknown section \"{section}\"{}", suggestion(nearest.as_deref()))]
    UnknownSection {
        /// The section as written.
        section: String,
        /// The known section that is spelt most like it.
        nearest: Option<String>,
    },
    /// The value is not of the key's kind.
    #[error("{key} = {value}: expected {expected}")]
    Invalid {
        /// The key.
        key: String,
        /// The value as written.
        value: String,
        /// What would be accepted.
        expected: String,
    },
    /// The value of a secret key is not of its kind; the value is not shown.
    #[error("{key}: expected {expected}")]
    InvalidSecret {
        /// The key.
        key: String,
        /// What would be accepted.
        expected: &'static str,
    },
    /// A value for something that was left out when this program was built.
    #[error("{key} = {value}: pgferry was built without {what} (cargo feature \"{feature}\")")]
    NotBuiltIn {
        /// The key.
        key: String,
        /// The value as written.
        value: String,
        /// What is not there.
        what: &'static str,
        /// What brings it in.
        feature: &'static str,
    },
    /// A whole feature that we cannot offer, in words.
    #[error("{feature}: not supported by this version of pgferry")]
    NotYet {
        /// The feature, as a noun phrase.
        feature: String,
    },
    /// A required key is absent.
    #[error("{key} is missing")]
    Missing {
        /// The key.
        key: &'static str,
    },
    /// Two entries that cannot both be true.
    #[error("{0}")]
    Conflict(String),
    /// The line cannot be read in this dialect.
    #[error("syntax error: {0}")]
    Syntax(String),
    /// A line of an HBA or ident file that cannot be used, in words.
    #[error("{0}")]
    Rule(String),
    /// `key = value` before the first `[section]`.
    #[error("value \"{key}\" before any section")]
    NoSection {
        /// The key.
        key: String,
    },
    /// A pgbouncer.ini without `[pgbouncer]`.
    #[error("main section missing: [pgbouncer]")]
    NoMainSection,
    /// `%include` nested deeper than PgBouncer allows.
    #[error("%include is nested more than {limit} deep")]
    IncludeTooDeep {
        /// The deepest nesting allowed.
        limit: usize,
    },
    /// `pgbouncer` is the console's name.
    #[error("the name \"pgbouncer\" is reserved for the console")]
    ReservedName,
    /// A name PostgreSQL would cut off.
    #[error("name of {length} bytes; at most {limit} are allowed")]
    NameTooLong {
        /// Its length.
        length: usize,
        /// The longest allowed.
        limit: usize,
    },
    /// The file cannot be read.
    #[error("cannot read {file}: {reason}")]
    Unreadable {
        /// The file as it was named.
        file: String,
        /// What the operating system said.
        reason: std::io::Error,
    },
}

impl Problem {
    /// Joins the problem with the place where it was found.
    pub fn at(self, place: Place) -> Error {
        Error {
            place: Box::new(place),
            problem: self,
        }
    }

    /// An unknown key, with the nearest of `known`.
    pub fn unknown_key<'a>(key: &str, known: impl IntoIterator<Item = &'a str>) -> Self {
        Self::UnknownKey {
            key: key.to_owned(),
            nearest: nearest(key, known),
        }
    }

    /// An unknown section, with the nearest of `known`.
    pub fn unknown_section<'a>(section: &str, known: impl IntoIterator<Item = &'a str>) -> Self {
        Self::UnknownSection {
            section: section.to_owned(),
            nearest: nearest(section, known),
        }
    }

    /// A value that is not of the key's kind.
    pub fn invalid(key: &str, value: &str, expected: impl Into<String>) -> Self {
        Self::Invalid {
            key: key.to_owned(),
            value: value.to_owned(),
            expected: expected.into(),
        }
    }

    /// A value that a type of the table refuses, for this reason.
    pub fn fault(key: &str, value: &str, fault: Fault) -> Self {
        match fault {
            Fault::Expected(expected) => Self::invalid(key, value, expected),
            Fault::NotBuiltIn(what, feature) => Self::NotBuiltIn {
                key: key.to_owned(),
                value: value.to_owned(),
                what,
                feature,
            },
            Fault::Hidden(why) => Self::Rule(format!("{key}: {why}")),
        }
    }

    /// A feature that we do not have.
    pub fn not_yet(feature: impl Into<String>) -> Self {
        Self::NotYet {
            feature: feature.into(),
        }
    }
}

fn suggestion(nearest: Option<&str>) -> String {
    nearest.map_or_else(String::new, |name| format!("; did you mean \"{name}\"?"))
}

/// The known name with the smallest edit distance, unless it is a different word altogether.
fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<String> {
    // A key from a hostile or mistaken file may be megabytes long; no known one is.
    if name.len() > 64 {
        return None;
    }
    let limit = (name.chars().count() / 3).max(1) + 1;
    known
        .into_iter()
        .map(|candidate| (edit_distance(name, candidate), candidate))
        .filter(|(distance, _)| *distance <= limit)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate.to_owned())
}

/// Levenshtein distance, case ignored.
fn edit_distance(left: &str, right: &str) -> usize {
    let right: Vec<char> = right.to_lowercase().chars().collect();
    let mut row: Vec<usize> = (0..=right.len()).collect();
    for (i, a) in left.to_lowercase().chars().enumerate() {
        let mut next = Vec::with_capacity(row.len());
        next.push(i + 1);
        let mut before = i + 1;
        for ((b, diagonal), above) in right.iter().zip(&row).zip(row.iter().skip(1)) {
            let here = (diagonal + usize::from(a != *b))
                .min(above + 1)
                .min(before + 1);
            next.push(here);
            before = here;
        }
        row = next;
    }
    row.last().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_distance_counts_single_letter_edits() {
        assert_eq!(edit_distance("", "abc"), 3);
        assert_eq!(edit_distance("kitten", "sitting"), 3);
        assert_eq!(edit_distance("Port", "port"), 0);
    }

    #[test]
    fn a_misspelt_key_names_the_nearest_and_a_strange_one_names_none() {
        let known = ["pool_mode", "pool_size", "port"];
        assert_eq!(nearest("pool_mod", known).as_deref(), Some("pool_mode"));
        assert_eq!(nearest("prot", known).as_deref(), Some("port"));
        assert_eq!(nearest("colour_of_the_sky", known), None);
    }

    #[test]
    fn a_place_prints_only_what_it_knows() {
        let place = Place::line("a.ini", 3).in_section("databases").about("app");
        assert_eq!(place.to_string(), "a.ini:3: [databases] app: ");
        assert_eq!(Place::line("a.ini", 0).to_string(), "a.ini: ");
        assert_eq!(Place::default().to_string(), "");
    }
}
