//! Which variables are ours, under which names.
//!
//! Owns three habits of container images: `NAME_FILE` names a file that holds the value of `NAME`, as secrets are mounted;
//! the names that other images of PgBouncer have given to the same things; and the variables that Kubernetes makes up
//! for services that happen to be called like them. What the values mean is not known here.

use std::collections::HashMap;
use std::path::Path;

use super::place;
use crate::config::error::{Error, Problem};
use crate::config::read_file;
use crate::config::settings::{Setting, TABLE};

/// Settings whose names mean something else in an environment: `USER` is there always.
const NOT_OURS: [&str; 4] = ["user", "conffile", "job_name", "service_name"];

/// What makes a configuration of an environment; so do [`HOSTS`].
const URLS: [&str; 2] = ["DATABASE_URL", "DATABASE_URLS"];

/// The hosts of [`PARTS`], ours first.
const HOSTS: [&str; 3] = PARTS[0];

/// The database in parts: our names, those of `pgbouncer/pgbouncer`, those of Bitnami's image. `DB_ALIAS` is the name for
/// clients where it is not the database's own.
const PARTS: [[&str; 3]; 6] = [
    ["DB_HOST", "DATABASES_HOST", "POSTGRESQL_HOST"],
    ["DB_PORT", "DATABASES_PORT", "POSTGRESQL_PORT"],
    ["DB_USER", "DATABASES_USER", "POSTGRESQL_USERNAME"],
    ["DB_PASSWORD", "DATABASES_PASSWORD", "POSTGRESQL_PASSWORD"],
    ["DB_NAME", "DATABASES_DBNAME", "POSTGRESQL_DATABASE"],
    ["DB_ALIAS", "DATABASES_CLIENT_DBNAME", "PGBOUNCER_DATABASE"],
];

/// Settings that Bitnami's image calls otherwise; the rest have `PGBOUNCER_` before the name.
const SETTINGS: [(&str, &str); 2] = [
    ("PGBOUNCER_PORT", "LISTEN_PORT"),
    ("PGBOUNCER_BIND_ADDRESS", "LISTEN_ADDR"),
];

/// What OpenTelemetry calls settings of ours, in all its programs (specification: "OpenTelemetry Environment Variables").
const TELEMETRY: [(&str, &str); 4] = [
    ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTLP_ENDPOINT"),
    ("OTEL_EXPORTER_OTLP_HEADERS", "OTLP_HEADERS"),
    ("OTEL_SERVICE_NAME", "OTLP_SERVICE_NAME"),
    ("OTEL_RESOURCE_ATTRIBUTES", "OTLP_RESOURCE_ATTRIBUTES"),
];

/// With one of these they are not meant for us: it is all off, or the collector speaks what we do not.
const NO_TELEMETRY: [(&str, &str); 2] = [
    ("OTEL_SDK_DISABLED", "true"),
    ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
];

/// The rows of the table that a variable may set.
pub(super) fn settings() -> impl Iterator<Item = &'static Setting> {
    TABLE.iter().filter(|row| !NOT_OURS.contains(&row.name))
}

/// Whether a variable of this name makes the environment a configuration.
pub(crate) fn names_a_database(name: &str) -> bool {
    let name = name.strip_suffix("_FILE").unwrap_or(name);
    URLS.iter().chain(&HOSTS).any(|known| *known == name)
}

/// What is set, under our names.
pub(super) fn gather(
    variables: impl Iterator<Item = (String, String)>,
) -> Result<HashMap<String, String>, Error> {
    let mut variables: HashMap<String, String> = variables
        .filter(|(name, value)| !value.is_empty() && !is_service_link(name, value))
        .collect();
    read_files(&mut variables)?;
    rename(&mut variables);
    Ok(variables)
}

/// Kubernetes tells every pod of every service: one called `db` makes `DB_PORT=tcp://10.0.0.7:5432`.
fn is_service_link(name: &str, value: &str) -> bool {
    name.ends_with("_PORT") && value.contains("://")
}

fn read_files(variables: &mut HashMap<String, String>) -> Result<(), Error> {
    let setting = |name: &str| settings().any(|row| row.name.eq_ignore_ascii_case(name));
    let is_ours = |name: &str| {
        let plain = name.strip_prefix("PGBOUNCER_").unwrap_or(name);
        URLS.contains(&name)
            || PARTS.iter().flatten().any(|part| *part == name)
            || setting(plain)
            || SETTINGS.iter().any(|(theirs, _)| *theirs == name)
    };
    let mut found = Vec::new();
    for (variable, file) in &*variables {
        // AUTH_FILE and others are settings that end so themselves.
        if let Some(name) = variable.strip_suffix("_FILE")
            && is_ours(name)
            && !setting(variable)
        {
            let at = || place().about(variable);
            if variables.contains_key(name) {
                let problem = Problem::Conflict(format!("{name} is set, too"));
                return Err(problem.at(at()));
            }
            let text = read_file(Path::new(file)).map_err(|problem| problem.at(at()))?;
            // An editor ends the line.
            let text = text.strip_suffix('\n').unwrap_or(&text);
            let text = text.strip_suffix('\r').unwrap_or(text);
            found.push((name.to_owned(), text.to_owned()));
        }
    }
    variables.extend(found.into_iter().filter(|(_, text)| !text.is_empty()));
    Ok(())
}

/// Others' names stand in where ours are not set. A database in parts is all of one image's: a host of one and a password
/// of another would send that password to a stranger.
fn rename(variables: &mut HashMap<String, String>) {
    let is_set = |variables: &HashMap<String, String>, name: &str| variables.contains_key(name);
    let [ours, ..] = HOSTS;
    if !URLS
        .iter()
        .chain([&ours])
        .any(|name| is_set(variables, name))
    {
        let one = PARTS.map(|[ours, one, _]| (ours, one));
        let other = PARTS.map(|[ours, _, other]| (ours, other));
        let image = [one, other]
            .into_iter()
            .find(|[(_, host), ..]| is_set(variables, host));
        for (ours, theirs) in image.into_iter().flatten() {
            match variables.get(theirs).cloned() {
                Some(value) => variables.insert(ours.to_owned(), value),
                None => variables.remove(ours),
            };
        }
    }
    for row in settings() {
        let name = row.name.to_uppercase();
        let own = format!("PGBOUNCER_{name}");
        let special = SETTINGS.iter().find(|(_, ours)| *ours == name);
        let theirs = special.and_then(|(theirs, _)| variables.get(*theirs));
        if let Some(value) = theirs.or_else(|| variables.get(&own)).cloned() {
            variables.entry(name).or_insert(value);
        }
    }
    let is_off = NO_TELEMETRY.iter().any(|(switch, word)| {
        let value = variables.get(*switch);
        value.is_some_and(|value| value.eq_ignore_ascii_case(word))
    });
    for (theirs, ours) in TELEMETRY.iter().filter(|_| !is_off) {
        if let Some(value) = variables.get(*theirs).cloned() {
            variables.entry((*ours).to_owned()).or_insert(value);
        }
    }
}
