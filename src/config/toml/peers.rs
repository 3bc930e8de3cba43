//! `[peers.N]`: the `[peers]` of pgbouncer.ini, a table for each. PgCat has nothing like it.

use crate::config::Draft;
use crate::config::error::Error;
use crate::config::kind::Kind;
use crate::config::peers::{self, Sketch};
use crate::config::toml::Section;

/// Reads all peers.
pub(super) fn read(peers: &Section<'_>, draft: &mut Draft) -> Result<(), Error> {
    for (id, item) in peers.entries() {
        let section = peers.subsection(id, item)?;
        let number = peers::number(id).map_err(|problem| problem.at(section.start()))?;
        section.refuse_unknown(peers::KEYS)?;
        let mut peer = Sketch::default();
        for (key, item) in section.entries() {
            let text = if key == "host" {
                section.string(key, item)?
            } else {
                section.text(key, item, Kind::Int)?
            };
            let set = peer.set(key, &text);
            set.map_err(|problem| problem.at(section.place(item)))?;
        }
        let peer = peer.finish();
        let peer = peer.map_err(|problem| problem.at(section.start()))?;
        draft.peers.insert(number, peer);
    }
    Ok(())
}
