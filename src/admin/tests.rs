use std::sync::Arc;

use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, UnixStream};
use tokio_postgres::types::{FromSql, Type as PgType};
use tokio_postgres::{NoTls, SimpleQueryMessage};

use super::*;
use crate::config::{Config, ConfigHandle, Database, Host};
use crate::net::connection::Message;
use crate::net::{Detached, Raw, Worker, Workers};
use crate::pool::{Learned, Waiter};
use crate::protocol::backend::{self, ErrorFields};
use crate::protocol::frontend;
use crate::stats::ClientEntry;
use crate::stats::registry::{NewClient, Peer};

/// A process that notes what it is asked for.
#[derive(Default)]
pub(super) struct Process {
    pub asked: Mutex<Vec<String>>,
    pub broken: AtomicBool,
    pub ending: AtomicBool,
    pub upgrade: Upgrade,
}

impl Control for Process {
    fn reload(&self) -> Result<(), String> {
        self.asked.lock().push("reload".into());
        if self.broken.load(Ordering::Relaxed) {
            Err("a.ini:3: no".into())
        } else {
            Ok(())
        }
    }

    fn shutdown(&self, mode: Shutdown) {
        self.asked.lock().push(format!("shutdown {mode:?}"));
    }

    fn set(&self, key: &str, value: &str) -> Result<Option<String>, String> {
        self.asked.lock().push(format!("set {key} {value}"));
        match key {
            "listen_port" => Ok(Some("it takes a restart".into())),
            "nothing" => Err("unknown".into()),
            _ => Ok(None),
        }
    }

    fn upgrade(&self) -> Result<Upgrade, String> {
        self.asked.lock().push("upgrade".into());
        if self.broken.load(Ordering::Relaxed) {
            Err("one is under way".into())
        } else {
            Ok(self.upgrade.clone())
        }
    }

    fn is_shutting_down(&self) -> bool {
        self.ending.load(Ordering::Relaxed)
    }
}

/// A configuration with the database `app` at this port, and `forced`, which has its own user.
pub(super) fn config(port: u16) -> Config {
    let mut config = Config::default();
    let app = Database {
        port,
        ..Database::new("app", Host::Tcp("127.0.0.1".into()))
    };
    let forced = Database {
        user: Some("owner".into()),
        pool_size: Some(3),
        ..app.clone()
    };
    config.databases.insert("app".into(), Arc::new(app));
    config.databases.insert(
        "forced".into(),
        Arc::new(Database {
            name: "forced".into(),
            ..forced
        }),
    );
    config
}

pub(super) fn console_with(config: Config) -> (Console, Arc<Process>) {
    let workers = Workers::new(vec![Worker::guest()]);
    let manager = Arc::new(Manager::new(workers, ConfigHandle::new(config)));
    let process = Arc::new(Process::default());
    let console = Console {
        manager,
        control: process.clone(),
        version: "PgBouncer 1.25.2 (pgferry test)",
        averages: Arc::default(),
    };
    (console, process)
}

pub(super) fn console() -> (Console, Arc<Process>) {
    console_with(config(5432))
}

/// Enters a client.
pub(super) fn client(console: &Console, database: &str, user: &str) -> ClientGuard {
    let registry = &console.manager.parts().registry;
    let id = registry.next_id();
    let (cancel_pid, cancel_key) = registry.reserve_cancel_key(id, 4, |pid, _| pid);
    registry.enter_client(ClientEntry::new(NewClient {
        replication: crate::protocol::startup::Replication::None,
        id,
        user: user.into(),
        database: database.into(),
        pool_user: user.into(),
        peer: Peer::Tcp("10.0.0.1:5000".parse().unwrap()),
        local: Some("10.0.0.2:6432".parse().unwrap()),
        tls: String::new(),
        worker: 0,
        cancel_pid,
        cancel_key,
        connected: registry.now(),
    }))
}

fn attached(socket: UnixStream) -> Connection {
    let socket = Raw::Unix(socket.into_std().unwrap());
    Connection::new(Detached::Plain(socket.into()).attach().unwrap())
}

/// Serves a new console client; the other end, and the client's entry.
fn serve_one(console: &Arc<Console>, rights: Rights) -> (UnixStream, Arc<ClientEntry>) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let guard = client(console, "pgbouncer", "admin");
    let entry = guard.clone();
    let console = console.clone();
    let workers = console.manager.parts().workers.clone();
    workers.spawn_on(0, async move {
        serve(&console, attached(ours), rights, guard).await;
    });
    (theirs, entry)
}

/// Sends a query and does not wait.
async fn send(connection: &mut Connection, sql: &str) {
    let mut out = Vec::new();
    frontend::query(&mut out, sql.as_bytes());
    connection.send_all(&out).await.unwrap();
}

async fn receive(connection: &mut Connection) -> Message {
    connection.read_message(MAX_MESSAGE).await.unwrap()
}

fn error_text(message: &Message) -> (String, String) {
    assert_eq!(message.tag, backend::tag::ERROR_RESPONSE);
    let fields = ErrorFields::read(&message.body).unwrap();
    let text = |field: Option<&[u8]>| String::from_utf8(field.unwrap().to_vec()).unwrap();
    (text(fields.severity()), text(fields.message()))
}

/// Lets other tasks run until something holds.
async fn until(holds: impl Fn() -> bool) {
    while !holds() {
        tokio::task::yield_now().await;
    }
}

/// A server that accepts and says nothing.
struct Silent {
    console: Arc<Console>,
    listener: TcpListener,
}

impl Drop for Silent {
    fn drop(&mut self) {
        // Else each attempt that ends with the runtime would be followed by another.
        self.console.manager.end_waiting();
    }
}

/// A silent server, and a pool of which a client waits for it.
async fn silent_server() -> Silent {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (console, _) = console_with(config(listener.local_addr().unwrap().port()));
    let config = console.manager.parts().config.load();
    let database = config.database("app").unwrap();
    let pool = console
        .manager
        .pool(&config, &database, "joe", Learned::default());
    pool.enqueue(
        0,
        &Arc::new(Waiter::default()),
        console.manager.parts().registry.now(),
    );
    assert_eq!(console.manager.active_servers(Some("app")), 1);
    Silent {
        console: Arc::new(console),
        listener,
    }
}

/// A console client that has sent PAUSE and waits.
async fn pausing(console: &Arc<Console>) -> (Connection, Arc<ClientEntry>) {
    let (stream, entry) = serve_one(console, Rights::Admin);
    let mut connection = attached(stream);
    send(&mut connection, "PAUSE app").await;
    until(|| entry.phase() == Phase::Waiting).await;
    (connection, entry)
}

#[tokio::test]
async fn pause_answers_when_the_last_server_is_gone() {
    let silent = silent_server().await;
    let (mut connection, _) = pausing(&silent.console).await;
    // What comes meanwhile has its turn afterwards.
    send(&mut connection, "SHOW VERSION").await;
    drop(silent.listener.accept().await.unwrap());
    let complete = receive(&mut connection).await;
    assert_eq!(
        (complete.tag, complete.body.as_slice()),
        (b'C', &b"PAUSE\0"[..])
    );
    assert_eq!(receive(&mut connection).await.tag, b'Z');
    assert_eq!(receive(&mut connection).await.tag, b'T');
}

#[tokio::test]
async fn a_cancel_request_ends_pause_and_its_wait() {
    let silent = silent_server().await;
    let console = &silent.console;
    let (mut connection, entry) = pausing(console).await;
    assert!(console.manager.is_paused("app"));
    entry.order(Order::CancelWaiting);
    let error = receive(&mut connection).await;
    assert_eq!(
        error_text(&error).1,
        "canceling statement due to user request"
    );
    assert_eq!(receive(&mut connection).await.tag, b'Z');
    assert!(!console.manager.is_paused("app"));
}

#[tokio::test]
async fn resume_by_another_ends_the_wait() {
    let silent = silent_server().await;
    let console = &silent.console;
    let (mut connection, _) = pausing(console).await;
    assert!(console.manager.resume(Some("app")));
    assert_eq!(
        error_text(&receive(&mut connection).await).1,
        "RESUME was issued while PAUSE was waiting"
    );
}

#[tokio::test]
async fn a_client_that_leaves_while_it_waits_leaves_the_pause_behind() {
    let silent = silent_server().await;
    let console = &silent.console;
    let (connection, entry) = pausing(console).await;
    let id = entry.id;
    drop((connection, entry));
    until(|| console.manager.parts().registry.client(id).is_none()).await;
    assert!(console.manager.is_paused("app"));
}

#[tokio::test]
async fn a_disconnected_client_is_told_and_other_orders_are_ignored() {
    let (console, _) = console();
    let console = Arc::new(console);
    let (stream, entry) = serve_one(&console, Rights::Stats);
    let mut connection = attached(stream);
    entry.order(Order::ShuttingDown);
    entry.order(Order::DatabaseRemoved);
    send(&mut connection, "SHOW STATE").await;
    while receive(&mut connection).await.tag != b'Z' {}
    entry.order(Order::AdminDisconnect);
    let farewell = receive(&mut connection).await;
    assert_eq!(
        error_text(&farewell),
        ("FATAL".into(), "admin forced disconnect".into())
    );
    assert!(connection.read_message(MAX_MESSAGE).await.is_err());
}

#[tokio::test]
async fn a_cancel_request_without_a_waiting_command_resumes_everything() {
    let (console, _) = console();
    let console = Arc::new(console);
    let (_stream, entry) = serve_one(&console, Rights::Admin);
    console.manager.pause(None);
    entry.order(Order::CancelWaiting);
    until(|| !console.manager.is_all_paused()).await;
}

#[tokio::test]
async fn a_message_over_the_limit_is_refused_at_its_head() {
    let (console, _) = console();
    let console = Arc::new(console);
    let (stream, _) = serve_one(&console, Rights::Admin);
    let mut connection = attached(stream);
    connection
        .send_all(&[b'Q', 0x7f, 0xff, 0xff, 0xff])
        .await
        .unwrap();
    assert_eq!(error_text(&receive(&mut connection).await).0, "FATAL");
    assert!(connection.read_message(MAX_MESSAGE).await.is_err());
}

/// A whole number that came as binary `numeric`.
#[derive(Debug, PartialEq)]
struct Whole(i64);

impl<'a> FromSql<'a> for Whole {
    fn from_sql(
        _: &PgType,
        raw: &'a [u8],
    ) -> Result<Self, Box<dyn std::error::Error + Sync + Send>> {
        let fields: Vec<i64> = raw
            .chunks(2)
            .map(|pair| i64::from(u16::from_be_bytes([pair[0], pair[1]])))
            .collect();
        let weight = usize::try_from(fields[1])?;
        let digit = |at: usize| fields.get(4 + at).copied().unwrap_or(0);
        Ok(Self(
            (0..=weight).fold(0, |sum, at| sum * 10_000 + digit(at)),
        ))
    }

    fn accepts(kind: &PgType) -> bool {
        *kind == PgType::NUMERIC
    }
}

/// A driver's client, after the login that the handshake would have done.
async fn driver(console: &Arc<Console>, rights: Rights) -> tokio_postgres::Client {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let guard = client(console, "pgbouncer", "admin");
    let served = console.clone();
    let workers = console.manager.parts().workers.clone();
    workers.spawn_on(0, async move {
        let mut ours = ours;
        let length = ours.read_u32().await.unwrap();
        let mut startup = vec![0; usize::try_from(length).unwrap() - 4];
        ours.read_exact(&mut startup).await.unwrap();
        ours.write_all(b"R\0\0\0\x08\0\0\0\0Z\0\0\0\x05I")
            .await
            .unwrap();
        serve(&served, attached(ours), rights, guard).await;
    });
    let (client, connection) = tokio_postgres::Config::new()
        .user("admin")
        .connect_raw(theirs, NoTls)
        .await
        .unwrap();
    workers.spawn_on(0, async move {
        let _ = connection.await;
    });
    client
}

#[tokio::test]
async fn a_driver_can_ask_in_both_protocols() {
    let (console, process) = console();
    let console = Arc::new(console);
    let _joe = client(&console, "app", "joe");
    let driver = driver(&console, Rights::Admin).await;
    // Extended, with binary results.
    let rows = driver.query("SHOW POOLS", &[]).await.unwrap();
    let row = &rows[0];
    assert_eq!(row.get::<_, &str>("database"), "pgbouncer");
    assert_eq!(
        (
            row.get::<_, i32>("cl_active"),
            row.get::<_, i64>("prepare_cache_hit")
        ),
        (1, 0)
    );
    assert_eq!(row.get::<_, Option<&str>>("load_balance_hosts"), None);
    let rows = driver.query("SHOW STATS", &[]).await.unwrap();
    assert_eq!(rows[0].get::<_, Whole>("total_query_count"), Whole(2));
    let statement = driver.prepare("SHOW CLIENTS").await.unwrap();
    assert_eq!(driver.query(&statement, &[]).await.unwrap().len(), 2);
    assert_eq!(
        driver.query(&statement, &[]).await.unwrap()[0].get::<_, &str>("addr"),
        "10.0.0.1"
    );
    driver.execute("RELOAD", &[]).await.unwrap();
    assert_eq!(*process.asked.lock(), ["reload"]);
    // An error, after which the session goes on.
    let error = driver.query("SHOW nothing", &[]).await.unwrap_err();
    let error = error.as_db_error().unwrap();
    assert_eq!((error.code().code(), error.severity()), ("08P01", "ERROR"));
    assert_eq!(
        error.message(),
        "invalid command 'SHOW nothing', use SHOW HELP;"
    );
    assert!(driver.query("", &[]).await.unwrap().is_empty());
    // Simple.
    let messages = driver.simple_query("SHOW TimeZone;").await.unwrap();
    let values: Vec<_> = messages
        .iter()
        .filter_map(|message| {
            if let SimpleQueryMessage::Row(row) = message {
                row.get("timezone")
            } else {
                None
            }
        })
        .collect();
    assert_eq!(values, ["GMT"]);
    driver.batch_execute("-- ping").await.unwrap();
}

#[tokio::test]
async fn the_documentation_is_what_the_tables_say() {
    let metrics = metrics::markdown(&metrics::gather(&console().0));
    for (name, made) in [("console", markdown()), ("monitoring", metrics)] {
        let path = format!("{}/docs/{name}.md", env!("CARGO_MANIFEST_DIR"));
        if std::env::var_os("UPDATE_DOCS").is_some() {
            std::fs::write(&path, &made).unwrap();
        }
        let written = std::fs::read_to_string(path).unwrap_or_default();
        assert!(
            written == made,
            "docs/{name}.md is stale: UPDATE_DOCS=1 cargo test admin"
        );
    }
}
