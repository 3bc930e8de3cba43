//! What a client has made of its session, on its way to another process of ours.

use std::sync::Arc;

use super::Belongings;
use crate::pool::LoginSettings;
use crate::server::carried::{Statement, Value};
use crate::server::overlay::Overlay;
use crate::sql::touches::Touches;

/// What a client has made of its session.
#[derive(Clone, PartialEq, Eq, prost::Message)]
#[allow(clippy::struct_excessive_bools, reason = "as there")]
pub struct Carried {
    /// Is there an overlay, be it empty?
    #[prost(bool, tag = "1")]
    is_overlaid: bool,
    #[prost(message, repeated, tag = "2")]
    overlay: Vec<Value>,
    #[prost(uint32, tag = "3")]
    touched: u32,
    #[prost(bytes = "vec", repeated, tag = "4")]
    names: Vec<Vec<u8>>,
    #[prost(uint32, tag = "5")]
    holds: u32,
    #[prost(uint32, tag = "6")]
    unseen: u32,
    #[prost(bool, tag = "7")]
    draws: bool,
    #[prost(bool, tag = "8")]
    draws_on: bool,
    #[prost(bool, tag = "9")]
    prepares: bool,
    #[prost(message, optional, tag = "10")]
    login: Option<CarriedLogin>,
    #[prost(bool, tag = "11")]
    resets: bool,
    #[prost(bytes = "vec", tag = "12")]
    text: Vec<u8>,
    #[prost(message, repeated, tag = "13")]
    statements: Vec<Statement>,
}

/// What it has asked for at its login.
#[derive(Clone, PartialEq, Eq, prost::Message)]
struct CarriedLogin {
    #[prost(message, repeated, tag = "1")]
    all: Vec<Value>,
    #[prost(message, repeated, tag = "2")]
    own: Vec<Value>,
    #[prost(bytes = "vec", repeated, tag = "3")]
    customs: Vec<Vec<u8>>,
    #[prost(message, repeated, tag = "4")]
    reported: Vec<Value>,
}

fn names(names: &[Box<[u8]>]) -> Vec<Vec<u8>> {
    names.iter().map(|name| name.to_vec()).collect()
}

fn boxed(names: Vec<Vec<u8>>) -> Vec<Box<[u8]>> {
    names.into_iter().map(Vec::into_boxed_slice).collect()
}

fn touches(bits: u32) -> Touches {
    Touches::from_bits(u16::try_from(bits).unwrap_or_default())
}

impl Belongings {
    /// It has set this, too.
    pub fn keep(&mut self, value: &Value) {
        let one = Value::overlay(std::slice::from_ref(value));
        let overlay = self.overlay.take().unwrap_or_default();
        self.overlay = Some(overlay.filled_from(&one));
    }

    /// What a successor of this process is to know.
    pub fn carry(&self) -> Carried {
        let login = self.login.as_deref().map(|login| CarriedLogin {
            all: Value::all(login.all.iter()),
            own: Value::all(login.own.iter()),
            customs: names(&login.customs),
            reported: Value::all(login.reported.iter().map(|(name, value)| (name, &**value))),
        });
        Carried {
            is_overlaid: self.overlay.is_some(),
            overlay: Value::all(self.overlay.iter().flat_map(Overlay::iter)),
            touched: self.touched.bits().into(),
            names: names(&self.names),
            holds: self.holds.bits().into(),
            unseen: self.unseen.bits().into(),
            draws: self.draws,
            draws_on: self.draws_on,
            prepares: self.prepares,
            login,
            resets: self.resets,
            text: self.text.to_vec(),
            statements: self.overlay.iter().flat_map(Statement::all).collect(),
        }
    }
}

impl Carried {
    /// The same, in this process.
    pub fn into_belongings(self) -> Belongings {
        let login = self.login.map(|login| {
            let reported = login.reported.into_iter();
            Arc::new(LoginSettings {
                all: Value::overlay(&login.all),
                own: Value::overlay(&login.own),
                customs: boxed(login.customs),
                reported: reported
                    .map(|it| (it.name.into(), it.value.into()))
                    .collect(),
            })
        });
        Belongings {
            overlay: self
                .is_overlaid
                .then(|| Value::overlay_with(&self.overlay, &self.statements)),
            touched: touches(self.touched),
            names: boxed(self.names),
            holds: touches(self.holds),
            unseen: touches(self.unseen),
            draws: self.draws,
            draws_on: self.draws_on,
            prepares: self.prepares,
            login,
            resets: self.resets,
            text: self.text.into_boxed_slice(),
            pin: None,
        }
    }
}
