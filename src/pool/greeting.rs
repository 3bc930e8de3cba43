//! What clients of a pool are told of their sessions when they log in. Most ask for the same, so what was made for one is
//! kept for the next.

use std::sync::{Arc, OnceLock};

use super::state::Welcome;
use crate::prepared::Context;
use crate::protocol::backend;
use crate::server::overlay::Setting;
use crate::server::session::Tracked;

/// So many are kept: applications give themselves names.
const MOST: usize = 4;

/// What a client is told, and what its session looks like.
#[derive(Debug)]
pub struct Greeting {
    asked: Tracked,
    /// The tracked parameters: as the client asked for, the rest as on a fresh server.
    pub tracked: Tracked,
    /// All `ParameterStatus` messages.
    pub messages: Vec<u8>,
    /// What the client has asked for that is tracked in vain: servers do not report it.
    pub unreported: Vec<Setting>,
    context: OnceLock<Context>,
}

impl Greeting {
    /// Under which settings the texts of such a client are read: what `make` says of its tracked parameters, which is
    /// asked once.
    pub fn context(&self, make: impl FnOnce(&Tracked) -> Context) -> Context {
        self.context.get_or_init(|| make(&self.tracked)).clone()
    }

    /// For clients that ask for these values, where a fresh server says `welcome` and has the parameters `fresh`.
    fn new(asked: &Tracked, reported: &[Setting], (welcome, fresh): (&Welcome, &Tracked)) -> Self {
        let mut tracked = asked.clone();
        tracked.fill_from(fresh);
        let mut messages = Vec::new();
        for (name, value) in welcome {
            let mut tracked = tracked.iter();
            let mut reported = reported.iter();
            if !tracked.any(|(known, _)| known.as_bytes().eq_ignore_ascii_case(name))
                && !reported.any(|(known, _)| known.eq_ignore_ascii_case(name))
            {
                backend::parameter_status(&mut messages, name, value);
            }
        }
        // The client's own values come last.
        for (name, value) in reported {
            backend::parameter_status(&mut messages, name, value);
        }
        for (name, value) in tracked.iter() {
            backend::parameter_status(&mut messages, name.as_bytes(), value);
        }
        let unreported = asked.unknown_to(fresh);
        let unreported = unreported.map(|(name, value)| (name.as_bytes().into(), value.into()));
        Self {
            unreported: unreported.collect(),
            asked: asked.clone(),
            tracked,
            messages,
            context: OnceLock::new(),
        }
    }
}

/// What a server said at login, and what came of it.
#[derive(Debug, Default)]
pub(super) struct Greetings {
    said: Option<(Arc<Welcome>, Tracked)>,
    /// The one used last comes last.
    made: Vec<Arc<Greeting>>,
}

impl Greetings {
    /// Fresh servers say this from now on.
    pub(super) fn learn(&mut self, welcome: Welcome, fresh: Tracked) {
        let is_known = |(known, _): &(Arc<Welcome>, Tracked)| **known == welcome;
        if !self.said.as_ref().is_some_and(is_known) {
            self.said = Some((Arc::new(welcome), fresh));
            self.made.clear();
        }
    }

    /// What servers say, if one has.
    pub(super) fn said(&self) -> Option<Arc<Welcome>> {
        self.said.as_ref().map(|(welcome, _)| welcome.clone())
    }

    /// The greeting of a client that asks for these values, if a server has said anything yet.
    pub(super) fn of(&mut self, asked: &Tracked) -> Option<Arc<Greeting>> {
        let fits = |made: &Arc<Greeting>| made.asked.same_as(asked);
        if let Some(at) = self.made.iter().rposition(fits) {
            if let Some(later) = self.made.get_mut(at..) {
                later.rotate_left(1);
            }
        } else {
            let (welcome, fresh) = self.said.as_ref()?;
            if self.made.len() == MOST {
                self.made.remove(0);
            }
            self.made
                .push(Arc::new(Greeting::new(asked, &[], (welcome, fresh))));
        }
        self.made.last().cloned()
    }

    /// The same, where these hold besides. Not kept.
    pub(super) fn with(&self, asked: &Tracked, reported: &[Setting]) -> Option<Arc<Greeting>> {
        let (welcome, fresh) = self.said.as_ref()?;
        let greeting = Greeting::new(asked, reported, (welcome, fresh));
        Some(Arc::new(greeting))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::session::TrackedNames;

    fn tracked(values: &[(&str, &str)]) -> Tracked {
        let mut tracked = Tracked::new(TrackedNames::new(&[]));
        for (name, value) in values {
            assert!(tracked.set(name.as_bytes(), value.as_bytes()));
        }
        tracked
    }

    fn greetings(version: &str) -> Greetings {
        let mut greetings = Greetings::default();
        learn(&mut greetings, version);
        greetings
    }

    fn learn(greetings: &mut Greetings, version: &str) {
        let said = [("server_version", version), ("TimeZone", "UTC")];
        let said = said.map(|(name, value)| (name.into(), value.into()));
        greetings.learn(said.to_vec(), tracked(&[("TimeZone", "UTC")]));
    }

    fn messages(pairs: &[(&str, &str)]) -> Vec<u8> {
        let mut out = Vec::new();
        for (name, value) in pairs {
            backend::parameter_status(&mut out, name.as_bytes(), value.as_bytes());
        }
        out
    }

    #[test]
    fn nobody_is_greeted_before_a_server_has_spoken() {
        assert!(Greetings::default().of(&tracked(&[])).is_none());
    }

    #[test]
    fn the_clients_own_values_come_last_and_the_rest_is_the_servers() {
        let mut greetings = greetings("18");
        let greeting = greetings
            .of(&tracked(&[("application_name", "a")]))
            .unwrap();
        let wanted = [
            ("server_version", "18"),
            ("TimeZone", "UTC"),
            ("application_name", "a"),
        ];
        assert_eq!(greeting.messages, messages(&wanted));
        let greeting = greetings.of(&tracked(&[("TimeZone", "CET")])).unwrap();
        let wanted = [("server_version", "18"), ("TimeZone", "CET")];
        assert_eq!(greeting.messages, messages(&wanted));
        assert!(greeting.tracked.same_as(&tracked(&[("TimeZone", "CET")])));
    }

    #[test]
    fn what_servers_report_is_told_as_it_is_for_this_client() {
        let greetings = greetings("18");
        let reported = [(b"SERVER_VERSION".as_slice().into(), b"x".as_slice().into())];
        let greeting = greetings.with(&tracked(&[]), &reported).unwrap();
        let wanted = [("SERVER_VERSION", "x"), ("TimeZone", "UTC")];
        assert_eq!(greeting.messages, messages(&wanted));
    }

    #[test]
    fn what_is_tracked_in_vain_is_known() {
        let mut greetings = greetings("18");
        let asked = [("TimeZone", "CET"), ("DateStyle", "ISO")];
        let greeting = greetings.of(&tracked(&asked)).unwrap();
        let unreported = [(b"DateStyle".as_slice().into(), b"ISO".as_slice().into())];
        assert_eq!(greeting.unreported, unreported);
    }

    #[test]
    fn who_asks_for_the_same_gets_the_same() {
        let mut greetings = greetings("18");
        let of = |greetings: &mut Greetings, name: &str| {
            greetings
                .of(&tracked(&[("application_name", name)]))
                .unwrap()
        };
        let first = of(&mut greetings, "a");
        for name in ["b", "c", "d"] {
            of(&mut greetings, name);
        }
        assert!(Arc::ptr_eq(&first, &of(&mut greetings, "a")));
        // The one used longest ago has to go.
        let second = of(&mut greetings, "b");
        for name in ["c", "d", "e", "f"] {
            of(&mut greetings, name);
        }
        assert!(!Arc::ptr_eq(&second, &of(&mut greetings, "b")));
    }

    #[test]
    fn a_server_that_says_something_else_is_believed() {
        let mut greetings = greetings("17");
        let asked = tracked(&[]);
        let before = greetings.of(&asked).unwrap();
        learn(&mut greetings, "17");
        assert!(Arc::ptr_eq(&before, &greetings.of(&asked).unwrap()));
        learn(&mut greetings, "18");
        let after = greetings.of(&asked).unwrap();
        assert_eq!(
            after.messages,
            messages(&[("server_version", "18"), ("TimeZone", "UTC")])
        );
    }
}
