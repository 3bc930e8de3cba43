//! The exchange against its RFC, against itself and against garbage.

use super::*;
use proptest::prelude::*;

const CLIENT_NONCE: &str = "rOprNGfwEbeRWgbNEkqO";
const SERVER_NONCE: &str = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0";
const SERVER_FIRST: &str =
    "r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096";
const CLIENT_FINAL: &str = "c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,\
    p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=";
const SERVER_FINAL: &str = "v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=";

fn pencil() -> PlainSecret {
    PlainSecret::new("pencil")
}

fn rfc_verifier() -> Verifier {
    Verifier::derive(
        &pencil(),
        4096,
        &STANDARD.decode("W22ZaJ0SNY7soEsUEjb6gQ==").unwrap(),
    )
}

fn server(verifier: Verifier) -> AwaitFirst {
    AwaitFirst {
        nonce: SERVER_NONCE.to_owned(),
        ..AwaitFirst::new(verifier)
    }
}

/// A quick verifier, for tests that do not look at the count.
fn quick(password: &str) -> Verifier {
    Verifier::derive(&PlainSecret::new(password), 2, b"salt")
}

/// Runs our client against our server.
fn exchange(server: AwaitFirst, material: Material<'_>) -> Result<ScramKeys, Error> {
    let (client, first) = ClientFirst::start(Binding::Impossible);
    let (server, challenge) = server.client_first(&first)?;
    let (client, proof) = client.server_first(&challenge, material)?;
    let (keys, signature) = server.client_final(&proof)?;
    client.server_final(&signature)?;
    Ok(keys)
}

#[test]
fn a_client_speaks_as_in_rfc_7677() {
    let (client, first) = ClientFirst::with_nonce(CLIENT_NONCE.to_owned(), Binding::Impossible);
    assert_eq!(first, b"n,,n=,r=rOprNGfwEbeRWgbNEkqO");
    // The RFC's client names its user, and that is part of what is signed.
    let client = ClientFirst {
        bare: format!("n=user,r={CLIENT_NONCE}"),
        ..client
    };
    let password = pencil();
    let (client, last) = client
        .server_first(SERVER_FIRST.as_bytes(), Material::Password(&password, None))
        .unwrap();
    assert_eq!(str::from_utf8(&last), Ok(CLIENT_FINAL));
    assert!(client.server_final(SERVER_FINAL.as_bytes()).is_ok());
}

#[test]
fn a_server_speaks_as_in_rfc_7677() {
    let (server, first) = server(rfc_verifier())
        .client_first(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO")
        .unwrap();
    assert_eq!(str::from_utf8(&first), Ok(SERVER_FIRST));
    let (keys, last) = server.client_final(CLIENT_FINAL.as_bytes()).unwrap();
    assert_eq!(str::from_utf8(&last), Ok(SERVER_FINAL));
    assert!(keys == ScramKeys::derive(&pencil(), 4096, &rfc_verifier().salt));
}

#[test]
fn a_verifier_is_read_as_postgresql_writes_it() {
    let verifier = rfc_verifier();
    let text = format!(
        "SCRAM-SHA-256$4096:W22ZaJ0SNY7soEsUEjb6gQ==${}:{}",
        STANDARD.encode(verifier.stored_key.expose()),
        STANDARD.encode(verifier.server_key.expose())
    );
    assert!(Verifier::parse(&text) == Some(verifier.clone()));
    assert!(verifier.matches(&pencil()));
    assert!(!verifier.matches(&PlainSecret::new("Pencil")));
}

#[test]
fn a_password_opens_the_verifier_made_from_it() {
    for password in ["x", "pässwörd", "\u{2168}", &"long".repeat(40)] {
        let secret = PlainSecret::new(password);
        let ring = Keyring::default();
        for known in [None, Some(&ring), Some(&ring)] {
            let material = Material::Password(&secret, known);
            assert!(
                exchange(AwaitFirst::new(quick(password)), material).is_ok(),
                "{password}"
            );
        }
    }
}

#[test]
fn recovered_keys_open_the_same_verifier_elsewhere() {
    let secret = PlainSecret::new("x");
    let keys = exchange(
        AwaitFirst::new(quick("x")),
        Material::Password(&secret, None),
    )
    .unwrap();
    let again = exchange(AwaitFirst::new(quick("x")), Material::Keys(&keys)).unwrap();
    assert!(again == keys);
    let other = Verifier::derive(&secret, 2, b"other salt");
    assert_eq!(
        exchange(AwaitFirst::new(other), Material::Keys(&keys)).err(),
        Some(Error::WrongProof)
    );
}

#[test]
fn known_keys_are_used_only_where_they_fit() {
    let (secret, ring) = (PlainSecret::new("x"), Keyring::default());
    let derived = |salt: &[u8]| {
        let server = AwaitFirst::new(Verifier::derive(&secret, 2, salt));
        let before = derivations();
        exchange(server, Material::Password(&secret, Some(&ring))).unwrap();
        derivations() - before
    };
    assert_eq!(derived(b"salt"), 1);
    assert_eq!(derived(b"salt"), 0);
    // A server with another salt gets other keys, and the login succeeds all the same.
    assert_eq!(derived(b"pepper"), 1);
    assert_eq!(derived(b"salt"), 0);
}

#[test]
fn a_wrong_password_and_a_mock_fail_alike() {
    let wrong = PlainSecret::new("y");
    let right = PlainSecret::new("x");
    let refused = exchange(
        AwaitFirst::new(quick("x")),
        Material::Password(&wrong, None),
    )
    .err();
    let mocked = exchange(
        AwaitFirst::mock(quick("x")),
        Material::Password(&right, None),
    )
    .err();
    assert_eq!(refused, Some(Error::WrongProof));
    assert_eq!(mocked, Some(Error::WrongProof));
}

#[test]
fn a_client_that_could_bind_is_welcome_and_held_to_its_word() {
    let (state, _) = server(quick("x")).client_first(b"y,,n=,r=abc").unwrap();
    assert_eq!(state.binding, "eSws");
    let reply = format!("c=biws,r=abc{SERVER_NONCE},p={}", STANDARD.encode([0; 32]));
    assert_eq!(
        state.client_final(reply.as_bytes()).err(),
        Some(Error::Scram("channel binding"))
    );
}

fn bound_server(data: &[u8], mechanism: &str) -> AwaitFirst {
    let mut server = AwaitFirst::new(quick("x")).offering(Some(data.to_vec()));
    assert!(server.choose(mechanism.as_bytes()));
    server
}

fn bind(server: AwaitFirst, binding: Binding<'_>) -> Result<(), Error> {
    let secret = PlainSecret::new("x");
    let (client, first) = ClientFirst::start(binding);
    let (server, challenge) = server.client_first(&first)?;
    let (client, reply) = client.server_first(&challenge, Material::Password(&secret, None))?;
    let (_, verdict) = server.client_final(&reply)?;
    client.server_final(&verdict)
}

#[test]
fn a_bound_proof_is_good_on_its_own_connection_only() {
    let bound = || bound_server(b"hash", MECHANISM_PLUS);
    assert_eq!(bind(bound(), Binding::EndPoint(b"hash")), Ok(()));
    assert_eq!(
        bind(bound(), Binding::EndPoint(b"other")),
        Err(Error::Scram("channel binding"))
    );
}

#[test]
fn whoever_chose_to_bind_has_to_and_nobody_else_may() {
    let bound = || bound_server(b"hash", MECHANISM_PLUS);
    let free = || bound_server(b"hash", MECHANISM);
    assert_eq!(bind(free(), Binding::Impossible), Ok(()));
    assert_eq!(
        bind(free(), Binding::EndPoint(b"hash")),
        Err(Error::ChannelBinding)
    );
    assert_eq!(
        bind(bound(), Binding::Impossible),
        Err(Error::Scram("gs2 header"))
    );
    let mut server = AwaitFirst::new(quick("x"));
    assert!(!server.choose(MECHANISM_PLUS.as_bytes()));
}

#[test]
fn a_client_that_was_kept_from_binding_is_noticed() {
    for mechanism in [MECHANISM, MECHANISM_PLUS] {
        assert_eq!(
            bind(bound_server(b"hash", mechanism), Binding::NotOffered),
            Err(Error::BindingDowngraded)
        );
    }
    assert_eq!(
        bind(AwaitFirst::new(quick("x")), Binding::NotOffered),
        Ok(())
    );
}

#[test]
fn malformed_first_messages_of_a_client_are_refused() {
    let refuse = |message: &[u8]| server(quick("x")).client_first(message).err();
    assert_eq!(
        refuse(b"p=tls-server-end-point,,n=,r=abc"),
        Some(Error::ChannelBinding)
    );
    for (message, part) in [
        (b"".as_slice(), "gs2 header"),
        (b"n,a=admin,n=,r=abc", "gs2 header"),
        (b"x,,n=,r=abc", "gs2 header"),
        (b"n,,r=abc,n=", "user name"),
        (b"n,,m=x,n=,r=abc", "user name"),
        (b"n,,n=", "client nonce"),
        (b"n,,n=,r=", "client nonce"),
        (b"n,,n=,r=a b", "client nonce"),
        (b"n,,n=,r=\xc3\xa4", "client nonce"),
        (b"n,,n=,r=abc,", "extension"),
        (b"n,,n=,r=abc,m=x", "extension"),
        (b"n,,n=,r=abc,1=x", "extension"),
        (b"n,,n=\0,r=abc", "NUL byte"),
        (b"n,,n=\xff,r=abc", "not UTF-8"),
    ] {
        assert_eq!(
            refuse(message),
            Some(Error::Scram(part)),
            "{}",
            message.escape_ascii()
        );
    }
    let long = format!("n,,n=,r={}", "a".repeat(MAX_CLIENT_MESSAGE));
    assert_eq!(refuse(long.as_bytes()), Some(Error::Scram("too long")));
    assert_eq!(refuse(b"n,,n=someone,r=abc,x=y"), None);
}

#[test]
fn malformed_final_messages_of_a_client_are_refused() {
    let refuse = |message: &str| {
        let (state, _) = server(quick("x")).client_first(b"n,,n=,r=abc").unwrap();
        state.client_final(message.as_bytes()).err()
    };
    let (nonce, proof) = (format!("abc{SERVER_NONCE}"), STANDARD.encode([0; 32]));
    for (message, part) in [
        (String::new(), "proof"),
        (format!("c=biws,r={nonce}"), "proof"),
        (format!("c=biws,r={nonce},p="), "proof"),
        (
            format!("c=biws,r={nonce},p={}", STANDARD.encode([0; 31])),
            "proof",
        ),
        (
            format!("c=biws,r={nonce},p={}", STANDARD.encode([0; 33])),
            "proof",
        ),
        (format!("c=biws,r={nonce},p={}", "A".repeat(900)), "proof"),
        (format!("c=biws,r={nonce},p={proof},x=y"), "proof"),
        (format!("r={nonce},c=biws,p={proof}"), "channel binding"),
        (format!("c=eSws,r={nonce},p={proof}"), "channel binding"),
        (format!("c=biws,r=abc,p={proof}"), "nonce"),
        (format!("c=biws,r={nonce}x,p={proof}"), "nonce"),
        (format!("c=biws,p={proof}"), "nonce"),
        (format!("c=biws,r={nonce},m=x,p={proof}"), "extension"),
    ] {
        assert_eq!(refuse(&message), Some(Error::Scram(part)), "{message}");
    }
    assert_eq!(
        refuse(&format!("c=biws,r={nonce},x=y,p={proof}")),
        Some(Error::WrongProof)
    );
}

#[test]
fn malformed_first_messages_of_a_server_are_refused() {
    let password = pencil();
    let refuse = |message: &str| {
        let (client, _) = ClientFirst::with_nonce("abc".to_owned(), Binding::Impossible);
        client
            .server_first(message.as_bytes(), Material::Password(&password, None))
            .err()
    };
    for (message, part) in [
        ("", "nonce"),
        ("r=abc,s=AAAA,i=1", "nonce"),
        ("r=abd1,s=AAAA,i=1", "nonce"),
        ("r=ab,s=AAAA,i=1", "nonce"),
        ("r=abc\u{7f},s=AAAA,i=1", "nonce"),
        ("m=x,r=abc1,s=AAAA,i=1", "nonce"),
        ("r=abc1", "salt"),
        ("r=abc1,s=,i=1", "salt"),
        ("r=abc1,s=A,i=1", "salt"),
        ("r=abc1,i=1,s=AAAA", "salt"),
        ("r=abc1,s=AAAA", "iteration count"),
        ("r=abc1,s=AAAA,i=", "iteration count"),
        ("r=abc1,s=AAAA,i=+1", "iteration count"),
        ("r=abc1,s=AAAA,i=-1", "iteration count"),
        ("r=abc1,s=AAAA,i=99999999999", "iteration count"),
        ("r=abc1,s=AAAA,i=1,x=y", "extension"),
    ] {
        assert_eq!(refuse(message), Some(Error::Scram(part)), "{message}");
    }
    assert_eq!(refuse("r=abc1,s=AAAA,i=0"), Some(Error::IterationCount(0)));
    assert_eq!(
        refuse("r=abc1,s=AAAA,i=10000001"),
        Some(Error::IterationCount(10_000_001))
    );
    assert_eq!(
        refuse(&format!("r=abc{},s=AAAA,i=1", "a".repeat(2000))),
        Some(Error::Scram("too long"))
    );
    assert_eq!(refuse("r=abc1,s=AAAA,i=1"), None);
}

#[test]
fn a_server_that_does_not_know_the_verifier_is_found_out() {
    let finish = |message: &[u8]| {
        let password = pencil();
        let (client, _) = ClientFirst::with_nonce(CLIENT_NONCE.to_owned(), Binding::Impossible);
        let material = Material::Password(&password, None);
        client
            .server_first(b"r=rOprNGfwEbeRWgbNEkqO1,s=AAAA,i=1", material)
            .unwrap()
            .0
            .server_final(message)
            .err()
    };
    assert_eq!(
        finish(SERVER_FINAL.as_bytes()),
        Some(Error::InvalidServerSignature)
    );
    assert_eq!(finish(b"e=other-error"), Some(Error::RefusedByServer));
    for message in [b"".as_slice(), b"v=", b"v=AAAA", b"x=y", b"v=\xff"] {
        assert!(
            matches!(finish(message), Some(Error::Scram(_))),
            "{}",
            message.escape_ascii()
        );
    }
}

#[test]
fn a_password_is_prepared_as_postgresql_does() {
    let as_is = |bytes: &[u8]| prepared(&PlainSecret::new(bytes)).as_slice() == bytes;
    assert!(as_is(b"plain ASCII"));
    assert!(as_is(b"a\tcontrol character is prohibited"));
    assert!(as_is(b"not UTF-8 \xff\xc3\xa4"));
    assert!(as_is("\u{ad}".as_bytes()), "would become empty");
    assert!(as_is("\u{627}1".as_bytes()), "bidirectional rule");
    // RFC 4013 §3.
    assert_eq!(prepared(&PlainSecret::new("I\u{ad}X")).as_slice(), b"IX");
    assert_eq!(prepared(&PlainSecret::new("\u{aa}")).as_slice(), b"a");
    assert_eq!(prepared(&PlainSecret::new("\u{2168}")).as_slice(), b"IX");
    assert_eq!(prepared(&PlainSecret::new("a\u{a0}b")).as_slice(), b"a b");
}

proptest! {
    #[test]
    fn garbage_never_panics(
        first in proptest::collection::vec(any::<u8>(), 0..80),
        last in "(c=(biws|eSws),)?(r=abc[ -~]{0,40},?)?([a-z]=[ -~]{0,10},?)?(p=[A-Za-z0-9=]{0,50})?",
        challenge in "(r=abc[ -~]{0,9},?)?(s=[A-Za-z0-9=]{0,9},?)?(i=[0-9]{0,3},?)?[ -~]{0,3}",
    ) {
        let _ = server(quick("x")).client_first(&first);
        let _ = Verifier::parse(&last);
        let (state, _) = server(quick("x")).client_first(b"n,,n=,r=abc").unwrap();
        prop_assert!(state.client_final(last.as_bytes()).is_err());
        let password = pencil();
        let (client, _) = ClientFirst::with_nonce("abc".to_owned(), Binding::Impossible);
        if let Ok((client, _)) = client.server_first(challenge.as_bytes(), Material::Password(&password, None)) {
            prop_assert!(client.server_final(&first).is_err());
        }
    }

    #[test]
    fn a_changed_byte_or_a_cut_ends_the_exchange(at: prop::sample::Index, with: u8, cut: bool) {
        let (client, first) = ClientFirst::start(Binding::Impossible);
        let (server, challenge) = AwaitFirst::new(quick("x")).client_first(&first).unwrap();
        let keys = ScramKeys::derive(&PlainSecret::new("x"), 2, b"salt");
        let (_, honest) = client.server_first(&challenge, Material::Keys(&keys)).unwrap();
        let mut sent = honest.clone();
        let at = at.index(sent.len());
        if cut { sent.truncate(at) } else { sent[at] = with }
        prop_assert_eq!(server.client_final(&sent).is_ok(), sent == honest);
    }
}
