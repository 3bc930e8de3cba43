//! Asks the system whether a password is right (PAM).
//!
//! Owns the service's name, the threads that ask, and the conversation: modules ask for the password, and get it. PAM
//! blocks, for as long as a module likes, so it has threads of its own; a login waits for one of few. A login that is
//! given up leaves the queue. Its thread, if it has one already, goes on to the end, as nothing can stop a module.
//!
//! Built with the cargo feature `pam` only: it needs the system's library.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::sync::{Semaphore, oneshot};

use crate::auth::secret::PlainSecret;

/// Most questions that are asked at the same time. Some modules are slow on purpose after a wrong password, so one would
/// be too few; and each takes a thread, so many would be too many.
const THREADS: usize = 8;

/// Which file of `/etc/pam.d` says what to do; the name is PgBouncer's, so that its file will do.
#[cfg(feature = "pam")]
const SERVICE: &str = "pgbouncer";

/// A password to be checked.
#[derive(Debug)]
pub struct Question {
    /// The login name, as the client gave it.
    pub user: String,
    /// What the client gave as the password.
    pub password: PlainSecret,
    /// Where the client is; `None`: on this machine, at the other end of a Unix socket.
    pub address: Option<SocketAddr>,
}

/// Why a password was not found to be right. For the log: a client is told nothing of it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Some modules take an empty password for none.
    #[error("the password is empty")]
    EmptyPassword,
    /// No module has it.
    #[error("{0}")]
    Refused(String),
    /// No thread could be started, or it ended early.
    #[error("no thread to ask in: {0}")]
    NoThread(std::io::Error),
    /// The thread ended without an answer.
    #[error("no answer")]
    NoAnswer,
    /// The feature is not there.
    #[error("pgferry was built without PAM")]
    NotBuiltIn,
}

/// Where logins queue for a thread.
#[derive(Debug)]
pub struct Desk {
    threads: Arc<Semaphore>,
}

impl Default for Desk {
    fn default() -> Self {
        Self {
            threads: Arc::new(Semaphore::new(THREADS)),
        }
    }
}

impl Desk {
    /// Is it the user's password, and may the user log in? `Ok` if PAM says so. First come, first served. Cancel-safe:
    /// who is dropped leaves the queue.
    pub async fn check(&self, question: Question) -> Result<(), Error> {
        if question.password.expose().is_empty() {
            return Err(Error::EmptyPassword);
        }
        let threads = self.threads.clone();
        let permit = threads.acquire_owned().await.map_err(|_| Error::NoAnswer)?;
        let (answer, answered) = oneshot::channel();
        // No thread of the runtime's: it would wait for a module that hangs when the process is to end.
        std::thread::Builder::new()
            .name("pam".to_owned())
            .spawn(move || {
                // Whoever has asked may have given up.
                let _ = answer.send(ask(&question));
                drop(permit);
            })
            .map_err(Error::NoThread)?;
        answered.await.unwrap_or(Err(Error::NoAnswer))
    }
}

#[cfg(not(feature = "pam"))]
fn ask(_: &Question) -> Result<(), Error> {
    Err(Error::NotBuiltIn)
}

#[cfg(feature = "pam")]
fn ask(question: &Question) -> Result<(), Error> {
    use pam_client2::{Context, Flag};

    let refused = |error: pam_client2::Error| Error::Refused(error.to_string());
    let conversation = conversation::Answers(&question.password);
    let mut context = Context::new(SERVICE, Some(&question.user), conversation).map_err(refused)?;
    // What PgBouncer says of a client that has no address.
    let address = match question.address {
        Some(address) => address.ip().to_canonical().to_string(),
        None => "unix".to_owned(),
    };
    context.set_rhost(Some(&address)).map_err(refused)?;
    let flags = Flag::SILENT | Flag::DISALLOW_NULL_AUTHTOK;
    context.authenticate(flags).map_err(refused)?;
    context.acct_mgmt(flags).map_err(refused)
}

#[cfg(feature = "pam")]
mod conversation {
    //! What modules ask and say.

    use std::ffi::{CStr, CString};

    use pam_client2::{ConversationHandler, ErrorCode};

    use crate::auth::secret::PlainSecret;

    /// Whatever is asked for without an echo is the password.
    pub(super) struct Answers<'a>(pub(super) &'a PlainSecret);

    impl ConversationHandler for Answers<'_> {
        /// The user is known; anything else that could be shown cannot be answered here.
        fn prompt_echo_on(&mut self, _: &CStr) -> Result<CString, ErrorCode> {
            Err(ErrorCode::CONV_ERR)
        }

        /// The library makes its own copy, which the modules wipe; this one is freed as it is.
        fn prompt_echo_off(&mut self, _: &CStr) -> Result<CString, ErrorCode> {
            CString::new(self.0.expose()).map_err(|_| ErrorCode::CONV_ERR)
        }

        fn text_info(&mut self, text: &CStr) {
            tracing::debug!("PAM: {}", text.to_string_lossy().escape_debug());
        }

        fn error_msg(&mut self, text: &CStr) {
            tracing::info!("PAM: {}", text.to_string_lossy().escape_debug());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn question(password: &str) -> Question {
        Question {
            user: "nobody".to_owned(),
            password: PlainSecret::new(password),
            address: None,
        }
    }

    #[tokio::test]
    async fn an_empty_password_is_not_asked_about() {
        let refused = Desk::default().check(question("")).await;
        assert!(matches!(refused, Err(Error::EmptyPassword)));
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_for_a_thread_can_give_up() {
        let desk = Desk::default();
        let all = desk.threads.clone().acquire_many_owned(8).await.unwrap();
        let waits = desk.check(question("x"));
        let given_up = tokio::time::timeout(std::time::Duration::from_secs(60), waits).await;
        assert!(given_up.is_err());
        drop(all);
        assert_eq!(desk.threads.available_permits(), THREADS);
    }

    #[cfg(not(feature = "pam"))]
    #[tokio::test]
    async fn without_the_feature_nobody_comes_in() {
        let refused = Desk::default().check(question("x")).await;
        assert!(matches!(refused, Err(Error::NotBuiltIn)));
    }
}
