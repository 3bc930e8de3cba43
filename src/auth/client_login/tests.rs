//! Logins as a client sees them; the client is postgres-protocol's where it has one.

use super::*;
use crate::auth::Verifier;
use crate::protocol::authentication::{encode_password, encode_sasl_response};
use postgres_protocol::authentication::md5_hash;
use postgres_protocol::authentication::sasl::{ChannelBinding, ScramSha256};
use proptest::prelude::*;

const ROUNDS: u32 = 3;

fn start(method: Method, secret: Option<Secret>) -> (ClientLogin, Vec<u8>) {
    begin(method, "anna", secret, &MockKey::random())
}

fn begin(
    method: Method,
    user: &str,
    secret: Option<Secret>,
    mock: &MockKey,
) -> (ClientLogin, Vec<u8>) {
    next(ClientLogin::start(method, user, secret, mock, ROUNDS))
}

fn next(step: Step) -> (ClientLogin, Vec<u8>) {
    match step {
        Step::Continue(login, message) => (login, message),
        Step::Done { .. } => panic!("done too early"),
    }
}

fn done(step: Step) -> (Vec<u8>, Proof) {
    match step {
        Step::Done { reply, proof } => (reply, proof),
        Step::Continue(..) => panic!("not done"),
    }
}

fn body(message: &[u8]) -> &[u8] {
    &message[5..]
}

fn plain(password: &str) -> Secret {
    Secret::Plain(PlainSecret::new(password))
}

fn hashed(password: &str) -> Secret {
    Secret::Md5(Md5Hash::derive(&PlainSecret::new(password), "anna"))
}

fn verifier(password: &str) -> Secret {
    Secret::Scram(Verifier::derive(
        &PlainSecret::new(password),
        ROUNDS,
        b"a salt of 16 b..",
    ))
}

fn scram_data(message: &[u8]) -> &[u8] {
    match Authentication::parse(body(message)).unwrap() {
        Authentication::SaslContinue(data) | Authentication::SaslFinal(data) => data,
        other => panic!("{other:?}"),
    }
}

type End = Result<(Vec<u8>, Proof), Failure>;

/// Logs in with postgres-protocol's client; gives the challenge and the end.
fn scram_login(login: ClientLogin, password: &str) -> (Vec<u8>, End) {
    let mut client = ScramSha256::new(password.as_bytes(), ChannelBinding::unsupported());
    let initial = SaslInitialResponse {
        mechanism: b"SCRAM-SHA-256",
        data: Some(client.message()),
    };
    let (login, challenge) = next(login.message(body(&initial.encode())).unwrap());
    client.update(scram_data(&challenge)).unwrap();
    let end = login
        .message(body(&encode_sasl_response(client.message())))
        .map(done);
    if let Ok((reply, _)) = &end {
        client.finish(scram_data(reply)).unwrap();
    }
    (challenge, end)
}

fn md5_login(login: ClientLogin, request: &[u8], password: &str) -> Result<Step, Failure> {
    let Ok(Authentication::Md5Password { salt }) = Authentication::parse(body(request)) else {
        panic!("not md5");
    };
    login.message(body(&encode_password(
        md5_hash(b"anna", password.as_bytes(), salt).as_bytes(),
    )))
}

fn plain_login(secret: Option<Secret>, password: &[u8]) -> Result<Proof, Failure> {
    let (login, request) = start(Method::Plain, secret);
    assert_eq!(
        Authentication::parse(body(&request)),
        Ok(Authentication::CleartextPassword)
    );
    login.message(body(&encode_password(password))).map(|step| {
        let (reply, proof) = done(step);
        assert!(reply.is_empty());
        proof
    })
}

#[test]
fn trust_asks_nothing() {
    let (reply, proof) = done(ClientLogin::start(
        Method::Trust,
        "anna",
        None,
        &MockKey::random(),
        ROUNDS,
    ));
    assert!(reply.is_empty() && proof.password.is_none() && proof.scram.is_none());
}

#[test]
fn a_clear_text_password_is_checked_against_every_kind_of_secret() {
    for secret in [Some(plain("x")), Some(hashed("x")), Some(verifier("x"))] {
        let proof = plain_login(secret.clone(), b"x").unwrap();
        assert_eq!(proof.password.unwrap().expose(), b"x");
        assert_eq!(plain_login(secret, b"y").unwrap_err(), Failure::Password);
    }
    assert_eq!(plain_login(None, b"x").unwrap_err(), Failure::Password);
    assert_eq!(plain_login(None, b"anna").unwrap_err(), Failure::Password);
}

#[test]
fn an_empty_password_has_its_own_words() {
    for method in [Method::Plain, Method::Md5] {
        let (login, _) = start(method, Some(plain("x")));
        assert_eq!(login.message(b"\0").unwrap_err(), Failure::EmptyPassword);
    }
}

#[test]
fn md5_takes_plain_and_hashed_secrets() {
    for secret in [Some(plain("x")), Some(hashed("x"))] {
        let (login, request) = start(Method::Md5, secret.clone());
        assert!(md5_login(login, &request, "x").is_ok());
        let (login, request) = start(Method::Md5, secret);
        assert_eq!(
            md5_login(login, &request, "y").unwrap_err(),
            Failure::Password
        );
    }
    let (login, request) = start(Method::Md5, None);
    assert_eq!(
        md5_login(login, &request, "x").unwrap_err(),
        Failure::Password
    );
}

#[test]
fn md5_with_the_very_hash_of_the_mock_still_fails() {
    let mock = MockKey::random();
    let (login, request) = begin(Method::Md5, "anna", None, &mock);
    let Ok(Authentication::Md5Password { salt }) = Authentication::parse(body(&request)) else {
        panic!("not md5");
    };
    let answer = md5::response(&mock.md5_hash("anna"), salt);
    assert_eq!(
        login.message(body(&encode_password(&answer))).unwrap_err(),
        Failure::Password
    );
}

#[test]
fn scram_lets_in_by_a_plain_secret_or_a_verifier() {
    for (method, secret) in [
        (Method::Scram, Some(plain("x"))),
        (Method::Scram, Some(verifier("x"))),
        (Method::Md5, Some(verifier("x"))),
    ] {
        let passes_keys = matches!(secret, Some(Secret::Scram(_)));
        let (login, request) = start(method, secret);
        assert_eq!(
            Authentication::parse(body(&request)),
            Ok(Authentication::Sasl(Mechanisms::SCRAM_SHA_256))
        );
        let (_, end) = scram_login(login, "x");
        let (_, proof) = end.unwrap();
        assert!(proof.password.is_none());
        assert_eq!(proof.scram.is_some(), passes_keys);
    }
}

#[test]
fn an_unknown_user_looks_like_a_wrong_password() {
    let mock = MockKey::random();
    let mut seen = Vec::new();
    for secret in [
        Some(plain("x")),
        Some(verifier("x")),
        Some(hashed("x")),
        None,
    ] {
        let (login, request) = begin(Method::Scram, "anna", secret, &mock);
        let (challenge, end) = scram_login(login, "y");
        assert_eq!(end.unwrap_err(), Failure::Sasl(Error::WrongProof));
        let text = String::from_utf8(scram_data(&challenge).to_vec()).unwrap();
        let count = text.rsplit_once(",i=").unwrap().1.to_owned();
        seen.push((request, challenge.len(), challenge[0], count));
    }
    assert!(seen.iter().all(|one| *one == seen[0]), "{seen:?}");
}

#[test]
fn the_made_up_salt_is_stable_for_a_user_and_differs_between_users() {
    let mock = MockKey::random();
    let salt = |user: &str, secret: Option<Secret>, mock: &MockKey| {
        let (login, _) = begin(Method::Scram, user, secret, mock);
        let (challenge, _) = scram_login(login, "y");
        let text = String::from_utf8(scram_data(&challenge).to_vec()).unwrap();
        text.split(',').nth(1).unwrap().to_owned()
    };
    assert_eq!(salt("anna", None, &mock), salt("anna", None, &mock));
    assert_eq!(
        salt("anna", None, &mock),
        salt("anna", Some(plain("x")), &mock)
    );
    assert_ne!(salt("anna", None, &mock), salt("otto", None, &mock));
    assert_ne!(
        salt("anna", None, &mock),
        salt("anna", None, &MockKey::random())
    );
}

#[test]
fn a_cached_verifier_serves_instead_of_the_password() {
    let mock = MockKey::random();
    let cached = mock.derive_verifier("anna", &PlainSecret::new("x"), ROUNDS);
    let (login, _) = begin(Method::Scram, "anna", Some(Secret::Scram(cached)), &mock);
    assert!(scram_login(login, "x").1.is_ok());
}

#[test]
fn a_mechanism_that_was_not_offered_is_refused() {
    for mechanism in [
        b"SCRAM-SHA-256-PLUS".as_slice(),
        b"PLAIN",
        b"",
        b"scram-sha-256",
    ] {
        let (login, _) = start(Method::Scram, Some(verifier("x")));
        let initial = SaslInitialResponse {
            mechanism,
            data: Some(b"n,,n=,r=abc"),
        };
        assert_eq!(
            login.message(body(&initial.encode())).unwrap_err(),
            Failure::InvalidMechanism
        );
    }
}

#[test]
fn a_client_may_ask_for_an_empty_challenge_first() {
    let (login, _) = start(Method::Scram, Some(verifier("x")));
    let initial = SaslInitialResponse {
        mechanism: b"SCRAM-SHA-256",
        data: None,
    };
    let (login, challenge) = next(login.message(body(&initial.encode())).unwrap());
    assert_eq!(challenge, b"R\0\0\0\x08\0\0\0\x0b");
    let (_, challenge) = next(login.message(b"n,,n=,r=abc").unwrap());
    assert!(scram_data(&challenge).starts_with(b"r=abc"));
}

#[test]
fn failures_speak_pgbouncers_words() {
    for (failure, words) in [
        (Failure::Password, "password authentication failed"),
        (
            plain_login(Some(plain("x")), b"\0").unwrap_err(),
            "password authentication failed",
        ),
        (Failure::EmptyPassword, "empty password returned by client"),
        (
            Failure::InvalidMechanism,
            "client selected an invalid SASL authentication mechanism",
        ),
        (
            Failure::Sasl(Error::WrongProof),
            "SASL authentication failed",
        ),
        (
            Failure::Sasl(Error::Scram("nonce")),
            "SASL authentication failed",
        ),
    ] {
        assert_eq!(failure.to_string(), words);
    }
}

#[test]
fn debug_shows_no_secret() {
    let step = ClientLogin::start(
        Method::Plain,
        "anna",
        Some(plain("hunter2")),
        &MockKey::random(),
        ROUNDS,
    );
    assert_eq!(
        format!("{step:?}"),
        "Continue(ClientLogin(..), [82, 0, 0, 0, 8, 0, 0, 0, 3])"
    );
    let proof = plain_login(Some(plain("hunter2")), b"hunter2").unwrap();
    assert_eq!(
        format!("{proof:?}"),
        "Proof { password: Some(PlainSecret(..)), scram: None }"
    );
    assert_eq!(format!("{:?}", MockKey::random()), "MockKey(..)");
}

proptest! {
    #[test]
    fn garbage_never_panics_and_never_gets_in(
        garbage in proptest::collection::vec(any::<u8>(), 0..64),
        method in prop::sample::select(vec![Method::Plain, Method::Md5, Method::Scram]),
        known: bool,
    ) {
        let secret = if known { Some(verifier("a password of more than 64 bytes: ..............................")) } else { None };
        for prefix in [b"".as_slice(), b"SCRAM-SHA-256\0\0\0\0\x08n,,", b"SCRAM-SHA-256\0\xff\xff\xff\xff"] {
            let (mut login, _) = start(method, secret.clone());
            for _ in 0..3 {
                match login.message(&[prefix, garbage.as_slice()].concat()) {
                    Ok(Step::Continue(next, _)) => login = next,
                    Ok(Step::Done { .. }) => panic!("let in"),
                    Err(_) => break,
                }
            }
            let (login, _) = start(Method::Scram, secret.clone());
            let initial = SaslInitialResponse { mechanism: b"SCRAM-SHA-256", data: Some(b"n,,n=,r=abc") };
            let (login, _) = next(login.message(body(&initial.encode())).unwrap());
            prop_assert!(login.message(&garbage).is_err());
        }
    }
}

#[test]
fn channel_binding_is_offered_where_there_is_something_to_bind_to() {
    let mock = MockKey::random();
    let begin = |method: Method, end_point: Option<&[u8]>| {
        let step = ClientLogin::start(method, "anna", Some(plain("secret")), &mock, ROUNDS);
        next(step.offering(end_point.map(<[u8]>::to_vec)))
    };
    let offered = |request: &[u8]| Authentication::parse(body(request)).map(|it| format!("{it:?}"));
    let (login, request) = begin(Method::Scram, Some(b"hash"));
    assert_eq!(
        offered(&request).unwrap(),
        format!("{:?}", Authentication::Sasl(Mechanisms::SCRAM_SHA_256_PLUS))
    );
    let binding = ChannelBinding::tls_server_end_point(b"hash".to_vec());
    let mut client = ScramSha256::new(b"secret", binding);
    let initial = SaslInitialResponse {
        mechanism: b"SCRAM-SHA-256-PLUS",
        data: Some(client.message()),
    };
    let (login, challenge) = next(login.message(body(&initial.encode())).unwrap());
    client.update(scram_data(&challenge)).unwrap();
    let answer = encode_sasl_response(client.message());
    done(login.message(body(&answer)).unwrap());

    let (_, request) = begin(Method::Scram, None);
    assert_eq!(
        offered(&request).unwrap(),
        format!("{:?}", Authentication::Sasl(Mechanisms::SCRAM_SHA_256))
    );
    let (_, request) = begin(Method::Plain, Some(b"hash"));
    assert_eq!(request, Authentication::CleartextPassword.encode());
}
