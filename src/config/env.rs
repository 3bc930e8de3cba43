//! Configuration from the environment, the habit of container images: one database, one user.
//!
//! Owns `DATABASE_URL` (or several in `DATABASE_URLS`) or, in its place, `DB_HOST` and its like, and every setting of
//! the table under its name in upper case. Which names there are, and what a file holds, is [`names`]' business; a
//! URL's grammar is [`url`]'s. An empty variable is an unset one. With `AUTH_TYPE=any` the URL's user is everybody.
//! Never prints a value of the URL, which holds a password.

use std::collections::HashMap;

use crate::config::Draft;
use crate::config::databases::{self, Database, Host};
use crate::config::error::{Error, Place, Problem};
use crate::config::kind::AuthType;
use crate::config::users::SecretText;

mod names;
#[cfg(test)]
mod tests;
mod url;

pub(crate) use url::decode;
pub use url::parse as parse_url;

pub(crate) use names::names_a_database;

/// Reads the variables. Those that are no names of ours are other programs' business.
pub(crate) fn read(variables: impl Iterator<Item = (String, String)>) -> Result<Draft, Error> {
    let variables = names::gather(variables)?;
    let mut draft = Draft::default();
    // Inside the machine only, unless LISTEN_ADDR opens it.
    draft.settings.listen_addr = vec!["127.0.0.1".to_owned()];
    for row in names::settings() {
        if let Some(value) = variables.get(&row.name.to_uppercase()) {
            draft.assign(row.name, value, &place())?;
        }
    }
    for (variable, target) in targets(&variables, &mut draft.warnings)? {
        let at = || place().about(variable);
        for (setting, value) in &target.tls {
            // The variable of that very name says it more clearly.
            if !variables.contains_key(&setting.to_uppercase()) {
                let assigned = draft.settings.assign(setting, value);
                assigned.map_err(|problem| problem.at(at()))?;
            }
        }
        add(&mut draft, target).map_err(|problem| problem.at(at()))?;
    }
    Ok(draft)
}

/// The databases that the variables name, each with the variable that does.
fn targets(
    variables: &HashMap<String, String>,
    warnings: &mut Vec<String>,
) -> Result<Vec<(&'static str, Target)>, Error> {
    let mut parsed = |variable: &'static str, url: &str| {
        let mut idle = Vec::new();
        let target = url::parse(url, &mut idle);
        let target = target.map_err(|problem| problem.at(place().about(variable)))?;
        warnings.extend(idle.iter().map(|key| {
            format!("environment: {variable}: {key} has no effect: it is the client's to ask for")
        }));
        Ok((variable, target))
    };
    if let Some(url) = variables.get("DATABASE_URL") {
        return Ok(vec![parsed("DATABASE_URL", url)?]);
    }
    if let Some(urls) = variables.get("DATABASE_URLS") {
        let urls = urls.split(',').map(str::trim).filter(|url| !url.is_empty());
        let found: Result<Vec<_>, Error> = urls.map(|url| parsed("DATABASE_URLS", url)).collect();
        let found = found?;
        // server_tls_* hold for all databases.
        if found.windows(2).any(|two| match two {
            [(_, one), (_, other)] => one.tls != other.tls,
            _ => false,
        }) {
            let problem = Problem::Conflict("sslmode and its like have to be equal in all".into());
            return Err(problem.at(place().about("DATABASE_URLS")));
        }
        if !found.is_empty() {
            return Ok(found);
        }
    }
    if let Some(host) = variables.get("DB_HOST") {
        return Ok(vec![("DB_HOST", from_parts(host, variables))]);
    }
    Err(Problem::Missing {
        key: "DATABASE_URL",
    }
    .at(place()))
}

/// One more database, and its user among those who may log in.
fn add(draft: &mut Draft, target: Target) -> Result<(), Problem> {
    let name = target.name.or_else(|| target.dbname.clone());
    let name = name.unwrap_or_else(|| "*".to_owned());
    let mut database = Database::new(&name, Host::socket_dir());
    for (key, value) in [
        ("host", target.host),
        ("port", target.port),
        ("application_name", target.application_name),
        ("dbname", target.dbname.filter(|dbname| *dbname != name)),
    ] {
        if let Some(value) = value {
            databases::set(&mut database, key, value).map_err(|problem| hidden(key, problem))?;
        }
    }
    databases::check_name(&name)?;
    if draft.settings.auth_type == AuthType::Any {
        // Nobody proves a name, so there is one for all: without it no client could get a server.
        let needed = || Problem::Conflict("AUTH_TYPE=any needs a user, whom everybody is".into());
        database.user = Some(target.user.clone().ok_or_else(needed)?);
        database.password = target.password.clone().map(SecretText::new);
    }
    if draft.databases.contains_key(&name) {
        return Err(Problem::Conflict("a database is there twice".into()));
    }
    draft.databases.insert(name, database);
    if let Some((user, password)) = target.user.zip(target.password) {
        let known = draft.secrets.get(&user);
        if known.is_some_and(|known| known.expose() != password) {
            return Err(Problem::Conflict("a user has two passwords".into()));
        }
        draft.secrets.insert(user, SecretText::new(password));
    }
    Ok(())
}

/// What is wrong with a value, without the value: in an address that is mistaken it may be a part of the password.
fn hidden(key: &str, problem: Problem) -> Problem {
    match key {
        "port" => {
            bad("expected a port, 1 to 65535; a / ? or # in the password is written %2F %3F %23")
        }
        "host" => bad("expected a host between commas"),
        _ => problem,
    }
}

fn place() -> Place {
    Place::line("environment", 0)
}

/// What a URL says; `None`: not in it. It holds a password, so it is not shown.
#[derive(Default)]
pub struct Target {
    /// Under which clients ask for it, if not `dbname`.
    pub name: Option<String>,
    /// The name before the `:` or the `@`.
    pub user: Option<String>,
    /// What follows that `:`.
    pub password: Option<String>,
    /// A name, an address, or the folder of a Unix socket.
    pub host: Option<String>,
    /// As it is written.
    pub port: Option<String>,
    /// What follows the `/`.
    pub dbname: Option<String>,
    /// `application_name` behind the `?`.
    pub application_name: Option<String>,
    /// Settings of TLS with the server: `server_tls_sslmode` and so on, with their values.
    pub tls: Vec<(&'static str, String)>,
}

fn from_parts(host: &str, variables: &HashMap<String, String>) -> Target {
    let get = |name: &str| variables.get(name).cloned();
    Target {
        name: get("DB_ALIAS"),
        user: get("DB_USER"),
        password: get("DB_PASSWORD"),
        host: Some(host.to_owned()),
        port: get("DB_PORT"),
        dbname: get("DB_NAME"),
        application_name: None,
        tls: Vec::new(),
    }
}

fn bad(what: &str) -> Problem {
    Problem::Syntax(what.to_owned())
}
