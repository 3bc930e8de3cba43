//! Certificates of rcgen's, turned into ones of version 1, with both ends of a connection.

use std::path::Path;

use rcgen::{
    BasicConstraints, CertificateParams, DnType, GeneralSubtree, IsCa, Issuer, KeyPair,
    NameConstraints, PKCS_ECDSA_P256_SHA256, PKCS_RSA_SHA256, SigningKey,
};

use super::*;
use crate::config::Config;
use crate::net::tls::Setup;
use crate::net::tls::tests::sockets;

/// The elements inside of the first one, each as it stands.
fn inside(der: &[u8]) -> Vec<&[u8]> {
    let extent = |der: &[u8]| match der[1] {
        length @ ..0x80 => (2, usize::from(length)),
        digits => {
            let digits = usize::from(digits & 0x7f);
            let length = der[2..2 + digits].iter();
            let length = length.fold(0, |length, digit| length << 8 | usize::from(*digit));
            (2 + digits, length)
        }
    };
    let (from, length) = extent(der);
    let (mut rest, mut found) = (&der[from..from + length], Vec::new());
    while !rest.is_empty() {
        let (from, length) = extent(rest);
        let (one, others) = rest.split_at(from + length);
        found.push(one);
        rest = others;
    }
    found
}

fn tagged(tag: u8, content: &[u8]) -> Vec<u8> {
    let [high, low] = u16::try_from(content.len()).unwrap().to_be_bytes();
    [&[tag, 0x82, high, low], content].concat()
}

/// The same certificate without version and extensions, signed again.
fn turned_old(der: &[u8], signer: &KeyPair) -> Vec<u8> {
    let outer = inside(der);
    let fields = inside(outer[0]);
    // Version, serial number, algorithm, issuer, validity, subject, key, extensions.
    let signed = tagged(0x30, &fields[1..7].concat());
    let signature = [vec![0], signer.sign(&signed).unwrap()].concat();
    tagged(
        0x30,
        &[&signed, outer[1], &tagged(0x03, &signature)].concat(),
    )
}

fn pem(der: &[u8]) -> String {
    use base64::Engine;
    let text = base64::engine::general_purpose::STANDARD.encode(der);
    format!("-----BEGIN CERTIFICATE-----\n{text}\n-----END CERTIFICATE-----\n")
}

fn params(common_name: &str, not_after: i32) -> CertificateParams {
    let mut params = CertificateParams::new(vec![common_name.to_owned()]).unwrap();
    params
        .distinguished_name
        .push(DnType::CommonName, common_name);
    params.not_before = rcgen::date_time_ymd(2001, 1, 1);
    params.not_after = rcgen::date_time_ymd(not_after, 1, 1);
    params
}

/// An authority: its certificate, and what it signs with.
fn authority(change: impl FnOnce(&mut CertificateParams)) -> (String, Issuer<'static, KeyPair>) {
    authority_with(KeyPair::generate().unwrap(), change)
}

fn authority_with(
    key: KeyPair,
    change: impl FnOnce(&mut CertificateParams),
) -> (String, Issuer<'static, KeyPair>) {
    let mut params = params("an authority", 2090);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    change(&mut params);
    let certificate = params.self_signed(&key).unwrap().pem();
    (certificate, Issuer::new(params, key))
}

/// A certificate of version 1 and its key, in PEM.
fn issued(issuer: &Issuer<'static, KeyPair>, common_name: &str, not_after: i32) -> [String; 2] {
    let key = KeyPair::generate().unwrap();
    issued_for(&key, issuer, common_name, not_after)
}

fn issued_for(
    key: &KeyPair,
    issuer: &Issuer<'static, KeyPair>,
    common_name: &str,
    not_after: i32,
) -> [String; 2] {
    let certificate = params(common_name, not_after).signed_by(key, issuer);
    let old = turned_old(certificate.unwrap().der(), issuer.key());
    [pem(&old), key.serialize_pem()]
}

/// Both sides show this, and trust that authority.
fn setup(
    [certificate, key]: &[String; 2],
    authority: &str,
    more: &[(&str, &str)],
) -> Result<Setup, String> {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str, text: &str| {
        let path: &Path = &directory.path().join(name);
        std::fs::write(path, text).unwrap();
        path.display().to_string()
    };
    let mut config = Config::default();
    let files = [
        ("cert_file", path("certificate", certificate)),
        ("key_file", path("key", key)),
        ("ca_file", path("authority", authority)),
    ];
    for side in ["client", "server"] {
        for (name, value) in &files {
            let name = format!("{side}_tls_{name}");
            config.settings.assign(&name, value).unwrap();
        }
        let name = format!("{side}_tls_sslmode");
        config.settings.assign(&name, "verify-full").unwrap();
    }
    for (name, value) in more {
        config.settings.assign(name, value).unwrap();
    }
    Setup::load(&config).map_err(|error| error.to_string())
}

/// What each end says of the other: the one that connects, then the one that accepts.
async fn meet(connecting: &Setup, accepting: &Setup) -> [Result<(), String>; 2] {
    let (near, far) = sockets().await;
    let (client, server) = tokio::join!(
        connecting.servers.connect(near, "localhost"),
        accepting.clients.accept(far, Vec::new())
    );
    [client.err(), server.err()].map(|error| error.map_or(Ok(()), |it| Err(it.to_string())))
}

#[tokio::test]
async fn both_sides_may_have_one_in_either_version_of_tls() {
    for algorithm in [&PKCS_ECDSA_P256_SHA256, &PKCS_RSA_SHA256] {
        let key = || KeyPair::generate_for(algorithm).unwrap();
        let (certificate, issuer) = authority_with(key(), |_| {});
        let identity = issued_for(&key(), &issuer, "localhost", 2090);
        for protocol in ["tlsv1.2", "tlsv1.3"] {
            let more = [
                ("client_tls_protocols", protocol),
                ("server_tls_protocols", protocol),
            ];
            let setup = setup(&identity, &certificate, &more).unwrap();
            let said = meet(&setup, &setup).await;
            assert_eq!(said, [Ok(()), Ok(())], "{protocol} {algorithm:?}");
        }
    }
}

#[tokio::test]
async fn one_that_cannot_be_believed_is_refused_by_either_side() {
    let (certificate, issuer) = authority(|_| {});
    let good = issued(&issuer, "localhost", 2090);
    let constrained = authority(|params| {
        params.name_constraints = Some(NameConstraints {
            permitted_subtrees: vec![GeneralSubtree::DnsName("localhost".to_owned())],
            excluded_subtrees: Vec::new(),
        });
    });
    let forger = Issuer::new(params("an authority", 2090), KeyPair::generate().unwrap());
    let (_, stranger) = authority(|params| {
        let name = "another authority";
        params.distinguished_name.push(DnType::CommonName, name);
    });
    let cases = [
        (&stranger, &certificate, 2090, "UnknownIssuer"),
        (&forger, &certificate, 2090, "BadSignature"),
        (&issuer, &certificate, 2002, "Expired"),
        (&constrained.1, &constrained.0, 2090, "UnknownIssuer"),
    ];
    for (signer, trusted, not_after, why) in cases {
        let bad = issued(signer, "localhost", not_after);
        let shows = setup(&bad, &certificate, &[]).unwrap();
        let judges = setup(&good, trusted, &[]).unwrap();
        let [said, _] = meet(&judges, &shows).await;
        assert!(said.as_ref().unwrap_err().contains(why), "{why}: {said:?}");
        let [_, said] = meet(&shows, &judges).await;
        assert!(said.as_ref().unwrap_err().contains(why), "{why}: {said:?}");
    }
}

#[tokio::test]
async fn its_common_name_is_the_hosts() {
    let (certificate, issuer) = authority(|_| {});
    let good = setup(&issued(&issuer, "localhost", 2090), &certificate, &[]).unwrap();
    let other = setup(&issued(&issuer, "other", 2090), &certificate, &[]).unwrap();
    let [said, _] = meet(&good, &other).await;
    assert!(said.unwrap_err().contains("certificate verify failed"));
    // For a client's any name will do.
    let [_, said] = meet(&other, &good).await;
    assert_eq!(said, Ok(()));
}

#[test]
fn a_key_that_is_another_ones_is_an_error_at_the_start() {
    let (certificate, issuer) = authority(|_| {});
    let [shown, _] = issued(&issuer, "localhost", 2090);
    let other = KeyPair::generate().unwrap().serialize_pem();
    let error = setup(&[shown, other], &certificate, &[]).err().unwrap();
    assert!(error.contains("keys may not be consistent"), "{error}");
}

#[test]
fn one_with_extensions_is_not_of_this_version() {
    let (certificate, issuer) = authority(|_| {});
    let key = KeyPair::generate().unwrap();
    let new = params("localhost", 2090).signed_by(&key, &issuer).unwrap();
    assert!(parse(new.der()).is_none());
    let old = CertificateDer::from(turned_old(new.der(), issuer.key()));
    assert!(parse(&old).is_some());
    assert!(certificate.contains("BEGIN CERTIFICATE"));
    // The version alone is left out: its extensions would not be heeded.
    let outer = inside(new.der());
    let fields = inside(outer[0]);
    let signed = tagged(0x30, &fields[1..].concat());
    let mixed = CertificateDer::from(tagged(0x30, &[&signed, outer[1], outer[2]].concat()));
    assert!(parse(&mixed).is_none());
}
