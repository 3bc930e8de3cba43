//! Logins at a server: a scripted one, and ourselves in its part.

use super::*;
use crate::auth::PlainSecret;
use crate::auth::{ClientLogin, Method, MockKey, Step, Verifier};
use proptest::prelude::*;

const VERIFIER_SALT: &[u8] = b"a salt of 16 b..";

fn password(text: &str) -> PlainSecret {
    PlainSecret::new(text)
}

fn plain(text: &str) -> Secret {
    Secret::Plain(password(text))
}

fn verifier(text: &str) -> Verifier {
    Verifier::derive(&password(text), 3, VERIFIER_SALT)
}

fn login(secret: Option<Secret>) -> ServerLogin {
    ServerLogin::new(Credentials {
        user: "anna".to_owned(),
        secret,
        scram: None,
    })
}

fn ask(login: &mut ServerLogin, request: Authentication<'_>) -> Result<ServerStep, Error> {
    login.message(&request.encode()[5..])
}

fn sent(step: ServerStep) -> Vec<u8> {
    match step {
        ServerStep::Send(message) => message,
        other => panic!("{other:?}"),
    }
}

/// Runs a login against our own server's part, to its end.
fn run(
    login: &mut ServerLogin,
    method: Method,
    stored: Secret,
) -> Result<crate::auth::Proof, String> {
    let mut step = ClientLogin::start(method, "anna", Some(stored), &MockKey::random(), 3);
    loop {
        match step {
            Step::Continue(server, message) => {
                let answer = sent(
                    login
                        .message(&message[5..])
                        .map_err(|error| error.to_string())?,
                );
                step = server
                    .message(&answer[5..])
                    .map_err(|failure| failure.to_string())?;
            }
            Step::Done { reply, proof } => {
                if !reply.is_empty() {
                    let step = login
                        .message(&reply[5..])
                        .map_err(|error| error.to_string())?;
                    assert!(matches!(step, ServerStep::Wait));
                }
                assert!(matches!(
                    ask(login, Authentication::Ok),
                    Ok(ServerStep::Done)
                ));
                return Ok(proof);
            }
        }
    }
}

#[test]
fn a_server_that_trusts_us_asks_nothing() {
    let mut login = login(None);
    assert!(matches!(
        ask(&mut login, Authentication::Ok),
        Ok(ServerStep::Done)
    ));
    assert_eq!(
        ask(&mut login, Authentication::Ok).unwrap_err(),
        Error::UnexpectedRequest
    );
}

#[test]
fn a_plain_secret_is_good_for_every_method() {
    for (method, stored) in [
        (Method::Plain, plain("x")),
        (
            Method::Md5,
            Secret::Md5(Md5Hash::derive(&password("x"), "anna")),
        ),
        (Method::Scram, Secret::Scram(verifier("x"))),
    ] {
        assert!(run(&mut login(Some(plain("x"))), method, stored.clone()).is_ok());
        assert!(run(&mut login(Some(plain("y"))), method, stored).is_err());
    }
}

#[test]
fn an_md5_secret_is_good_for_md5() {
    let hash = Secret::Md5(Md5Hash::derive(&password("x"), "anna"));
    assert!(run(&mut login(Some(hash.clone())), Method::Md5, plain("x")).is_ok());
    for request in [
        Authentication::CleartextPassword,
        Authentication::Sasl(Mechanisms::SCRAM_SHA_256),
    ] {
        assert_eq!(
            ask(&mut login(Some(hash.clone())), request).unwrap_err(),
            Error::WrongPasswordType
        );
    }
}

#[test]
fn a_verifier_alone_is_good_for_nothing() {
    for secret in [Some(Secret::Scram(verifier("x"))), None] {
        for request in [
            Authentication::CleartextPassword,
            Authentication::Md5Password { salt: [0; 4] },
            Authentication::Sasl(Mechanisms::SCRAM_SHA_256),
        ] {
            assert_eq!(
                ask(&mut login(secret.clone()), request).unwrap_err(),
                Error::WrongPasswordType
            );
        }
    }
}

#[test]
fn the_keys_of_a_clients_login_open_the_server() {
    let stored = Secret::Scram(verifier("x"));
    let proof = run(&mut login(Some(plain("x"))), Method::Scram, stored.clone()).unwrap();
    let pass_through = Credentials {
        user: "anna".to_owned(),
        secret: Some(stored.clone()),
        scram: proof.scram,
    };
    assert!(run(&mut ServerLogin::new(pass_through), Method::Scram, stored).is_ok());
}

#[test]
fn a_second_login_with_the_same_password_costs_no_pbkdf2() {
    let stored = Secret::Scram(verifier("x"));
    let ring = Keyring::default();
    let derived = |text: &str| {
        let before = scram::derivations();
        let mut login = login(Some(plain(text))).reusing(ring.clone());
        let is_in = run(&mut login, Method::Scram, stored.clone()).is_ok();
        (is_in, scram::derivations() - before)
    };
    assert_eq!(derived("x"), (true, 1));
    assert_eq!(derived("x"), (true, 0));
    assert_eq!(derived("y"), (false, 1));
    assert_eq!(derived("x"), (true, 0));
}

#[test]
fn a_server_must_sign_before_it_says_ok() {
    let mut early = login(Some(plain("x")));
    sent(ask(&mut early, Authentication::Sasl(Mechanisms::SCRAM_SHA_256)).unwrap());
    assert_eq!(
        ask(&mut early, Authentication::Ok).unwrap_err(),
        Error::InvalidServerSignature
    );

    let mut late = login(Some(plain("x")));
    let first = sent(ask(&mut late, Authentication::Sasl(Mechanisms::SCRAM_SHA_256)).unwrap());
    let first = SaslInitialResponse::parse(&first[5..]).unwrap();
    let server = scram::AwaitFirst::new(verifier("x"));
    let (_, challenge) = server.client_first(first.data.unwrap()).unwrap();
    sent(ask(&mut late, Authentication::SaslContinue(&challenge)).unwrap());
    assert_eq!(
        ask(&mut late, Authentication::Ok).unwrap_err(),
        Error::InvalidServerSignature
    );
    assert_eq!(
        ask(&mut late, Authentication::Ok).unwrap_err(),
        Error::UnexpectedRequest,
        "over is over"
    );
}

#[test]
fn a_login_over_tls_binds_if_the_server_offers_it_and_says_so_if_not() {
    let first = |mechanisms: &[u8], end_point: Option<&[u8]>| {
        let body = [b"\0\0\0\x0a", mechanisms].concat();
        let mut login = login(Some(plain("x"))).binding_to(end_point.map(<[u8]>::to_vec));
        let sent = sent(login.message(&body).unwrap());
        let initial = SaslInitialResponse::parse(&sent[5..]).unwrap();
        let header = initial.data.unwrap().split(|&byte| byte == b',').next();
        (initial.mechanism.to_vec(), header.unwrap().to_vec())
    };
    let both = b"SCRAM-SHA-256-PLUS\0SCRAM-SHA-256\0\0";
    let one = b"SCRAM-SHA-256\0\0";
    let plus = b"SCRAM-SHA-256-PLUS".to_vec();
    let free = b"SCRAM-SHA-256".to_vec();
    let bound = b"p=tls-server-end-point".to_vec();
    assert_eq!(first(both, Some(b"hash")), (plus, bound));
    assert_eq!(first(one, Some(b"hash")), (free.clone(), b"y".to_vec()));
    assert_eq!(first(both, None), (free.clone(), b"n".to_vec()));
    assert_eq!(first(one, None), (free, b"n".to_vec()));
}

#[test]
fn a_server_that_offers_only_what_we_cannot_do_is_refused() {
    let body = b"\0\0\0\x0aSCRAM-SHA-256-PLUS\0\0";
    assert_eq!(
        login(Some(plain("x"))).message(body).unwrap_err(),
        Error::NoCommonMechanism
    );
    let both = b"\0\0\0\x0aSCRAM-SHA-256-PLUS\0SCRAM-SHA-256\0\0";
    let first = sent(login(Some(plain("x"))).message(both).unwrap());
    assert_eq!(
        SaslInitialResponse::parse(&first[5..]).unwrap().mechanism,
        b"SCRAM-SHA-256"
    );
    assert_eq!(
        ask(&mut login(Some(plain("x"))), Authentication::Unsupported(7)).unwrap_err(),
        Error::UnsupportedMethod(7)
    );
}

#[test]
fn nothing_is_answered_twice_or_out_of_turn() {
    let mut answered = login(Some(plain("x")));
    sent(ask(&mut answered, Authentication::Md5Password { salt: [0; 4] }).unwrap());
    assert_eq!(
        ask(&mut answered, Authentication::CleartextPassword).unwrap_err(),
        Error::UnexpectedRequest
    );
    for request in [
        Authentication::SaslContinue(b""),
        Authentication::SaslFinal(b""),
    ] {
        assert_eq!(
            ask(&mut login(Some(plain("x"))), request).unwrap_err(),
            Error::UnexpectedRequest
        );
    }
}

#[test]
fn errors_speak_pgbouncers_words() {
    for (error, words) in [
        (Error::WrongPasswordType, "wrong password type"),
        (
            Error::NoCommonMechanism,
            "none of the server's SASL authentication mechanisms are supported",
        ),
        (Error::InvalidServerSignature, "invalid server signature"),
    ] {
        assert_eq!(error.to_string(), words);
    }
}

#[test]
fn debug_shows_no_secret() {
    let mut login = login(Some(plain("hunter2")));
    assert_eq!(format!("{login:?}"), "ServerLogin(..)");
    assert_eq!(
        format!("{:?}", login.credentials),
        r#"Credentials { user: "anna", secret: Some(Plain(..)), scram: None }"#
    );
    let step = ask(&mut login, Authentication::CleartextPassword).unwrap();
    assert_eq!(format!("{step:?}"), "Send(..)");
}

proptest! {
    #[test]
    fn garbage_never_panics(
        requests in proptest::collection::vec((0u8..14, proptest::collection::vec(any::<u8>(), 0..40)), 1..5),
        known: bool,
    ) {
        let mut login = login(known.then(|| plain("x")));
        for (code, rest) in requests {
            let sasl = if code == 10 { b"SCRAM-SHA-256\0\0".as_slice() } else { &rest };
            if login.message(&[&[0, 0, 0, code], sasl].concat()).is_err() {
                break;
            }
        }
        let _ = login.message(&[0, 0]);
    }
}
