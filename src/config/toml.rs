//! The TOML dialect: PgCat's layout and names, over the same settings as pgbouncer.ini.
//!
//! Owns the reading of values and `[general]`; `pools` reads `[pools.*]`, `peers` `[peers.*]`. Every setting of the table is
//! accepted in `[general]` under its own name; PgCat's names come first, so `server_lifetime` is in
//! milliseconds here. What PgCat has and we do not is a warning where nobody's query can notice, else refused.

use std::ops::Range;
use std::time::Duration;

use ::toml::Spanned;
use ::toml::de::{DeTable, DeValue};

use crate::config::Draft;
use crate::config::error::{Error, Place, Problem};
use crate::config::kind::{Kind, SslMode, print_seconds};
use crate::config::settings::{Setting, TABLE};
use crate::config::users::SecretText;

mod peers;
mod pools;

const SECTIONS: [&str; 4] = ["general", "pools", "peers", "plugins"];

/// Why `query_parser_enabled` and its like are refused.
const ROUTING: &str = "query routing";

/// Reads a file's text; `file` is its name for error messages.
pub(crate) fn read(text: &str, file: &str) -> Result<Draft, Error> {
    let source = Source { text, file };
    let document = DeTable::parse(text).map_err(|error| {
        let place = source.place(&error.span().unwrap_or_default(), "");
        // Only the message: the error's full text shows the line, which may hold a password.
        Problem::Syntax(error.message().to_owned()).at(place)
    })?;
    let mut draft = Draft::default();
    let root = Section {
        source,
        name: String::new(),
        table: document.get_ref(),
    };
    root.refuse_unknown(&SECTIONS)?;
    if let Some(general) = root.section("general")? {
        read_general(&general, &mut draft)?;
    }
    if let Some(plugins) = root.section("plugins")? {
        refuse_plugins(&plugins)?;
    }
    let pool_mode_is_set = root
        .section("general")?
        .is_some_and(|it| it.get("pool_mode").is_some());
    if let Some(pools) = root.section("pools")? {
        pools::read(&pools, &mut draft, pool_mode_is_set)?;
    }
    if let Some(peers) = root.section("peers")? {
        peers::read(&peers, &mut draft)?;
    }
    Ok(draft)
}

/// The text, to turn positions into lines.
#[derive(Clone, Copy)]
struct Source<'a> {
    text: &'a str,
    file: &'a str,
}

impl Source<'_> {
    fn place(&self, span: &Range<usize>, section: &str) -> Place {
        let before = self.text.get(..span.start).unwrap_or_default();
        let line = before.matches('\n').count() + 1;
        Place::line(self.file, line).in_section(section)
    }
}

type Item<'a> = &'a Spanned<DeValue<'a>>;

/// One table with its full name.
struct Section<'a> {
    source: Source<'a>,
    name: String,
    table: &'a DeTable<'a>,
}

impl<'a> Section<'a> {
    fn entries(&self) -> impl Iterator<Item = (&'a str, Item<'a>)> {
        self.table
            .iter()
            .map(|(key, value)| (key.get_ref().as_ref(), value))
    }

    fn get(&self, key: &str) -> Option<Item<'a>> {
        self.entries()
            .find(|(name, _)| *name == key)
            .map(|(_, value)| value)
    }

    fn place(&self, item: Item<'_>) -> Place {
        self.source.place(&item.span(), &self.name)
    }

    /// Where the table itself begins, as far as its first value tells.
    fn start(&self) -> Place {
        let first = self
            .table
            .values()
            .map(Spanned::span)
            .min_by_key(|span| span.start);
        match first {
            Some(span) => self.source.place(&span, &self.name),
            None => Place::line(self.source.file, 0).in_section(&self.name),
        }
    }

    /// The table of that key; an error if it is something else.
    fn section(&self, key: &str) -> Result<Option<Section<'a>>, Error> {
        self.get(key)
            .map(|item| self.subsection(key, item))
            .transpose()
    }

    fn subsection(&self, key: &str, item: Item<'a>) -> Result<Section<'a>, Error> {
        let name = if self.name.is_empty() {
            key.to_owned()
        } else {
            format!("{}.{key}", self.name)
        };
        match item.get_ref().as_table() {
            Some(table) => Ok(Section {
                source: self.source,
                name,
                table,
            }),
            None => {
                Err(Problem::invalid(key, item.get_ref().type_str(), "a table")
                    .at(self.place(item)))
            }
        }
    }

    fn refuse_unknown(&self, known: &[&str]) -> Result<(), Error> {
        for key in self.table.keys() {
            if !known.contains(&key.get_ref().as_ref()) {
                let place = self.source.place(&key.span(), &self.name);
                let known = known.iter().copied();
                let problem = if self.name.is_empty() {
                    Problem::unknown_section(key.get_ref(), known)
                } else {
                    Problem::unknown_key(key.get_ref(), known)
                };
                return Err(problem.at(place));
            }
        }
        Ok(())
    }

    /// A value as text, in the way of a setting of this kind.
    fn text(&self, key: &str, item: Item<'_>, kind: Kind) -> Result<String, Error> {
        match item.get_ref() {
            DeValue::String(text) => Ok(text.clone().into_owned()),
            // TOML's 0o777 is not C's 0777, so the number itself is passed on.
            DeValue::Integer(number) => Ok(i64::from_str_radix(number.as_str(), number.radix())
                .map_or_else(|_| number.to_string(), |number| number.to_string())),
            DeValue::Float(number) => Ok(number.as_str().to_owned()),
            DeValue::Boolean(value) if kind == Kind::Bool01 => Ok(u8::from(*value).to_string()),
            DeValue::Array(words) if kind == Kind::List => {
                let words: Option<Vec<&str>> =
                    words.iter().map(|word| word.get_ref().as_str()).collect();
                words
                    .map(|words| words.join(","))
                    .ok_or_else(|| self.invalid(key, item, "a list of strings"))
            }
            DeValue::Boolean(_) | DeValue::Datetime(_) | DeValue::Array(_) | DeValue::Table(_) => {
                Err(self.invalid(key, item, &kind.describe()))
            }
        }
    }

    fn invalid(&self, key: &str, item: Item<'_>, expected: &str) -> Error {
        let value = match item.get_ref() {
            DeValue::Boolean(value) => value.to_string(),
            other => other.type_str().to_owned(),
        };
        Problem::invalid(key, &value, expected).at(self.place(item))
    }

    fn string(&self, key: &str, item: Item<'_>) -> Result<String, Error> {
        match item.get_ref() {
            DeValue::String(text) => Ok(text.clone().into_owned()),
            _ => Err(self.invalid(key, item, "a string")),
        }
    }

    fn secret(&self, key: &str, item: Item<'_>) -> Result<SecretText, Error> {
        match item.get_ref() {
            DeValue::String(text) => Ok(SecretText::new(text.clone())),
            _ => Err(Problem::InvalidSecret {
                key: key.to_owned(),
                expected: "a string",
            }
            .at(self.place(item))),
        }
    }

    fn boolean(&self, key: &str, item: Item<'_>) -> Result<bool, Error> {
        item.get_ref()
            .as_bool()
            .ok_or_else(|| self.invalid(key, item, "true or false"))
    }

    /// PgCat's times: whole milliseconds.
    fn millis(&self, key: &str, item: Item<'_>) -> Result<Duration, Error> {
        let number = item.get_ref().as_integer();
        let number =
            number.and_then(|number| u32::from_str_radix(number.as_str(), number.radix()).ok());
        match number {
            Some(number) => Ok(Duration::from_millis(u64::from(number))),
            None => Err(self.invalid(key, item, "whole milliseconds, 0 or more")),
        }
    }

    /// What to do with a key that only PgCat has.
    fn judge(
        &self,
        key: &str,
        item: Item<'_>,
        verdict: Verdict,
        draft: &mut Draft,
    ) -> Result<(), Error> {
        let value = match item.get_ref() {
            DeValue::String(text) => text.clone().into_owned(),
            DeValue::Integer(number) => number.as_str().to_owned(),
            DeValue::Boolean(value) => value.to_string(),
            DeValue::Float(_) | DeValue::Datetime(_) | DeValue::Array(_) | DeValue::Table(_) => {
                String::new()
            }
        };
        match verdict {
            Verdict::Ignore => Ok(()),
            Verdict::Only(accepted, _) | Verdict::WarnUnless(accepted, _)
                if accepted.contains(&value.as_str()) =>
            {
                Ok(())
            }
            Verdict::Warn(why) | Verdict::WarnUnless(_, why) => {
                draft
                    .warnings
                    .push(format!("{}{key} has no effect: {why}", self.place(item)));
                Ok(())
            }
            Verdict::Only(_, feature) | Verdict::Refuse(feature) => {
                Err(Problem::not_yet(format!("{key}: {feature}")).at(self.place(item)))
            }
        }
    }
}

/// What becomes of a key that PgCat has and we do not.
#[derive(Clone, Copy)]
enum Verdict {
    /// It makes no difference with one server per pool.
    Ignore,
    /// It is accepted with a warning, for this reason.
    Warn(&'static str),
    /// It is accepted, with a warning unless it has one of these values.
    WarnUnless(&'static [&'static str], &'static str),
    /// Only these values are accepted; the others ask for this feature.
    Only(&'static [&'static str], &'static str),
    /// It asks for this feature, whatever the value.
    Refuse(&'static str),
}

/// PgCat's names in `[general]` for settings of ours in the same unit.
const RENAMED: &[(&str, &str)] = &[
    ("host", "listen_addr"),
    ("port", "listen_port"),
    ("log_client_connections", "log_connections"),
    ("log_client_disconnections", "log_disconnections"),
    ("tcp_keepalives_idle", "tcp_keepidle"),
    ("tcp_keepalives_count", "tcp_keepcnt"),
    ("tcp_keepalives_interval", "tcp_keepintvl"),
    ("prepared_statements_cache_size", "max_prepared_statements"),
    ("auth_query_user", "auth_user"),
    ("tls_certificate", "client_tls_cert_file"),
    ("tls_private_key", "client_tls_key_file"),
];

/// PgCat's names in `[general]` for times, which are in milliseconds there.
///
/// PgCat's `connect_timeout` is also how long a client waits for a server of a full pool.
const MILLISECONDS: &[(&str, &[&str])] = &[
    (
        "connect_timeout",
        &["server_connect_timeout", "query_wait_timeout"],
    ),
    ("idle_timeout", &["server_idle_timeout"]),
    ("server_lifetime", &["server_lifetime"]),
    ("healthcheck_delay", &["server_check_delay"]),
    (
        "idle_client_in_transaction_timeout",
        &["idle_transaction_timeout"],
    ),
];

/// PgCat's other names in `[general]`.
const JUDGED: &[(&str, Verdict)] = &[
    (
        "healthcheck_timeout",
        Verdict::Warn("a check has no time limit of its own"),
    ),
    (
        "shutdown_timeout",
        Verdict::Warn("SIGTERM waits until the clients have left, SIGINT until transactions end"),
    ),
    (
        "ban_time",
        Verdict::Warn("with one server per pool none is banned"),
    ),
    (
        "autoreload",
        Verdict::WarnUnless(
            &["false", "0"],
            "the file is read again on SIGHUP and RELOAD",
        ),
    ),
    ("validate_config", Verdict::Ignore),
    (
        "dns_cache_enabled",
        Verdict::WarnUnless(&["false"], "names are looked up at each connection"),
    ),
    (
        "enable_prometheus_exporter",
        Verdict::WarnUnless(&["false"], "there is no HTTP listener"),
    ),
    (
        "prometheus_exporter_port",
        Verdict::Warn("there is no HTTP listener"),
    ),
    (
        "admin_auth_type",
        Verdict::Only(&["md5"], "a way to log in for administrators alone"),
    ),
];

/// PgCat's names in `[general]` that are read one by one.
const SPECIAL: [&str; 7] = [
    "server_tls",
    "verify_server_certificate",
    "admin_username",
    "admin_password",
    "prepared_statements",
    "auth_query",
    "auth_query_password",
];

fn read_general(general: &Section<'_>, draft: &mut Draft) -> Result<(), Error> {
    let ours = TABLE.iter().map(|row| row.name);
    let known: Vec<&str> = RENAMED
        .iter()
        .map(|(name, _)| *name)
        .chain(MILLISECONDS.iter().map(|(name, _)| *name))
        .chain(JUDGED.iter().map(|(name, _)| *name))
        .chain(SPECIAL)
        .chain(ours)
        .collect();
    general.refuse_unknown(&known)?;

    for (name, setting) in RENAMED {
        if let Some(item) = general.get(name) {
            assign(general, (name, item), setting, draft)?;
        }
    }
    for (name, settings) in MILLISECONDS {
        if let Some(item) = general.get(name) {
            let time = print_seconds(general.millis(name, item)?);
            for setting in *settings {
                draft.assign(setting, &time, &general.place(item))?;
            }
        }
    }
    for (name, verdict) in JUDGED {
        if let Some(item) = general.get(name) {
            general.judge(name, item, *verdict, draft)?;
        }
    }
    read_tls(general, draft)?;
    // Our own names last, so that one that is given wins over what a PgCat name implies.
    for row in TABLE {
        let taken =
            MILLISECONDS.iter().any(|(name, _)| *name == row.name) || SPECIAL.contains(&row.name);
        if let Some(item) = general.get(row.name).filter(|_| !taken) {
            assign(general, (row.name, item), row.name, draft)?;
        }
    }
    read_special(general, draft)
}

/// Gives a setting the value that the file has under `key`.
fn assign(
    section: &Section<'_>,
    (key, item): (&str, Item<'_>),
    setting: &str,
    draft: &mut Draft,
) -> Result<(), Error> {
    let kind = Setting::find(setting).map_or(Kind::Text, |row| row.kind);
    let text = section.text(key, item, kind)?;
    let mut place = section.place(item);
    if key != setting {
        // An error names the setting; the file has this name for it.
        place = place.about(key);
    }
    draft.assign(setting, &text, &place)
}

/// PgCat offers TLS to clients as soon as it has a certificate, and takes a server without TLS as it is.
fn read_tls(general: &Section<'_>, draft: &mut Draft) -> Result<(), Error> {
    if draft.settings.client_tls_cert_file.is_some() {
        draft.settings.client_tls_sslmode = SslMode::Prefer;
    }
    let verifies = match general.get("verify_server_certificate") {
        Some(item) => general.boolean("verify_server_certificate", item)?,
        None => false,
    };
    if let Some(item) = general.get("server_tls") {
        let wanted = general.boolean("server_tls", item)?;
        draft.settings.server_tls_sslmode = match (wanted, verifies) {
            (false, _) => SslMode::Disable,
            (true, false) => SslMode::Prefer,
            (true, true) => SslMode::VerifyFull,
        };
    }
    Ok(())
}

fn read_special(general: &Section<'_>, draft: &mut Draft) -> Result<(), Error> {
    if let Some(item) = general.get("prepared_statements")
        && !general.boolean("prepared_statements", item)?
    {
        draft.settings.max_prepared_statements = 0;
    }
    if let Some(item) = general.get("auth_query") {
        draft.settings.auth_query = parameter(&general.string("auth_query", item)?);
    }
    if let Some(item) = general.get("admin_username") {
        let name = general.string("admin_username", item)?;
        if let Some(item) = general.get("admin_password") {
            keep_secret(
                &name,
                &general.secret("admin_password", item)?,
                &general.place(item),
                draft,
            )?;
        }
        draft.settings.admin_users.push(name);
    } else if let Some(item) = general.get("admin_password") {
        return Err(Problem::Missing {
            key: "admin_username",
        }
        .at(general.place(item)));
    }
    if let Some(item) = general.get("auth_query_password") {
        let Some(user) = draft.settings.auth_user.clone() else {
            return Err(Problem::Missing {
                key: "auth_query_user",
            }
            .at(general.place(item)));
        };
        keep_secret(
            &user,
            &general.secret("auth_query_password", item)?,
            &general.place(item),
            draft,
        )?;
    }
    Ok(())
}

/// PgCat puts the user's name into the text of the query; here it is a parameter, which takes no quotes.
fn parameter(query: &str) -> String {
    query.replace("'$1'", "$1")
}

/// Stores a secret that is not one pool's own. There is one per name, whoever states it.
fn keep_secret(
    user: &str,
    secret: &SecretText,
    place: &Place,
    draft: &mut Draft,
) -> Result<(), Error> {
    match draft.secrets.insert(user.to_owned(), secret.clone()) {
        Some(before) if before != *secret => Err(Problem::Conflict(format!(
            "another password is given for {user} elsewhere"
        ))
        .at(place.clone())),
        _ => Ok(()),
    }
}

/// Plugins are refused unless each of them is switched off.
fn refuse_plugins(plugins: &Section<'_>) -> Result<(), Error> {
    for (name, item) in plugins.entries() {
        let plugin = plugins.subsection(name, item)?;
        let enabled = plugin
            .get("enabled")
            .and_then(|item| item.get_ref().as_bool());
        if enabled != Some(false) {
            return Err(Problem::not_yet(format!("plugin {name}")).at(plugin.start()));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
