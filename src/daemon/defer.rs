//! `tcp_defer_accept`: the kernel keeps a connection to itself until its client has said something, so that nobody is
//! woken for one that only looks whether the port is open (tcp(7), `TCP_DEFER_ACCEPT`).

use std::os::fd::AsFd;

use nix::sys::socket::setsockopt;
use nix::{libc, setsockopt_impl, sockopt_impl};
use tokio::sync::watch;

sockopt_impl!(
    /// The option itself, which nix lets its users define: seconds, as a C int.
    DeferAccept,
    SetOnly,
    libc::IPPROTO_TCP,
    libc::TCP_DEFER_ACCEPT,
    i32
);

/// For how long a silent client is kept from us, about; PgBouncer's figure.
const SECONDS: i32 = 45;

/// Keeps a listening socket to what is wanted, and for ever to what was wanted last.
pub async fn follow(listener: &impl AsFd, mut wanted: watch::Receiver<bool>) {
    loop {
        let seconds = if *wanted.borrow_and_update() {
            SECONDS
        } else {
            0
        };
        if let Err(error) = setsockopt(listener, DeferAccept, &seconds) {
            tracing::warn!("could not set TCP_DEFER_ACCEPT: {error}");
        }
        if wanted.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::TcpStream;
    use std::time::Duration;

    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn a_silent_client_is_not_accepted_until_that_is_switched_off() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (want, wanted) = watch::channel(true);
        let accepted = async || {
            tokio::select! {
                biased;
                () = follow(&listener, wanted.clone()) => unreachable!(),
                accepted = listener.accept() => accepted.unwrap().1,
            }
        };
        let limit = Duration::from_secs(20);
        let accepted_soon = async || tokio::time::timeout(limit, accepted()).await.unwrap();
        // Sets the option.
        assert!(
            tokio::time::timeout(Duration::ZERO, accepted())
                .await
                .is_err()
        );
        let _silent = TcpStream::connect(address).unwrap();
        let mut talks = TcpStream::connect(address).unwrap();
        talks.write_all(b"x").unwrap();
        // Though it came later.
        assert_eq!(accepted_soon().await, talks.local_addr().unwrap());
        want.send(false).unwrap();
        assert!(
            tokio::time::timeout(Duration::from_millis(1), accepted())
                .await
                .is_err()
        );
        let silent = TcpStream::connect(address).unwrap();
        // The first one may be let in as well by now.
        while accepted_soon().await != silent.local_addr().unwrap() {}
    }
}
