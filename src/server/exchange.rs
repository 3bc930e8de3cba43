//! Queries of the pooler's own on a server that nobody is linked to: parameters, check, reset.
//! Not hot; one message at a time.

use super::overlay::Overlay;
use super::{Doom, Error, Forget, Server, Unnamed};
use crate::protocol::backend::{self, ErrorFields, tag};
use crate::protocol::frame;
use crate::protocol::frontend::{self, Target};

/// The columns of a row; `None` is NULL.
pub type Row = Vec<Option<Vec<u8>>>;

/// The name of a statement of our own, which is gone when its replies are in.
const OWN: &[u8] = b"PGFERRY_own";

/// Longest message accepted in reply to a query of ours.
pub(super) const MAX_REPLY: usize = 16 << 20;

impl Server {
    /// Runs a simple query and reads its replies to the end. The first error is returned once
    /// ReadyForQuery is in. If this is dropped half-way the server is not clean: it must be closed.
    pub async fn run(&mut self, sql: &[u8]) -> Result<(), Error> {
        self.simple(sql, |_| {}).await
    }

    /// Runs simple queries, sent at once. Comes back with the places of those that PostgreSQL refuses; the others are run.
    pub async fn run_each(&mut self, texts: &[Vec<u8>]) -> Result<Vec<usize>, Error> {
        let (mut out, mut refused) = (Vec::new(), Vec::new());
        for text in texts {
            frontend::query(&mut out, text);
        }
        self.state.unnamed = Unnamed::Unknown;
        for at in 0..texts.len() {
            let failure = self.exchange(&std::mem::take(&mut out), |_| {}).await?;
            match none_refused(failure) {
                Err(Error::Query(text)) => {
                    tracing::debug!(server = self.entry.id, "refused: {text}");
                    refused.push(at);
                }
                result => result?,
            }
        }
        Ok(refused)
    }

    /// Runs a simple query and returns all its rows, with their columns in text.
    pub async fn ask_for_rows(&mut self, sql: &[u8]) -> Result<Vec<Row>, Error> {
        let mut rows = Vec::new();
        self.simple(sql, |row| rows.push(row)).await?;
        Ok(rows)
    }

    async fn simple(&mut self, sql: &[u8], on_row: impl FnMut(Row)) -> Result<(), Error> {
        none_refused(self.try_query(sql, on_row).await?)
    }

    /// Runs a query with text parameters by the extended protocol and returns its rows, with their columns in text. The
    /// unnamed statement stays what it was.
    pub(super) async fn fetch(
        &mut self,
        sql: &[u8],
        parameters: &[&[u8]],
    ) -> Result<Vec<Row>, Error> {
        let (mut out, mut rows) = (Vec::new(), Vec::new());
        frontend::close(&mut out, Target::Statement, OWN);
        put_extended(&mut out, OWN, sql, parameters);
        frontend::close(&mut out, Target::Statement, OWN);
        frontend::sync(&mut out);
        self.converse(&out, |row| rows.push(row)).await?;
        self.hear()?;
        Ok(rows)
    }

    /// Notifications may come right behind the last reply, and then in the same read. Nobody would look at them before
    /// the server says more.
    pub fn hear(&mut self) -> Result<(), Error> {
        while let Some(frame) = frame::cut(&self.connection.kept, MAX_REPLY)?
            && frame.is_complete()
            && frame.tag == tag::NOTIFICATION_RESPONSE
        {
            backend::notification_response(&mut self.state.heard, frame.body());
            let len = frame.len;
            self.connection.use_kept(len);
        }
        Ok(())
    }

    /// Runs a simple query, of which PostgreSQL may well think nothing: `Some` is the body of its first error.
    pub(super) async fn try_query(
        &mut self,
        sql: &[u8],
        on_row: impl FnMut(Row),
    ) -> Result<Option<Vec<u8>>, Error> {
        let mut out = Vec::new();
        frontend::query(&mut out, sql);
        self.state.unnamed = Unnamed::Unknown;
        self.exchange(&out, on_row).await
    }

    /// Sends messages that end with one ReadyForQuery and reads all replies.
    pub(super) async fn converse(
        &mut self,
        out: &[u8],
        on_row: impl FnMut(Row),
    ) -> Result<(), Error> {
        none_refused(self.exchange(out, on_row).await?)
    }

    /// The same; comes back with the body of the first error.
    async fn exchange(
        &mut self,
        out: &[u8],
        mut on_row: impl FnMut(Row),
    ) -> Result<Option<Vec<u8>>, Error> {
        // Until the replies are in, whoever drops us leaves a doomed server behind.
        let doom = self.state.doom.replace(Doom::CheckFailed);
        self.connection.send_all(out).await?;
        let mut failure = None;
        loop {
            let message = self.connection.read_message(MAX_REPLY).await?;
            match message.tag {
                tag::READY_FOR_QUERY => {
                    self.state.status = backend::read_ready_for_query(&message.body)?;
                    break;
                }
                tag::ERROR_RESPONSE => {
                    ErrorFields::read(&message.body)?;
                    failure = failure.or(Some(message.body.clone()));
                }
                tag::DATA_ROW => on_row(backend::read_data_row(&message.body)?),
                tag::COPY_IN_RESPONSE | tag::COPY_OUT_RESPONSE | tag::COPY_BOTH_RESPONSE => {
                    return Err(Error::Unexpected(message.tag.into()));
                }
                _ => self.note(message.tag, &message.body)?,
            }
        }
        self.state.doom = doom;
        Ok(failure)
    }

    /// Reads one more message, which nothing has been asked for.
    pub async fn hear_next(&mut self) -> Result<(), Error> {
        let message = self.connection.read_message(MAX_REPLY).await?;
        if message.tag == tag::ERROR_RESPONSE {
            return Err(Error::Query(error_text(&message.body)?));
        }
        self.note(message.tag, &message.body)
    }

    /// Undoes what clients may have changed of what the names in a query of ours mean: who we are, in which schemas
    /// names are looked for, and temporary tables, which come before those of the system. `connect_query` makes the session
    /// again what it was. Costs nothing if there was no client.
    pub async fn forget_clients(&mut self, connect_query: Option<&str>) -> Result<(), Error> {
        if !self.served {
            return Ok(());
        }
        let mut sql = self.state.base.difference(&self.state.overlay);
        sql.extend_from_slice(b"RESET SESSION AUTHORIZATION; RESET search_path; DISCARD TEMP");
        self.run(&sql).await?;
        self.state.overlay = self.state.base.with_statements_of(&self.state.overlay);
        self.served = false;
        match connect_query {
            Some(query) => self.run_connect_query(query).await,
            None => Ok(()),
        }
    }

    /// Runs `connect_query`; an error in it is logged and ignored.
    pub(super) async fn run_connect_query(&mut self, query: &str) -> Result<(), Error> {
        match self.run(query.as_bytes()).await {
            Err(Error::Query(text)) => {
                tracing::warn!(server = self.entry.id, "connect_query failed: {text}");
            }
            result => result?,
        }
        if self.is_clean() {
            Ok(())
        } else {
            Err(Error::ConnectQuery)
        }
    }

    /// Runs a query with one text parameter by the extended protocol; returns the columns of its
    /// first row. For `auth_query`: a parameter can't be anything but a value.
    pub async fn ask(&mut self, sql: &[u8], parameter: &[u8]) -> Result<Option<Row>, Error> {
        let (mut out, mut first) = (Vec::new(), None);
        put_extended(&mut out, b"", sql, &[parameter]);
        frontend::sync(&mut out);
        self.state.unnamed = Unnamed::Unknown;
        self.converse(&out, |row| first = first.take().or(Some(row)))
            .await?;
        Ok(first)
    }

    /// Takes note of a message that says something about the session.
    pub(super) fn note(&mut self, tag: u8, body: &[u8]) -> Result<(), Error> {
        match tag {
            tag::PARAMETER_STATUS => {
                let (name, value) = backend::read_parameter_status(body)?;
                self.state.tracked.set(name, value);
            }
            tag::NOTIFICATION_RESPONSE => {
                backend::notification_response(&mut self.state.heard, body);
            }
            tag::COMMAND_COMPLETE if drops_all(backend::command_tag(body)?).is_some() => {
                self.state.statements.clear();
                let settings = match backend::command_tag(body)? {
                    b"DISCARD ALL" => Overlay::default(),
                    _ => self.state.overlay.clone(),
                };
                self.state.overlay = settings.with_statements_of(&Overlay::default());
            }
            _ => {}
        }
        Ok(())
    }
}

/// Parse, Bind and Execute of a statement of this name, with parameters in text form.
fn put_extended(out: &mut Vec<u8>, name: &[u8], sql: &[u8], parameters: &[&[u8]]) {
    let mut definition = sql.to_vec();
    definition.extend_from_slice(&[0, 0, 0]);
    frontend::parse(out, name, &definition);
    // No format codes (text), the parameters, results in text.
    let mut rest = vec![0, 0];
    let count = u16::try_from(parameters.len()).unwrap_or(u16::MAX);
    rest.extend_from_slice(&count.to_be_bytes());
    for parameter in parameters {
        let length = u32::try_from(parameter.len()).unwrap_or(u32::MAX);
        rest.extend_from_slice(&length.to_be_bytes());
        rest.extend_from_slice(parameter);
    }
    rest.extend_from_slice(&[0, 0]);
    frontend::bind(out, b"", name, &rest);
    frontend::execute(out, b"", 0);
}

/// No error was among the replies; or else the first, whose body this is.
fn none_refused(error: Option<Vec<u8>>) -> Result<(), Error> {
    match error {
        Some(body) => Err(Error::Query(error_text(&body)?)),
        None => Ok(()),
    }
}

/// What a command drops when its tag says that it dropped every prepared statement.
pub(crate) fn drops_all(command_tag: &[u8]) -> Option<Forget> {
    matches!(command_tag, b"DEALLOCATE ALL" | b"DISCARD ALL").then_some(Forget::All)
}

/// The text of an error for the log.
pub(super) fn error_text(body: &[u8]) -> Result<String, Error> {
    let fields = ErrorFields::read(body)?;
    let text =
        |field: Option<&[u8]>| String::from_utf8_lossy(field.unwrap_or_default()).into_owned();
    Ok(format!(
        "{}: {}",
        text(fields.severity()),
        text(fields.message())
    ))
}
