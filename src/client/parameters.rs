//! What a client asks for in its start-up message.
//!
//! Whether its session is followed, and so any setting can be had, is up to its pool, which is not known before the client
//! has proved who it is: so long, what PgBouncer would say is kept.

use super::Error;
use super::error::cut;
use crate::config::Settings;
use crate::config::databases::MAX_NAME;
use crate::protocol::startup::{Replication, StartupMessage, parse_options};
use crate::server::overlay::Setting;
use crate::server::session::{Tracked, TrackedNames};

/// Most bytes of a user name (PgBouncer's buffer).
const LONGEST_USER: usize = 127;

/// So many settings may be asked for besides the tracked ones.
const MOST: usize = 64;

/// Settings that are more than a value, or mean something else once a session has begun: who the session is (what RESET
/// goes back to can't be told from what is set), transactions' own, random numbers, and libraries that are loaded.
const APART: [&[u8]; 8] = [
    b"role",
    b"session_authorization",
    b"transaction_isolation",
    b"transaction_read_only",
    b"transaction_deferrable",
    b"seed",
    b"local_preload_libraries",
    b"session_preload_libraries",
];

/// Can this setting not be asked for, wherever it is asked?
pub(super) fn is_apart(name: &[u8]) -> bool {
    APART.iter().any(|known| known.eq_ignore_ascii_case(name))
}

/// What a client is told where its settings can't be had, and the log's own line.
#[derive(Debug)]
struct Unsupported {
    error: Error,
    line: Option<String>,
}

impl Unsupported {
    fn tell(self) -> Error {
        if let Some(line) = self.line {
            tracing::warn!("unsupported startup parameter: {line}");
        }
        self.error
    }
}

/// The parts of a start-up message.
#[derive(Debug)]
pub struct Wanted {
    /// Login name.
    pub user: String,
    /// Database; the user's name if none was given. As in PgBouncer, no more of it than a name can have.
    pub database: String,
    /// Values for tracked parameters.
    pub tracked: Tracked,
    /// All other settings, in the order in which they take effect, none twice.
    pub settings: Vec<Setting>,
    unsupported: Option<Unsupported>,
    /// Does it want to replicate?
    pub replication: Replication,
    /// For a replication server: what its start-up message says besides `user` and `database`.
    pub start_up: Vec<(String, String)>,
}

impl Wanted {
    /// Reads the parameters of the message: each is tracked, ignored by configuration, a setting, or refused.
    pub fn read(
        message: &StartupMessage,
        settings: &Settings,
        names: &TrackedNames,
    ) -> Result<Self, Error> {
        let text = |value: &[u8]| String::from_utf8_lossy(value).into_owned();
        let user = message
            .get(b"user")
            .map(text)
            .filter(|user| !user.is_empty())
            .ok_or(Error::NoUser)?;
        if user.len() > LONGEST_USER {
            return Err(Error::UserTooLong);
        }
        let database = message
            .get(b"database")
            .map(text)
            .filter(|name| !name.is_empty());
        let database = database.unwrap_or_else(|| user.clone());
        let mut wanted = Self {
            database: cut(&database, MAX_NAME).to_owned(),
            user,
            tracked: Tracked::new(names.clone()),
            settings: Vec::new(),
            unsupported: None,
            replication: Replication::None,
            start_up: Vec::new(),
        };
        if let Some(value) = message.get(b"replication") {
            wanted.replication =
                Replication::read(value).ok_or_else(|| Error::ReplicationValue(text(value)))?;
        }
        let mut settings_of_options = Vec::new();
        for (name, value) in &message.parameters {
            match name.as_slice() {
                b"user" | b"database" => {}
                // An option of the protocol, not a setting: answered by NegotiateProtocolVersion.
                name if name.starts_with(b"_pq_.") => {}
                b"replication" if wanted.replication == Replication::None => {}
                b"replication" => wanted.start_up.push((text(name), text(value))),
                b"options" if wanted.replication != Replication::None => {
                    wanted.start_up.push((text(name), text(value)));
                }
                b"options" => settings_of_options = wanted.options(value, settings)?,
                name if wanted.tracked.set(name, value) => {}
                name if is_ignored(settings, name) => {}
                name => wanted.ask_for(name, value, || Unsupported {
                    error: Error::StartupParameter(text(name)),
                    line: Some(format!("{}={}", text(name), text(value))),
                })?,
            }
        }
        // What the message says itself prevails.
        settings_of_options.append(&mut wanted.settings);
        wanted.settings = once_each(settings_of_options);
        if wanted.replication != Replication::None {
            let values = wanted.tracked.iter();
            let values = values.map(|(name, value)| (name.to_owned(), text(value)));
            wanted.start_up.extend(values);
        }
        Ok(wanted)
    }

    /// What the client calls itself; empty: it does not say.
    pub fn application_name(&self) -> Vec<u8> {
        let mut tracked = self.tracked.iter();
        let found = tracked.find(|(name, _)| *name == "application_name");
        found.map(|(_, value)| value.to_vec()).unwrap_or_default()
    }

    /// Says what PgBouncer says, where sessions are not followed, if there is anything in the message that would need it.
    pub fn refuse_settings(&mut self) -> Result<(), Error> {
        self.unsupported.take().map_or(Ok(()), |it| Err(it.tell()))
    }

    /// Takes note of a setting that is not tracked.
    fn ask_for(
        &mut self,
        name: &[u8],
        value: &[u8],
        unsupported: impl FnOnce() -> Unsupported,
    ) -> Result<(), Error> {
        if is_apart(name) || self.replication != Replication::None || self.settings.len() >= MOST {
            return Err(unsupported().tell());
        }
        self.unsupported.get_or_insert_with(unsupported);
        self.settings.push((name.into(), value.into()));
        Ok(())
    }

    /// What `options` asks for besides tracked parameters.
    fn options(&mut self, value: &[u8], settings: &Settings) -> Result<Vec<Setting>, Error> {
        let tolerant = is_ignored(settings, b"options");
        let pairs = match parse_options(value) {
            Ok(pairs) => pairs,
            Err(_) if tolerant => return Ok(Vec::new()),
            Err(error) => return Err(error.into()),
        };
        let direct = std::mem::take(&mut self.settings);
        for (name, value) in pairs {
            if !self.tracked.set(&name, &value) && !tolerant && !is_ignored(settings, &name) {
                self.ask_for(&name, &value, || Unsupported {
                    error: Error::OptionsParameter(String::from_utf8_lossy(&name).into_owned()),
                    line: None,
                })?;
            }
        }
        Ok(std::mem::replace(&mut self.settings, direct))
    }
}

/// The last of each name, whose case does not matter.
fn once_each(settings: Vec<Setting>) -> Vec<Setting> {
    let mut once: Vec<Setting> = Vec::with_capacity(settings.len());
    for setting in settings {
        once.retain(|(name, _)| !name.eq_ignore_ascii_case(&setting.0));
        once.push(setting);
    }
    once
}

fn is_ignored(settings: &Settings, name: &[u8]) -> bool {
    settings
        .ignore_startup_parameters
        .iter()
        .any(|ignored| ignored.as_bytes() == name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::overlay::settings;

    fn read(parameters: &[(&str, &str)], ignored: &[&str]) -> Result<Wanted, Error> {
        let parameters = parameters
            .iter()
            .map(|(name, value)| (name.as_bytes().to_vec(), value.as_bytes().to_vec()));
        let message = StartupMessage {
            major: 3,
            minor: 0,
            parameters: parameters.collect(),
        };
        let mut settings = Settings::default();
        settings.ignore_startup_parameters = ignored.iter().map(|&name| name.to_owned()).collect();
        Wanted::read(&message, &settings, &TrackedNames::new(&[]))
    }

    #[test]
    fn the_database_is_the_user_if_none_is_named() {
        assert_eq!(read(&[("user", "joe")], &[]).unwrap().database, "joe");
    }

    #[test]
    fn a_name_longer_than_any_that_is_stored_is_refused() {
        assert!(read(&[("user", &"x".repeat(127))], &[]).is_ok());
        let error = read(&[("user", &"x".repeat(128))], &[]).unwrap_err();
        assert_eq!(error.to_string(), "username too long");
    }

    #[test]
    fn another_parameter_is_a_setting_where_sessions_are_followed_unless_ignored() {
        let parameters = [("user", "joe"), ("extra_float_digits", "3")];
        let mut wanted = read(&parameters, &[]).unwrap();
        assert_eq!(wanted.settings, settings(&[("extra_float_digits", "3")]));
        assert_eq!(
            wanted.refuse_settings().unwrap_err().to_string(),
            "unsupported startup parameter: extra_float_digits"
        );
        let mut wanted = read(&parameters, &["extra_float_digits"]).unwrap();
        assert!(wanted.settings.is_empty() && wanted.refuse_settings().is_ok());
    }

    #[test]
    fn the_last_of_a_name_counts_and_the_message_before_its_options() {
        let wanted = read(
            &[
                ("user", "joe"),
                ("work_mem", "1MB"),
                ("Geqo", "on"),
                ("options", "-c WORK_MEM=2MB -c jit=off --jit=on -c a.b=1"),
                ("geqo", "off"),
            ],
            &[],
        );
        let last = [
            ("jit", "on"),
            ("a.b", "1"),
            ("work_mem", "1MB"),
            ("geqo", "off"),
        ];
        assert_eq!(wanted.unwrap().settings, settings(&last));
    }

    #[test]
    fn what_is_no_mere_value_is_refused_everywhere() {
        for name in ["role", "Session_Authorization", "transaction_read_only"] {
            let error = read(&[("user", "joe"), (name, "x")], &[]).unwrap_err();
            let words = format!("unsupported startup parameter: {name}");
            assert_eq!(error.to_string(), words);
            let options = format!("-c {name}=x");
            let error = read(&[("user", "joe"), ("options", &options)], &[]).unwrap_err();
            let words = format!("unsupported startup parameter in options: {name}");
            assert_eq!(error.to_string(), words);
            assert!(read(&[("user", "joe"), (name, "x")], &[name]).is_ok());
        }
        let replicates = [("user", "joe"), ("replication", "on"), ("geqo", "on")];
        assert!(read(&replicates, &[]).is_err());
    }

    #[test]
    fn so_many_settings_and_no_more() {
        let options: Vec<_> = (0..=MOST).map(|at| format!("-c a.b{at}=1")).collect();
        let options = options.join(" ");
        let error = read(&[("user", "joe"), ("options", &options)], &[]).unwrap_err();
        let words = "unsupported startup parameter in options: a.b64";
        assert_eq!(error.to_string(), words);
    }

    #[test]
    fn options_are_settings_too() {
        let wanted = read(
            &[
                ("user", "joe"),
                ("options", "-c timezone=UTC --datestyle=ISO"),
            ],
            &[],
        )
        .unwrap();
        assert_eq!(
            wanted.tracked.iter().collect::<Vec<_>>(),
            [("DateStyle", &b"ISO"[..]), ("TimeZone", b"UTC")]
        );
        let mut wanted = read(&[("user", "joe"), ("options", "-c geqo=off")], &[]).unwrap();
        assert_eq!(wanted.settings, settings(&[("geqo", "off")]));
        assert_eq!(
            wanted.refuse_settings().unwrap_err().to_string(),
            "unsupported startup parameter in options: geqo"
        );
    }

    #[test]
    fn a_replication_server_is_asked_for_what_its_client_asks_for() {
        let wanted = read(
            &[
                ("user", "joe"),
                ("options", "-c work_mem=1MB"),
                ("replication", "database"),
                ("application_name", "sub"),
            ],
            &[],
        )
        .unwrap();
        assert_eq!(wanted.replication, Replication::Logical);
        let pairs = [
            ("options", "-c work_mem=1MB"),
            ("replication", "database"),
            ("application_name", "sub"),
        ];
        let pairs = pairs.map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(wanted.start_up, pairs);
        let off = read(&[("user", "joe"), ("replication", "off")], &[]).unwrap();
        assert_eq!(off.replication, Replication::None);
        assert!(matches!(
            read(&[("user", "joe"), ("replication", "maybe")], &[]),
            Err(Error::ReplicationValue(_))
        ));
    }
}
