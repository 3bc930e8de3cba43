//! What sequences gave last to a client (`currval`, `lastval`): another's answers are never seen, and its own are there where
//! they are asked for later than in the transaction that drew.
//!
//! ```text
//!   nobody of the pool has asked      nothing is looked at; a server knows whether it had one client or several
//!        │ a text asks
//!        ▼
//!   the pool is watched               DISCARD SEQUENCES goes ahead of what draws or asks where others have drawn
//!        │ the asking transaction has drawn nothing itself
//!        ▼
//!   followed                          that client, and whoever's texts begin like those that drew, keep their servers
//! ```
//!
//! There is no telling what a session has drawn but by asking, which fails where there is nothing: so it is the texts that say
//! it, to the safe side. What a pool has learned is `pool::Sequences`'.

use super::channels::By;
use super::relay::{Linked, Outgoing, Relay};
use crate::config::{FollowSequences, PinPolicy};
use crate::protocol::backend::TxStatus;
use crate::protocol::frontend::Parse;
use crate::server::Drawn;
use crate::sql::touches::{self, Draws, Found, begins_quietly};

/// So many of a client's texts that drew are remembered until it asks.
const MOST_REMEMBERED: usize = 4;

/// What concerns sequences on a client's link, and of the client.
#[derive(Debug, Default)]
pub struct Sequences {
    /// The pool was watched when the link began.
    is_watched: bool,
    /// It is, or the client has asked before: each of its texts is looked at.
    is_looked_at: bool,
    /// Something was run on this link that may have drawn.
    ran: bool,
    /// `None`: the client was never looked at.
    known: Option<Box<Known>>,
}

/// What is known of a client that is looked at.
#[derive(Debug, Default)]
struct Known {
    /// It has asked, ever.
    asks: bool,
    /// It has asked in a transaction that had not drawn: from then on whatever it draws is kept.
    asks_later: bool,
    /// Its transaction may have drawn.
    drew: bool,
    /// What its latest texts that drew begin with, since it asked last.
    drew_by: Vec<Box<[u8]>>,
}

impl Sequences {
    /// The client gets a server; who has drawn there before, is this.
    #[inline]
    pub fn link(&mut self, is_watched: bool, id: u64, drawn: &mut Drawn) {
        self.is_watched = is_watched;
        self.ran = false;
        self.is_looked_at = is_watched || self.known.as_ref().is_some_and(|known| known.asks);
        if !is_watched {
            // Whether it draws is not looked at.
            drawn.add(id);
        }
    }

    /// A text is run that begins like this.
    #[inline]
    pub fn run(&mut self, text: &[u8]) {
        self.ran = self.ran || !begins_quietly(text);
    }
}

/// What a successor of this process is to know of a client that was looked at.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Carried {
    #[prost(bool, tag = "1")]
    asks: bool,
    #[prost(bool, tag = "2")]
    asks_later: bool,
    #[prost(bool, tag = "3")]
    drew: bool,
    #[prost(bytes = "vec", repeated, tag = "4")]
    drew_by: Vec<Vec<u8>>,
}

impl Sequences {
    /// What a successor is to know; `None`: nothing.
    pub fn carry(&self) -> Option<Carried> {
        let known = self.known.as_ref()?;
        Some(Carried {
            asks: known.asks,
            asks_later: known.asks_later,
            drew: known.drew,
            drew_by: known.drew_by.iter().map(|it| it.to_vec()).collect(),
        })
    }

    /// The same of a client that comes from the process before this one. It may be on a link, and have drawn there.
    pub fn taken_over(carried: Option<Carried>) -> Self {
        let known = carried.map(|carried| {
            let drew_by = carried.drew_by.into_iter();
            Box::new(Known {
                asks: carried.asks,
                asks_later: carried.asks_later,
                drew: carried.drew,
                drew_by: drew_by.map(Vec::into_boxed_slice).collect(),
            })
        });
        Self {
            ran: true,
            known,
            ..Self::default()
        }
    }

    /// A client that comes with its server goes on with it.
    pub fn go_on(&mut self, is_watched: bool) {
        self.is_watched = is_watched;
        self.is_looked_at = is_watched || self.known.as_ref().is_some_and(|known| known.asks);
    }
}

impl Known {
    fn remember(&mut self, text: &[u8]) {
        let beginning = touches::beginning(text);
        if self.drew_by.iter().any(|known| **known == *beginning) {
            return;
        }
        if self.drew_by.len() == MOST_REMEMBERED {
            self.drew_by.remove(0);
        }
        self.drew_by.push(beginning.into());
    }
}

impl Relay {
    /// A text is about to be run: what goes ahead of it is put into `out`. True: not before the server has answered what it owes.
    #[inline]
    pub(super) fn run_with_sequences(
        &mut self,
        linked: &mut Linked<'_>,
        (sql, found): (&[u8], Option<&Found>),
        by: By,
        out: &mut Outgoing<'_>,
    ) -> bool {
        if (self.sequences.is_looked_at || found.is_some())
            && self.look_at_sequences(linked, (sql, found), by, out)
        {
            return true;
        }
        self.sequences.run(sql);
        false
    }

    /// The same, of a statement that is being bound.
    #[inline]
    pub(super) fn bind_with_sequences(
        &mut self,
        linked: &mut Linked<'_>,
        name: &[u8],
        out: &mut Outgoing<'_>,
    ) -> bool {
        self.sequences.is_looked_at && self.look_at_bound(linked, name, out)
    }

    #[cold]
    fn look_at_bound(
        &mut self,
        linked: &mut Linked<'_>,
        name: &[u8],
        out: &mut Outgoing<'_>,
    ) -> bool {
        let known = if name.is_empty() {
            let text = self.statements.unnamed().map(|(_, text)| text);
            text.map(|it| (it.found.clone(), it.definition.clone()))
        } else {
            let named = self.statements.get(name);
            named.map(|it| (it.found.clone(), it.statement.0.definition().to_vec()))
        };
        let Some((found, definition)) = known else {
            // There is no telling what it is.
            linked.server.drawn.add(self.id);
            return false;
        };
        let sql = Parse::text(&definition);
        self.look_at_sequences(linked, (sql, found.as_deref()), By::Bind, out)
    }

    /// A text is prepared that may ask: from now on it is seen when the client runs it.
    #[cold]
    pub(super) fn prepares_to_ask(&mut self, found: &Found, sql: &[u8]) {
        if self.settings.follow_sequences != FollowSequences::Off
            && self.settings.functions.ask_sequences(found, sql)
        {
            self.sequences.known.get_or_insert_default().asks = true;
            self.sequences.is_looked_at = true;
        }
    }

    #[cold]
    fn look_at_sequences(
        &mut self,
        linked: &mut Linked<'_>,
        (sql, found): (&[u8], Option<&Found>),
        by: By,
        out: &mut Outgoing<'_>,
    ) -> bool {
        let settings = self.settings.clone();
        let functions = &settings.functions;
        if settings.follow_sequences == FollowSequences::Off {
            return false;
        }
        let asks = found.is_some_and(|found| functions.ask_sequences(found, sql));
        if !asks && !self.sequences.is_looked_at {
            return false;
        }
        let known = self.sequences.known.get_or_insert_default();
        if linked.server.status == TxStatus::Idle && !linked.server.pipeline.needs_sync() {
            known.drew &= linked.server.pipeline.awaits_server();
        }
        let draws = functions.draws(sql);
        let may_ask = asks || functions.ask_sequences_unseen() && !begins_quietly(sql);
        if !may_ask && draws == Draws::Nothing {
            return false;
        }
        if self.forget_others(linked, by, out) {
            return true;
        }
        let known = self.sequences.known.get_or_insert_default();
        if asks {
            functions.sequences().read();
            self.sequences.is_looked_at = true;
            known.asks = true;
            let drew = known.drew || !self.sequences.is_watched && self.sequences.ran;
            let drew_by = std::mem::take(&mut known.drew_by);
            if !drew && draws == Draws::Nothing {
                known.asks_later = true;
                for beginning in drew_by {
                    functions.sequences().follow(&beginning);
                }
            }
        }
        if draws > Draws::Nothing {
            known.drew = true;
            linked.server.drawn.add(self.id);
        }
        if draws == Draws::Shown {
            known.remember(sql);
            let is_followed = settings.follow_sequences == FollowSequences::On
                || known.asks_later
                || functions.sequences().is_followed(touches::beginning(sql));
            if is_followed && settings.pin_policy == PinPolicy::Auto {
                self.belongings.get_or_insert_default().draw(sql);
            }
        }
        false
    }

    /// What others have drawn on this server is forgotten first. True: it has to be known what became of the last try.
    fn forget_others(&mut self, linked: &mut Linked<'_>, by: By, out: &mut Outgoing<'_>) -> bool {
        let batch = linked.server.pipeline.batch();
        let is_clean = match linked.server.drawn {
            Drawn::ByNobody => true,
            Drawn::By(id) => id == self.id,
            // What is in one batch is done together or not at all.
            Drawn::Forgetting(since) if since == batch => true,
            Drawn::Forgetting(_) | Drawn::BySeveral => false,
        };
        // Where it is not known who has drawn, what the client has drawn itself on this link must stay.
        if is_clean || !self.sequences.is_watched && self.sequences.ran {
            return false;
        }
        let is_forgetting = matches!(linked.server.drawn, Drawn::Forgetting(_));
        if (is_forgetting || by == By::Query) && linked.server.pipeline.awaits_server() {
            self.fence(linked, out);
            return true;
        }
        if linked.server.status != TxStatus::Failed {
            self.run_ahead(linked, by, b"DISCARD SEQUENCES", out);
            linked.server.drawn = Drawn::Forgetting(batch);
        }
        false
    }

    /// The server has forgotten what sequences gave: we have told it to, or the client has.
    #[cold]
    pub(super) fn sequences_discarded(&mut self, linked: &mut Linked<'_>) {
        linked.server.drawn = Drawn::By(self.id);
        let is_last = linked.server.pipeline.owes_nothing_more();
        if linked.server.pipeline.answers_client()
            && is_last
            && let Some(belongings) = &mut self.belongings
        {
            belongings.discarded_sequences();
        }
    }
}
