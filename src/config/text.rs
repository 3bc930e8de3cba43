//! Configurations from texts in memory: what a check of a text needs that must not touch the file system, above
//! all the tests with random input.
//!
//! The readers are those that files go through; only where included files come from is up to the caller. What
//! settings point to (`auth_file`, `auth_hba_file`) is not read.

use std::path::{Path, PathBuf};

use crate::config::databases::{self, Database};
use crate::config::error::{Error, Problem};
use crate::config::fields::Files;
use crate::config::hba::Rules;
use crate::config::users::{self, SecretText, UserSettings};
use crate::config::{Config, env, hba, ident, ini, toml};

/// Gives the text of a file that is included; `None`: there is no such file.
pub type Included<'a> = &'a dyn Fn(&str) -> Option<String>;

/// A file of PgBouncer's dialect.
pub fn ini(text: &str, included: Included<'_>) -> Result<Config, Error> {
    let mut include = |name: &str| included(name).ok_or_else(|| absent(name));
    ini::read_with(text, "ini", &mut include)?.complete(None)
}

/// A file of PgCat's layout.
pub fn toml(text: &str) -> Result<Config, Error> {
    toml::read(text, "toml")?.complete(None)
}

/// Variables of an environment.
pub fn environment(variables: impl Iterator<Item = (String, String)>) -> Result<Config, Error> {
    env::read(variables)?.complete(None)
}

/// An `auth_file`: secrets by user.
pub fn auth_file(text: &str) -> Result<users::ByUser<SecretText>, Error> {
    users::parse_auth_file(text, "auth_file", &mut Vec::new())
}

/// An HBA file with an ident file. Both may include others, by the name that stands in the line.
pub fn rules(hba: &str, ident: &str, included: Included<'_>) -> Result<Rules, Error> {
    let files = Memory {
        texts: [("hba", hba), ("ident", ident)],
        included,
    };
    let maps = ident::read(Path::new("ident"), &files, &mut Vec::new())?;
    hba::read(Path::new("hba"), &files, &maps, &mut Vec::new())
}

/// The keys and values of a line of `[databases]`, as they were written.
pub fn pairs(line: &str) -> Result<Vec<(String, String)>, Problem> {
    databases::pairs(line)
}

/// A line of `[databases]`.
pub fn database(name: &str, line: &str) -> Result<Database, Problem> {
    databases::parse(name, line)
}

/// A line of `[users]`.
pub fn user(line: &str) -> Result<UserSettings, Problem> {
    users::parse(line)
}

fn absent(name: &str) -> Problem {
    Problem::Unreadable {
        file: name.to_owned(),
        reason: std::io::ErrorKind::NotFound.into(),
    }
}

struct Memory<'a> {
    texts: [(&'static str, &'a str); 2],
    included: Included<'a>,
}

impl Files for Memory<'_> {
    fn read(&self, path: &Path) -> Result<String, Problem> {
        let own = self.texts.iter().find(|(name, _)| Path::new(name) == path);
        let text = match own {
            Some((_, text)) => Some((*text).to_owned()),
            None => path.to_str().and_then(|name| (self.included)(name)),
        };
        text.ok_or_else(|| absent(&path.display().to_string()))
    }

    /// A directory has one file, of its own name.
    fn list(&self, directory: &Path) -> Result<Vec<PathBuf>, Problem> {
        Ok(vec![directory.to_path_buf()])
    }
}
