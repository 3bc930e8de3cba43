//! Both ends of a connection, over a real socket pair of the loopback.

use std::net::Ipv4Addr;
use std::time::Duration;

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, KeyPair};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use super::*;
use crate::config::Config;
use crate::net::{Connection, Stream};

/// A setup of both sides: we are the server of our own client.
fn setup(more: &[(&str, &str)]) -> Setup {
    setup_of(
        &CertificateParams::new(vec!["localhost".to_owned()]).unwrap(),
        more,
    )
}

/// The same with another certificate, signed by itself.
fn setup_of(params: &CertificateParams, more: &[(&str, &str)]) -> Setup {
    let directory = tempfile::tempdir().unwrap();
    let key = KeyPair::generate().unwrap();
    let certificate = params.self_signed(&key).unwrap();
    let write = |name: &str, text: String| {
        let path = directory.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let (key, certificate) = (
        write("key", key.serialize_pem()),
        write("cert", certificate.pem()),
    );
    let mut config = Config::default();
    for (name, value) in [
        ("client_tls_sslmode", "require"),
        ("client_tls_key_file", &key),
        ("client_tls_cert_file", &certificate),
        ("server_tls_sslmode", "verify-full"),
        ("server_tls_ca_file", &certificate),
    ]
    .iter()
    .chain(more)
    {
        config.settings.assign(name, value).unwrap();
    }
    Setup::load(&config).unwrap()
}

fn socket(stream: TcpStream) -> Socket {
    Socket::new(Raw::Tcp(stream.into_std().unwrap()).into()).unwrap()
}

pub(super) async fn sockets() -> (Socket, Socket) {
    let (ours, theirs) = streams().await;
    (socket(ours), socket(theirs))
}

async fn streams() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let ours = TcpStream::connect(listener.local_addr().unwrap());
    let (ours, theirs) = tokio::join!(ours, listener.accept());
    (ours.unwrap(), theirs.unwrap().0)
}

/// The two ends: the one that connected, the one that accepted.
async fn pair(setup: &Setup) -> (TlsStream, TlsStream) {
    let (ours, theirs) = sockets().await;
    let (client, server) = tokio::join!(
        setup.servers.connect(ours, "localhost"),
        setup.clients.accept(theirs, Vec::new())
    );
    (client.unwrap(), server.unwrap())
}

async fn read(stream: &mut TlsStream, size: usize) -> Vec<u8> {
    let mut buffer = vec![0; size];
    let n = poll_fn(|cx| stream.poll_read(cx, &mut buffer))
        .await
        .unwrap();
    buffer.truncate(n);
    buffer
}

async fn read_exactly(stream: &mut TlsStream, total: usize, piece: usize) -> Vec<u8> {
    let mut all = Vec::new();
    while all.len() < total {
        let bytes = read(stream, piece).await;
        assert!(!bytes.is_empty(), "the end after {} bytes", all.len());
        all.extend(bytes);
    }
    all
}

fn pattern(size: usize) -> Vec<u8> {
    (0..size)
        .map(|at| u8::try_from(at % 251).unwrap())
        .collect()
}

#[tokio::test]
async fn both_sides_read_what_the_other_wrote() {
    let (client, mut server) = pair(&setup(&[])).await;
    let mut client = Connection::new(Stream::Tls(client));
    let data = pattern(5 << 20);
    let (sent, got) = tokio::join!(
        client.send_all(&data),
        read_exactly(&mut server, data.len(), 64 << 10)
    );
    sent.unwrap();
    assert!(got == data);
    let mut server = Connection::new(Stream::Tls(server));
    server.send_all(b"thanks").await.unwrap();
    assert_eq!(client.read_more().await.unwrap(), 6);
}

#[tokio::test]
async fn a_small_buffer_gets_everything_in_pieces() {
    for piece in [1, 7, 4096] {
        let (client, mut server) = pair(&setup(&[])).await;
        let mut client = Connection::new(Stream::Tls(client));
        let data = pattern(100_000);
        let (sent, got) = tokio::join!(
            client.send_all(&data),
            read_exactly(&mut server, data.len(), piece)
        );
        sent.unwrap();
        assert!(got == data);
        assert!(server.is_read_dry());
    }
}

#[tokio::test]
async fn what_the_socket_does_not_take_shows_as_backlog_until_it_is_off() {
    let (client, mut server) = pair(&setup(&[])).await;
    let mut client = Connection::new(Stream::Tls(client));
    let data = pattern(16 << 20);
    poll_fn(|cx| Poll::Ready(client.send(cx, &data)))
        .await
        .unwrap();
    assert!(client.has_backlog(), "nobody has read anything");
    assert!(client.stream.wants_write());
    let (flushed, got) = tokio::join!(
        poll_fn(|cx| client.poll_flush(cx)),
        read_exactly(&mut server, data.len(), 64 << 10)
    );
    flushed.unwrap();
    assert!(got == data);
    assert!(!client.has_backlog());
}

#[tokio::test]
async fn a_session_goes_on_after_a_move_with_bytes_read_and_unread() {
    let (client, mut server) = pair(&setup(&[])).await;
    let mut client = Connection::new(Stream::Tls(client));
    client.send_all(&pattern(40_000)).await.unwrap();
    let mut got = read(&mut server, 1000).await;
    server = server.detach().unwrap().attach().unwrap();
    got.extend(read_exactly(&mut server, 39_000, 64 << 10).await);
    assert!(got == pattern(40_000));
    let mut server = Connection::new(Stream::Tls(server)).rehome().unwrap();
    server.send_all(b"moved").await.unwrap();
    assert_eq!(client.read_more().await.unwrap(), 5);
    let mut client = client.rehome().unwrap();
    client.send_all(b"so am I").await.unwrap();
    assert_eq!(server.read_more().await.unwrap(), 7);
}

#[tokio::test]
async fn an_idle_stream_is_quiet_until_something_comes() {
    let (client, mut server) = pair(&setup(&[])).await;
    let client = Stream::Tls(client);
    let mut buffer = [0; 16];
    // Reads it dry: whatever the handshake left.
    poll_fn(|cx| Poll::Ready(server.poll_read(cx, &mut buffer).is_pending())).await;
    let server = Stream::Tls(server);
    assert!(server.is_quiet());
    drop(client);
    let quiet = timeout(Duration::from_secs(5), async {
        while server.is_quiet() {
            tokio::task::yield_now().await;
        }
    });
    quiet.await.expect("the farewell is noticed");
}

#[tokio::test]
async fn a_dropped_stream_says_goodbye_and_the_other_reads_an_end() {
    let (mut client, server) = pair(&setup(&[])).await;
    drop(server);
    assert_eq!(read(&mut client, 16).await, b"");
    assert_eq!(read(&mut client, 16).await, b"");
}

#[tokio::test]
async fn a_farewell_behind_the_last_data_is_an_end_though_the_socket_stays_open() {
    let (mut client, mut server) = pair(&setup(&[])).await;
    let pair = server.0.as_mut().unwrap();
    pair.session.writer().write_all(b"the last").unwrap();
    pair.session.send_close_notify();
    poll_fn(|cx| pair.poll_flush(cx)).await.unwrap();
    assert_eq!(read(&mut client, 64).await, b"the last");
    for _ in 0..2 {
        assert_eq!(read(&mut client, 64).await, b"");
    }
}

#[tokio::test]
async fn garbage_in_the_stream_is_an_error_after_what_came_before() {
    let (client, mut server) = pair(&setup(&[])).await;
    let mut client = Connection::new(Stream::Tls(client));
    client.send_all(b"before").await.unwrap();
    let Stream::Tls(stream) = &client.stream else {
        panic!("encrypted")
    };
    let socket = stream.socket().unwrap();
    socket.write_once(b"\x17\x03\x03\x00\x05plain").unwrap();
    let mut got = Vec::new();
    let mut buffer = [0; 64];
    let error = loop {
        match poll_fn(|cx| server.poll_read(cx, &mut buffer)).await {
            Ok(n) => got.extend_from_slice(&buffer[..n]),
            Err(error) => break error,
        }
        assert!(got.len() < 64);
    };
    assert_eq!(got, b"before");
    assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    let again = poll_fn(|cx| server.poll_read(cx, &mut buffer)).await;
    assert_eq!(again.unwrap_err().kind(), io::ErrorKind::InvalidData);
}

#[tokio::test]
async fn the_hello_may_have_been_read_already() {
    let setup = setup(&[]);
    let (ours, mut theirs) = streams().await;
    let accept = async {
        let mut hello = vec![0; 5];
        theirs.read_exact(&mut hello).await.unwrap();
        setup.clients.accept(socket(theirs), hello).await
    };
    let connect = setup.servers.connect(socket(ours), "localhost");
    let (client, server) = tokio::join!(connect, accept);
    client.unwrap();
    server.unwrap();
}

#[tokio::test]
async fn both_ends_agree_on_the_end_point_and_the_cipher() {
    for (protocol, version) in [
        ("tlsv1.2", "TLSv1.2/ECDHE-"),
        ("tlsv1.3", "TLSv1.3/TLS_AES_"),
    ] {
        let (client, server) = pair(&setup(&[("client_tls_protocols", protocol)])).await;
        assert!(client.end_point().is_some());
        assert_eq!(client.end_point(), server.end_point());
        assert_eq!(client.describe(), server.describe());
        assert!(
            client.describe().starts_with(version),
            "{}",
            client.describe()
        );
        assert!(
            client.describe().contains("/ECDH="),
            "{}",
            client.describe()
        );
    }
}

#[tokio::test]
async fn a_server_of_another_name_or_authority_is_refused() {
    let (ours, others) = (setup(&[]), setup(&[]));
    for (clients, host) in [(&ours, "other.example"), (&others, "localhost")] {
        let (near, far) = sockets().await;
        let (client, server) = tokio::join!(
            ours.servers.connect(near, host),
            clients.clients.accept(far, Vec::new())
        );
        let error = client.unwrap_err().to_string();
        assert!(error.starts_with("certificate verify failed: "), "{error}");
        assert!(server.is_err());
    }
    // Without verification it does not matter.
    let any = setup(&[("server_tls_sslmode", "require")]);
    let (near, far) = sockets().await;
    let (client, server) = tokio::join!(
        any.servers.connect(near, "other.example"),
        others.clients.accept(far, Vec::new())
    );
    client.unwrap();
    server.unwrap();
}

#[tokio::test]
async fn a_server_that_is_its_own_authority_and_has_but_a_common_name_is_trusted() {
    let made = |common_name: &str, not_after: i32| {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params
            .distinguished_name
            .push(DnType::CommonName, common_name);
        params.not_before = rcgen::date_time_ymd(2001, 1, 1);
        params.not_after = rcgen::date_time_ymd(not_after, 1, 1);
        setup_of(&params, &[])
    };
    for (common_name, not_after, trusted) in [
        ("localhost", 2090, true),
        ("other", 2090, false),
        ("localhost", 2002, false),
    ] {
        let setup = made(common_name, not_after);
        let (near, far) = sockets().await;
        let (client, _server) = tokio::join!(
            setup.servers.connect(near, "localhost"),
            setup.clients.accept(far, Vec::new())
        );
        assert_eq!(client.is_ok(), trusted, "{common_name} {not_after}");
    }
}

#[tokio::test]
async fn what_is_no_tls_ends_the_handshake() {
    let setup = setup(&[]);
    let (mut ours, theirs) = streams().await;
    ours.write_all(b"GET / HTTP/1.0\r\n\r\n").await.unwrap();
    assert!(
        setup
            .clients
            .accept(socket(theirs), Vec::new())
            .await
            .is_err()
    );
    let (ours, theirs) = sockets().await;
    drop(ours);
    assert!(setup.clients.accept(theirs, Vec::new()).await.is_err());
}
