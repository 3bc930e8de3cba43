//! The relay against a model: what a client gets through the pooler must be, byte for byte, what it would get from a
//! PostgreSQL of its own, however the bytes are cut and whichever servers it is lent.
//!
//! Here is what `session` and `drain` do with sockets, without them.

mod backend;
mod cases;
mod found;
mod script;
mod shapes;

use std::sync::Arc;

use proptest::prelude::*;

use self::backend::Backend;
use self::cases::{case, changes, migrations, set_cases};
use self::script::Batch;
use super::alone::Alone;
use super::drain;
use super::relay::{Linked, Outgoing, Relay};
use super::statements::NamesHeld;
use crate::config::{Config, Database, Host};
use crate::net::Names;
use crate::pool::PoolSettings;
use crate::prepared::Registry;
use crate::protocol::backend::TxStatus;
use crate::protocol::frame::cut;
use crate::protocol::frontend;
use crate::server::overlay::Overlay;
use crate::server::pipeline::Pipeline;
use crate::server::session::{Tracked, TrackedNames};
use crate::server::{self, State, Unnamed};
use crate::stats::registry::{CancelKey, NewServer, Peer};
use crate::stats::{Counters, ServerEntry};

/// The one setting that there is, at its default.
fn tracked() -> Tracked {
    let mut tracked = Tracked::new(TrackedNames::new(&[]));
    tracked.set(b"DateStyle", b"0");
    tracked
}

/// A server and the bytes on their way to it.
struct Side {
    backend: Backend,
    state: State,
    entry: ServerEntry,
    /// What the pooler has sent and the backend has not read.
    wire: Vec<u8>,
    kept: Vec<u8>,
    is_lent: bool,
}

impl Side {
    fn new() -> Self {
        Self {
            backend: Backend::default(),
            state: State {
                pipeline: Pipeline::default(),
                statements: server::statements::Statements::default(),
                unnamed: Unnamed::Empty,
                batch: server::Batch::default(),
                status: TxStatus::Idle,
                tracked: tracked(),
                heard: Vec::new(),
                overlay: Overlay::default(),
                base: Overlay::default(),
                drawn: server::Drawn::ByNobody,
                doom: None,
                watched: None,
            },
            entry: ServerEntry::new(NewServer {
                replication: crate::protocol::startup::Replication::None,
                id: 0,
                user: String::new(),
                database: String::new(),
                host: String::new(),
                peer: Peer::Unix(None),
                tls: String::new(),
                local: None,
                connected: 0,
                cancel_pid: 0,
                cancel_key: CancelKey(Box::new([])),
            }),
            wire: Vec::new(),
            kept: Vec::new(),
            is_lent: false,
        }
    }

    /// A new one, when tables have changed so often.
    fn after(version: u32) -> Self {
        let mut side = Self::new();
        side.backend.version = version;
        side
    }

    /// As `Server::is_clean`.
    fn is_clean(&self) -> bool {
        self.state.pipeline.is_idle()
            && !self.state.pipeline.is_unsure()
            && self.state.status == TxStatus::Idle
            && self.state.doom.is_none()
            && self.kept.is_empty()
    }

    fn give_back(&mut self) {
        // Nothing but a Flush may be on its way.
        self.backend.read(&std::mem::take(&mut self.wire));
        assert!(self.backend.is_idle(), "released in the middle");
        // Besides what is on the list there may be stand-ins, of which a text needs two at most.
        let known = self.state.statements.len() + 2;
        assert!(self.backend.prepared() <= known, "a statement got lost");
        self.is_lent = false;
    }

    /// A query of the pooler's own before the server is used.
    fn adopt(&mut self) {
        let mut query = Vec::new();
        frontend::query(&mut query, b"select 0");
        self.state.unnamed = Unnamed::Unknown;
        self.backend.read(&query);
        self.backend.sent.clear();
    }
}

struct Client {
    relay: Relay,
    script: Vec<Batch>,
    /// Each batch, and how much of the answers must be in before it is sent.
    batches: Vec<(Vec<u8>, usize)>,
    said: usize,
    expected: Vec<u8>,
    got: Vec<u8>,
    kept: Vec<u8>,
    kept_is_due: bool,
    waiting: bool,
    link: Option<usize>,
    has_left: bool,
    /// It is not compared with a PostgreSQL of its own, but with what it was told: how often the tables had changed at the beginning and
    /// at the end of each batch.
    versions: Option<Vec<(u32, u32)>>,
}

impl Client {
    fn new(id: u64, script: &[Batch], world: (&Arc<PoolSettings>, &Registry)) -> Self {
        let mut direct = Backend::default();
        direct.reads_anew = true;
        let (mut batches, mut needed) = (Vec::new(), 0);
        for batch in script {
            let mut bytes = Vec::new();
            batch.says.iter().for_each(|say| say.encode(&mut bytes));
            direct.read(&bytes);
            if !bytes.is_empty() {
                batches.push((bytes, needed));
            }
            if batch.waits {
                needed = direct.sent.len();
            }
        }
        Self {
            relay: Relay::new(
                (
                    id,
                    tracked(),
                    super::reading::context(world.1, &tracked(), None),
                ),
                world.0.clone(),
                world.1.clone(),
                NamesHeld::default(),
            ),
            script: script.to_vec(),
            batches,
            said: 0,
            expected: direct.sent,
            got: Vec::new(),
            kept: Vec::new(),
            kept_is_due: false,
            waiting: false,
            link: None,
            has_left: false,
            versions: None,
        }
    }

    /// The next bytes that it sends, if it does not wait for an answer.
    fn say(&mut self, most: usize) -> Vec<u8> {
        let Some((bytes, needed)) = self.batches.first() else {
            return Vec::new();
        };
        let waits = match &self.versions {
            Some(versions) if self.said == 0 => shapes::readies(&self.got) < versions.len(),
            Some(_) => false,
            None => self.got.len() < *needed,
        };
        if self.has_left || waits {
            return Vec::new();
        }
        let end = bytes.len().min(self.said + most);
        let said = bytes[self.said..end].to_vec();
        self.said = end;
        if end == bytes.len() {
            self.batches.remove(0);
            self.said = 0;
        }
        said
    }

    /// Tables have changed so often.
    fn table_changed(&mut self, version: u32) {
        let answered = shapes::readies(&self.got);
        if let Some((_, last)) = self.versions.as_mut().and_then(|it| it.get_mut(answered)) {
            *last = version;
        }
    }

    fn is_done(&self) -> bool {
        let is_answered = match &self.versions {
            Some(versions) => shapes::readies(&self.got) >= versions.len(),
            None => self.got.len() >= self.expected.len(),
        };
        self.has_left || (self.batches.is_empty() && is_answered)
    }
}

/// What happens next.
#[derive(Debug, Clone, Copy)]
enum Event {
    /// The pooler reads so many bytes from the client.
    Say(usize),
    /// The client's server reads so many.
    Serve(usize),
    /// The pooler reads so many from the client's server.
    Answer(usize),
    /// The client vanishes.
    Leave,
    /// Tables change, for all servers.
    Migrate,
    /// The same, and it is seen in the columns.
    Change,
}

struct World {
    clients: Vec<Client>,
    sides: Vec<Side>,
    counters: Counters,
    /// Every so many leases the server has to be adopted.
    adopt_every: usize,
    leases: usize,
    /// How often the tables have changed.
    version: u32,
}

impl World {
    fn new(case: &Case) -> Self {
        let names = TrackedNames::new(&[]);
        let mut database = Database::new("db", Host::Tcp("localhost".to_owned()));
        database.max_prepared_statements = Some(case.limit);
        database.prepare_unnamed_after = Some(case.promotes);
        database.pool_mode = Some(crate::config::PoolMode::Transaction);
        let settings = PoolSettings::new(
            &Config::default(),
            &database,
            "user",
            (&names, &Names::default()),
        );
        assert_eq!(settings.max_prepared_statements, case.limit);
        let (settings, registry) = (Arc::new(settings), Registry::new());
        let clients = (1..)
            .zip(&case.scripts)
            .map(|(id, script)| Client::new(id, script, (&settings, &registry)));
        Self {
            clients: clients.collect(),
            sides: (0..case.servers).map(|_| Side::new()).collect(),
            counters: Counters::default(),
            adopt_every: case.adopt_every,
            leases: 0,
            version: 0,
        }
    }

    /// Does something; false if there was nothing to do.
    fn run(&mut self, at: usize, event: Event) -> bool {
        let happened = match event {
            Event::Say(most) => {
                let begins = self.clients[at].said == 0;
                let bytes = self.clients[at].say(most);
                if let Some(versions) = &mut self.clients[at].versions
                    && begins
                    && !bytes.is_empty()
                {
                    versions.push((self.version, self.version));
                }
                self.hear(at, &bytes)
            }
            Event::Serve(most) => self.clients[at].link.is_some_and(|link| {
                let side = &mut self.sides[link];
                let most = most.min(side.wire.len());
                let bytes: Vec<u8> = side.wire.drain(..most).collect();
                side.backend.read(&bytes);
                most > 0
            }),
            Event::Answer(most) => self.clients[at].link.is_some_and(|link| {
                let sent = &mut self.sides[link].backend.sent;
                let most = most.min(sent.len());
                let bytes: Vec<u8> = sent.drain(..most).collect();
                if most > 0 {
                    self.to_client(at, &bytes);
                }
                most > 0
            }),
            Event::Migrate => {
                let idle = self.sides.iter_mut().filter(|side| side.wire.is_empty());
                idle.for_each(|side| side.backend.migrate());
                true
            }
            Event::Change => {
                if self.sides.iter().all(|side| !side.backend.is_in_batch()) {
                    self.version += 1;
                    for side in &mut self.sides {
                        side.backend.change();
                    }
                    for client in &mut self.clients {
                        client.table_changed(self.version);
                    }
                }
                true
            }
            Event::Leave => {
                let stays = !self.clients[at].has_left;
                if stays {
                    self.leave(at);
                }
                stays
            }
        };
        (0..self.clients.len()).for_each(|at| self.settle(at));
        happened
    }

    fn hear(&mut self, at: usize, bytes: &[u8]) -> bool {
        if bytes.is_empty() {
            return false;
        }
        let client = &mut self.clients[at];
        if client.kept.is_empty() && !client.waiting {
            if client.link.is_some() {
                self.to_server(at, bytes);
            } else {
                self.begin(at, bytes);
            }
        } else {
            client.kept.extend_from_slice(bytes);
            client.kept_is_due = !client.waiting;
        }
        true
    }

    /// As the loop of `Session::poll`.
    fn settle(&mut self, at: usize) {
        loop {
            let client = &mut self.clients[at];
            if client.waiting {
                if !self.link(at) {
                    return;
                }
                self.clients[at].kept_is_due = true;
            }
            let client = &mut self.clients[at];
            if !std::mem::take(&mut client.kept_is_due) || client.kept.is_empty() {
                return;
            }
            let kept = std::mem::take(&mut client.kept);
            if client.link.is_some() {
                self.to_server(at, &kept);
            } else {
                self.begin(at, &kept);
            }
        }
    }

    fn link(&mut self, at: usize) -> bool {
        let Some(free) = (0..self.sides.len())
            .map(|offset| (offset + self.leases) % self.sides.len())
            .find(|&free| !self.sides[free].is_lent)
        else {
            self.clients[at].waiting = true;
            return false;
        };
        self.leases += 1;
        self.sides[free].is_lent = true;
        if self.leases.is_multiple_of(self.adopt_every) {
            self.sides[free].adopt();
        }
        let client = &mut self.clients[at];
        let side = &mut self.sides[free];
        if !client.relay.tracked.same_as(&side.state.tracked) {
            side.state.tracked = client.relay.tracked.clone();
            let value = side.state.tracked.get(0).unwrap();
            let setting = std::str::from_utf8(value).unwrap().parse().unwrap();
            side.adopt();
            side.backend.adopt(setting);
        }
        (client.waiting, client.link) = (false, Some(free));
        true
    }

    /// As `Session::begin_with`.
    fn begin(&mut self, at: usize, bytes: &[u8]) {
        let client = &mut self.clients[at];
        match client.relay.without_server(bytes, &mut client.got).unwrap() {
            Alone::Nothing(used) => client.kept.extend_from_slice(&bytes[used..]),
            Alone::Server(used) if self.link(at) => self.to_server(at, &bytes[used..]),
            Alone::Server(used) => self.clients[at].kept.extend_from_slice(&bytes[used..]),
            Alone::Terminated => unreachable!(),
        }
    }

    /// As `Session::to_server`.
    fn to_server(&mut self, at: usize, input: &[u8]) {
        let client = &mut self.clients[at];
        let side = &mut self.sides[client.link.unwrap()];
        let mut linked = Linked {
            server: &mut side.state,
            entry: &side.entry,
            counters: &self.counters,
        };
        let (mut forward, mut back) = (Vec::new(), Vec::new());
        let mut out = Outgoing::new(input, &mut forward);
        let used = client.relay.from_client(&mut linked, input, &mut out);
        let mut answers = Outgoing::new(&[], &mut back);
        client.relay.answer(&mut linked, &mut answers);
        side.wire.extend_from_slice(out.finish());
        let later = std::mem::take(&mut client.kept);
        client.kept.extend_from_slice(&input[used.unwrap()..]);
        client.kept.extend_from_slice(&later);
        client.got.extend_from_slice(answers.finish());
        if side.state.pipeline.is_idle() {
            self.server_is_idle(at);
        }
    }

    /// As `Session::to_client`.
    fn to_client(&mut self, at: usize, bytes: &[u8]) {
        let client = &mut self.clients[at];
        let side = &mut self.sides[client.link.unwrap()];
        let input = [std::mem::take(&mut side.kept).as_slice(), bytes].concat();
        let mut linked = Linked {
            server: &mut side.state,
            entry: &side.entry,
            counters: &self.counters,
        };
        let mut buffer = Vec::new();
        let mut out = Outgoing::new(&input, &mut buffer);
        let used = client.relay.from_server(&mut linked, &input, &mut out);
        client.got.extend_from_slice(out.finish());
        side.kept = input[used.unwrap()..].to_vec();
        side.wire.append(&mut client.relay.own);
        client.kept_is_due |= !client.kept.is_empty();
        if side.state.pipeline.is_idle() {
            self.server_is_idle(at);
        }
    }

    fn server_is_idle(&mut self, at: usize) {
        let client = &mut self.clients[at];
        let side = &mut self.sides[client.link.unwrap()];
        if side.is_clean() && !client.relay.is_mid_message() {
            side.give_back();
            client.link = None;
            client.relay.unlink();
        }
    }

    /// As `Session::finish` and `drain`.
    fn leave(&mut self, at: usize) {
        let client = &mut self.clients[at];
        client.has_left = true;
        client.waiting = false;
        client.kept.clear();
        client.kept_is_due = false;
        let Some(link) = client.link.take() else {
            return;
        };
        let relay = &mut client.relay;
        let side = &mut self.sides[link];
        if relay.inbound.is_under_way() && relay.inbound.forward()
            || side.state.doom.is_some()
            || side.state.pipeline.is_unsure()
        {
            *side = Side::after(self.version);
            return;
        }
        drain::ask_for_replies(&mut side.state, &mut side.wire);
        read_all(side, relay, &self.counters);
        for _ in 0..2 {
            drain::end_transaction(&mut side.state, &mut side.wire);
            read_all(side, relay, &self.counters);
        }
        if side.state.pipeline.is_unsure() {
            *side = Side::after(self.version);
            return;
        }
        assert!(side.is_clean(), "not clean after its client left");
        side.give_back();
    }

    /// Everything that can happen happens, in order; a client that is done leaves.
    fn finish(&mut self) {
        let all = usize::MAX >> 1;
        loop {
            let mut happened = false;
            for at in 0..self.clients.len() {
                for event in [Event::Say(all), Event::Serve(all), Event::Answer(all)] {
                    happened |= self.run(at, event);
                }
            }
            if happened {
                continue;
            }
            let done = (0..self.clients.len())
                .find(|&at| self.clients[at].is_done() && !self.clients[at].has_left);
            let Some(done) = done else { return };
            self.check(done);
            self.run(done, Event::Leave);
        }
    }

    fn check(&self, at: usize) {
        let client = &self.clients[at];
        if let Some(versions) = &client.versions {
            return shapes::check(&client.script, &client.got, versions);
        }
        let (got, expected) = (readable(&client.got), readable(&client.expected));
        assert_eq!(got, expected, "client {at}");
    }
}

/// As `drain::read_all`.
fn read_all(side: &mut Side, relay: &mut Relay, counters: &Counters) {
    for _ in 0..1000 {
        if side.state.pipeline.takes_copy_data() {
            drain::ask_for_replies(&mut side.state, &mut side.wire);
        } else if side.state.pipeline.owes_nothing() && side.wire.is_empty() {
            return;
        }
        let wire = std::mem::take(&mut side.wire);
        side.backend.read(&wire);
        let mut input = std::mem::take(&mut side.kept);
        input.append(&mut side.backend.sent);
        let mut linked = Linked {
            server: &mut side.state,
            entry: &side.entry,
            counters,
        };
        let mut nowhere = Vec::new();
        let mut out = Outgoing::new(&input, &mut nowhere);
        let used = relay.from_server(&mut linked, &input, &mut out).unwrap();
        side.kept = input[used..].to_vec();
        side.wire.append(&mut relay.own);
    }
    panic!("the server still owes something");
}

/// Messages with their texts.
fn readable(mut bytes: &[u8]) -> Vec<String> {
    let mut messages = Vec::new();
    while let Some(frame) = cut(bytes, 1 << 24).unwrap() {
        let text: String = frame
            .body()
            .iter()
            .map(|&byte| match byte {
                b' '..=b'~' => char::from(byte),
                _ => '.',
            })
            .collect();
        messages.push(format!("{} {text}", char::from(frame.tag)));
        bytes = &bytes[frame.bytes.len()..];
    }
    messages
}

#[derive(Debug, Clone)]
struct Case {
    scripts: Vec<Vec<Batch>>,
    servers: usize,
    /// `max_prepared_statements`.
    limit: usize,
    /// `prepare_unnamed_after`.
    promotes: usize,
    adopt_every: usize,
    events: Vec<(usize, Event)>,
}

impl Case {
    fn run(&self) {
        self.run_in(World::new(self));
    }

    /// What counts is what each client was told.
    fn run_with_changes(&self) {
        let mut world = World::new(self);
        for client in &mut world.clients {
            client.versions = Some(Vec::new());
        }
        self.run_in(world);
    }

    fn run_in(&self, mut world: World) {
        for &(at, event) in &self.events {
            world.run(at % self.scripts.len(), event);
        }
        world.finish();
        for (at, client) in world.clients.iter().enumerate() {
            if !client.has_left {
                world.check(at);
                panic!("client {at} is stuck");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 4 * ProptestConfig::default().cases,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn one_client_gets_what_a_postgresql_of_its_own_would_say(case in case(1..2)) {
        case.run();
    }

    #[test]
    fn every_text_is_read_under_the_settings_of_its_client(case in set_cases()) {
        case.run();
    }

    #[test]
    fn clients_that_wait_for_answers_do_not_notice_a_migration(case in migrations()) {
        case.run();
    }

    #[test]
    fn nobody_takes_new_columns_for_old_ones(case in changes()) {
        case.run_with_changes();
    }

    #[test]
    fn several_clients_get_what_postgresqls_of_their_own_would_say(case in case(2..4)) {
        case.run();
    }
}
