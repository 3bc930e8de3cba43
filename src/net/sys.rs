//! What can only be had through `unsafe`, which is in no other file: many sends in one system call, by io_uring, a
//! connection accepted with its address and its flags at once, and descriptors that another process passes on.
//!
//! The ring is used as a plain call, not as a driver: [`Ring::send_all`] comes back when each send has been tried, so
//! the kernel holds no buffer of ours between two calls.

#![allow(unsafe_code)]

use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use io_uring::{IoUring, opcode, types};
use nix::libc::{self, MSG_DONTWAIT, MSG_NOSIGNAL};
use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg};
use socket2::SockAddr;

/// The next connection of a listening socket, non-blocking and closed on exec, and the address of its other end if it
/// has one. (What std offers takes a system call more for each of the two.)
pub fn accept(listener: &impl AsFd) -> io::Result<(OwnedFd, Option<SocketAddr>)> {
    let flags = libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    let listener = listener.as_fd().as_raw_fd();
    // SAFETY: the storage is large enough for every kind of address, and `try_init` says so in its length; the kernel
    // writes no more than that, and the length it has written.
    let (accepted, address) = unsafe {
        SockAddr::try_init(|storage, length| {
            match libc::accept4(listener, storage.cast(), length, flags) {
                -1 => Err(io::Error::last_os_error()),
                accepted => Ok(accepted),
            }
        })
    }?;
    // SAFETY: the kernel has just made this descriptor, and nobody else knows of it.
    let accepted = unsafe { OwnedFd::from_raw_fd(accepted) };
    Ok((accepted, address.as_socket()))
}

/// So many descriptors come with one message at most.
pub const MOST_PASSED: usize = 2;

/// Reads from a Unix socket, and adds the descriptors that were passed along to `passed`, closed on exec. 0 is the end of
/// the stream.
pub fn receive(socket: &impl AsFd, buf: &mut [u8], passed: &mut Vec<OwnedFd>) -> io::Result<usize> {
    let mut space = nix::cmsg_space!([RawFd; MOST_PASSED]);
    let mut slices = [IoSliceMut::new(buf)];
    let received = recvmsg::<()>(
        socket.as_fd().as_raw_fd(),
        &mut slices,
        Some(&mut space),
        MsgFlags::MSG_CMSG_CLOEXEC,
    )?;
    for message in received.cmsgs()? {
        if let ControlMessageOwned::ScmRights(descriptors) = message {
            for descriptor in descriptors {
                // SAFETY: the kernel has just made this descriptor for us, and nobody else knows of it.
                passed.push(unsafe { OwnedFd::from_raw_fd(descriptor) });
            }
        }
    }
    Ok(received.bytes)
}

/// Reads from a socket what there is, at most as much as there is room for. (libc's own way would be a point where the
/// thread can be cancelled, which costs more than the rest of the call does in user space.)
pub fn read(socket: BorrowedFd<'_>, buf: &mut [u8]) -> io::Result<usize> {
    let none = std::ptr::null_mut::<libc::c_void>();
    // SAFETY: the kernel writes no more than the length of the buffer, which is borrowed for the call; no address is
    // asked for.
    let read = unsafe {
        libc::syscall(
            libc::SYS_recvfrom,
            socket.as_raw_fd(),
            buf.as_mut_ptr(),
            buf.len(),
            0,
            none,
            none,
        )
    };
    usize::try_from(read).map_err(|_| io::Error::last_os_error())
}

/// A ring of one thread.
pub struct Ring(IoUring);

/// What one send carries, and to where.
#[derive(Debug, Clone, Copy)]
pub struct Outgoing<'a> {
    /// A stream socket.
    pub socket: BorrowedFd<'a>,
    /// At most 4 GB.
    pub bytes: &'a [u8],
}

/// The ring failed; the sends without a result were not tried.
#[derive(Debug, thiserror::Error)]
#[error("io_uring: {0}")]
pub struct Broken(#[from] io::Error);

impl std::fmt::Debug for Ring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Ring(..)")
    }
}

impl Ring {
    /// A ring for up to `entries` sends at once, for the thread that calls this. Fails where the kernel is too old or
    /// forbids it (containers often do).
    pub fn new(entries: u32) -> io::Result<Self> {
        let modern = IoUring::builder()
            .setup_single_issuer()
            .setup_submit_all()
            .build(entries);
        modern.or_else(|_| IoUring::new(entries)).map(Self)
    }

    /// Tries each send once, without waiting, and tells `done` its number and what came of it: how many bytes the
    /// socket took, or the error (`WouldBlock` if it has no room).
    ///
    /// There may be no more of them than the ring has entries, and no two for the same socket: their order is
    /// not the kernel's concern.
    pub fn send_all<'a>(
        &mut self,
        sends: impl ExactSizeIterator<Item = Outgoing<'a>>,
        mut done: impl FnMut(usize, io::Result<usize>),
    ) -> Result<(), Broken> {
        let mut outstanding = 0;
        for (number, send) in sends.enumerate() {
            let len = u32::try_from(send.bytes.len()).unwrap_or(u32::MAX);
            let fd = types::Fd(send.socket.as_raw_fd());
            let entry = opcode::Send::new(fd, send.bytes.as_ptr(), len)
                .flags(MSG_DONTWAIT | MSG_NOSIGNAL)
                .build()
                .user_data(number as u64);
            // SAFETY: the descriptor and the bytes are borrowed for 'a, which outlives this call, and the call does not
            // return before the kernel has completed every entry that it took (the loops below). Entries it did not
            // take are never submitted: after an error the caller drops the ring.
            if unsafe { self.0.submission().push(&entry) }.is_err() {
                break;
            }
            outstanding += 1;
        }
        while outstanding > 0 {
            let submitted = self.0.submit_and_wait(outstanding);
            outstanding -= self.reap(&mut done);
            if let Err(error) = submitted
                && !may_be_repeated(&error)
            {
                // A send that may not wait is completed when it is submitted: these are there, or will be at once.
                let taken = outstanding - self.0.submission().len().min(outstanding);
                let mut reaped = 0;
                while reaped < taken {
                    reaped += self.reap(&mut done);
                    std::hint::spin_loop();
                }
                return Err(error.into());
            }
        }
        Ok(())
    }

    fn reap(&mut self, done: &mut impl FnMut(usize, io::Result<usize>)) -> usize {
        let mut count = 0;
        for completed in self.0.completion() {
            let number = usize::try_from(completed.user_data()).unwrap_or(usize::MAX);
            let result = usize::try_from(completed.result())
                .map_err(|_| io::Error::from_raw_os_error(-completed.result()));
            done(number, result);
            count += 1;
        }
        count
    }
}

fn may_be_repeated(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock | io::ErrorKind::ResourceBusy
    )
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    use super::*;

    /// Where the kernel forbids rings there is nothing to test, and the pooler does without.
    fn ring() -> Option<Ring> {
        Ring::new(8)
            .inspect_err(|error| eprintln!("NOT TESTED, no io_uring here: {error}"))
            .ok()
    }

    #[test]
    fn each_socket_gets_its_bytes() {
        let Some(mut ring) = ring() else { return };
        let pairs: Vec<_> = (0..8).map(|_| UnixStream::pair().unwrap()).collect();
        for round in 0..3_u8 {
            let messages: Vec<[u8; 2]> = (0..8).map(|number| [round, number]).collect();
            let sends = pairs
                .iter()
                .zip(&messages)
                .map(|((ours, _), bytes)| Outgoing {
                    socket: ours.as_fd(),
                    bytes,
                });
            let mut results = [0; 8];
            ring.send_all(sends, |number, result| results[number] = result.unwrap())
                .unwrap();
            assert_eq!(results, [2; 8]);
            for ((_, theirs), message) in pairs.iter().zip(&messages) {
                let mut got = [0; 2];
                (&*theirs).read_exact(&mut got).unwrap();
                assert_eq!(&got, message);
            }
        }
    }

    #[test]
    fn a_full_socket_and_a_closed_one_are_told_apart_and_harm_no_other() {
        let Some(mut ring) = ring() else { return };
        let full = UnixStream::pair().unwrap();
        full.0.set_nonblocking(true).unwrap();
        let big = vec![0; 1 << 16];
        while std::io::Write::write(&mut &full.0, &big).is_ok() {}
        let (closed, _) = UnixStream::pair().unwrap();
        let good = UnixStream::pair().unwrap();
        let sends = [&full.0, &closed, &good.0].map(|socket| Outgoing {
            socket: socket.as_fd(),
            bytes: b"x",
        });
        let mut results = [const { None }; 3];
        ring.send_all(sends.into_iter(), |number, result| {
            results[number] = Some(result.map_err(|error| error.kind()));
        })
        .unwrap();
        let [full, closed, good] = results.map(Option::unwrap);
        assert_eq!(full, Err(io::ErrorKind::WouldBlock));
        assert_eq!(closed, Err(io::ErrorKind::BrokenPipe));
        assert_eq!(good, Ok(1));
    }
}
