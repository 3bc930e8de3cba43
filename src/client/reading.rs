//! Under which settings a client's texts are read.
//!
//! A statement is shared by clients whose settings are the same (`prepared::Context`). A client's name stands for its text,
//! read under the settings that the client has when it uses the name: once they have changed, the name stands for another of
//! the shared statements. So a server never has a statement in use under settings that it was not prepared under,
//! and what a name means does not depend on which servers the client has met. (PostgreSQL reads a text once, and
//! again, under the settings of then, whenever something that it depends on has changed.)
//!
//! Between a SET and the server's word on it nobody knows what the settings are. What is prepared then is shared with nobody.

use super::Error;
use super::relay::{Linked, Relay};
use crate::prepared::{Context, Registry};
use crate::server::overlay::Overlay;
use crate::server::session::Tracked;

/// The context of a client with these values for the tracked parameters, and these settings besides. Whatever else has a
/// say in what Parse makes of a text is to be written here.
pub(super) fn context(
    registry: &Registry,
    tracked: &Tracked,
    overlay: Option<&Overlay>,
) -> Context {
    let mut settings = Vec::new();
    tracked.put_context(&mut settings);
    for (name, value) in overlay.into_iter().flat_map(Overlay::iter) {
        // Neither has a NUL in it.
        settings.extend_from_slice(name);
        settings.push(0);
        settings.extend_from_slice(value);
        settings.push(0);
    }
    // What EXECUTE means; no setting has an empty name.
    for statement in overlay.into_iter().flat_map(Overlay::statements) {
        settings.push(0);
        statement.put_prepare(&mut settings);
    }
    registry.context(&settings)
}

impl Relay {
    /// The client's value for a tracked parameter is another one now.
    pub fn track(&mut self, name: &[u8], value: &[u8]) {
        self.tracked.set(name, value);
        // That one has no say, and may change often.
        if !self.context_is_open && !name.eq_ignore_ascii_case(b"application_name") {
            self.learn_context();
        }
    }

    /// The server has said so itself, and it may have been so since the oldest batch that it has not answered: what was
    /// prepared since then may have been read under other settings than it seemed.
    #[cold]
    pub(super) fn setting_changed(&mut self, linked: &mut Linked<'_>, name: &[u8], value: &[u8]) {
        let before = self.context.clone();
        self.track(name, value);
        if before != self.context {
            let batch = linked.server.pipeline.oldest_batch();
            linked.server.statements.doubt_sent_since(batch);
        }
    }

    /// What was just sent may change the settings. What they are then is known when the server owes nothing.
    #[cold]
    pub(super) fn settings_may_change(&mut self) {
        if self.translates() {
            self.context = self.registry.unknown_context();
            self.context_is_open = true;
        }
    }

    /// The settings are known.
    #[cold]
    pub(super) fn learn_context(&mut self) {
        self.context_is_open = false;
        let overlay = self.belongings.as_ref().and_then(|it| it.overlay());
        self.context = context(&self.registry, &self.tracked, overlay);
    }

    /// The client's settings are others than when it last used this name: from now on the name stands for the same text as
    /// it is read under these.
    #[cold]
    pub(super) fn read_anew(&mut self, name: &[u8]) -> Result<(), Error> {
        let budget = self.budget();
        if let Some(named) = self.statements.get(name) {
            let statement = &named.statement.0;
            let statement = self
                .registry
                .intern_under(statement, &self.context, budget)?;
            self.statements.exchange(name, statement);
        }
        Ok(())
    }

    /// Bytes that texts may take.
    pub(super) fn budget(&self) -> usize {
        let names = self.statements.names_held();
        self.settings.prepared_memory.saturating_sub(names)
    }
}
