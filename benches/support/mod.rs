//! What benches of pools stand on: workers, and a server that costs nothing.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

use pgferry::net::Worker;
use pgferry::protocol::authentication::Authentication;
use pgferry::protocol::backend::{self, TxStatus};
use tokio::runtime::Builder;

/// A worker as `daemon::runtime` starts them.
pub fn start_worker() -> Worker {
    let worker = Worker::new().unwrap();
    let runs = worker.clone();
    std::thread::spawn(move || {
        // For timers and for connecting; it runs as long as this thread.
        let tokio = Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let _entered = tokio.enter();
        runs.run(std::future::pending::<()>());
    });
    worker
}

/// A listener that logs everybody in; its port.
pub fn start_server() -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        let streams = listener.incoming().map(|stream| greet(stream.unwrap()));
        // Kept open to the end of the process.
        streams.collect::<Vec<_>>()
    });
    port
}

fn greet(mut stream: TcpStream) -> TcpStream {
    let mut length = [0; 4];
    stream.read_exact(&mut length).unwrap();
    let mut startup = vec![0; u32::from_be_bytes(length) as usize - 4];
    stream.read_exact(&mut startup).unwrap();
    let mut welcome = Authentication::Ok.encode();
    backend::backend_key_data(&mut welcome, 1, b"key!");
    backend::ready_for_query(&mut welcome, TxStatus::Idle);
    stream.write_all(&welcome).unwrap();
    stream
}
