//! What a client asks for in its start-up message.

use super::Error;
use super::error::cut;
use crate::config::Settings;
use crate::config::databases::MAX_NAME;
use crate::protocol::startup::{Replication, StartupMessage, parse_options};
use crate::server::session::{Tracked, TrackedNames};

/// Most bytes of a user name (PgBouncer's buffer).
const LONGEST_USER: usize = 127;

/// The parts of a start-up message.
#[derive(Debug)]
pub struct Wanted {
    /// Login name.
    pub user: String,
    /// Database; the user's name if none was given. As in PgBouncer, no more of it than a name can have.
    pub database: String,
    /// Values for tracked parameters.
    pub tracked: Tracked,
    /// Does it want to replicate?
    pub replication: Replication,
    /// For a replication server: what its start-up message says besides `user` and `database`.
    pub start_up: Vec<(String, String)>,
}

impl Wanted {
    /// Reads the parameters of the message: each is tracked, ignored by configuration, or refused.
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
            replication: Replication::None,
            start_up: Vec::new(),
        };
        if let Some(value) = message.get(b"replication") {
            wanted.replication =
                Replication::read(value).ok_or_else(|| Error::ReplicationValue(text(value)))?;
        }
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
                b"options" => wanted.options(value, settings)?,
                name if wanted.tracked.set(name, value) => {}
                name if is_ignored(settings, name) => {}
                name => {
                    tracing::warn!(
                        "unsupported startup parameter: {}={}",
                        text(name),
                        text(value)
                    );
                    return Err(Error::StartupParameter(text(name)));
                }
            }
        }
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

    fn options(&mut self, value: &[u8], settings: &Settings) -> Result<(), Error> {
        let tolerant = is_ignored(settings, b"options");
        let pairs = match parse_options(value) {
            Ok(pairs) => pairs,
            Err(_) if tolerant => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        for (name, value) in pairs {
            if !self.tracked.set(&name, &value) && !tolerant && !is_ignored(settings, &name) {
                return Err(Error::OptionsParameter(
                    String::from_utf8_lossy(&name).into_owned(),
                ));
            }
        }
        Ok(())
    }
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
    fn an_unknown_parameter_is_refused_unless_ignored() {
        let parameters = [("user", "joe"), ("extra_float_digits", "3")];
        let error = read(&parameters, &[]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "unsupported startup parameter: extra_float_digits"
        );
        assert!(read(&parameters, &["extra_float_digits"]).is_ok());
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
        let error = read(&[("user", "joe"), ("options", "-c geqo=off")], &[]).unwrap_err();
        assert_eq!(
            error.to_string(),
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
