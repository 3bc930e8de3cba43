//! Logins: whatever is sent, nobody is let in, and no server believed, without a proof.
//!
//! The first byte of an input chooses between raw messages and an honest exchange in which messages are changed on
//! their way; either way only what is exactly right may succeed.

use std::sync::OnceLock;

use pgferry::auth::scram::{AwaitFirst, Binding, ClientFirst, Material};
use pgferry::auth::{
    ClientLogin, Credentials, Md5Hash, Method, MockKey, PlainSecret, ScramKeys, Secret,
    ServerLogin, ServerStep, Step, Verifier,
};
use pgferry::protocol::authentication::Authentication;

use super::Input;

const USER: &str = "joe";
const PASSWORD: &str = "the Password é";
const ITERATIONS: u32 = 2;

fn password() -> PlainSecret {
    PlainSecret::new(PASSWORD)
}

fn verifier() -> &'static Verifier {
    static VERIFIER: OnceLock<Verifier> = OnceLock::new();
    VERIFIER.get_or_init(|| Verifier::derive(&password(), ITERATIONS, b"salt of sixteen."))
}

/// Keys that fit the verifier, as a client's login leaves them.
fn keys() -> &'static ScramKeys {
    static KEYS: OnceLock<ScramKeys> = OnceLock::new();
    KEYS.get_or_init(|| {
        let (client, first) = ClientFirst::start(Binding::Impossible);
        let (server, challenge) = AwaitFirst::new(verifier().clone())
            .client_first(&first)
            .unwrap();
        let (_, last) = client
            .server_first(&challenge, Material::Password(&password(), None))
            .unwrap();
        server.client_final(&last).unwrap().0
    })
}

/// The body of a message with this tag.
fn body(message: &[u8], tag: u8) -> &[u8] {
    assert_eq!(message[0], tag);
    let length = u32::from_be_bytes(message[1..5].try_into().unwrap());
    assert_eq!(usize::try_from(length).unwrap() + 1, message.len());
    &message[5..]
}

/// A message as somebody in between makes it: the input says which bytes to replace, insert and remove.
fn tampered(message: &[u8], input: &mut Input<'_>) -> Vec<u8> {
    let mut message = message.to_vec();
    for _ in 0..input.byte() % 4 {
        let at = usize::from(input.byte()) * 2 % (message.len() + 1);
        match input.byte() % 4 {
            0 => message.truncate(at),
            1 => drop(message.splice(at..at, input.piece().iter().copied())),
            2 if at < message.len() => message[at] = input.byte(),
            _ if at < message.len() => message[at] ^= 1 << (input.byte() % 8),
            _ => {}
        }
    }
    message
}

/// A client logs in to us.
pub fn client_login(input: &[u8]) {
    let mut input = Input(input);
    let kind = input.byte();
    let secret = match kind >> 1 & 3 {
        0 => Some(Secret::Plain(password())),
        1 => Some(Secret::Md5(Md5Hash::derive(&password(), USER))),
        2 => Some(Secret::Scram(verifier().clone())),
        _ => None,
    };
    let method = [Method::Plain, Method::Md5, Method::Scram][usize::from(kind >> 3 & 3) % 3];
    let end_point = (kind & 0x40 != 0).then(|| b"end point".to_vec());
    let mock = MockKey::random();
    let knows = secret.is_some();
    let step =
        ClientLogin::start(method, USER, secret, &mock, ITERATIONS).offering(end_point.clone());
    let Step::Continue(login, request) = step else {
        panic!("nobody is let in unasked");
    };
    if kind & 1 == 0 {
        raw_client(login, &request, &mut input, knows);
    } else {
        honest_client(login, &request, &mut input, (knows, end_point));
    }
}

/// Only the password itself may be right by chance.
fn raw_client(mut login: ClientLogin, request: &[u8], input: &mut Input<'_>, knows: bool) {
    let asked = Authentication::parse(body(request, b'R')).unwrap();
    let is_plain = asked == Authentication::CleartextPassword;
    for _ in 0..4 {
        let message = if input.0.len() > 255 {
            std::mem::take(&mut input.0)
        } else {
            input.piece()
        };
        match login.message(message) {
            Ok(Step::Continue(next, reply)) => {
                assert!(reply.len() <= message.len() + 200);
                body(&reply, b'R');
                login = next;
            }
            Ok(Step::Done { .. }) => {
                let right = [PASSWORD.as_bytes(), &[0]].concat();
                assert!(
                    is_plain && knows && message == right,
                    "let in by {message:?}"
                );
                return;
            }
            Err(failure) => {
                let text = failure.to_string();
                assert!(!text.contains(PASSWORD) && text.len() < 100);
                return;
            }
        }
    }
}

/// A client that knows the password of a user that we may know, and messages that may be changed.
fn honest_client(
    login: ClientLogin,
    request: &[u8],
    input: &mut Input<'_>,
    (knows, end_point): (bool, Option<Vec<u8>>),
) {
    let Authentication::Sasl(_) = Authentication::parse(body(request, b'R')).unwrap() else {
        return raw_client(login, request, input, knows);
    };
    let mut client = ServerLogin::new(Credentials {
        user: USER.to_owned(),
        secret: Some(Secret::Plain(password())),
        scram: None,
    })
    .binding_to(end_point);
    let mut is_changed = false;
    let mut login = Some(login);
    let mut request = request.to_vec();
    while let Some(waiting) = login.take() {
        let Ok(ServerStep::Send(answer)) = client.message(body(&request, b'R')) else {
            return;
        };
        let genuine = body(&answer, b'p');
        let sent = tampered(genuine, input);
        is_changed |= sent != genuine;
        match waiting.message(&sent) {
            Ok(Step::Continue(next, reply)) => {
                request = reply;
                login = Some(next);
            }
            Ok(Step::Done { reply, .. }) => {
                assert!(
                    knows && !is_changed,
                    "let in by {sent:?} in the place of {genuine:?}"
                );
                // And the client believes us.
                let step = client.message(body(&reply, b'R'));
                assert!(matches!(step, Ok(ServerStep::Wait)), "{step:?}");
                let step = client.message(body(&Authentication::Ok.encode(), b'R'));
                assert!(matches!(step, Ok(ServerStep::Done)), "{step:?}");
            }
            // An md5 hash is good for no SCRAM, so an honest client may fail as well.
            Err(_) => return,
        }
    }
}

/// We log in to a server.
pub fn server_login(input: &[u8]) {
    let mut input = Input(input);
    let kind = input.byte();
    let end_point = (kind & 0x10 != 0).then(|| b"end point".to_vec());
    let is_raw = kind & 1 == 0;
    // With a password, a server may ask for millions of rounds: that is not what is sought here.
    let may_be_slow = if is_raw {
        memchr::memmem::find(input.0, b"i=").is_some()
    } else {
        !input.0.is_empty()
    };
    let (secret, scram) = match kind >> 1 & 3 {
        0 if !may_be_slow => (Some(Secret::Plain(password())), None),
        1 if is_raw => (Some(Secret::Md5(Md5Hash::derive(&password(), USER))), None),
        2 if is_raw => (None, None),
        _ => (None, Some(keys().clone())),
    };
    let credentials = Credentials {
        user: USER.to_owned(),
        secret,
        scram,
    };
    let login = ServerLogin::new(credentials).binding_to(end_point);
    if is_raw {
        raw_server(login, &mut input);
    } else {
        honest_server(login, &mut input, kind & 0x20 != 0);
    }
}

/// A server that signs nothing is believed only if it never asked for SCRAM.
fn raw_server(mut login: ServerLogin, input: &mut Input<'_>) {
    let mut in_scram = false;
    for _ in 0..5 {
        let message = input.piece();
        let parsed = Authentication::parse(message);
        match login.message(message) {
            Ok(ServerStep::Send(answer)) => {
                assert!(answer.len() <= 2 * message.len() + 200);
                body(&answer, b'p');
                in_scram |= matches!(parsed, Ok(Authentication::Sasl(_)));
            }
            Ok(ServerStep::Done) => {
                assert!(
                    !in_scram && parsed == Ok(Authentication::Ok),
                    "believed {message:?}"
                );
                return;
            }
            Ok(ServerStep::Wait) => panic!("it cannot have signed: {message:?}"),
            Err(error) => {
                assert!(error.to_string().len() < 100);
                // It is over.
                assert!(login.message(&Authentication::Ok.encode()[5..]).is_err());
                return;
            }
        }
    }
}

/// A server with our verifier, and messages that may be changed.
fn honest_server(mut login: ServerLogin, input: &mut Input<'_>, offers: bool) {
    let end_point = offers.then(|| b"end point".to_vec());
    let secret = Some(Secret::Scram(verifier().clone()));
    let start = ClientLogin::start(Method::Scram, USER, secret, &MockKey::random(), ITERATIONS);
    let Step::Continue(mut server, request) = start.offering(end_point) else {
        panic!("nobody is let in unasked");
    };
    // The list of mechanisms is not signed. What matters of it is, by what the client says about binding.
    let sent = tampered(body(&request, b'R'), input);
    let mut answer = match login.message(&sent) {
        Ok(ServerStep::Send(answer)) => answer,
        Ok(step) => {
            assert_eq!(
                Authentication::parse(&sent),
                Ok(Authentication::Ok),
                "{step:?}"
            );
            return;
        }
        Err(_) => return,
    };
    let mut is_changed = false;
    while let Ok(step) = server.message(body(&answer, b'p')) {
        let (next, request) = match step {
            Step::Continue(next, request) => (Some(next), request),
            Step::Done { reply, .. } => (None, reply),
        };
        let genuine = body(&request, b'R');
        let sent = tampered(genuine, input);
        is_changed |= sent != genuine;
        match (login.message(&sent), next) {
            (Ok(ServerStep::Send(reply)), Some(next)) => (server, answer) = (next, reply),
            (Ok(ServerStep::Wait), None) => {
                assert!(!is_changed, "believed {sent:?} in the place of {genuine:?}");
                let ok = Authentication::Ok.encode();
                assert!(matches!(
                    login.message(body(&ok, b'R')),
                    Ok(ServerStep::Done)
                ));
                return;
            }
            (Ok(step), _) => panic!("{step:?} after {sent:?}"),
            (Err(_), _) => return,
        }
    }
}
