//! Ident maps: which system user, or which certificate, may log in under which name.
//!
//! Owns `auth_ident_file` (PostgreSQL docs: `auth-username-maps`; PgBouncer: "Ident map file format"). Who the system
//! user is and which map holds for a login is not decided here.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use crate::config::error::{Error, Problem};
use crate::config::fields::{self, Files, Line, Name, Pattern};

/// All maps of a file by name.
pub(crate) type Maps = HashMap<String, Arc<Map>>;

/// The lines of one name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Map {
    entries: Vec<Entry>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Entry {
    system: System,
    login: Login,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum System {
    Is(String),
    Matches(Pattern),
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Login {
    All,
    Is(String),
    Matches(Pattern),
    /// With `\1`, which stands for the first part of what the system user's pattern matched.
    Made(String),
}

impl Map {
    /// May this system user log in under this name?
    pub fn admits(&self, system: &str, login: &str) -> bool {
        self.entries.iter().any(|entry| entry.admits(system, login))
    }
}

impl Entry {
    fn admits(&self, system: &str, login: &str) -> bool {
        let part = match &self.system {
            System::Is(name) => (name == system).then_some(""),
            System::Matches(pattern) => pattern.first_part(system),
        };
        let Some(part) = part else { return false };
        match &self.login {
            Login::All => true,
            Login::Is(name) => name == login,
            Login::Matches(pattern) => pattern.matches(login),
            // What comes of it is a plain name: a system user called `all` is not everybody.
            Login::Made(template) => template.replacen(r"\1", part, 1) == login,
        }
    }
}

/// Reads a file.
pub(crate) fn read(
    path: &Path,
    files: &dyn Files,
    warnings: &mut Vec<String>,
) -> Result<Maps, Error> {
    let mut maps: HashMap<String, Map> = HashMap::new();
    for line in fields::read(path, files)? {
        let place = line.place.clone();
        if let Some((name, entry)) =
            parse(&line, warnings).map_err(|problem| problem.at(place.clone()))?
        {
            maps.entry(name).or_default().entries.push(entry);
        }
    }
    let maps = maps.into_iter().map(|(name, map)| (name, Arc::new(map)));
    Ok(maps.collect())
}

/// `map system-user login-user`; `None`: skipped with a warning.
fn parse(line: &Line, warnings: &mut Vec<String>) -> Result<Option<(String, Entry)>, Problem> {
    let problem = |text: &str| Problem::Rule(text.to_owned());
    let [map, system, login] = line.fields.as_slice() else {
        return Err(problem(
            "expected the name of a map, a system user and a login user",
        ));
    };
    let ([map], [system], [login]) = (map.as_slice(), system.as_slice(), login.as_slice()) else {
        return Err(problem("expected one name in each column, not a list"));
    };
    let system = match system.pattern() {
        Some(pattern) => System::Matches(Pattern::new(pattern)?),
        None => System::Is(system.text.clone()),
    };
    if !login.quoted && login.text.starts_with('+') {
        warnings.push(format!(
            "{}line skipped: pgferry does not know who is a member of role {}",
            line.place,
            login.text.trim_start_matches('+')
        ));
        return Ok(None);
    }
    let login = login_user(login, &system)?;
    Ok(Some((map.text.clone(), Entry { system, login })))
}

fn login_user(name: &Name, system: &System) -> Result<Login, Problem> {
    if name.is("all") {
        return Ok(Login::All);
    }
    if let Some(pattern) = name.pattern() {
        return Pattern::new(pattern).map(Login::Matches);
    }
    match system {
        System::Matches(pattern) if name.text.contains(r"\1") => {
            if !pattern.captures() {
                return Err(Problem::Rule(format!(
                    "\"{}\" has \\1, and the pattern of the system user has no part in parentheses",
                    name.text
                )));
            }
            Ok(Login::Made(name.text.clone()))
        }
        System::Matches(_) | System::Is(_) => Ok(Login::Is(name.text.clone())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::fields::tests::Memory;

    fn maps(text: &str) -> Result<(Maps, Vec<String>), String> {
        let mut warnings = Vec::new();
        let maps = read(
            Path::new("ident"),
            &Memory::new(&[("ident", text)]),
            &mut warnings,
        );
        maps.map(|maps| (maps, warnings))
            .map_err(|error| error.to_string())
    }

    #[test]
    fn a_map_admits_whom_one_of_its_lines_admits() {
        let text = r#"
# map   system            login
team    alice             app
team    bob               "all"
team    root              all
team    /^(.*)@corp\.com$ \1
team    /^dba             "/^(app|other)$"
team    /^svc_(.*)_x$     role_\1
other   alice             report
"#;
        let (maps, warnings) = maps(text).unwrap();
        assert!(warnings.is_empty());
        let table = [
            ("team", "alice", "app", true),
            ("team", "alice", "report", false),
            ("other", "alice", "report", true),
            ("team", "alic", "app", false),
            ("team", "bob", "all", true),
            ("team", "bob", "app", false),
            ("team", "root", "whoever", true),
            ("team", "carol@corp.com", "carol", true),
            ("team", "carol@corp.com", "bob", false),
            ("team", "carol@corp.community", "carol", false),
            ("team", "all@corp.com", "app", false),
            ("team", "all@corp.com", "all", true),
            ("team", "dba7", "other", true),
            ("team", "dba7", "others", false),
            ("team", "svc_web_x", "role_web", true),
            ("team", "svc_web_x", "web", false),
        ];
        for (map, system, login, expected) in table {
            assert_eq!(
                maps[map].admits(system, login),
                expected,
                "{map} {system} {login}"
            );
        }
    }

    #[test]
    fn a_part_that_took_no_part_is_empty() {
        let (maps, _) = maps(r"m /^a(b)?$ x\1").unwrap();
        assert!(maps["m"].admits("a", "x") && maps["m"].admits("ab", "xb"));
    }

    #[test]
    fn members_of_a_role_are_not_known_and_the_line_is_skipped_with_a_warning() {
        let (maps, warnings) = maps("m bob +staff\nm bob app\n").unwrap();
        assert!(maps["m"].admits("bob", "app") && !maps["m"].admits("bob", "+staff"));
        assert_eq!(
            warnings,
            ["ident:1: line skipped: pgferry does not know who is a member of role staff"]
        );
    }

    #[test]
    fn a_bad_line_is_named() {
        insta::assert_snapshot!(
            ["m bob", "m bob app x", "m a,b app", r"m /^a$ \1", "m /( app", "m bob /["]
                .map(|text| maps(&format!("\n{text}\n")).unwrap_err())
                .join("\n"),
            @r#"
            ident:2: expected the name of a map, a system user and a login user
            ident:2: expected the name of a map, a system user and a login user
            ident:2: expected one name in each column, not a list
            ident:2: "\1" has \1, and the pattern of the system user has no part in parentheses
            ident:2: the pattern /( cannot be read: unclosed group
            ident:2: the pattern /[ cannot be read: unclosed character class
            "#
        );
    }
}
