//! Settings that a client has asked for in its start-up message, and that are not tracked: at its login PostgreSQL is asked
//! whether it takes them, and from then on they belong to the client's session ([`belongings`](super::belongings)).
//!
//! RESET, RESET ALL and DISCARD ALL go back to them. The server does not know them as what it began with: it goes back
//! to its own, which a look finds, and then they are set anew.

use std::sync::Arc;

use tokio::time::Instant;

use super::login::Client;
use super::parameters::is_apart;
use super::session::Session;
use super::{Error, prepare};
use crate::pool::{Declined, Greeting, LoginSettings, Pooled, auth_query};
use crate::protocol::backend;
use crate::server;
use crate::server::look::Seen;
use crate::server::overlay::{Overlay, Setting};
use crate::server::session::Tracked;
use crate::sql::lexer::Lexer;
use crate::stats::Phase;
use crate::stats::registry::ClientGuard;

/// What a client is told of its session, and the settings that hold there because it has asked for them.
type Answer = (Option<Arc<Greeting>>, Option<Arc<LoginSettings>>);

impl Client {
    /// Finds out what the client's session looks like, where that takes more than a look at what is known: no
    /// server has said yet what a fresh session is, or the client asks for settings besides the tracked ones. The limits of
    /// waiting for a server and of the login apply. What is tracked in vain becomes one of the settings.
    pub(super) async fn ask(
        &self,
        place: (&ClientGuard, Instant),
        asked: &mut Tracked,
        mut settings: Vec<Setting>,
    ) -> Result<Answer, Error> {
        let mut greeting = self.pool.greeting(asked);
        if greeting.is_none() {
            self.warm(place).await?;
            greeting = self.pool.greeting(asked);
        }
        if let Some(known) = &greeting
            && self.pool.settings().follows_sessions()
        {
            let unreported = known.unreported.iter();
            let carried: Vec<_> = unreported.filter(|(name, _)| !is_apart(name)).collect();
            if !carried.is_empty() {
                let names: Vec<&[u8]> = carried.iter().map(|(name, _)| &**name).collect();
                *asked = asked.without(&names);
                settings.extend(carried.into_iter().cloned());
                greeting = self.pool.greeting(asked);
            }
        }
        if settings.is_empty() {
            return Ok((greeting, None));
        }
        let accepted = self.accept(place, &settings).await?;
        if !accepted.reported.is_empty() {
            greeting = self.pool.greeting_with(asked, &accepted.reported);
        }
        Ok((greeting, Some(accepted)))
    }

    /// Gets the pool its first server, so that it is known what a session looks like there. Waiting for it counts as
    /// waiting for a server and as part of the login, so both limits apply.
    async fn warm(&self, (entry, deadline): (&ClientGuard, Instant)) -> Result<(), Error> {
        entry.enter(Phase::Waiting, self.context.now());
        let leasing = auth_query::lease(&self.pool, self.worker);
        let leased = self.in_time(entry, deadline, leasing).await?;
        // Its greeting was all that was wanted.
        self.pool.give_back(leased?, self.worker);
        entry.enter(Phase::Idle, self.context.now());
        Ok(())
    }

    async fn accept(
        &self,
        (entry, deadline): (&ClientGuard, Instant),
        settings: &[Setting],
    ) -> Result<Arc<LoginSettings>, Error> {
        entry.enter(Phase::Waiting, self.context.now());
        let accepting = self.pool.accept(settings, self.worker);
        let accepted = self.in_time(entry, deadline, accepting).await?;
        entry.enter(Phase::Idle, self.context.now());
        accepted.map_err(|declined| match declined {
            Declined::Refused(refusal) => Error::Setting(Box::new(refusal)),
            Declined::Wait(error) => error.into(),
            Declined::Server(error) => {
                tracing::debug!("the settings of a login can't be tried: {error}");
                Error::ServerCrashed
            }
        })
    }
}

impl Session {
    /// The end of the client: did a server refuse what was taken for accepted?
    #[cold]
    pub(super) fn forget_refused(&self, error: &Error) {
        if matches!(error, Error::InvalidParameter)
            && let Some(refused) = self.relay.belongings.as_ref().and_then(|it| it.login())
        {
            self.pool.forget_accepted(refused);
        }
    }
}

/// What a client goes back to that resets settings.
#[derive(Debug, Clone)]
pub struct GoesBack {
    /// What it has asked for at its login.
    pub login: Arc<LoginSettings>,
    /// What it had set by the look before.
    pub before: Overlay,
    /// May a text since then have reset custom settings?
    pub resets: bool,
}

impl GoesBack {
    /// Sets what was reset to what it was at the login. Comes back with what the client is to be told.
    pub async fn run(
        &self,
        pooled: &mut Pooled,
        seen: &mut Seen,
    ) -> Result<Vec<u8>, server::Error> {
        let reset = self.reset(&seen.overlay);
        let mut told = Vec::new();
        if reset.is_empty() {
            return Ok(told);
        }
        for (name, value) in &reset {
            if self.login.reported.iter().any(|(known, _)| known == name) {
                backend::parameter_status(&mut told, name, value);
            }
        }
        let wanted = Overlay::new(reset).filled_from(&seen.overlay);
        prepare::run(pooled, &wanted.difference(&seen.overlay)).await?;
        seen.overlay = wanted;
        Ok(told)
    }

    /// What was reset, of what it has asked for.
    fn reset(&self, seen: &Overlay) -> Vec<Setting> {
        let own = self.login.own.iter();
        let reset = own.filter(|(name, value)| match seen.get(name) {
            None => true,
            // A custom setting that was reset reads like one that was set to nothing. Rather too little of it than a
            // value that the client has taken away: only what has just become so by a text that resets.
            Some(b"") if self.resets && !value.is_empty() => {
                self.login.customs.iter().any(|custom| **custom == **name)
                    && self.before.get(name) != Some(b"")
            }
            Some(_) => false,
        });
        reset
            .map(|(name, value)| (name.into(), value.into()))
            .collect()
    }
}

/// May this text reset settings?
pub(super) fn may_reset(text: &[u8]) -> bool {
    let mut tokens = Lexer::new(text).significant();
    tokens.any(|token| {
        let is = |word: &[u8]| token.of(text).eq_ignore_ascii_case(word);
        is(b"reset") || is(b"discard") || is(b"default")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::overlay::settings;

    /// What is set anew of `work_mem=1` and `a.b=2` where `seen` is found.
    fn reset(seen: &[(&str, &str)], before: &[(&str, &str)], resets: bool) -> Vec<Setting> {
        let own = Overlay::new(settings(&[("work_mem", "1"), ("a.b", "2")]));
        let login = LoginSettings {
            all: own.clone(),
            own,
            customs: vec![b"a.b".as_slice().into()],
            reported: Vec::new(),
        };
        let goes_back = GoesBack {
            login: Arc::new(login),
            before: Overlay::new(settings(before)),
            resets,
        };
        goes_back.reset(&Overlay::new(settings(seen)))
    }

    #[test]
    fn what_is_not_set_any_more_was_reset() {
        let before = [("work_mem", "1"), ("a.b", "2")];
        assert_eq!(reset(&before, &before, true), []);
        assert_eq!(reset(&[("work_mem", ""), ("a.b", "3")], &before, true), []);
        assert_eq!(
            reset(&[("a.b", "2")], &before, false),
            settings(&[("work_mem", "1")])
        );
    }

    #[test]
    fn a_custom_setting_without_a_value_was_reset_if_a_text_says_so() {
        let (before, seen) = (
            [("work_mem", "1"), ("a.b", "2")],
            [("work_mem", "1"), ("a.b", "")],
        );
        assert_eq!(reset(&seen, &before, true), settings(&[("a.b", "2")]));
        assert_eq!(reset(&seen, &before, false), []);
        assert_eq!(reset(&seen, &seen, true), []);
    }

    #[test]
    fn texts_that_reset_are_known_by_their_words() {
        for text in ["RESET ALL", "select 1; discard all", "set a.b to DEFAULT"] {
            assert!(may_reset(text.as_bytes()), "{text}");
        }
        for text in ["set a.b = 'reset'", "select /* reset */ resets from t"] {
            assert!(!may_reset(text.as_bytes()), "{text}");
        }
    }
}
