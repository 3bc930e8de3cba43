//! Stand-in while the console is being written.
use std::sync::Arc;
/// x
pub struct Console { /// x
 pub manager: Arc<crate::pool::Manager>, /// x
 pub control: Arc<dyn Control>, /// x
 pub averages: Arc<Averages>, /// x
 pub version: &'static str }
/// x
#[derive(Default)]
pub struct Averages;
impl Averages { /// x
 pub fn tick(&self, _: &crate::pool::Manager) -> String { String::new() } }
/// x
pub trait Control: Send + Sync { /// x
 fn reload(&self) -> Result<(), String>; /// x
 fn shutdown(&self, mode: Shutdown); /// x
 fn set(&self, key:&str, value:&str) -> Result<Option<String>, String>; /// x
 fn is_shutting_down(&self)->bool; }
/// x
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shutdown { /// x
 Now, /// x
 WaitForServers, /// x
 WaitForClients }
/// x
pub enum Rights { /// x
 Admin, /// x
 Stats }
/// x
pub async fn serve(_: &Console, _c: crate::net::Connection, _r: Rights, _e: crate::stats::registry::ClientGuard) {}
