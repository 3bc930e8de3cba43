//! What a backend sends: tags, borrowed views over message bodies, encoders.
//!
//! Used in both directions: read from `PostgreSQL`, written to clients where the pooler answers itself.
//! The authentication family is elsewhere.

use super::{Cursor, Error, message, put_count, put_string};

/// First bytes of the messages that a backend sends.
pub mod tag {
    /// All of the authentication requests and `AuthenticationOk`.
    pub const AUTHENTICATION: u8 = b'R';
    /// `ParameterStatus`: the value of a setting that is reported.
    pub const PARAMETER_STATUS: u8 = b'S';
    /// `BackendKeyData`: what a cancel request must show.
    pub const BACKEND_KEY_DATA: u8 = b'K';
    /// `ReadyForQuery`: the end of a query cycle.
    pub const READY_FOR_QUERY: u8 = b'Z';
    /// `ErrorResponse`.
    pub const ERROR_RESPONSE: u8 = b'E';
    /// `NoticeResponse`: any time.
    pub const NOTICE_RESPONSE: u8 = b'N';
    /// `NotificationResponse`: from NOTIFY.
    pub const NOTIFICATION_RESPONSE: u8 = b'A';
    /// `ParseComplete`.
    pub const PARSE_COMPLETE: u8 = b'1';
    /// `BindComplete`.
    pub const BIND_COMPLETE: u8 = b'2';
    /// `CloseComplete`.
    pub const CLOSE_COMPLETE: u8 = b'3';
    /// `CommandComplete`: with the command tag.
    pub const COMMAND_COMPLETE: u8 = b'C';
    /// `DataRow`.
    pub const DATA_ROW: u8 = b'D';
    /// `EmptyQueryResponse`: in place of `CommandComplete`.
    pub const EMPTY_QUERY_RESPONSE: u8 = b'I';
    /// `PortalSuspended`: Execute reached its row limit.
    pub const PORTAL_SUSPENDED: u8 = b's';
    /// `NoData`: in place of `RowDescription`.
    pub const NO_DATA: u8 = b'n';
    /// `ParameterDescription`.
    pub const PARAMETER_DESCRIPTION: u8 = b't';
    /// `RowDescription`.
    pub const ROW_DESCRIPTION: u8 = b'T';
    /// `CopyInResponse`: the server waits for `CopyData`.
    pub const COPY_IN_RESPONSE: u8 = b'G';
    /// `CopyOutResponse`: the server is about to send `CopyData`.
    pub const COPY_OUT_RESPONSE: u8 = b'H';
    /// `CopyBothResponse`: replication.
    pub const COPY_BOTH_RESPONSE: u8 = b'W';
    /// `CopyData`, in either direction.
    pub const COPY_DATA: u8 = b'd';
    /// `CopyDone`, in either direction.
    pub const COPY_DONE: u8 = b'c';
    /// `FunctionCallResponse`.
    pub const FUNCTION_CALL_RESPONSE: u8 = b'V';
    /// `NegotiateProtocolVersion`.
    pub const NEGOTIATE_PROTOCOL_VERSION: u8 = b'v';
}

/// Transaction status in `ReadyForQuery`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TxStatus {
    /// `I`: outside a transaction block; the server may go back to the pool.
    Idle,
    /// `T`: inside a transaction block.
    InTransaction,
    /// `E`: inside a failed block; only ROLLBACK is accepted.
    Failed,
}

impl TxStatus {
    /// The status that `byte` stands for; [`Error::BadTxStatus`] if there is none.
    pub fn from_byte(byte: u8) -> Result<Self, Error> {
        match byte {
            b'I' => Ok(Self::Idle),
            b'T' => Ok(Self::InTransaction),
            b'E' => Ok(Self::Failed),
            byte => Err(Error::BadTxStatus { byte }),
        }
    }

    /// `I`, `T` or `E`.
    pub fn as_byte(self) -> u8 {
        match self {
            Self::Idle => b'I',
            Self::InTransaction => b'T',
            Self::Failed => b'E',
        }
    }
}

/// Reads a `ReadyForQuery`: its one byte.
pub fn read_ready_for_query(body: &[u8]) -> Result<TxStatus, Error> {
    let mut cursor = Cursor(body);
    let status = TxStatus::from_byte(cursor.byte()?)?;
    cursor.finish()?;
    Ok(status)
}

/// Reads a `ParameterStatus`: name and value.
pub fn read_parameter_status(body: &[u8]) -> Result<(&[u8], &[u8]), Error> {
    let mut cursor = Cursor(body);
    let name = cursor.string()?;
    let value = cursor.string()?;
    cursor.finish()?;
    Ok((name, value))
}

/// Reads a `BackendKeyData`: process id and key, which has 4 bytes, up to 256 since protocol 3.2.
pub fn read_backend_key_data(body: &[u8]) -> Result<(i32, &[u8]), Error> {
    let mut cursor = Cursor(body);
    let pid = cursor.i32()?;
    match cursor.0.len() {
        4..=256 => Ok((pid, cursor.0)),
        length => Err(Error::BadCancelKey { length }),
    }
}

/// Reads a `CommandComplete`: the command tag, such as `INSERT 0 1`.
pub fn command_tag(body: &[u8]) -> Result<&[u8], Error> {
    let mut cursor = Cursor(body);
    let tag = cursor.string()?;
    cursor.finish()?;
    Ok(tag)
}

/// The columns of a `DataRow`; `None` is NULL. Copies them: for queries of the pooler's own.
pub fn read_data_row(body: &[u8]) -> Result<Vec<Option<Vec<u8>>>, Error> {
    let mut cursor = Cursor(body);
    let count = cursor.u16()?;
    let mut columns = Vec::new();
    for _ in 0..count {
        let length = cursor.i32()?;
        columns.push(match usize::try_from(length) {
            Ok(length) => Some(cursor.bytes(length)?.to_vec()),
            Err(_) => None,
        });
    }
    cursor.finish()?;
    Ok(columns)
}

/// The columns of a `RowDescription`: each with its name and the OID of its type. Copies them.
pub fn read_row_description(body: &[u8]) -> Result<Vec<(Vec<u8>, u32)>, Error> {
    let mut cursor = Cursor(body);
    let count = cursor.u16()?;
    let mut columns = Vec::new();
    for _ in 0..count {
        let name = cursor.string()?.to_vec();
        // The table's OID and the column's number in it.
        cursor.bytes(6)?;
        let oid = u32::from_be_bytes(cursor.array()?);
        // The type's size and modifier, and the format.
        cursor.bytes(8)?;
        columns.push((name, oid));
    }
    cursor.finish()?;
    Ok(columns)
}

/// The fields of an `ErrorResponse` or a `NoticeResponse` (anchor `protocol-error-fields`).
#[derive(Debug, Clone, Copy)]
pub struct ErrorFields<'a> {
    /// Checked: codes and strings in turn, without the NUL at the end of the list.
    fields: &'a [u8],
}

impl<'a> ErrorFields<'a> {
    /// Reads a whole body. Which fields there are is not checked: a server may leave out any of them.
    pub fn read(body: &'a [u8]) -> Result<Self, Error> {
        let mut cursor = Cursor(body);
        loop {
            let before = cursor.0.len();
            if cursor.byte()? == 0 {
                cursor.finish()?;
                let fields = body.get(..body.len() - before).unwrap_or_default();
                return Ok(Self { fields });
            }
            cursor.string()?;
        }
    }

    /// Codes and texts in the order sent.
    pub fn iter(&self) -> impl Iterator<Item = (u8, &'a [u8])> + use<'a> {
        let mut cursor = Cursor(self.fields);
        std::iter::from_fn(move || Some((cursor.byte().ok()?, cursor.string().ok()?)))
    }

    /// The text of the first field with this code.
    pub fn get(&self, code: u8) -> Option<&'a [u8]> {
        self.iter()
            .find_map(|(found, text)| (found == code).then_some(text))
    }

    /// Severity: the one that is never translated (`V`) if there is one, else `S`.
    pub fn severity(&self) -> Option<&'a [u8]> {
        self.get(b'V').or_else(|| self.get(b'S'))
    }

    /// The five letters to decide on; `None` from a server that breaks the rules.
    pub fn sqlstate(&self) -> Option<&'a [u8]> {
        self.get(b'C')
    }

    /// The function of the server's source that has raised it: for errors that share a code.
    pub fn routine(&self) -> Option<&'a [u8]> {
        self.get(b'R')
    }

    /// The primary message, in the server's language.
    pub fn message(&self) -> Option<&'a [u8]> {
        self.get(b'M')
    }
}

/// What an error or notice of our own says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ErrorMessage<'a> {
    /// `ERROR`, `FATAL`, `NOTICE`, …
    pub severity: &'a str,
    /// One of [`crate::protocol::sqlstate`].
    pub sqlstate: &'a str,
    /// The primary message.
    pub message: &'a str,
    /// Second part of the story.
    pub detail: Option<&'a str>,
    /// What to do about it.
    pub hint: Option<&'a str>,
    /// The function of PostgreSQL's that reports it.
    pub routine: Option<&'a str>,
    /// Whether to send the severity as `V` too, as `PostgreSQL` has done since 9.6. `PgBouncer` does not.
    pub with_v: bool,
}

impl<'a> ErrorMessage<'a> {
    /// An error in `PgBouncer`'s shape: only severity, code and message.
    pub fn new(severity: &'a str, sqlstate: &'a str, message: &'a str) -> Self {
        Self {
            severity,
            sqlstate,
            message,
            ..Self::default()
        }
    }

    fn put(&self, out: &mut Vec<u8>) {
        let fields = [
            (b'S', Some(self.severity)),
            (b'V', self.with_v.then_some(self.severity)),
            (b'C', Some(self.sqlstate)),
            (b'M', Some(self.message)),
            (b'D', self.detail),
            (b'H', self.hint),
            (b'R', self.routine),
        ];
        for (code, text) in fields {
            if let Some(text) = text {
                out.push(code);
                put_string(out, text.as_bytes());
            }
        }
        out.push(0);
    }
}

/// Appends an `ErrorResponse`.
pub fn error_response(out: &mut Vec<u8>, error: &ErrorMessage<'_>) {
    message(out, tag::ERROR_RESPONSE, |out| error.put(out));
}

/// Appends a `NoticeResponse`.
pub fn notice_response(out: &mut Vec<u8>, notice: &ErrorMessage<'_>) {
    message(out, tag::NOTICE_RESPONSE, |out| notice.put(out));
}

/// Appends the `ErrorResponse` with this body, every `from` in its texts replaced by `to`.
///
/// Gives a client its own statement name back instead of the one that the server knows. The body is passed on
/// as it is if it cannot be read, which is then the client's to judge.
pub fn rename_in_error(out: &mut Vec<u8>, body: &[u8], from: &[u8], to: &[u8]) {
    let fields = ErrorFields::read(body).ok().filter(|_| !from.is_empty());
    message(out, tag::ERROR_RESPONSE, |out| {
        let Some(fields) = fields else {
            out.extend_from_slice(body);
            return;
        };
        let finder = memchr::memmem::Finder::new(from);
        for (code, text) in fields.iter() {
            out.push(code);
            let mut copied = 0;
            for found in finder.find_iter(text) {
                out.extend_from_slice(text.get(copied..found).unwrap_or_default());
                out.extend_from_slice(to);
                copied = found + from.len();
            }
            out.extend_from_slice(text.get(copied..).unwrap_or_default());
            out.push(0);
        }
        out.push(0);
    });
}

/// Appends a `ReadyForQuery`.
pub fn ready_for_query(out: &mut Vec<u8>, status: TxStatus) {
    message(out, tag::READY_FOR_QUERY, |out| out.push(status.as_byte()));
}

/// Appends a `ParseComplete`.
pub fn parse_complete(out: &mut Vec<u8>) {
    message(out, tag::PARSE_COMPLETE, |_| {});
}

/// Appends a `BindComplete`.
pub fn bind_complete(out: &mut Vec<u8>) {
    message(out, tag::BIND_COMPLETE, |_| {});
}

/// Appends a `CloseComplete`.
pub fn close_complete(out: &mut Vec<u8>) {
    message(out, tag::CLOSE_COMPLETE, |_| {});
}

/// Appends a `NoData`.
pub fn no_data(out: &mut Vec<u8>) {
    message(out, tag::NO_DATA, |_| {});
}

/// Appends an `EmptyQueryResponse`.
pub fn empty_query_response(out: &mut Vec<u8>) {
    message(out, tag::EMPTY_QUERY_RESPONSE, |_| {});
}

/// Appends a `CommandComplete`.
pub fn command_complete(out: &mut Vec<u8>, tag: &str) {
    message(out, tag::COMMAND_COMPLETE, |out| {
        put_string(out, tag.as_bytes());
    });
}

/// Appends a `ParameterStatus`.
pub fn parameter_status(out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    message(out, tag::PARAMETER_STATUS, |out| {
        put_string(out, name);
        put_string(out, value);
    });
}

/// Appends a `NotificationResponse` with this body.
pub fn notification_response(out: &mut Vec<u8>, body: &[u8]) {
    message(out, tag::NOTIFICATION_RESPONSE, |out| {
        out.extend_from_slice(body);
    });
}

/// Appends a `BackendKeyData`; `key` has 4 bytes, more only for a client that speaks protocol 3.2.
pub fn backend_key_data(out: &mut Vec<u8>, pid: i32, key: &[u8]) {
    message(out, tag::BACKEND_KEY_DATA, |out| {
        out.extend_from_slice(&pid.to_be_bytes());
        out.extend_from_slice(key);
    });
}

/// Appends a `NegotiateProtocolVersion`: the newest version we speak, and the `_pq_.` parameters that we do not
/// know.
///
/// Whether `newest` is the minor version alone or the whole one (`0x0003_0000`, as `PgBouncer` and `PostgreSQL`
/// really send) is up to the caller.
pub fn negotiate_protocol_version(out: &mut Vec<u8>, newest: u32, unrecognized: &[&[u8]]) {
    message(out, tag::NEGOTIATE_PROTOCOL_VERSION, |out| {
        out.extend_from_slice(&newest.to_be_bytes());
        let count = u16::try_from(unrecognized.len()).unwrap_or(u16::MAX);
        out.extend_from_slice(&u32::from(count).to_be_bytes());
        for name in unrecognized.iter().take(usize::from(count)) {
            put_string(out, name);
        }
    });
}

/// A column of a result that the pooler makes up: of no table, without modifier, in text format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Column<'a> {
    /// Its heading.
    pub name: &'a str,
    /// OID of its type, such as 25 for `text`.
    pub type_oid: u32,
    /// Size of the type in bytes (`pg_type.typlen`); -1 where it varies.
    pub type_len: i16,
}

/// Appends a `RowDescription` of columns in text format.
pub fn row_description(out: &mut Vec<u8>, columns: &[Column<'_>]) {
    row_description_in(out, columns, |_| false);
}

/// Appends a `RowDescription` as a portal has it: `is_binary` tells the format of each column by its place.
pub fn row_description_in(
    out: &mut Vec<u8>,
    columns: &[Column<'_>],
    is_binary: impl Fn(usize) -> bool,
) {
    message(out, tag::ROW_DESCRIPTION, |out| {
        let count = put_count(out, columns.len());
        for (at, column) in columns.iter().take(count).enumerate() {
            put_string(out, column.name.as_bytes());
            // Of no table, so without a column number in it.
            out.extend_from_slice(&[0; 6]);
            out.extend_from_slice(&column.type_oid.to_be_bytes());
            out.extend_from_slice(&column.type_len.to_be_bytes());
            out.extend_from_slice(&(-1i32).to_be_bytes());
            out.extend_from_slice(&u16::from(is_binary(at)).to_be_bytes());
        }
    });
}

/// Appends a `PortalSuspended`.
pub fn portal_suspended(out: &mut Vec<u8>) {
    message(out, tag::PORTAL_SUSPENDED, |_| {});
}

/// Appends a `DataRow`; `None` for NULL.
pub fn data_row(out: &mut Vec<u8>, values: &[Option<&[u8]>]) {
    message(out, tag::DATA_ROW, |out| {
        let count = put_count(out, values.len());
        for value in values.iter().take(count) {
            // A value that has no length cannot be sent; the pooler makes none up either.
            let sized = value.and_then(|value| Some((i32::try_from(value.len()).ok()?, value)));
            if let Some((length, value)) = sized {
                out.extend_from_slice(&length.to_be_bytes());
                out.extend_from_slice(value);
            } else {
                out.extend_from_slice(&(-1i32).to_be_bytes());
            }
        }
    });
}

/// Appends a `ParameterDescription` with the OIDs of the parameters' types.
pub fn parameter_description(out: &mut Vec<u8>, types: &[u32]) {
    message(out, tag::PARAMETER_DESCRIPTION, |out| {
        let count = put_count(out, types.len());
        for oid in types.iter().take(count) {
            out.extend_from_slice(&oid.to_be_bytes());
        }
    });
}

#[cfg(test)]
mod tests;
