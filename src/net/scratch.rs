//! Buffers that belong to a worker thread instead of a connection.
//!
//! A connection that waits for its peer holds no buffer, only what it could not use yet; reading goes into the
//! buffer of the thread, which is looked at and passed on before the next connection gets its
//! turn. (With a buffer for each side of each connection, 10,000 idle clients would cost 160 MB.)
//! Never held over an await: [`with`] takes a closure, and a closure can't wait.

use std::cell::RefCell;

/// Size of the read buffer: a system call moves at most so much.
pub const READ_SIZE: usize = 64 * 1024;

/// Above this, the capacity of an output buffer is given back after use.
const KEEP_CAPACITY: usize = 256 * 1024;

/// The buffers of one worker.
#[derive(Debug)]
pub struct Scratch {
    /// Where reads go.
    pub read: Box<[u8]>,
    /// What is being put together for the side the bytes go to.
    pub forward: Vec<u8>,
    /// What is being put together for the side the bytes came from.
    pub back: Vec<u8>,
}

impl Scratch {
    fn new() -> Self {
        Self {
            read: vec![0; READ_SIZE].into_boxed_slice(),
            forward: Vec::new(),
            back: Vec::new(),
        }
    }

    fn tidy(&mut self) {
        for buffer in [&mut self.forward, &mut self.back] {
            buffer.clear();
            if buffer.capacity() > KEEP_CAPACITY {
                *buffer = Vec::new();
            }
        }
    }
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::new(Scratch::new());
    static SPARE: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

/// Above this, a buffer is not kept for the next who needs one.
const SPARE_CAPACITY: usize = 4 * 1024;

/// So many are kept.
const SPARES: usize = 64;

/// An empty buffer for a connection that has to keep something for a while.
pub fn take_buffer() -> Vec<u8> {
    SPARE
        .with(|spare| spare.borrow_mut().pop())
        .unwrap_or_default()
}

/// Takes such a buffer back, or another that is not needed any more.
pub fn give_buffer(mut buffer: Vec<u8>) {
    if (1..=SPARE_CAPACITY).contains(&buffer.capacity()) {
        buffer.clear();
        SPARE.with(|spare| {
            let mut spare = spare.borrow_mut();
            if spare.len() < SPARES {
                spare.push(buffer);
            }
        });
    }
}

/// Runs `f` with this thread's buffers. Calls do not nest: an inner one gets buffers of its own,
/// made for the occasion.
pub fn with<R>(f: impl FnOnce(&mut Scratch) -> R) -> R {
    SCRATCH.with(|scratch| {
        // (`f` is called in one place, so that it becomes a part of this.)
        let (mut borrowed, mut own) = (scratch.try_borrow_mut(), None);
        let scratch = match &mut borrowed {
            Ok(scratch) => scratch,
            Err(_) => own.get_or_insert_with(Scratch::new),
        };
        let result = f(scratch);
        scratch.tidy();
        result
    })
}
