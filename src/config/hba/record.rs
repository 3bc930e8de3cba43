//! Reading one record: `connection databases users [address [mask]] method [options]`.

use std::sync::Arc;

use crate::config::ldap;

use super::{
    Address, Connection, Database, Line, Maps, Method, Name, Pattern, Problem, Record, User,
};

/// Methods of PostgreSQL's that no pooler can carry out: the server would have to be asked, or a ticket passed on.
const POSTGRESQL_ONLY: [&str; 6] = ["gss", "sspi", "ident", "radius", "bsd", "oauth"];

/// A method by its word.
#[derive(Debug, PartialEq, Eq)]
enum Word {
    Plain(Method),
    /// The options say which directory.
    Ldap,
}

/// What became of a line.
#[derive(Debug)]
pub(super) struct Parsed {
    /// The record; `None`: it is skipped.
    pub record: Option<Record>,
    /// What the administrator should know about it.
    pub warning: Option<String>,
}

/// Reads a line.
pub(super) fn parse(line: &Line, maps: &Maps) -> Result<Parsed, Problem> {
    let mut columns = Columns {
        fields: line.fields.iter(),
        unknowable: None,
    };
    let connection = columns.connection()?;
    let databases = columns.databases()?;
    let users = columns.users()?;
    let address = if connection == Connection::Local {
        Address::All
    } else {
        columns.address()?
    };
    let method = columns.method()?;
    let place = line.place.to_string();
    let record = |method: Method, map| Record {
        place: place.trim_end_matches(": ").to_owned(),
        method,
        map,
        connection,
        databases,
        users,
        address,
    };
    match (method, columns.unknowable) {
        (Some(Word::Plain(Method::Reject)), Some(reason)) => {
            let what = format!("{reason}, so it is not known whom to reject");
            Err(Problem::Rule(what))
        }
        (Some(method), None) => {
            let (method, map) = options(columns.fields, method, maps)?;
            Ok(Parsed {
                warning: futile(&method, connection),
                record: Some(record(method, map)),
            })
        }
        (_, reason) => Ok(Parsed {
            record: None,
            warning: Some(format!("line skipped: {}", reason.unwrap_or_default())),
        }),
    }
}

/// Warns of a record that lets nobody in though it is no `reject`.
fn futile(method: &Method, connection: Connection) -> Option<String> {
    let needs = match (method, connection) {
        (Method::Peer, Connection::Local) => return None,
        (Method::Peer, _) => "a Unix socket",
        (Method::Cert, Connection::Local | Connection::HostNoSsl) => "TLS",
        _ => return None,
    };
    Some(format!("{method} needs {needs}: this line lets nobody in"))
}

/// The columns that are still to be read.
struct Columns<'a> {
    fields: std::slice::Iter<'a, Vec<Name>>,
    /// Why it can't be told whom the line is for, or what is to be done.
    unknowable: Option<String>,
}

impl<'a> Columns<'a> {
    fn next(&mut self, what: &str) -> Result<&'a [Name], Problem> {
        let missing = || Problem::Rule(format!("the line ends where {what} should be"));
        self.fields.next().map(Vec::as_slice).ok_or_else(missing)
    }

    fn single(&mut self, what: &str) -> Result<&'a Name, Problem> {
        match self.next(what)? {
            [name] => Ok(name),
            _ => Err(Problem::Rule(format!("expected {what}, not a list"))),
        }
    }

    fn cannot(&mut self, reason: String) {
        self.unknowable.get_or_insert(reason);
    }

    fn connection(&mut self) -> Result<Connection, Problem> {
        let name = self.single("the kind of connection")?;
        match name.text.as_str() {
            "local" => Ok(Connection::Local),
            // No connection of ours is encrypted by GSSAPI.
            "host" | "hostnogssenc" => Ok(Connection::Host),
            "hostssl" => Ok(Connection::HostSsl),
            "hostnossl" => Ok(Connection::HostNoSsl),
            "hostgssenc" => Ok(Connection::HostGssEnc),
            other => Err(Problem::Rule(format!(
                "unknown kind of connection \"{}\": expected local, host, hostssl or hostnossl",
                other.escape_debug()
            ))),
        }
    }

    fn databases(&mut self) -> Result<Vec<Database>, Problem> {
        let mut databases = Vec::new();
        for name in self.next("the databases")? {
            databases.push(if name.is("all") {
                Database::All
            } else if name.is("sameuser") {
                Database::SameUser
            } else if name.is("replication") {
                Database::Replication
            } else if let Some(pattern) = name.pattern() {
                Database::Matches(Pattern::new(pattern)?)
            } else {
                if name.is("samerole") || name.is("samegroup") {
                    self.cannot(format!(
                        "{}: pgferry does not know who is a member of which role",
                        name.text
                    ));
                }
                Database::Is(name.text.clone())
            });
        }
        Ok(databases)
    }

    fn users(&mut self) -> Result<Vec<User>, Problem> {
        let mut users = Vec::new();
        for name in self.next("the users")? {
            users.push(if name.is("all") {
                User::All
            } else if let Some(pattern) = name.pattern() {
                User::Matches(Pattern::new(pattern)?)
            } else {
                if !name.quoted && name.text.starts_with('+') {
                    self.cannot(format!(
                        "{}: pgferry does not know who is a member of which role",
                        name.text
                    ));
                }
                User::Is(name.text.clone())
            });
        }
        Ok(users)
    }

    fn address(&mut self) -> Result<Address, Problem> {
        let (address, wants_mask) = Address::parse(self.single("the address")?)?;
        if wants_mask {
            return address.with_mask(self.single("the mask")?);
        }
        if let Address::HostName(name) = &address {
            self.cannot(format!("{name}: names of hosts are not looked up"));
        }
        Ok(address)
    }

    /// `None`: one that can't be carried out.
    fn method(&mut self) -> Result<Option<Word>, Problem> {
        let text = &self.single("the method")?.text;
        if let Some(method) = Method::PLAIN.into_iter().find(|it| it.as_str() == text) {
            return Ok(Some(Word::Plain(method)));
        }
        match text.as_str() {
            "ldap" => return Ok(Some(Word::Ldap)),
            // As in PgBouncer.
            "pam" => {
                let text = "method pam: there is only auth_type = pam, for everybody";
                return Err(Problem::Rule(text.to_owned()));
            }
            _ => {}
        }
        if POSTGRESQL_ONLY.contains(&text.as_str()) {
            self.cannot(format!("method {text}: only PostgreSQL itself has it"));
            return Ok(None);
        }
        let known = Method::PLAIN.map(|method| method.as_str()).join(", ");
        Err(Problem::Rule(format!(
            "unknown method \"{}\": expected one of {known}, ldap",
            text.escape_debug()
        )))
    }
}

/// Reads the options, which for `ldap` belong to the method. For the others `map=` is the only one.
fn options<'a>(
    fields: impl Iterator<Item = &'a Vec<Name>>,
    method: Word,
    maps: &Maps,
) -> Result<(Method, Option<Arc<super::Map>>), Problem> {
    let Word::Plain(method) = method else {
        let directory = ldap::of_line(fields.flatten().map(|name| name.text.as_str()))?;
        return Ok((Method::Ldap(directory), None));
    };
    let mut map = None;
    for name in fields.flatten() {
        let Some((key, value)) = name.text.split_once('=') else {
            return Err(Problem::Rule(format!(
                "expected an option like map=name, not \"{}\"",
                name.text.escape_debug()
            )));
        };
        if key != "map" {
            return Err(Problem::Rule(format!(
                "unknown option \"{}\": expected map",
                key.escape_debug()
            )));
        }
        if !matches!(method, Method::Peer | Method::Cert) {
            return Err(Problem::Rule(format!(
                "option map is for the methods peer and cert, not for {method}"
            )));
        }
        let found = maps.get(value).cloned();
        map = Some(found.ok_or_else(|| {
            Problem::Rule(format!(
                "auth_ident_file has no map \"{}\"",
                value.escape_debug()
            ))
        })?);
    }
    Ok((method, map))
}
