//! What a backend sends, kept as bytes and shown as words.

use std::fmt;

/// One message of a backend.
#[derive(Clone, PartialEq, Eq)]
pub struct Message {
    pub tag: u8,
    pub body: Vec<u8>,
}

impl Message {
    /// The documented name of the message.
    pub fn name(&self) -> &'static str {
        match self.tag {
            b'R' => "Authentication",
            b'S' => "ParameterStatus",
            b'K' => "BackendKeyData",
            b'Z' => "ReadyForQuery",
            b'T' => "RowDescription",
            b'D' => "DataRow",
            b'C' => "CommandComplete",
            b'E' => "ErrorResponse",
            b'N' => "NoticeResponse",
            b'A' => "NotificationResponse",
            b'1' => "ParseComplete",
            b'2' => "BindComplete",
            b'3' => "CloseComplete",
            b't' => "ParameterDescription",
            b'n' => "NoData",
            b's' => "PortalSuspended",
            b'I' => "EmptyQueryResponse",
            b'G' => "CopyInResponse",
            b'H' => "CopyOutResponse",
            b'W' => "CopyBothResponse",
            b'd' => "CopyData",
            b'c' => "CopyDone",
            b'V' => "FunctionCallResponse",
            b'v' => "NegotiateProtocolVersion",
            0 => "(no reply)",
            _ => "(unknown)",
        }
    }

    /// What stands in a transcript where the server fell silent.
    pub fn silence() -> Self {
        Self {
            tag: 0,
            body: Vec::new(),
        }
    }

    /// The values of a DataRow as text.
    pub fn values(&self) -> Vec<Option<String>> {
        assert_eq!(self.tag, b'D', "a DataRow, not {self:?}");
        let mut rest = &self.body[2..];
        let count = usize::from(u16::from_be_bytes([self.body[0], self.body[1]]));
        let mut values = Vec::new();
        for _ in 0..count {
            let length = i32::from_be_bytes(rest[..4].try_into().unwrap());
            rest = &rest[4..];
            values.push(usize::try_from(length).ok().map(|length| {
                let (value, after) = rest.split_at(length);
                rest = after;
                String::from_utf8_lossy(value).into_owned()
            }));
        }
        values
    }

    /// The column names of a RowDescription.
    pub fn columns(&self) -> Vec<String> {
        assert_eq!(self.tag, b'T', "a RowDescription, not {self:?}");
        let mut rest = &self.body[2..];
        let mut names = Vec::new();
        while !rest.is_empty() {
            let end = rest.iter().position(|byte| *byte == 0).unwrap();
            names.push(String::from_utf8_lossy(&rest[..end]).into_owned());
            rest = &rest[end + 19..];
        }
        names
    }

    /// A field of an ErrorResponse or NoticeResponse (docs: protocol-error-fields).
    pub fn field(&self, code: char) -> Option<String> {
        self.fields()
            .into_iter()
            .find(|(tag, _)| *tag == code)
            .map(|(_, value)| value)
    }

    /// The SQLSTATE of an ErrorResponse.
    pub fn sqlstate(&self) -> String {
        self.field('C').unwrap_or_default()
    }

    fn fields(&self) -> Vec<(char, String)> {
        let parts = self
            .body
            .split(|byte| *byte == 0)
            .filter(|part| !part.is_empty());
        parts
            .map(|part| {
                (
                    char::from(part[0]),
                    String::from_utf8_lossy(&part[1..]).into_owned(),
                )
            })
            .collect()
    }

    /// The same message without what two correct servers may say differently: where in PostgreSQL's
    /// source an error was raised, and the oids of tables, which count up over the runs.
    pub fn comparable(&self, tables: &mut Vec<[u8; 4]>) -> Message {
        let mut body = self.body.clone();
        if matches!(self.tag, b'E' | b'N') {
            body.clear();
            for part in self.body.split(|byte| *byte == 0) {
                if !part.is_empty() && !matches!(part[0], b'F' | b'L' | b'R') {
                    body.extend(part);
                    body.push(0);
                }
            }
        }
        if self.tag == b'T' {
            number_tables(&mut body, tables);
        }
        Message {
            tag: self.tag,
            body,
        }
    }
}

/// The first oid that is not built in (`FirstNormalObjectId` in PostgreSQL).
const FIRST_NORMAL_OID: u32 = 16_384;

fn number_tables(body: &mut [u8], tables: &mut Vec<[u8; 4]>) {
    let mut at = 2;
    while at < body.len() {
        at += body[at..].iter().position(|byte| *byte == 0).unwrap() + 1;
        let oid: [u8; 4] = body[at..at + 4].try_into().unwrap();
        if u32::from_be_bytes(oid) >= FIRST_NORMAL_OID {
            let number = tables
                .iter()
                .position(|known| *known == oid)
                .unwrap_or_else(|| {
                    tables.push(oid);
                    tables.len() - 1
                });
            let number = FIRST_NORMAL_OID + u32::try_from(number).unwrap();
            body[at..at + 4].copy_from_slice(&number.to_be_bytes());
        }
        at += 18;
    }
}

/// Longest payload shown in full.
const SHOWN: usize = 200;

impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.name())?;
        if self.body.len() > SHOWN && !matches!(self.tag, b'E' | b'N') {
            return write!(f, " ({} bytes)", self.body.len());
        }
        match self.tag {
            b'D' => write!(f, " {:?}", self.values()),
            b'T' => write!(f, " {:?} \"{}\"", self.columns(), self.body.escape_ascii()),
            b'E' | b'N' => write!(f, " {:?}", self.fields()),
            b'Z' => write!(f, " {}", self.body.escape_ascii()),
            _ if self.body.is_empty() => Ok(()),
            _ => write!(f, " \"{}\"", self.body.escape_ascii()),
        }
    }
}
