//! Limits that span pools: clients in all, per database and per user, and servers per database and per
//! user. Touched when a connection comes or goes.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

/// Which limit left no room for another server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Full {
    /// `max_db_connections`.
    Database,
    /// `max_user_connections`.
    User,
}

/// Why a client is not let in. PgBouncer's words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AdmissionError {
    /// `max_client_conn`.
    #[error("no more connections allowed (max_client_conn)")]
    Clients,
    /// `max_db_client_connections`.
    #[error("client connections exceeded (max_db_client_connections)")]
    DatabaseClients,
    /// `max_user_client_connections`.
    #[error("client connections exceeded (max_user_client_connections)")]
    UserClients,
}

/// How many there are of each name; with its key, for whoever is counted to keep.
type ByName = HashMap<Arc<str>, (Arc<str>, usize), ahash::RandomState>;

#[derive(Debug, Default)]
struct Counts {
    clients: usize,
    database_clients: ByName,
    user_clients: ByName,
    database_servers: ByName,
    user_servers: ByName,
}

/// The counts behind the limits.
#[derive(Debug, Default)]
pub(super) struct Limits {
    counts: Mutex<Counts>,
}

fn count(map: &ByName, key: &str) -> usize {
    map.get(key).map_or(0, |(_, count)| *count)
}

/// Counts in; the map's own copy of the name comes back.
fn add(map: &mut ByName, key: &str) -> Arc<str> {
    if let Some((key, count)) = map.get_mut(key) {
        *count += 1;
        return key.clone();
    }
    let key: Arc<str> = key.into();
    map.insert(key.clone(), (key.clone(), 1));
    key
}

fn remove(map: &mut ByName, key: &str) {
    match map.get_mut(key) {
        Some((_, count)) if *count > 1 => *count -= 1,
        _ => {
            map.remove(key);
        }
    }
}

impl Limits {
    /// Counts a server in, if the limits (0: none) leave room.
    pub(super) fn take_server(
        &self,
        database: (&str, usize),
        user: (&str, usize),
    ) -> Result<(), Full> {
        let mut counts = self.counts.lock();
        if database.1 > 0 && count(&counts.database_servers, database.0) >= database.1 {
            return Err(Full::Database);
        }
        if user.1 > 0 && count(&counts.user_servers, user.0) >= user.1 {
            return Err(Full::User);
        }
        add(&mut counts.database_servers, database.0);
        add(&mut counts.user_servers, user.0);
        Ok(())
    }

    /// Counts a server in that is there, whatever the limits say.
    pub(super) fn count_server(&self, database: &str, user: &str) {
        let mut counts = self.counts.lock();
        add(&mut counts.database_servers, database);
        add(&mut counts.user_servers, user);
    }

    /// Counts a server out.
    pub(super) fn return_server(&self, database: &str, user: &str) {
        let mut counts = self.counts.lock();
        remove(&mut counts.database_servers, database);
        remove(&mut counts.user_servers, user);
    }

    pub(super) fn servers_of_database(&self, database: &str) -> usize {
        count(&self.counts.lock().database_servers, database)
    }

    pub(super) fn servers_of_user(&self, user: &str) -> usize {
        count(&self.counts.lock().user_servers, user)
    }

    pub(super) fn clients_of_database(&self, database: &str) -> usize {
        count(&self.counts.lock().database_clients, database)
    }

    pub(super) fn clients_of_user(&self, user: &str) -> usize {
        count(&self.counts.lock().user_clients, user)
    }

    pub(super) fn clients(&self) -> usize {
        self.counts.lock().clients
    }
}

/// A client's place among those that are counted; given back when dropped.
#[derive(Debug)]
pub struct Admission {
    id: u64,
    limits: Arc<Limits>,
    named: Option<(Arc<str>, Arc<str>)>,
}

impl Admission {
    /// Counts a connection in. Whether there are too many is asked later, when it is known whether it wants
    /// the console.
    pub(super) fn new(limits: &Arc<Limits>, id: u64) -> Self {
        limits.counts.lock().clients += 1;
        Self {
            id,
            limits: limits.clone(),
            named: None,
        }
    }

    /// The connection's id in the live list.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Is `max_client_conn` kept, this connection included?
    pub fn check_clients(&self, max: usize) -> Result<(), AdmissionError> {
        if self.limits.clients() > max {
            Err(AdmissionError::Clients)
        } else {
            Ok(())
        }
    }

    /// Counts the client for its database and user, if the limits (0: none) leave room.
    pub fn name(
        &mut self,
        database: (&str, usize),
        user: (&str, usize),
    ) -> Result<(), AdmissionError> {
        let mut counts = self.limits.counts.lock();
        if database.1 > 0 && count(&counts.database_clients, database.0) >= database.1 {
            return Err(AdmissionError::DatabaseClients);
        }
        if user.1 > 0 && count(&counts.user_clients, user.0) >= user.1 {
            return Err(AdmissionError::UserClients);
        }
        let database = add(&mut counts.database_clients, database.0);
        let user = add(&mut counts.user_clients, user.0);
        self.named = Some((database, user));
        Ok(())
    }
}

impl Drop for Admission {
    fn drop(&mut self) {
        let mut counts = self.limits.counts.lock();
        counts.clients -= 1;
        if let Some((database, user)) = &self.named {
            remove(&mut counts.database_clients, database);
            remove(&mut counts.user_clients, user);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_database_leaves_the_user_count_alone() {
        let limits = Limits::default();
        limits.take_server(("app", 1), ("joe", 0)).unwrap();
        assert_eq!(
            limits.take_server(("app", 1), ("joe", 5)),
            Err(Full::Database)
        );
        assert_eq!(limits.servers_of_user("joe"), 1);
        limits.return_server("app", "joe");
        assert!(limits.take_server(("app", 1), ("joe", 1)).is_ok());
    }

    #[test]
    fn an_admission_counts_until_it_is_dropped() {
        let limits = Arc::new(Limits::default());
        let mut first = Admission::new(&limits, 1);
        first.name(("app", 1), ("joe", 0)).unwrap();
        let mut second = Admission::new(&limits, 2);
        assert_eq!(second.check_clients(1), Err(AdmissionError::Clients));
        assert_eq!(
            second.name(("app", 1), ("ann", 0)),
            Err(AdmissionError::DatabaseClients)
        );
        drop(first);
        assert!(second.check_clients(1).is_ok());
        assert!(second.name(("app", 1), ("ann", 0)).is_ok());
    }
}
