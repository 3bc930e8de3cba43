//! Messages between two processes of ours over a Unix socket, with descriptors that go along: blocking, and each whole.
//!
//! A message is its length, which does not count itself, the number of its descriptors, its kind, and its body. What the
//! bodies say is not known here.

use std::io::{self, IoSlice, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};

use super::sys::{self, MOST_PASSED};

/// Bytes in front of a body.
const HEAD: usize = 6;

/// No message is longer. (A client may have been given so many bytes of statements.)
const LONGEST: usize = 1 << 30;

/// For how long to wait where the system has too many descriptors on their way.
const CROWDED: Duration = Duration::from_millis(1);

/// So much is made room for at a time: the length is the other side's word.
const PIECE: usize = 1 << 16;

/// A message as it came.
pub struct Parcel {
    /// Which one it is.
    pub kind: u8,
    /// What it says.
    pub body: Vec<u8>,
    /// What came along.
    pub descriptors: Vec<OwnedFd>,
}

impl std::fmt::Debug for Parcel {
    /// Without the body, in which there are secrets.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Parcel({}, {} bytes)", self.kind, self.body.len())
    }
}

/// One end. Both halves may be used at the same time, by one thread each.
#[derive(Debug)]
pub struct Parcels {
    socket: UnixStream,
}

impl Parcels {
    /// Over this socket, which is made to block.
    pub fn over(socket: UnixStream) -> io::Result<Self> {
        socket.set_nonblocking(false)?;
        Ok(Self { socket })
    }

    /// Another handle of the same end.
    pub fn try_clone(&self) -> io::Result<Self> {
        let socket = self.socket.try_clone()?;
        Ok(Self { socket })
    }

    /// The socket.
    pub fn socket(&self) -> &UnixStream {
        &self.socket
    }

    /// Sends a message, with at most two descriptors.
    pub fn send(&self, kind: u8, body: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        let too_much = || io::Error::from(io::ErrorKind::InvalidInput);
        if body.len() > LONGEST || descriptors.len() > MOST_PASSED {
            return Err(too_much());
        }
        let length = u32::try_from(body.len() + 2).map_err(|_| too_much())?;
        let mut head = [0; HEAD];
        let (first, rest) = head.split_at_mut(4);
        first.copy_from_slice(&length.to_be_bytes());
        let count = u8::try_from(descriptors.len()).map_err(|_| too_much())?;
        rest.copy_from_slice(&[count, kind]);
        let raw: Vec<RawFd> = descriptors.iter().map(AsRawFd::as_raw_fd).collect();
        let rights = [ControlMessage::ScmRights(&raw)];
        let control = if raw.is_empty() { &[][..] } else { &rights };
        let sent = loop {
            let slices = [IoSlice::new(&head)];
            let socket = self.socket.as_fd().as_raw_fd();
            match sendmsg::<()>(socket, &slices, control, MsgFlags::MSG_NOSIGNAL, None) {
                // Too many are on their way: the other side takes them out.
                Err(nix::errno::Errno::ETOOMANYREFS) => std::thread::sleep(CROWDED),
                Err(nix::errno::Errno::EINTR) => {}
                sent => break sent?,
            }
        };
        let mut socket = &self.socket;
        socket.write_all(head.get(sent..).unwrap_or_default())?;
        socket.write_all(body)
    }

    /// Waits for a message; `None`: the other side has ended.
    pub fn receive(&self) -> io::Result<Option<Parcel>> {
        let mut descriptors = Vec::new();
        let mut head = [0; HEAD];
        if !self.fill(&mut head, &mut descriptors)? {
            return Ok(None);
        }
        let [a, b, c, d, count, kind] = head;
        let length = usize::try_from(u32::from_be_bytes([a, b, c, d])).unwrap_or(usize::MAX);
        let length = length
            .checked_sub(2)
            .filter(|length| *length <= LONGEST)
            .ok_or(io::ErrorKind::InvalidData)?;
        let mut body = Vec::new();
        while body.len() < length {
            let at = body.len();
            body.resize(length.min(at + PIECE), 0);
            let piece = body.get_mut(at..).unwrap_or_default();
            if !self.fill(piece, &mut descriptors)? {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        if descriptors.len() != usize::from(count) {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Ok(Some(Parcel {
            kind,
            body,
            descriptors,
        }))
    }

    /// Reads all of `buf`. False: there was the end instead.
    fn fill(&self, buf: &mut [u8], descriptors: &mut Vec<OwnedFd>) -> io::Result<bool> {
        let mut filled = 0;
        while filled < buf.len() {
            let rest = buf.get_mut(filled..).unwrap_or_default();
            match sys::receive(&self.socket, rest, descriptors) {
                Ok(0) if filled == 0 => return Ok(false),
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(read) => filled += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    fn pair() -> (Parcels, Parcels) {
        let (one, other) = UnixStream::pair().unwrap();
        (Parcels::over(one).unwrap(), Parcels::over(other).unwrap())
    }

    #[test]
    fn messages_come_whole_and_with_their_own_descriptors() {
        let (here, there) = pair();
        let sockets: Vec<_> = (0..3).map(|_| UnixStream::pair().unwrap()).collect();
        let long = vec![7; 3 * PIECE];
        let sent = long.clone();
        let sender = std::thread::spawn(move || {
            for (at, (_, far)) in (0..).zip(&sockets) {
                here.send(at, &sent, &[far.as_fd()]).unwrap();
                here.send(100, b"", &[]).unwrap();
            }
            sockets
                .into_iter()
                .map(|(near, _)| near)
                .collect::<Vec<_>>()
        });
        let mut passed = Vec::new();
        for at in 0..3 {
            let mut parcel = there.receive().unwrap().unwrap();
            assert_eq!((parcel.kind, parcel.body == long), (at, true));
            passed.push(UnixStream::from(parcel.descriptors.pop().unwrap()));
            let parcel = there.receive().unwrap().unwrap();
            assert_eq!((parcel.kind, parcel.body.len()), (100, 0));
            assert!(parcel.descriptors.is_empty());
        }
        let near = sender.join().unwrap();
        for (at, (mut near, mut far)) in (0..).zip(near.into_iter().zip(passed)) {
            far.write_all(&[at]).unwrap();
            let mut got = [0];
            near.read_exact(&mut got).unwrap();
            assert_eq!(got, [at]);
        }
        assert!(
            there.receive().unwrap().is_none(),
            "the other side has ended"
        );
    }

    #[test]
    fn a_length_that_is_a_lie_takes_no_room_and_the_end_in_the_middle_is_an_error() {
        let (here, there) = pair();
        here.socket().write_all(&[0x3f, 0, 0, 0, 0, 1, 2]).unwrap();
        drop(here);
        let error = there.receive().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
        let (here, there) = pair();
        for bad in [
            [0xff, 0, 0, 0, 0, 1],
            [0, 0, 0, 1, 0, 1],
            [0, 0, 0, 2, 1, 1],
        ] {
            here.socket().write_all(&bad).unwrap();
            let error = there.receive().unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        }
    }
}
