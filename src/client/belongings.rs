//! What a client has made of its session, as far as it is to last beyond a transaction: settings that go along to whichever
//! server it gets, and state that can't leave the server it is on.
//!
//! Texts only say that there may be something ([`touches`]); what there is, a look at the server says.

use std::sync::Arc;

use super::asked::{GoesBack, may_reset};
use super::relay::Relay;
use crate::pool::LoginSettings;
use crate::protocol::frame::Frame;
use crate::protocol::frontend::{self, BindHead};
use crate::server::State;
use crate::server::look::Seen;
use crate::server::overlay::Overlay;
use crate::sql::lexer::{Lexer, begins_with};
use crate::sql::touches::{Found, Setting, Touches, executed, has_name, touches};
use crate::stats::registry::PinGuard;

pub mod carried;

/// So many custom settings are followed; with more of them the client keeps its server.
const MAX_NAMES: usize = 64;

/// So much of the text that has made the client keep its server is shown.
const SHOWN: usize = 200;

/// What a text may do that can't be seen; a look finds all of it.
const ANYTHING: Touches = Touches::SETTINGS
    .union(Touches::TEMPORARY)
    .union(Touches::LOCKS)
    .union(Touches::CURSORS)
    .union(Touches::STATEMENTS)
    .union(Touches::CHANNELS);

/// What no look finds.
const UNSEEN: [Touches; 2] = [Touches::LIBRARY, Touches::UNKNOWN_NAME];

/// What one client has made of its session. Most have nothing of the kind.
#[derive(Debug, Default)]
#[allow(
    clippy::struct_excessive_bools,
    reason = "independent conditions, each with its own life"
)]
pub struct Belongings {
    /// Its settings; `None`: as a session begins.
    overlay: Option<Overlay>,
    /// What may have changed since the last look.
    touched: Touches,
    /// Custom settings it has named, which PostgreSQL does not list.
    names: Vec<Box<[u8]>>,
    /// What keeps it on its server, by the last look, and what no look can find.
    holds: Touches,
    unseen: Touches,
    /// It has drawn from sequences and may ask what they gave; and whether a DISCARD in one text with that does not end it.
    draws: bool,
    draws_on: bool,
    /// It may have statements of SQL's PREPARE.
    prepares: bool,
    /// What it has asked for at its login; `None`: nothing of the kind.
    login: Option<Arc<LoginSettings>>,
    /// A text since the last look may reset custom settings of these.
    resets: bool,
    /// The text that touched the session last, as far as it is shown.
    text: Box<[u8]>,
    /// Its place in the list of those who keep their servers.
    pub pin: Option<PinGuard>,
}

impl Belongings {
    /// Of a client that has asked for this at its login.
    pub fn at_login(accepted: Arc<LoginSettings>) -> Self {
        Self {
            overlay: Some(accepted.all.clone()),
            names: accepted.customs.clone(),
            login: Some(accepted),
            ..Self::default()
        }
    }

    /// What it has asked for at its login.
    pub fn login(&self) -> Option<&Arc<LoginSettings>> {
        self.login.as_ref()
    }

    /// What it goes back to when it resets something; `None`: to what the server has.
    pub fn goes_back(&self) -> Option<GoesBack> {
        Some(GoesBack {
            login: self.login.clone()?,
            before: self.overlay.clone().unwrap_or_default(),
            resets: self.resets,
        })
    }

    /// Must the server be looked at before anybody else gets it?
    #[inline]
    pub fn must_look(&self) -> bool {
        !self.touched.is_empty()
    }

    /// Why the client keeps its server; nothing if it need not.
    pub fn holds(&self) -> Touches {
        let drawn = if self.draws {
            Touches::SEQUENCES
        } else {
            Touches::NONE
        };
        self.holds.union(self.unseen).union(drawn)
    }

    /// A text is being run that draws from sequences, and the client may ask later for what they gave.
    pub fn draw(&mut self, text: &[u8]) {
        self.draws = true;
        self.draws_on = has_name(text, &|name| name == b"discard");
        self.show(text);
    }

    /// The client said DISCARD SEQUENCES, or more.
    pub fn discarded_sequences(&mut self) {
        self.draws &= self.draws_on;
    }

    /// What sequences gave is given up. False: that is not all that keeps the client on its server.
    pub fn give_up_sequences(&mut self) -> bool {
        self.draws = false;
        self.holds().is_empty()
    }

    /// Is anything left on the server that another client must not find?
    pub fn leaves_something(&self) -> bool {
        self.must_look() || !self.holds().is_empty()
    }

    /// Its settings besides the tracked parameters, by the last look; `None`: as a session begins.
    pub fn overlay(&self) -> Option<&Overlay> {
        self.overlay.as_ref()
    }

    /// The custom settings a look has to ask for.
    pub fn names(&self) -> &[Box<[u8]>] {
        &self.names
    }

    /// The text that touched the session last.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.text).into_owned()
    }

    /// A look has found this.
    pub fn saw(&mut self, seen: &Seen) {
        self.touched = Touches::NONE;
        self.resets = false;
        self.holds = seen.holds;
        self.prepares =
            seen.holds.contains(Touches::STATEMENTS) || !seen.overlay.statements().is_empty();
        self.overlay = Some(seen.overlay.clone());
    }

    /// A look was refused: for all we know anything may be set.
    pub fn saw_nothing(&mut self) {
        self.touched = Touches::NONE;
        self.holds = Touches::SETTINGS;
    }

    /// The client said DISCARD ALL.
    pub fn discarded(&mut self) {
        if !self.unseen.contains(Touches::LIBRARY) {
            self.unseen = Touches::NONE;
        }
    }

    /// Is it as if there were nothing?
    pub fn is_gone(&self, base: &Overlay) -> bool {
        let overlay = self.overlay.as_ref().unwrap_or(base);
        self.login.is_none() && !self.leaves_something() && overlay.same_as(base)
    }

    /// Does a text only run a statement of SQL's PREPARE that is surely still what the last look found, and that leaves nothing
    /// behind by what `leaves_nothing` says of it and of the values it is given?
    fn runs_quietly(&self, sql: &[u8], leaves_nothing: impl Fn(&[u8]) -> bool) -> bool {
        if self.touched.contains(Touches::STATEMENTS) || self.holds.contains(Touches::SETTINGS) {
            return false;
        }
        let statements = self.overlay.iter().flat_map(Overlay::statements);
        executed(sql).is_some_and(|executed| {
            let run = statements.into_iter().find(|it| executed.is(&it.name));
            run.is_some_and(|it| leaves_nothing(&it.body) && leaves_nothing(executed.values()))
        })
    }

    fn note(&mut self, touches: Touches, text: &[u8]) {
        self.touched = self.touched.union(touches.also_in(ANYTHING));
        for unseen in UNSEEN.into_iter().filter(|it| touches.contains(*it)) {
            self.unseen = self.unseen.union(unseen);
            self.touched = self.touched.union(Touches::SETTINGS);
        }
        let has_customs = |login: &Arc<LoginSettings>| !login.customs.is_empty();
        self.resets |= self.login.as_ref().is_some_and(has_customs) && may_reset(text);
        self.prepares |= touches.contains(Touches::STATEMENTS) && may_prepare(text);
        self.show(text);
    }

    fn show(&mut self, text: &[u8]) {
        self.text = text.get(..SHOWN).unwrap_or(text).into();
    }

    fn name(&mut self, name: &[u8]) {
        // Those without a point are listed.
        if !name.contains(&b'.') || self.names.iter().any(|known| **known == *name) {
            return;
        }
        if self.names.len() < MAX_NAMES {
            self.names.push(name.into());
        } else {
            self.unseen = self.unseen.union(Touches::UNKNOWN_NAME);
        }
    }
}

/// May a text that touches prepared statements make one? Most drop them.
fn may_prepare(text: &[u8]) -> bool {
    let (mut drops, mut before) = (false, false);
    for token in Lexer::new(text).significant() {
        let is = |word: &[u8]| token.of(text).eq_ignore_ascii_case(word);
        if is(b"prepare") && !before {
            return true;
        }
        before = is(b"deallocate");
        drops |= before || is(b"discard");
    }
    !drops
}

/// Is it a BEGIN, COMMIT or ROLLBACK, by its first letters?
fn ends_or_begins(sql: &[u8]) -> bool {
    [&b"begin"[..], b"commit", b"rollback"]
        .into_iter()
        .any(|word| begins_with(sql, word))
}

impl Relay {
    /// May it have statements that SQL's PREPARE has made, whose names are the server's?
    pub fn prepares_by_sql(&self) -> bool {
        self.belongings.as_ref().is_some_and(|it| it.prepares)
    }

    /// What a text that is about to be sent, or prepared, may do to the session; and whether it may do anything to
    /// prepared statements, which is part of that.
    #[inline]
    pub fn touches(&self, sql: &[u8]) -> (Option<Box<Found>>, bool) {
        if self.settings.follows_sessions() {
            let found = touches(sql, &|name| self.settings.functions.is_stateful(name));
            let may_drop = found.is_some();
            (found.or_else(|| self.touches_behind(sql)), may_drop)
        } else if self.channels.is_some() {
            // From before that was switched off: it is to end as it began.
            let mut found = touches(sql, &|_| false);
            found.take_if(|it| !it.touches.contains(Touches::CHANNELS));
            (found, true)
        } else {
            (None, true)
        }
    }

    /// Is nothing to be looked for behind a text for which [`touches`](Self::touches) has something? EXECUTE may do anything, unless
    /// it is known what it runs.
    #[cold]
    pub fn runs_quietly(&self, sql: &[u8]) -> bool {
        let leaves_nothing = |text: &[u8]| self.touches(text).0.is_none();
        let belongings = self.belongings.as_ref();
        belongings.is_some_and(|it| it.runs_quietly(sql, leaves_nothing))
    }

    /// What a text may do by what it does not show.
    #[inline]
    fn touches_behind(&self, sql: &[u8]) -> Option<Box<Found>> {
        let reads = matches!(sql, [b's' | b'S', b'e' | b'E', b'l' | b'L', ..]);
        if !self.settings.functions.are_behind(!reads) || ends_or_begins(sql) {
            return None;
        }
        Some(Box::new(Found {
            touches: Touches::BODY,
            settings: Vec::new(),
        }))
    }

    /// A text is being run that may do this to the session.
    pub fn touch(&mut self, found: &Found, text: &[u8]) {
        self.note_touches(found, text, |_| None);
    }

    /// The same, of a statement that is being bound.
    pub fn touch_bound(
        &mut self,
        found: &Found,
        text: &[u8],
        (frame, head): (&Frame<'_>, &BindHead<'_>),
    ) {
        let values = frame.body().get(head.len..).unwrap_or_default();
        self.note_touches(found, text, |number| {
            let value = frame
                .is_complete()
                .then(|| frontend::bound_value(values, number));
            value.flatten().map(<[u8]>::to_ascii_lowercase)
        });
    }

    /// Something is being run that can't be looked into.
    pub fn touch_anything(&mut self, text: &[u8]) {
        if self.settings.follows_sessions() {
            let found = Found {
                touches: ANYTHING.union(Touches::BODY),
                settings: Vec::new(),
            };
            self.note_touches(&found, text, |_| None);
        }
    }

    #[cold]
    fn note_touches(
        &mut self,
        found: &Found,
        text: &[u8],
        parameter: impl Fn(u16) -> Option<Vec<u8>>,
    ) {
        if found.touches == Touches::SEQUENCES {
            // It reads only.
            return;
        }
        let belongings = self.belongings.get_or_insert_default();
        belongings.note(found.touches, text);
        let prepares = belongings.prepares && found.touches.contains(Touches::STATEMENTS);
        if found.touches.contains(Touches::BODY) {
            self.settings
                .functions
                .each_setting(|name| belongings.name(name));
        }
        for setting in &found.settings {
            match setting {
                Setting::Named(name) => belongings.name(name),
                Setting::Parameter(number) => match parameter(*number) {
                    Some(name) => belongings.name(&name),
                    None => belongings.unseen = belongings.unseen.union(Touches::UNKNOWN_NAME),
                },
            }
        }
        if prepares {
            // What EXECUTE means is another thing now.
            self.settings_may_change();
        }
    }

    /// Is the server's session as the client wants it, as far as settings go that PostgreSQL does not report?
    #[inline]
    pub fn fits(&self, server: &State) -> bool {
        match &self.belongings {
            None => server.overlay.same_as(&server.base),
            Some(it) => it
                .overlay()
                .unwrap_or(&server.base)
                .same_as(&server.overlay),
        }
    }

    /// The settings it wants of a server.
    pub fn wanted(&self, server: &State) -> Overlay {
        let overlay = self.belongings.as_ref().and_then(|it| it.overlay());
        overlay.unwrap_or(&server.base).clone()
    }
}
