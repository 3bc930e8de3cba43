//! What every client's task needs from outside.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::carried::Exit;
use super::{Error, NamesHeld};
use crate::auth::pam::Desk;
use crate::auth::secret::PlainSecret;
use crate::auth::{Keyring, MockKey, Secret};
use crate::config::{Config, ConfigHandle};
use crate::pool::Manager;
use crate::stats::Apart;
use crate::stats::registry::{ClientEntry, Peer};

/// How long the process whose place this one takes may take for a cancel request.
const BEFORE: Duration = Duration::from_secs(10);

/// A cancel request on its way to the process whose place this one takes.
pub struct Asked {
    /// The number from BackendKeyData.
    pub pid: i32,
    /// The secret from BackendKeyData.
    pub key: Vec<u8>,
    /// Told when it is through.
    pub done: oneshot::Sender<()>,
}

impl std::fmt::Debug for Asked {
    /// Without the key, which is a secret.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Asked({})", self.pid)
    }
}

/// Handles shared by all clients.
#[derive(Debug)]
pub struct Context {
    /// All pools.
    pub manager: Arc<Manager>,
    /// The configuration.
    pub config: ConfigHandle,
    /// From which the logins of unknown users are made up.
    pub mock: MockKey,
    /// What all clients' statement names take.
    pub names_held: NamesHeld,
    /// Where logins by PAM queue.
    pub pam: Desk,
    /// What `server_version` the console reports.
    pub console_version: String,
    /// What users' plain passwords came down to, by the name of the user.
    keyrings: Apart<Mutex<HashMap<String, Keyring>>>,
    shutting_down: AtomicBool,
    draining: AtomicBool,
    waiting_ends: AtomicBool,
    /// By where clients go over to the process that takes this one's place.
    exit: ArcSwapOption<Exit>,
    /// Whom to ask for a client that is not here: cancel requests go to the process whose place this one takes.
    before: ArcSwapOption<Sender<Asked>>,
}

impl Context {
    /// By where clients go over to a successor; `None`: there is none.
    pub fn exit(&self) -> Option<Exit> {
        self.exit.load().as_deref().cloned()
    }

    /// Clients go over by this from now on, or stay.
    pub fn set_exit(&self, exit: Option<Exit>) {
        self.exit.store(exit.map(Arc::new));
    }

    /// Cancel requests for clients that are not here go this way from now on, or nowhere.
    pub fn set_before(&self, before: Option<Sender<Asked>>) {
        self.before.store(before.map(Arc::new));
    }

    /// Are clients and servers still to come from the process whose place this one takes?
    pub fn is_taking_over(&self) -> bool {
        self.before.load().is_some()
    }

    /// Passes a cancel request on to the process whose place this one takes, if that is still there, and waits until it is
    /// through. False: nobody was asked.
    pub async fn ask_before(&self, pid: i32, key: &[u8]) -> bool {
        let (done, answer) = oneshot::channel();
        let asked = Asked {
            pid,
            key: key.to_vec(),
            done,
        };
        let is_asked = match self.before.load().as_deref() {
            Some(before) => before.send(asked).is_ok(),
            None => false,
        };
        // An error: it is not there any more.
        is_asked && timeout(BEFORE, answer).await.is_ok()
    }

    /// The time of the worker's turn, as the live lists have it.
    #[inline]
    pub fn turn(&self) -> u64 {
        self.manager.parts().registry.turn()
    }

    /// The time, as the live lists have it.
    pub fn now(&self) -> u64 {
        self.manager.parts().registry.now()
    }

    /// The context of a process.
    pub fn new(manager: Arc<Manager>, config: ConfigHandle, console_version: String) -> Self {
        Self {
            manager,
            config,
            mock: MockKey::random(),
            names_held: NamesHeld::default(),
            pam: Desk::default(),
            console_version,
            keyrings: Apart::default(),
            shutting_down: AtomicBool::new(false),
            draining: AtomicBool::new(false),
            waiting_ends: AtomicBool::new(false),
            exit: ArcSwapOption::empty(),
            before: ArcSwapOption::empty(),
        }
    }

    /// The secret to run SCRAM with: a plain password's verifier is made once, for it costs thousands of hashes, and
    /// a login that takes longer would tell that the user exists.
    pub fn scram_secret(&self, user: &str, secret: Secret, iterations: u32) -> Secret {
        let Secret::Plain(password) = secret else {
            return secret;
        };
        // Whoever comes while it is made waits for it, but not all the others.
        let known = self
            .keyrings
            .lock()
            .entry(user.to_owned())
            .or_default()
            .clone();
        let verifier = self
            .mock
            .known_verifier((user, &password), iterations, &known);
        Secret::Scram(verifier)
    }

    /// Forgets what was made from passwords that are not in the configuration any more.
    pub fn forget_old_secrets(&self, config: &Config) {
        self.keyrings.lock().retain(|user, known| {
            known.retain(|password| {
                config
                    .secrets_of(user)
                    .any(|text| PlainSecret::new(text.expose()) == *password)
            })
        });
    }

    /// New logins, but for the console's, are refused from now on.
    pub fn shut_down(&self) {
        self.shutting_down.store(true, Ordering::SeqCst);
    }

    /// Are logins refused?
    pub fn is_shutting_down(&self) -> bool {
        self.shutting_down.load(Ordering::SeqCst)
    }

    /// Drain begins: who was in the queue of a listening socket when it was closed is still let in, for it can't know,
    /// and everybody else is told to come again.
    pub fn drain(&self) {
        self.draining.store(true, Ordering::SeqCst);
    }

    /// May this client not log in any more?
    pub fn refusal(&self, peer: Peer) -> Option<Error> {
        let drains = self.draining.load(Ordering::SeqCst);
        // Unix sockets stay open, for the console.
        if drains && (self.is_shutting_down() || matches!(peer, Peer::Unix(_))) {
            return Some(Error::Draining);
        }
        self.is_shutting_down().then_some(Error::ShuttingDown)
    }

    /// It goes on after all: nobody is refused any more.
    pub fn stay(&self) {
        self.draining.store(false, Ordering::SeqCst);
        self.shutting_down.store(false, Ordering::SeqCst);
    }

    /// Whoever is not on the console.
    pub fn clients(&self) -> Vec<Arc<ClientEntry>> {
        let config = self.config.load();
        let mut clients = self.manager.parts().registry.clients();
        clients.retain(|client| !config.is_console(&client.database));
        clients
    }

    /// Nobody gets a server any more (shutdown that waits for servers).
    pub fn end_waiting(&self) {
        self.waiting_ends.store(true, Ordering::SeqCst);
    }

    /// Is it so?
    pub fn has_ended_waiting(&self) -> bool {
        self.waiting_ends.load(Ordering::SeqCst)
    }
}
