use super::*;
use std::os::unix::net::UnixStream;

fn tcp(addresses: &[&str]) -> ListenOptions {
    ListenOptions {
        addresses: addresses.iter().map(|&name| name.to_owned()).collect(),
        port: 0,
        backlog: 128,
        reuseport: false,
        unix_dir: None,
        unix_mode: 0o777,
        unix_group: None,
    }
}

fn unix(dir: &Path) -> ListenOptions {
    ListenOptions {
        port: 6432,
        unix_dir: Some(dir.to_owned()),
        ..tcp(&[])
    }
}

fn addresses(listeners: &Listeners) -> Vec<SocketAddr> {
    listeners
        .tcp
        .iter()
        .map(|listener| listener.local_addr().unwrap())
        .collect()
}

/// A port of 127.0.0.1 that is taken while the listener lives.
fn taken() -> (TcpListener, ListenOptions) {
    let holder = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = holder.local_addr().unwrap().port();
    (
        holder,
        ListenOptions {
            port,
            ..tcp(&["127.0.0.1"])
        },
    )
}

#[test]
fn an_address_is_bound_and_does_not_block() {
    let listeners = Listeners::bind(&tcp(&["127.0.0.1"])).unwrap();
    let bound = addresses(&listeners);
    assert_eq!(bound.len(), 1);
    assert_eq!(bound[0].ip(), Ipv4Addr::LOCALHOST);
    let error = listeners.tcp[0].accept().unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
    std::net::TcpStream::connect(bound[0]).unwrap();
}

#[test]
fn names_and_duplicates_resolve_to_distinct_addresses() {
    let resolved = resolve(&["localhost", "127.0.0.1", "localhost"], 6432).unwrap();
    let v4: SocketAddr = "127.0.0.1:6432".parse().unwrap();
    assert_eq!(resolved.iter().filter(|&&address| address == v4).count(), 1);
    assert!(resolved.iter().all(|address| address.ip().is_loopback()));
}

#[test]
fn a_star_means_both_families_apart() {
    let resolved = resolve(&["*"], 6432).unwrap();
    let texts: Vec<_> = resolved.iter().map(ToString::to_string).collect();
    assert_eq!(texts, ["0.0.0.0:6432", "[::]:6432"]);
    let listeners = Listeners::bind(&tcp(&["*"])).unwrap();
    assert!(addresses(&listeners).iter().any(SocketAddr::is_ipv4));
    for listener in &listeners.tcp {
        if listener.local_addr().unwrap().is_ipv6() {
            // Else it would take v4's connections too and collide with v4's socket.
            assert!(socket2::SockRef::from(listener).only_v6().unwrap());
        }
    }
}

#[test]
fn one_address_that_cannot_be_bound_is_no_error_while_another_can() {
    let (_holder, options) = taken();
    let both = [
        "127.0.0.1".to_owned(),
        " 127.0.0.2 ".to_owned(),
        String::new(),
    ];
    let listeners = Listeners::bind(&ListenOptions {
        addresses: both.into(),
        ..options
    })
    .unwrap();
    assert_eq!(addresses(&listeners)[0].ip(), Ipv4Addr::new(127, 0, 0, 2));
    assert_eq!(listeners.tcp.len(), 1);
}

#[test]
fn no_address_that_can_be_bound_is_an_error_with_the_list() {
    let (_holder, options) = taken();
    assert_eq!(
        Listeners::bind(&options).unwrap_err().to_string(),
        "failed to listen on any address in listen_addr list: 127.0.0.1"
    );
}

#[test]
fn reuseport_lets_two_processes_share_a_port() {
    let first = Listeners::bind(&ListenOptions {
        reuseport: true,
        ..tcp(&["127.0.0.1"])
    })
    .unwrap();
    let port = addresses(&first)[0].port();
    let again = ListenOptions {
        port,
        reuseport: true,
        ..tcp(&["127.0.0.1"])
    };
    assert!(Listeners::bind(&again).is_ok());
    assert!(
        Listeners::bind(&ListenOptions {
            reuseport: false,
            ..again
        })
        .is_err()
    );
}

#[test]
fn an_address_of_a_past_connection_is_bound_at_once() {
    let listeners = Listeners::bind(&tcp(&["127.0.0.1"])).unwrap();
    assert!(
        socket2::SockRef::from(&listeners.tcp[0])
            .reuse_address()
            .unwrap()
    );
}

#[test]
fn a_name_without_an_address_is_an_error() {
    let error = Listeners::bind(&tcp(&["127.0.0.1", "not a host name"])).unwrap_err();
    assert!(matches!(&error, Error::Unresolvable { address, .. } if address == "not a host name"));
}

#[test]
fn without_any_socket_there_is_nowhere_to_listen() {
    let empty = ListenOptions {
        unix_dir: Some(PathBuf::new()),
        ..tcp(&[" "])
    };
    assert_eq!(
        Listeners::bind(&empty).unwrap_err().to_string(),
        "nowhere to listen on"
    );
}

#[test]
fn the_unix_socket_has_its_name_and_mode_and_goes_with_the_value() {
    let dir = tempfile::tempdir().unwrap();
    let group = nix::unistd::getgid().to_string();
    let options = ListenOptions {
        unix_mode: 0o600,
        unix_group: Some(group),
        ..unix(dir.path())
    };
    let mut listeners = Listeners::bind(&options).unwrap();
    let path = dir.path().join(".s.PGSQL.6432");
    let metadata = fs::metadata(&path).unwrap();
    assert_eq!(metadata.permissions().mode() & 0o777, 0o600);
    assert_eq!(metadata.gid(), nix::unistd::getgid().as_raw());
    let socket = listeners.unix.pop().unwrap();
    let error = socket.listener.accept().unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
    UnixStream::connect(&path).unwrap();
    assert_eq!(socket.file.as_ref().unwrap().path(), path);
    drop(socket);
    assert!(!path.exists());
}

#[test]
fn a_socket_that_answers_is_in_use_even_with_a_full_backlog() {
    let dir = tempfile::tempdir().unwrap();
    let _first = Listeners::bind(&ListenOptions {
        backlog: 0,
        ..unix(dir.path())
    })
    .unwrap();
    // Nobody accepts: the probes themselves fill the backlog.
    for _ in 0..3 {
        let error = Listeners::bind(&unix(dir.path())).unwrap_err();
        assert_eq!(error.to_string(), "unix socket is in use, cannot continue");
    }
    let path = unix_path(dir.path(), 6432);
    let waiting = Socket::new(Domain::UNIX, Type::STREAM, None).unwrap();
    waiting.set_nonblocking(true).unwrap();
    let _ = waiting.connect(&unix_address(&path).unwrap());
    assert!(matches!(
        refuse_used_unix_socket(dir.path(), 6432),
        Err(Error::UnixSocketInUse)
    ));
    assert!(path.exists());
}

#[test]
fn a_leftover_socket_is_replaced_and_a_foreign_one_stays() {
    let dir = tempfile::tempdir().unwrap();
    let path = unix_path(dir.path(), 6432);
    drop(UnixListener::bind(&path).unwrap());
    assert!(path.exists());
    let first = Listeners::bind(&unix(dir.path())).unwrap();
    // Somebody removes our file and starts another process there.
    fs::rename(&path, dir.path().join("aside")).unwrap();
    let second = Listeners::bind(&unix(dir.path())).unwrap();
    drop(first);
    assert!(path.exists());
    drop(second);
    assert!(!path.exists());
}

#[test]
fn a_file_that_is_no_socket_is_not_removed() {
    let dir = tempfile::tempdir().unwrap();
    let path = unix_path(dir.path(), 6432);
    fs::write(&path, "precious").unwrap();
    assert!(matches!(
        Listeners::bind(&unix(dir.path())),
        Err(Error::UnixSocket { .. })
    ));
    assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
}

#[test]
fn a_lock_file_claims_the_port() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join(".s.PGSQL.6432.lock"), "1\n").unwrap();
    let error = Listeners::bind(&unix(dir.path())).unwrap_err();
    assert_eq!(error.to_string(), "unix port 6432 is in use");
}

#[test]
fn a_socket_that_cannot_be_created_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let absent = unix(&dir.path().join("absent"));
    assert!(matches!(
        Listeners::bind(&absent),
        Err(Error::UnixSocket { .. })
    ));
    let long = unix(&dir.path().join("x".repeat(200)));
    assert!(matches!(
        Listeners::bind(&long),
        Err(Error::UnixSocket { .. })
    ));
    let group = Some("no-such-group-here".to_owned());
    let unknown = ListenOptions {
        unix_group: group,
        ..unix(dir.path())
    };
    assert!(matches!(
        Listeners::bind(&unknown),
        Err(Error::UnknownGroup { .. })
    ));
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[cfg(target_os = "linux")]
#[test]
fn an_at_sign_means_the_abstract_namespace() {
    use std::os::linux::net::SocketAddrExt;
    let dir = format!("@pgferry-test-{}", std::process::id());
    let options = unix(Path::new(&dir));
    let listeners = Listeners::bind(&options).unwrap();
    assert!(listeners.unix[0].file.is_none());
    let name = format!("{}/.s.PGSQL.6432", dir.trim_start_matches('@'));
    let address = std::os::unix::net::SocketAddr::from_abstract_name(name).unwrap();
    UnixStream::connect_addr(&address).unwrap();
    assert!(matches!(
        Listeners::bind(&options),
        Err(Error::UnixSocketInUse)
    ));
    drop(listeners);
    assert!(Listeners::bind(&options).is_ok());
}
