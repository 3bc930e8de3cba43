//! A new process takes the place of one that runs (`-R`): its listening sockets, its clients and its servers, one by one, as
//! each of them stands still. Nobody notices who is not encrypted.
//!
//! ```text
//!   the new process                                 the one that runs
//!   has read and checked its configuration
//!   knocks at the Unix socket ────────────────────▶
//!                             ◀────── Hello ───────
//!                             ─────── Hello ──────▶
//!                             ◀────── State, Listener..., Ready
//!   starts, and listens; if it fails, it ends, and the other one has noticed nothing
//!                             ─────── Go ─────────▶ accepts nobody any more
//!                             ◀────── Pool..., Yielded  has removed its pidfile
//!   accepts                   ◀────── Client, Server, Elsewhere ...
//!                             ─────── Cancel ─────▶ for clients that are not over yet
//!                             ◀────── Canceled ────
//!                             ◀────── Done ──────── ends
//! ```
//!
//! Or the one that runs starts the new one, which then need not knock ([`starting`]), and says `Failed` if it can't start.
//!
//! Who can't go over (TLS, replication, the console) is sent away as when the process drains, within `drain_timeout`.
//! If the new process ends before `Done`, the old one accepts again and keeps whom it has; if it is there and does not
//! go on, the old one sends its clients away, for there must not be two of them.
//!
//! This file owns what is said; [`giving`] (with [`handover`]) and [`taking`] are the two sides. What is said of a client is `client`'s, and so on.

pub mod giving;
mod handover;
pub mod starting;
pub mod taking;

use std::io;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::process::ExitStatus;

use prost::Message;

use crate::net::{Parcel, Parcels};

/// The version of what is said. A process of another one is not talked to.
const FORMAT: u32 = 2;

/// Why nobody takes anybody's place.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The connection between the two.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// Whoever answers is no pgferry, or one that knows nothing of this.
    #[error("what listens on the Unix socket can't hand over its connections")]
    NotOurs,
    /// It accepts, and says nothing.
    #[error("what listens on the Unix socket does not answer (is it suspended?)")]
    Silent,
    /// It is somebody else's.
    #[error("the process that listens on the Unix socket belongs to another user ({uid})")]
    Stranger {
        /// Whose.
        uid: u32,
    },
    /// It is one, but of another version.
    #[error("the other process speaks another version of the takeover ({theirs}, not {FORMAT})")]
    Format {
        /// Its version.
        theirs: u32,
    },
    /// A successor can't be started.
    #[error("could not run {}: {source}", path.display())]
    Start {
        /// The program.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A successor that was started can't take over: its words.
    #[error("{0}")]
    Failed(String),
    /// A successor that was started has ended without a word.
    #[error("the new process ended ({0}); its log says why")]
    Ended(ExitStatus),
    /// It has said nothing for too long.
    #[error("the new process does not get ready, and was ended")]
    Late,
    /// It says no.
    #[error("the process that runs refuses: {0}")]
    Refused(String),
    /// Something came that does not belong there.
    #[error("the other process said something that makes no sense")]
    Nonsense,
    /// It ended in the middle.
    #[error("the other process is gone")]
    Gone,
}

/// What a message is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Kind {
    Hello = 1,
    Refused,
    State,
    Listener,
    Pool,
    Ready,
    Go,
    Yielded,
    Client,
    Server,
    Elsewhere,
    Done,
    Cancel,
    Listeners,
    Canceled,
    Failed,
}

/// Both sides begin with it.
#[derive(Clone, PartialEq, Eq, prost::Message)]
struct Hello {
    #[prost(uint32, tag = "1")]
    format: u32,
    /// For the log.
    #[prost(string, tag = "2")]
    version: String,
    #[prost(uint32, tag = "3")]
    pid: u32,
}

/// What is true of the whole process.
#[derive(Clone, PartialEq, Eq, prost::Message)]
struct State {
    /// Microseconds after its epoch, now.
    #[prost(uint64, tag = "1")]
    now: u64,
    /// What the names of its statements begin with.
    #[prost(string, tag = "2")]
    prefix: String,
    /// PAUSE without a name, and with one.
    #[prost(bool, tag = "3")]
    is_paused: bool,
    #[prost(string, repeated, tag = "4")]
    paused: Vec<String>,
    /// DISABLE.
    #[prost(string, repeated, tag = "5")]
    disabled: Vec<String>,
}

/// A listening socket; it comes along.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(super) struct Listening {
    #[prost(enumeration = "Purpose", tag = "1")]
    pub(super) purpose: i32,
    /// The address as `http_listen` has it; others are asked where they are.
    #[prost(string, tag = "2")]
    pub(super) place: String,
    /// It was handed to the process by systemd.
    #[prost(bool, tag = "3")]
    pub(super) is_passed: bool,
}

/// What a socket listens for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, prost::Enumeration)]
pub(super) enum Purpose {
    Tcp = 0,
    Unix = 1,
    Http = 2,
}

/// A reason, or a pid.
#[derive(Clone, PartialEq, Eq, prost::Message)]
struct Word {
    #[prost(string, tag = "1")]
    text: String,
    #[prost(uint32, tag = "2")]
    pid: u32,
}

/// A cancel request for a client that is not over yet.
#[derive(Clone, PartialEq, Eq, prost::Message)]
#[prost(skip_debug)]
struct Cancel {
    #[prost(int32, tag = "1")]
    pid: i32,
    #[prost(bytes = "vec", tag = "2")]
    key: Vec<u8>,
    /// The answer has the same one.
    #[prost(uint64, tag = "3")]
    number: u64,
}

impl std::fmt::Debug for Cancel {
    /// Without the key, which is a secret.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Cancel({})", self.pid)
    }
}

impl Hello {
    fn new() -> Self {
        Self {
            format: FORMAT,
            version: super::cli::VERSION_LINE.to_owned(),
            pid: std::process::id(),
        }
    }

    fn check(&self) -> Result<(), Error> {
        if self.format == FORMAT {
            Ok(())
        } else {
            Err(Error::Format {
                theirs: self.format,
            })
        }
    }
}

fn say(
    parcels: &Parcels,
    kind: Kind,
    body: &impl Message,
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<()> {
    parcels.send(kind as u8, &body.encode_to_vec(), descriptors)
}

/// The next message, whatever it is.
fn hear(parcels: &Parcels) -> Result<Parcel, Error> {
    parcels.receive()?.ok_or(Error::Gone)
}

/// The next message, which is to be of this kind, unless the other side refuses.
fn expect<M: Message + Default>(parcels: &Parcels, kind: Kind) -> Result<M, Error> {
    let parcel = hear(parcels)?;
    if parcel.kind == Kind::Refused as u8 {
        let word: Word = read(&parcel)?;
        return Err(Error::Refused(word.text));
    }
    if parcel.kind == Kind::Failed as u8 {
        let word: Word = read(&parcel)?;
        return Err(Error::Failed(word.text));
    }
    if parcel.kind != kind as u8 {
        return Err(Error::Nonsense);
    }
    read(&parcel)
}

fn read<M: Message + Default>(parcel: &Parcel) -> Result<M, Error> {
    M::decode(parcel.body.as_slice()).map_err(|_| Error::Nonsense)
}
