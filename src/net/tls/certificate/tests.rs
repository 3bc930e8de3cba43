//! Certificates of rcgen's, and bytes that are none.

use super::*;
use proptest::prelude::*;
use rcgen::{CertificateParams, DnType, KeyPair, SignatureAlgorithm};

fn made(common_name: &str, names: &[&str], algorithm: &'static SignatureAlgorithm) -> Vec<u8> {
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let mut params = CertificateParams::new(names).unwrap();
    params.distinguished_name.remove(DnType::CommonName);
    params
        .distinguished_name
        .push(DnType::OrganizationName, "An \"Organisation\"");
    if !common_name.is_empty() {
        params
            .distinguished_name
            .push(DnType::CommonName, common_name);
    }
    let key = KeyPair::generate_for(algorithm).unwrap();
    params.self_signed(&key).unwrap().der().to_vec()
}

#[test]
fn names_are_the_common_name_and_the_dns_names() {
    let der = made(
        "app",
        &["db.example", "10.0.0.1"],
        &rcgen::PKCS_ECDSA_P256_SHA256,
    );
    let certificate = Certificate::parse(&der).unwrap();
    assert_eq!(certificate.common_name(), Some("app"));
    assert_eq!(certificate.dns_names().collect::<Vec<_>>(), ["db.example"]);
    for (name, is_named) in [
        ("app", true),
        ("db.example", true),
        ("App", false),
        ("ap", false),
        ("", false),
        ("10.0.0.1", false),
    ] {
        assert_eq!(
            certificate.has_name(|known| known == name),
            is_named,
            "{name}"
        );
    }
    let der = made("", &[], &rcgen::PKCS_ECDSA_P256_SHA256);
    let nameless = Certificate::parse(&der).unwrap();
    assert_eq!(nameless.common_name(), None);
    assert!(!nameless.has_name(str::is_empty) && !nameless.has_host_names());
}

#[test]
fn the_common_name_is_a_host_only_without_alternative_names() {
    let is_host = |common_name: &str, names: &[&str], host: &str| {
        let der = made(common_name, names, &rcgen::PKCS_ECDSA_P256_SHA256);
        Certificate::parse(&der).unwrap().common_name_is_host(host)
    };
    assert!(is_host("Db.Example", &[], "db.example"));
    assert!(is_host("*.example", &[], "db.example"));
    assert!(is_host("127.0.0.1", &[], "127.0.0.1"));
    assert!(!is_host("db.example", &["other.example"], "db.example"));
    assert!(!is_host("db.example", &["10.0.0.1"], "db.example"));
    assert!(!is_host("*.example", &[], "a.db.example"));
    assert!(!is_host("*.example", &[], ".example"));
    assert!(!is_host("*.0.0.1", &[], "127.0.0.1"));
    assert!(!is_host("*", &[], "db"));
}

#[test]
fn the_end_point_is_hashed_as_the_signature_was() {
    let der = made("x", &[], &rcgen::PKCS_ECDSA_P256_SHA256);
    assert_eq!(end_point(&der), Some(Sha256::digest(&der).to_vec()));
    let der = made("x", &[], &rcgen::PKCS_ECDSA_P384_SHA384);
    assert_eq!(end_point(&der), Some(Sha384::digest(&der).to_vec()));
    let der = made("x", &[], &rcgen::PKCS_ECDSA_P521_SHA512);
    assert_eq!(end_point(&der), Some(Sha512::digest(&der).to_vec()));
    let der = made("x", &[], &rcgen::PKCS_ED25519);
    assert_eq!(end_point(&der), None, "Ed25519 has no hash of its own");
}

#[test]
fn old_hashes_are_replaced_and_pss_names_its_own() {
    assert_eq!(hash_of(&[PKCS1, &[5]].concat()), Some(Hash::Sha256));
    assert_eq!(hash_of(&[PKCS1, &[4]].concat()), Some(Hash::Sha256));
    assert_eq!(hash_of(&[PKCS1, &[13]].concat()), Some(Hash::Sha512));
    assert_eq!(hash_of(&[PKCS1, &[1]].concat()), None);
    assert_eq!(hash_of(&[]), None);
    let sha384 = [&[OBJECT, 9], NIST_HASHES, &[2]].concat();
    let tagged = [&[TAGGED_0, 13, SEQUENCE, 11], sha384.as_slice()].concat();
    let parameters = [&[SEQUENCE, 15], tagged.as_slice()].concat();
    let algorithm = [&[OBJECT, 9], RSASSA_PSS, &parameters].concat();
    let der = made("", &[], &rcgen::PKCS_ECDSA_P256_SHA256);
    let certificate = Certificate {
        signature_algorithm: &algorithm,
        ..Certificate::parse(&der).unwrap()
    };
    assert_eq!(certificate.hash(), Some(Hash::Sha384));
}

#[test]
fn a_certificate_is_valid_between_its_dates() {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.not_before = rcgen::date_time_ymd(2020, 2, 3);
    params.not_after = rcgen::date_time_ymd(2051, 2, 3);
    let key = KeyPair::generate().unwrap();
    let der = params.self_signed(&key).unwrap().der().to_vec();
    let certificate = Certificate::parse(&der).unwrap();
    assert!(certificate.is_valid_at("20200203000000"));
    assert!(certificate.is_valid_at("20491231235959"));
    assert!(!certificate.is_valid_at("20200202235959"));
    assert!(!certificate.is_valid_at("20510203000001"));
}

#[test]
fn a_certificate_cut_off_anywhere_is_none() {
    let der = made("app", &["db.example"], &rcgen::PKCS_ECDSA_P256_SHA256);
    for length in 0..der.len() {
        assert!(Certificate::parse(&der[..length]).is_none());
    }
}

proptest! {
    #[test]
    fn changed_bytes_do_no_harm(changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8)) {
        let mut der = made("app", &["db.example"], &rcgen::PKCS_ECDSA_P256_SHA256);
        for (at, byte) in changes {
            let at = at.index(der.len());
            der[at] = byte;
        }
        if let Some(certificate) = Certificate::parse(&der) {
            let _ = certificate.has_name(|name| name == "app");
            let _ = certificate.common_name_is_host("db.example");
            let _ = certificate.is_valid_at("20200101000000");
        }
        let _ = end_point(&der);
    }
}
