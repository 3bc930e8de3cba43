//! What a client asks for in its start-up message.

use super::Error;
use crate::config::Settings;
use crate::protocol::startup::{StartupMessage, parse_options};
use crate::server::session::{Tracked, TrackedNames};
use crate::stats::registry::Replication;

/// Most bytes of a user name (PgBouncer's buffer).
const LONGEST_USER: usize = 127;

/// The parts of a start-up message.
#[derive(Debug)]
pub struct Wanted {
    /// Login name.
    pub user: String,
    /// Database; the user's name if none was given.
    pub database: String,
    /// Values for tracked parameters.
    pub tracked: Tracked,
    /// What it replicates.
    pub replication: Replication,
    /// `options` as it came, for the server of a client that replicates.
    options: Option<String>,
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
        let mut wanted = Self {
            database: database.unwrap_or_else(|| user.clone()),
            user,
            tracked: Tracked::new(names.clone()),
            replication: replication(message.get(b"replication"))?,
            options: message.get(b"options").map(text),
        };
        for (name, value) in &message.parameters {
            match name.as_slice() {
                b"user" | b"database" => {}
                // An option of the protocol, not a setting: answered by NegotiateProtocolVersion.
                name if name.starts_with(b"_pq_.") => {}
                // Both are its server's business, which is its own.
                b"options" if wanted.replication != Replication::None => {}
                b"replication" => {}
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
        Ok(wanted)
    }

    /// What the server of a client that replicates is started with.
    pub fn startup(&self) -> Vec<(String, String)> {
        let tracked = self.tracked.iter();
        let tracked = tracked.map(|(name, value)| {
            let value = String::from_utf8_lossy(value).into_owned();
            (name.to_owned(), value)
        });
        let options = self.options.iter();
        tracked
            .chain(options.map(|options| ("options".to_owned(), options.clone())))
            .collect()
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

/// The value of `replication`: `database`, or a boolean of PostgreSQL's.
fn replication(value: Option<&[u8]>) -> Result<Replication, Error> {
    let Some(value) = value else {
        return Ok(Replication::None);
    };
    let is = |words: &[&[u8]]| words.iter().any(|word| value.eq_ignore_ascii_case(word));
    if is(&[b"database"]) {
        Ok(Replication::Logical)
    } else if is(&[b"true", b"on", b"yes", b"1", b"t", b"y"]) {
        Ok(Replication::Physical)
    } else if is(&[b"false", b"off", b"no", b"0", b"f", b"n"]) {
        Ok(Replication::None)
    } else {
        let value = String::from_utf8_lossy(value).into_owned();
        Err(Error::Replication(value))
    }
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
    fn replication_is_logical_physical_or_none_and_keeps_its_options() {
        let kind = |value| read(&[("user", "joe"), ("replication", value)], &[]).unwrap();
        assert_eq!(kind("database").replication, Replication::Logical);
        assert_eq!(kind("on").replication, Replication::Physical);
        assert_eq!(kind("off").replication, Replication::None);
        let error = read(&[("user", "joe"), ("replication", "maybe")], &[]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "invalid value for parameter \"replication\": \"maybe\""
        );
        let parameters = [
            ("user", "joe"),
            ("replication", "true"),
            ("options", "-c geqo=off"),
            ("DateStyle", "ISO"),
        ];
        let own = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        assert_eq!(
            read(&parameters, &[]).unwrap().startup(),
            [own("DateStyle", "ISO"), own("options", "-c geqo=off")]
        );
    }
}
