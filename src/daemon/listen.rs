//! The listening sockets: addresses resolved, bound and listening, before any runtime exists.
//!
//! Gives std sockets, non-blocking and ready for a runtime to adopt; accepting, and the options
//! of accepted sockets, are `accept`'s and `net`'s. Sockets that systemd has opened are taken over by
//! [`activation`](super::activation).

use crate::daemon::Error;
use nix::unistd::{Gid, Group, chown};
use socket2::{Domain, SockAddr, Socket, Type};
use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, ToSocketAddrs};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Where to listen, in plain values.
#[derive(Debug, Clone)]
pub struct ListenOptions {
    /// `listen_addr` cut at its commas: `*`, names, IPv4 and IPv6 addresses. Empty: no TCP.
    pub addresses: Vec<String>,
    /// `listen_port`, also part of the Unix socket's name.
    pub port: u16,
    /// `listen_backlog`: connections the kernel may keep waiting for an accept.
    pub backlog: u32,
    /// `so_reuseport`: several processes share the port.
    pub reuseport: bool,
    /// `unix_socket_dir`; `@name` is in the abstract namespace (Linux). None or empty: no socket.
    pub unix_dir: Option<PathBuf>,
    /// `unix_socket_mode`: permission bits of the socket file.
    pub unix_mode: u32,
    /// `unix_socket_group`: a group's name or number.
    pub unix_group: Option<String>,
}

/// Everything we listen on. Dropping a part closes it.
#[derive(Debug)]
pub struct Listeners {
    /// One socket an address, in the order of the list.
    pub tcp: Vec<TcpListener>,
    /// Are the TCP sockets ours alone? Those that were handed over go on listening when we have gone.
    pub owns_tcp: bool,
    /// The Unix socket; several only if they were handed over.
    pub unix: Vec<UnixSocket>,
}

/// A listening Unix socket and its file; take them apart to give the listener to a runtime.
#[derive(Debug)]
pub struct UnixSocket {
    /// The socket.
    pub listener: UnixListener,
    /// Its file, to be kept as long as the socket listens; `None` in the abstract namespace, and for a
    /// file that is not ours.
    pub file: Option<SocketFile>,
}

/// A socket's file, removed on drop unless another process has put its own there.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    identity: (u64, u64),
}

impl SocketFile {
    fn new(path: PathBuf) -> io::Result<Self> {
        let identity = identity(&path)?;
        Ok(Self { path, identity })
    }

    /// Leaves the file to somebody else.
    pub fn leave(mut self) {
        self.identity = NOT_OURS;
    }

    /// Where clients find it.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if identity(&self.path).is_ok_and(|now| now == self.identity) {
            let _ = fs::remove_file(&self.path); // the next start unlinks what is left over
        }
    }
}

/// No file is this.
const NOT_OURS: (u64, u64) = (u64::MAX, u64::MAX);

/// Device and inode.
fn identity(path: &Path) -> io::Result<(u64, u64)> {
    let metadata = fs::symlink_metadata(path)?;
    Ok((metadata.dev(), metadata.ino()))
}

/// The Unix socket's name for a folder and port, as libpq builds it; abstract names keep their `@`.
pub fn unix_path(dir: &Path, port: u16) -> PathBuf {
    dir.join(format!(".s.PGSQL.{port}"))
}

/// Connects to whoever listens on our Unix socket.
pub fn connect_unix(dir: &Path, port: u16) -> io::Result<std::os::unix::net::UnixStream> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    // A full backlog would keep us waiting for ever.
    socket.set_write_timeout(Some(Duration::from_secs(10)))?;
    socket.connect(&unix_address(&unix_path(dir, port))?)?;
    Ok(socket.into())
}

/// Refuses to go on when somebody accepts on our Unix socket, or a lock file claims it.
///
/// A start asks before it daemonises, so that the complaint reaches the terminal;
/// [`Listeners::bind`] asks again.
pub fn refuse_used_unix_socket(dir: &Path, port: u16) -> Result<(), Error> {
    let path = unix_path(dir, port);
    let failed = |source| Error::UnixSocket {
        path: path.clone(),
        source,
    };
    let address = unix_address(&path).map_err(failed)?;
    let probe = Socket::new(Domain::UNIX, Type::STREAM, None).map_err(failed)?;
    // A full backlog would keep a blocking connect waiting for ever.
    probe.set_nonblocking(true).map_err(failed)?;
    match probe.connect(&address) {
        Ok(()) => return Err(Error::UnixSocketInUse),
        Err(error) => match error.kind() {
            io::ErrorKind::WouldBlock => return Err(Error::UnixSocketInUse),
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {}
            _ => return Err(failed(error)),
        },
    }
    let mut lock = path.clone().into_os_string();
    lock.push(".lock");
    if !is_abstract(&path) && fs::symlink_metadata(&lock).is_ok() {
        return Err(Error::UnixPortLocked { port });
    }
    Ok(())
}

impl Listeners {
    /// Binds every address and the Unix socket, and logs `listening on …` for each.
    ///
    /// An address that cannot be bound costs a warning; it is an error when none can, when a name
    /// has no address, when the Unix socket fails, or when there is nothing to listen on.
    pub fn bind(options: &ListenOptions) -> Result<Self, Error> {
        Self::complete((Vec::new(), Vec::new()), options)
    }

    /// The same with sockets that listen already: they are used where they fit, and others of them are closed.
    pub fn complete(
        (mut had_tcp, mut had_unix): (Vec<TcpListener>, Vec<UnixListener>),
        options: &ListenOptions,
    ) -> Result<Self, Error> {
        let names: Vec<&str> = options
            .addresses
            .iter()
            .map(|name| name.trim())
            .filter(|name| !name.is_empty())
            .collect();
        let dir = options
            .unix_dir
            .as_deref()
            .filter(|dir| !dir.as_os_str().is_empty());
        if names.is_empty() && dir.is_none() {
            return Err(Error::NowhereToListen);
        }
        let had_unix = dir.and_then(|dir| {
            let wanted = unix_address(&unix_path(dir, options.port)).ok()?;
            let is_there = |it: &UnixListener| is_at(it, &wanted);
            had_unix
                .iter()
                .position(is_there)
                .map(|at| had_unix.swap_remove(at))
        });
        if let Some(dir) = dir
            && had_unix.is_none()
        {
            refuse_used_unix_socket(dir, options.port)?;
        }
        let mut tcp = Vec::new();
        for address in resolve(&names, options.port)? {
            let is_there = |it: &TcpListener| it.local_addr().is_ok_and(|at| at == address);
            let had = had_tcp.iter().position(is_there);
            match had.map_or_else(
                || bind_tcp(address, options),
                |at| Ok(had_tcp.swap_remove(at)),
            ) {
                Ok(listener) => {
                    tracing::info!("listening on {}", listener.local_addr().unwrap_or(address));
                    tcp.push(listener);
                }
                Err(error) => tracing::warn!("cannot listen on {address}: {error}"),
            }
        }
        if tcp.is_empty() && !names.is_empty() {
            return Err(Error::NoAddress {
                list: names.join(","),
            });
        }
        let unix = match (had_unix, dir) {
            // Its file is not ours before the other process has left it.
            (Some(listener), _) => Some(UnixSocket {
                listener,
                file: None,
            }),
            (None, Some(dir)) => Some(bind_unix(dir, options)?),
            (None, None) => None,
        };
        Ok(Self {
            tcp,
            owns_tcp: true,
            unix: unix.into_iter().collect(),
        })
    }
}

impl Listeners {
    /// Other handles of the same sockets; their files stay with these.
    pub fn try_clone(&self) -> io::Result<Self> {
        let unix = self.unix.iter().map(|socket| {
            Ok(UnixSocket {
                listener: socket.listener.try_clone()?,
                file: None,
            })
        });
        Ok(Self {
            tcp: self
                .tcp
                .iter()
                .map(TcpListener::try_clone)
                .collect::<io::Result<_>>()?,
            owns_tcp: self.owns_tcp,
            unix: unix.collect::<io::Result<_>>()?,
        })
    }
}

impl SocketFile {
    /// Of a socket that another process has made and left to us. `None`: it has no file.
    pub fn claim(listener: &UnixListener) -> Option<Self> {
        let address = listener.local_addr().ok()?;
        // In the abstract namespace there is none.
        Self::new(address.as_pathname()?.to_owned()).ok()
    }
}

fn is_at(listener: &UnixListener, address: &SockAddr) -> bool {
    socket2::SockRef::from(listener)
        .local_addr()
        .is_ok_and(|at| at == *address)
}

/// The addresses of all names in their order, each once: `localhost,127.0.0.1` names one twice.
fn resolve(names: &[&str], port: u16) -> Result<Vec<SocketAddr>, Error> {
    let mut addresses: Vec<SocketAddr> = Vec::new();
    for &name in names {
        let found: Vec<SocketAddr> = if name == "*" {
            let any: [IpAddr; 2] = [Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()];
            any.into_iter()
                .map(|ip| SocketAddr::new(ip, port))
                .collect()
        } else {
            let unresolvable = |source| Error::Unresolvable {
                address: name.to_owned(),
                source,
            };
            (name, port)
                .to_socket_addrs()
                .map_err(unresolvable)?
                .collect()
        };
        for address in found {
            if !addresses.contains(&address) {
                addresses.push(address);
            }
        }
    }
    Ok(addresses)
}

fn bind_tcp(address: SocketAddr, options: &ListenOptions) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    // A restart must not wait for the old process's connections to leave TIME_WAIT.
    socket.set_reuse_address(true)?;
    if address.is_ipv6() {
        // `*` binds both families apart; a v6 socket that also took v4 would be in the way.
        socket.set_only_v6(true)?;
    }
    if options.reuseport {
        socket.set_reuse_port(true)?;
    }
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(backlog(options))?;
    Ok(socket.into())
}

fn backlog(options: &ListenOptions) -> i32 {
    i32::try_from(options.backlog).unwrap_or(i32::MAX)
}

fn bind_unix(dir: &Path, options: &ListenOptions) -> Result<UnixSocket, Error> {
    let path = unix_path(dir, options.port);
    let group = options
        .unix_group
        .as_deref()
        .filter(|name| !name.is_empty());
    let group = group.map(find_group).transpose()?;
    let failed = |source| Error::UnixSocket {
        path: path.clone(),
        source,
    };
    let address = unix_address(&path).map_err(failed)?;
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None).map_err(failed)?;
    socket.set_nonblocking(true).map_err(failed)?;
    let file = if is_abstract(&path) {
        socket.bind(&address).map_err(failed)?;
        None
    } else {
        remove_leftover(&path).map_err(failed)?;
        socket.bind(&address).map_err(failed)?;
        let file = SocketFile::new(path.clone()).map_err(failed)?;
        // Before it listens: until then nobody can connect with the umask's permissions.
        chown(&path, None, group).map_err(|errno| failed(errno.into()))?;
        let mode = fs::Permissions::from_mode(options.unix_mode & 0o777);
        fs::set_permissions(&path, mode).map_err(failed)?;
        Some(file)
    };
    socket.listen(backlog(options)).map_err(failed)?;
    tracing::info!("listening on unix:{}", path.display());
    Ok(UnixSocket {
        listener: socket.into(),
        file,
    })
}

/// Only a socket is ours to remove; on anything else the bind fails and says so.
fn remove_leftover(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Ok(metadata) if metadata.file_type().is_socket() => fs::remove_file(path),
        _ => Ok(()),
    }
}

fn find_group(name: &str) -> Result<Gid, Error> {
    let unknown = || Error::UnknownGroup {
        name: name.to_owned(),
    };
    if let Ok(number) = name.parse() {
        return Ok(Gid::from_raw(number));
    }
    let group = Group::from_name(name).map_err(|_| unknown())?;
    Ok(group.ok_or_else(unknown)?.gid)
}

/// The socket of the pages for monitoring; `None`: there are to be none. An address without a host means all addresses.
pub fn http(address: &str) -> Result<Option<TcpListener>, Error> {
    if address.is_empty() {
        return Ok(None);
    }
    let bind = || {
        let listener = match address.strip_prefix(':') {
            Some(port) => {
                let port = port.parse().map_err(io::Error::other)?;
                // Both families, where there is IPv6.
                let all = [
                    (IpAddr::from(Ipv6Addr::UNSPECIFIED), port),
                    (IpAddr::from(Ipv4Addr::UNSPECIFIED), port),
                ];
                TcpListener::bind(all.map(SocketAddr::from).as_slice())?
            }
            None => TcpListener::bind(address)?,
        };
        listener.set_nonblocking(true)?;
        tracing::info!("http pages on {}", listener.local_addr()?);
        Ok(listener)
    };
    bind().map(Some).map_err(|source| Error::Http {
        address: address.to_owned(),
        source,
    })
}

fn is_abstract(path: &Path) -> bool {
    path.as_os_str().as_encoded_bytes().starts_with(b"@")
}

/// libpq's reading of a socket name: a leading `@` stands for the NUL of the abstract namespace.
fn unix_address(path: &Path) -> io::Result<SockAddr> {
    match path.to_str().and_then(|path| path.strip_prefix('@')) {
        Some(name) => SockAddr::unix(format!("\0{name}")),
        None => SockAddr::unix(path),
    }
}

#[cfg(test)]
mod tests;
