//! The replies a server owes, oldest first.
//!
//! Pure: it is told what was sent and which reply came, and says whom the reply is for. Three
//! things make this more than a queue (`protocol-flow`):
//!
//! - an error in the extended protocol makes the server ignore all up to the next Sync, so the
//!   replies to what lies between will never come, and neither will what we would have made up;
//! - while COPY data comes in, the server ignores Sync and Flush;
//! - a server is free only when the reply to the *last* Sync or Query is in.
//!
//! Each request may carry an effect: what was noted down, ahead of the server, when it was sent.
//! A request that failed or was skipped gives its effect back, newest first, to be undone.

use std::collections::VecDeque;

use crate::protocol::backend::tag;

/// A message that was sent to the server and that the server answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Request {
    /// Query: any number of replies, ended by ReadyForQuery.
    Query,
    /// FunctionCall: FunctionCallResponse, then ReadyForQuery.
    FunctionCall,
    /// Sync: ReadyForQuery.
    Sync,
    /// Parse: ParseComplete.
    Parse,
    /// Bind: BindComplete.
    Bind,
    /// Describe of a statement: ParameterDescription, then RowDescription or NoData.
    DescribeStatement,
    /// Describe of a portal: RowDescription or NoData.
    DescribePortal,
    /// Execute: rows, then CommandComplete, EmptyQueryResponse or PortalSuspended.
    Execute,
    /// Close: CloseComplete.
    Close,
    /// CopyDone or CopyFail sent before it was known whether there is a COPY: no reply of its
    /// own, but what stands behind it was not ignored.
    CopyEnd,
}

impl Request {
    /// Is its last reply ReadyForQuery?
    pub fn ends_with_ready(self) -> bool {
        matches!(self, Self::Query | Self::FunctionCall | Self::Sync)
    }

    /// The tag of the reply that ends it, for those that are asked often.
    #[inline]
    fn usual_end(self) -> Option<u8> {
        match self {
            Self::Query | Self::Sync => Some(tag::READY_FOR_QUERY),
            Self::Parse => Some(tag::PARSE_COMPLETE),
            Self::Bind => Some(tag::BIND_COMPLETE),
            Self::DescribePortal => Some(tag::ROW_DESCRIPTION),
            Self::Execute => Some(tag::COMMAND_COMPLETE),
            Self::FunctionCall | Self::DescribeStatement | Self::Close | Self::CopyEnd => None,
        }
    }
}

/// Whom the reply to a request is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expect {
    /// The client asked: the reply goes to it.
    Forward(Request),
    /// The pooler asked: the reply stops here (an error goes to the client all the same, since
    /// it takes the place of the client's own).
    Swallow(Request),
    /// The server was not asked: the pooler answers itself, in its turn in the order.
    Synthesize(Request),
}

impl Expect {
    fn request(self) -> Request {
        match self {
            Self::Forward(request) | Self::Swallow(request) | Self::Synthesize(request) => request,
        }
    }
}

/// What is to be done with a message from the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reply {
    /// Does the client get it?
    pub forward: bool,
    /// The request that it completes; `None`: more messages follow that answer the same.
    pub completes: Option<Request>,
    /// Something was noted when the request was sent, which is true now: [`Pipeline::take_effect`] must follow.
    pub has_effect: bool,
}

/// What an error from the server means.
#[derive(Debug, PartialEq, Eq)]
pub enum Failure<E> {
    /// The request failed. The client gets the message; what was noted for it and for all that
    /// the server now skips is given back, to be undone.
    Failed {
        /// What was noted for those it skips, newest first: the order to undo them in.
        skipped: Vec<E>,
        /// What was noted for the request that failed.
        failed: Option<E>,
        /// COPY data were being taken, and the Sync that would end the batch was not sent yet.
        in_copy: bool,
    },
    /// An error that belongs to no request, or leaves its request to be ended by ReadyForQuery.
    Aside,
}

/// A reply that does not fit what was asked: the stream can't be trusted any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Desync {
    /// A message that nothing was asked for, by its tag.
    #[error("unexpected reply {0:?} from server")]
    Reply(char),
    /// Bytes that are no message. The words are PgBouncer's.
    #[error("bad pkt header")]
    Header,
}

/// Where the incoming half of a COPY stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CopyIn {
    /// None is under way.
    No,
    /// The server takes CopyData; it ignores Sync.
    Open,
    /// CopyDone or CopyFail was sent.
    Ended,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    expect: Expect,
    has_effect: bool,
}

impl Entry {
    /// Does the server get it, and does it say whether a batch is open?
    fn is_sent(self) -> bool {
        match self.expect {
            Expect::Forward(request) | Expect::Swallow(request) => request != Request::CopyEnd,
            Expect::Synthesize(_) => false,
        }
    }
}

/// The queue of replies owed.
#[derive(Debug)]
pub struct Pipeline<E> {
    entries: VecDeque<Entry>,
    effects: VecDeque<E>,
    /// How many of the entries are `Synthesize`, and how many are `CopyEnd`: seldom any.
    synthesized: usize,
    copy_ends: usize,
    /// How many of them end with ReadyForQuery.
    readies: usize,
    /// An error came and its Sync was not sent yet: the server ignores everything else.
    skipping: bool,
    copy: CopyIn,
    /// Syncs sent while COPY data was being taken. Ignored if the COPY went well; if it failed,
    /// nobody can tell whether the server read them before or after.
    doubtful_syncs: u32,
    /// Syncs that were under way when the server began to take COPY data. It ignores them, unless something that
    /// is not in the stream breaks the COPY off before it has read them.
    early_syncs: u32,
    unsure: bool,
    batch: u64,
    /// Something of the extended protocol was sent and no Sync after it: the server is inside of a batch, and of its
    /// implicit transaction, though it may owe nothing.
    batch_is_open: bool,
}

impl<E> Default for Pipeline<E> {
    fn default() -> Self {
        Self {
            entries: VecDeque::new(),
            effects: VecDeque::new(),
            synthesized: 0,
            copy_ends: 0,
            readies: 0,
            skipping: false,
            copy: CopyIn::No,
            doubtful_syncs: 0,
            early_syncs: 0,
            unsure: false,
            batch: 0,
            batch_is_open: false,
        }
    }
}

impl<E> Pipeline<E> {
    /// Notes a request that is being sent (or, with [`Expect::Synthesize`], held back).
    #[inline(always)]
    #[allow(
        clippy::inline_always,
        reason = "what is sent and whether it has an effect is mostly known where it is called"
    )]
    pub fn push(&mut self, expect: Expect, effect: Option<E>) {
        self.note(expect, effect.is_some());
        if let Some(effect) = effect {
            self.push_effect(effect);
        }
    }

    #[inline(never)]
    fn push_effect(&mut self, effect: E) {
        self.effects.push_back(effect);
    }

    #[inline]
    fn note(&mut self, expect: Expect, has_effect: bool) {
        let ends_with_ready = expect.request().ends_with_ready();
        self.readies += usize::from(ends_with_ready);
        match expect {
            Expect::Forward(request) | Expect::Swallow(request) => {
                if matches!(request, Request::Query | Request::FunctionCall) {
                    // It ends a batch that has no Sync.
                    self.batch += u64::from(self.batch_is_open);
                }
                self.batch_is_open = !ends_with_ready;
            }
            Expect::Synthesize(_) => self.synthesized += 1,
        }
        self.entries.push_back(Entry { expect, has_effect });
    }

    /// Notes a Sync that is being sent. The server ignores it while it takes COPY data.
    #[inline]
    pub fn push_sync(&mut self, expect: Expect) {
        self.batch += 1;
        if self.copy == CopyIn::Open {
            self.doubtful_syncs += 1;
        } else {
            self.skipping = false;
            self.push(expect, None);
        }
    }

    /// How many batches were sent up to their end, which is a Sync, or a Query without one: requests of one batch share the fate of an error in it.
    #[inline]
    pub fn batch(&self) -> u64 {
        self.batch
    }

    /// The batch of the oldest request that is not answered, or an earlier one.
    pub fn oldest_batch(&self) -> u64 {
        self.batch.saturating_sub(self.readies as u64)
    }

    /// Does the server owe nothing, and is no batch open?
    #[inline]
    pub fn is_idle(&self) -> bool {
        self.entries.is_empty() && !self.skipping && !self.batch_is_open
    }

    /// Does the server owe nothing at this moment? Unlike [`is_idle`](Self::is_idle), it may be
    /// in a batch that waits for its Sync.
    pub fn owes_nothing(&self) -> bool {
        self.entries.is_empty()
    }

    /// Is there a reply that must come from the server? What only the pooler still has to say needs no waiting.
    pub fn awaits_server(&self) -> bool {
        self.entries
            .iter()
            .any(|entry| !matches!(entry.expect, Expect::Synthesize(_)))
    }

    /// Does nothing follow the request that is being answered, but the Sync that ends it?
    pub fn owes_nothing_more(&self) -> bool {
        self.entries
            .iter()
            .skip(1)
            .all(|entry| entry.expect.request() == Request::Sync)
    }

    /// Is the request that is being answered the client's?
    pub fn answers_client(&self) -> bool {
        let front = self.entries.front();
        front.is_some_and(|entry| matches!(entry.expect, Expect::Forward(_)))
    }

    /// How many of the client's messages are not answered, if these are the rest of one batch up to its Sync, and nothing
    /// was sent behind it.
    pub fn owed_up_to_sync(&self) -> Option<usize> {
        let last = self.entries.back()?;
        let is_whole = self.readies == 1 && last.expect == Expect::Forward(Request::Sync);
        is_whole.then(|| self.owed_to_client())
    }

    /// How many of the client's messages are not answered.
    pub fn owed_to_client(&self) -> usize {
        let is_asked = |entry: &&Entry| !matches!(entry.expect, Expect::Swallow(_));
        self.entries.iter().filter(is_asked).count()
    }

    /// What is answered next is not for the client.
    pub fn swallow_next(&mut self) {
        if let Some(front) = self.entries.front_mut() {
            front.expect = Expect::Swallow(front.expect.request());
        }
    }

    /// What is answered next is for the client after all.
    pub fn forward_next(&mut self) {
        if let Some(front) = self.entries.front_mut() {
            front.expect = Expect::Forward(front.expect.request());
        }
    }

    /// Does the server ignore everything until a Sync is sent?
    #[inline]
    pub fn is_skipping(&self) -> bool {
        self.skipping
    }

    /// Does the server wait for a Sync?
    pub fn needs_sync(&self) -> bool {
        self.skipping || self.batch_is_open
    }

    /// Is there a reply outstanding that ends with ReadyForQuery?
    pub fn owes_ready(&self) -> bool {
        self.readies > 0
    }

    /// Has the stream become ambiguous, so that the server must not be used again?
    pub fn is_unsure(&self) -> bool {
        self.unsure
    }

    /// Is the server taking COPY data?
    pub fn takes_copy_data(&self) -> bool {
        self.copy == CopyIn::Open
    }

    /// Should a CopyData message be sent on? Late ones, after the COPY failed, are dropped.
    pub fn wants_copy_data(&self) -> bool {
        match self.copy {
            CopyIn::Open => true,
            // The client may send data right behind the COPY, before the server has agreed.
            CopyIn::No => !self.skipping && self.may_become_copy(0),
            CopyIn::Ended => self.may_become_copy(1),
        }
    }

    /// The client sends CopyDone or CopyFail: should it be sent on?
    pub fn end_copy(&mut self) -> bool {
        let wanted = self.wants_copy_data();
        match self.copy {
            CopyIn::Open => self.copy = CopyIn::Ended,
            // Not `push`: it begins no batch, and there may be no COPY that it ends.
            CopyIn::No | CopyIn::Ended if wanted => {
                self.copy_ends += 1;
                self.entries.push_back(Entry {
                    expect: Expect::Forward(Request::CopyEnd),
                    has_effect: false,
                });
            }
            CopyIn::No | CopyIn::Ended => {}
        }
        wanted
    }

    /// Is there a request that may turn out to be a COPY, behind so many others?
    fn may_become_copy(&self, behind: usize) -> bool {
        self.entries
            .iter()
            .skip(behind)
            .any(|entry| matches!(entry.expect.request(), Request::Query | Request::Execute))
    }

    /// The effect of the oldest request, if it has one: for replies inside of it.
    pub fn current_effect(&mut self) -> Option<&mut E> {
        if self.entries.front()?.has_effect {
            self.effects.front_mut()
        } else {
            None
        }
    }

    /// What the oldest outstanding request is.
    pub fn current(&self) -> Option<Request> {
        self.entries.front().map(|entry| entry.expect.request())
    }

    /// Is there a request, be it not the oldest, that is for us to answer?
    #[inline]
    pub fn has_synthesized(&self) -> bool {
        self.synthesized > 0
    }

    /// Takes the oldest request if it is for us to answer.
    pub fn take_synthesized(&mut self) -> Option<Request> {
        let Expect::Synthesize(request) = self.entries.front()?.expect else {
            return None;
        };
        self.pop();
        Some(request)
    }

    #[inline]
    fn count_out(&mut self, expect: Expect) {
        self.readies -= usize::from(expect.request().ends_with_ready());
        if matches!(expect, Expect::Synthesize(_)) {
            self.synthesized -= 1;
        }
        if expect.request() == Request::CopyEnd {
            self.copy_ends -= 1;
        }
    }

    /// The effect of the request that was completed last.
    pub fn take_effect(&mut self) -> Option<E> {
        self.effects.pop_front()
    }

    fn pop(&mut self) -> Option<E> {
        let entry = self.pop_entry()?;
        if entry.has_effect {
            self.effects.pop_front()
        } else {
            None
        }
    }

    #[inline]
    fn pop_entry(&mut self) -> Option<Entry> {
        let entry = self.entries.pop_front()?;
        self.count_out(entry.expect);
        while self.copy_ends > 0 && self.current() == Some(Request::CopyEnd) {
            self.entries.pop_front();
            self.copy_ends -= 1;
        }
        Some(entry)
    }

    /// A DataRow came. `Some`: it is a row of what is asked for, and this is whether the client gets it. Else it is for
    /// [`reply`](Self::reply) to judge.
    #[inline]
    pub fn row(&self) -> Option<bool> {
        match self.entries.front()?.expect {
            Expect::Forward(Request::Query | Request::Execute) => Some(true),
            Expect::Swallow(Request::Query | Request::Execute) => Some(false),
            Expect::Forward(_) | Expect::Swallow(_) | Expect::Synthesize(_) => None,
        }
    }

    /// Is there nothing to be had in mind but the queue itself? It stays so while [`passes`](Self::passes) says yes.
    #[inline]
    pub fn is_usual(&self) -> bool {
        self.copy == CopyIn::No
            && self.doubtful_syncs == 0
            && self.copy_ends == 0
            && self.synthesized == 0
    }

    /// The same as [`reply`](Self::reply) for nearly all messages, and much quicker: true if the message goes to the client,
    /// and that is all. Else nothing is done, and it has to be asked. Only while the pipeline [is as usual](Self::is_usual).
    #[inline(always)]
    #[allow(
        clippy::inline_always,
        reason = "it is called for each message, and in one place"
    )]
    pub fn passes(&mut self, tag: u8) -> bool {
        let Some(&Entry {
            expect: Expect::Forward(request),
            has_effect: false,
        }) = self.entries.front()
        else {
            return false;
        };
        if request.usual_end() != Some(tag) {
            return match request {
                Request::Execute => matches!(tag, tag::DATA_ROW | tag::COPY_DATA),
                Request::Query => matches!(
                    tag,
                    tag::DATA_ROW | tag::COPY_DATA | tag::ROW_DESCRIPTION | tag::COMMAND_COMPLETE
                ),
                _ => false,
            };
        }
        self.readies -= usize::from(tag == tag::READY_FOR_QUERY);
        self.entries.pop_front();
        true
    }

    /// A message came that is neither asynchronous (notice, notification, parameter) nor an
    /// error: whose is it?
    #[inline]
    pub fn reply(&mut self, tag: u8) -> Result<Reply, Desync> {
        let Some(front) = self.entries.front() else {
            return self.reply_to_doubtful_sync(tag);
        };
        let (forward, request) = match front.expect {
            Expect::Forward(request) => (true, request),
            Expect::Swallow(request) => (false, request),
            Expect::Synthesize(_) => return Err(Desync::Reply(tag.into())),
        };
        match progress(request, tag) {
            Some(Progress::Part) => {
                self.note_copy(tag);
                Ok(Reply {
                    forward,
                    completes: None,
                    has_effect: false,
                })
            }
            Some(Progress::Done) => {
                self.copy = CopyIn::No;
                self.doubtful_syncs = 0;
                Ok(Reply {
                    forward,
                    completes: Some(request),
                    has_effect: self.pop_entry().is_some_and(|entry| entry.has_effect),
                })
            }
            None => Err(Desync::Reply(tag.into())),
        }
    }

    fn reply_to_doubtful_sync(&mut self, tag: u8) -> Result<Reply, Desync> {
        if tag == tag::READY_FOR_QUERY && self.unsure && self.skipping {
            (self.skipping, self.batch_is_open) = (false, false);
            return Ok(Reply {
                forward: true,
                completes: Some(Request::Sync),
                has_effect: false,
            });
        }
        Err(Desync::Reply(tag.into()))
    }

    fn note_copy(&mut self, tag: u8) {
        match tag {
            tag::COPY_IN_RESPONSE | tag::COPY_BOTH_RESPONSE => self.open_copy(),
            tag::COMMAND_COMPLETE => {
                self.copy = CopyIn::No;
                self.doubtful_syncs = 0;
            }
            _ => {}
        }
    }

    /// The server takes COPY data from here on, so it will ignore the Syncs that are already
    /// under way, up to the end of the data if that is under way, too.
    fn open_copy(&mut self) {
        self.copy = CopyIn::Open;
        self.early_syncs = 0;
        let mut at = 1;
        while let Some(expect) = self.entries.get(at).map(|entry| entry.expect) {
            match expect.request() {
                Request::Sync => {
                    self.early_syncs += 1;
                    self.entries.remove(at);
                    self.count_out(expect);
                }
                Request::CopyEnd => {
                    self.entries.remove(at);
                    self.count_out(expect);
                    self.copy = CopyIn::Ended;
                    break;
                }
                _ => at += 1,
            }
        }
        let last = self.entries.iter().rev().find(|entry| entry.is_sent());
        self.batch_is_open = last.is_some_and(|entry| !entry.expect.request().ends_with_ready());
    }

    /// An ErrorResponse came. `interrupted`: by a cancel request or a time limit, not by what the stream says.
    pub fn error(&mut self, interrupted: bool) -> Failure<E> {
        let in_copy = std::mem::replace(&mut self.copy, CopyIn::No) != CopyIn::No;
        if in_copy && (self.doubtful_syncs > 0 || interrupted && self.early_syncs > 0) {
            self.unsure = true;
        }
        self.doubtful_syncs = 0;
        match self.current() {
            // ReadyForQuery still follows, and nothing is skipped.
            None | Some(Request::Query | Request::FunctionCall | Request::Sync) => Failure::Aside,
            Some(_) => {
                let failed = self.pop();
                let skipped = self.skip_to_sync();
                Failure::Failed {
                    skipped,
                    failed,
                    in_copy: in_copy && self.skipping && !self.unsure,
                }
            }
        }
    }

    /// An extended-query error makes the server skip to the next Sync, so the replies before it
    /// will never come (`protocol-flow-ext-query`).
    fn skip_to_sync(&mut self) -> Vec<E> {
        let mut undo = Vec::new();
        loop {
            match self.current() {
                Some(Request::Sync) => break,
                Some(_) => undo.extend(self.pop()),
                None => {
                    self.skipping = true;
                    break;
                }
            }
        }
        undo.reverse();
        undo
    }
}

enum Progress {
    Part,
    Done,
}

/// How far a reply brings a request; `None` when it can't belong to it
/// (`protocol-flow`, `protocol-message-formats`).
#[inline]
fn progress(request: Request, tag: u8) -> Option<Progress> {
    use Progress::{Done, Part};
    match (request, tag) {
        (
            Request::Execute,
            tag::DATA_ROW
            | tag::COPY_DATA
            | tag::COPY_DONE
            | tag::COPY_IN_RESPONSE
            | tag::COPY_OUT_RESPONSE
            | tag::COPY_BOTH_RESPONSE,
        )
        | (
            Request::Query,
            tag::DATA_ROW
            | tag::ROW_DESCRIPTION
            | tag::COMMAND_COMPLETE
            | tag::EMPTY_QUERY_RESPONSE
            | tag::COPY_DATA
            | tag::COPY_DONE
            | tag::COPY_IN_RESPONSE
            | tag::COPY_OUT_RESPONSE
            | tag::COPY_BOTH_RESPONSE,
        )
        | (Request::DescribeStatement, tag::PARAMETER_DESCRIPTION)
        | (Request::FunctionCall, tag::FUNCTION_CALL_RESPONSE) => Some(Part),
        (Request::Query | Request::FunctionCall | Request::Sync, tag::READY_FOR_QUERY)
        | (Request::Parse, tag::PARSE_COMPLETE)
        | (Request::Bind, tag::BIND_COMPLETE)
        | (
            Request::DescribeStatement | Request::DescribePortal,
            tag::ROW_DESCRIPTION | tag::NO_DATA,
        )
        | (
            Request::Execute,
            tag::COMMAND_COMPLETE | tag::EMPTY_QUERY_RESPONSE | tag::PORTAL_SUSPENDED,
        )
        | (Request::Close, tag::CLOSE_COMPLETE) => Some(Done),
        _ => None,
    }
}

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;
