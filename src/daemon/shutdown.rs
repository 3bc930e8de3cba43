//! The ways to end: at once, when the servers are free, or when the clients have gone. How these are sent away is `drain`'s.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::interval;

use super::accept::Acceptors;
use super::drain::Drain;
use super::systemd::{Service, State};
use crate::admin::Shutdown;
use crate::client::Context;
use crate::stats::Order;

/// How often it is looked whether the last one has gone.
const PERIOD: Duration = Duration::from_millis(50);

/// Whoever wants the process to end says how. The first word counts; a second one, whatever it says, ends it at once.
#[derive(Debug, Clone)]
pub struct Request {
    wanted: Arc<watch::Sender<Option<Shutdown>>>,
}

impl Default for Request {
    fn default() -> Self {
        Self {
            wanted: Arc::new(watch::Sender::new(None)),
        }
    }
}

impl Request {
    /// Ends the process in this way.
    pub fn send(&self, how: Shutdown) {
        self.wanted.send_modify(|wanted| {
            *wanted = Some(if wanted.is_some() { Shutdown::Now } else { how });
        });
    }

    /// Has anybody asked?
    pub fn is_sent(&self) -> bool {
        self.wanted.borrow().is_some()
    }

    /// Waits until somebody asks, does it, and returns when the process may exit.
    pub async fn carry_out(&self, acceptors: &Acceptors, context: &Context, service: &Service) {
        let mut wanted = self.wanted.subscribe();
        let mut tick = interval(PERIOD);
        let (mut begun, mut drain) = (None, None);
        loop {
            let how = *wanted.borrow_and_update();
            match how {
                None => {}
                Some(Shutdown::Now) => return,
                Some(Shutdown::Drain(limit)) => {
                    begun = how;
                    let drain = drain.get_or_insert_with(|| {
                        service.notify(State::Stopping);
                        acceptors.drain_tcp();
                        Drain::begin(limit, |_, _| true, context)
                    });
                    if drain.go_on(acceptors, context) {
                        tracing::info!("drained, exiting");
                        return;
                    }
                }
                Some(how) => {
                    if begun.replace(how).is_none() {
                        service.notify(State::Stopping);
                        begin(how, acceptors, context);
                    }
                    if is_over(how, context) {
                        tracing::info!("{} connections dropped, exiting", waited_for(how));
                        return;
                    }
                }
            }
            tokio::select! {
                changed = wanted.changed() => if changed.is_err() { return },
                _ = tick.tick(), if begun.is_some() => {}
            }
        }
    }
}

fn begin(how: Shutdown, acceptors: &Acceptors, context: &Context) {
    acceptors.close_tcp();
    context.shut_down();
    context.manager.end_suspension();
    if how == Shutdown::WaitForServers {
        context.end_waiting();
        context.manager.pause(None);
        context.manager.end_waiting();
        context.manager.order_clients(None, Order::ShuttingDown);
    }
}

/// Whose end the end waits for.
fn waited_for(how: Shutdown) -> &'static str {
    match how {
        Shutdown::Now | Shutdown::WaitForServers => "server",
        Shutdown::WaitForClients | Shutdown::Drain(_) => "client",
    }
}

fn is_over(how: Shutdown, context: &Context) -> bool {
    match how {
        Shutdown::Now => true,
        Shutdown::WaitForServers => context.manager.active_servers(None) == 0,
        Shutdown::WaitForClients | Shutdown::Drain(_) => {
            context.manager.parts().registry.clients().is_empty()
                && context.manager.active_clients() == 0
        }
    }
}
