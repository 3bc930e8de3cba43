//! What every client's task needs from outside.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use super::NamesHeld;
use crate::auth::scram::Verifier;
use crate::auth::secret::PlainSecret;
use crate::auth::{MockKey, Secret};
use crate::config::ConfigHandle;
use crate::pool::Manager;

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
    /// What `server_version` the console reports.
    pub console_version: String,
    verifiers: Mutex<HashMap<String, Derived>>,
    shutting_down: AtomicBool,
    waiting_ends: AtomicBool,
}

/// A verifier made from a plain password, and what it was made from.
#[derive(Debug)]
struct Derived {
    password: PlainSecret,
    iterations: u32,
    verifier: Verifier,
}

impl Context {
    /// The context of a process.
    pub fn new(manager: Arc<Manager>, config: ConfigHandle, console_version: String) -> Self {
        Self {
            manager,
            config,
            mock: MockKey::random(),
            names_held: NamesHeld::default(),
            console_version,
            verifiers: Mutex::default(),
            shutting_down: AtomicBool::new(false),
            waiting_ends: AtomicBool::new(false),
        }
    }

    /// The secret to run SCRAM with: a plain password's verifier is made once, for it costs thousands of hashes, and
    /// a login that takes longer would tell that the user exists.
    pub fn scram_secret(&self, user: &str, secret: Secret, iterations: u32) -> Secret {
        let Secret::Plain(password) = secret else {
            return secret;
        };
        if let Some(derived) = self.verifiers.lock().get(user)
            && derived.password == password
            && derived.iterations == iterations
        {
            return Secret::Scram(derived.verifier.clone());
        }
        let verifier = self.mock.derive_verifier(user, &password, iterations);
        let derived = Derived {
            password,
            iterations,
            verifier: verifier.clone(),
        };
        self.verifiers.lock().insert(user.to_owned(), derived);
        Secret::Scram(verifier)
    }

    /// New logins, but for the console's, are refused from now on.
    pub fn shut_down(&self) {
        self.shutting_down.store(true, Ordering::SeqCst);
    }

    /// Are logins refused?
    pub fn is_shutting_down(&self) -> bool {
        self.shutting_down.load(Ordering::SeqCst)
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
