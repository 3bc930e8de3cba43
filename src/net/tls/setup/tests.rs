//! Settings that can be put to use, and those that can't.

use super::*;
use rcgen::{CertificateParams, KeyPair};

struct Files {
    directory: tempfile::TempDir,
}

impl Files {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let key = KeyPair::generate().unwrap();
        let certificate = CertificateParams::new(vec!["localhost".to_owned()])
            .unwrap()
            .self_signed(&key)
            .unwrap();
        std::fs::write(directory.path().join("key"), key.serialize_pem()).unwrap();
        std::fs::write(directory.path().join("cert"), certificate.pem()).unwrap();
        std::fs::write(directory.path().join("empty"), "").unwrap();
        let other = KeyPair::generate().unwrap();
        std::fs::write(directory.path().join("other-key"), other.serialize_pem()).unwrap();
        Self { directory }
    }

    /// Loads settings; a value that begins with a slash is one of the files.
    fn load(&self, settings: &[(&str, &str)]) -> Result<Setup, String> {
        let mut config = Config::default();
        for (name, value) in settings {
            let value = match value.strip_prefix('/') {
                Some(file) => self.directory.path().join(file).display().to_string(),
                None => (*value).to_owned(),
            };
            config.settings.assign(name, &value).unwrap();
        }
        let here = format!("{}/", self.directory.path().display());
        Setup::load(&config).map_err(|error| error.to_string().replace(&here, ""))
    }
}

const CLIENTS: [(&str, &str); 3] = [
    ("client_tls_sslmode", "require"),
    ("client_tls_key_file", "/key"),
    ("client_tls_cert_file", "/cert"),
];

#[test]
fn the_defaults_want_nothing_of_clients_and_prefer_it_with_servers() {
    let setup = Files::new().load(&[]).unwrap();
    assert!(!setup.clients.is_offered() && !setup.clients.is_required());
    assert!(setup.servers.is_wanted() && !setup.servers.is_required());
    assert_eq!(setup.warnings, Vec::<String>::new());
}

#[test]
fn a_key_and_a_certificate_are_enough_for_clients() {
    let setup = Files::new().load(&CLIENTS).unwrap();
    assert!(setup.clients.is_offered() && setup.clients.is_required());
    assert!(setup.clients.end_point.is_some());
}

#[test]
fn what_is_missing_or_wrong_is_named() {
    let files = Files::new();
    let refused = |more: &[(&str, &str)]| {
        let all = [&CLIENTS, more].concat();
        files.load(&all).err().unwrap_or_default()
    };
    assert_eq!(
        refused(&[("client_tls_key_file", "")]),
        "client_tls_key_file is needed for client_tls_sslmode = require"
    );
    assert_eq!(
        refused(&[("client_tls_sslmode", "verify-full")]),
        "client_tls_ca_file is needed for client_tls_sslmode = verify-full"
    );
    assert_eq!(
        refused(&[("client_tls_cert_file", "/absent")]),
        "client_tls_cert_file = absent: No such file or directory (os error 2)"
    );
    assert_eq!(
        refused(&[("client_tls_cert_file", "/empty")]),
        "client_tls_cert_file = empty: no certificate in PEM"
    );
    assert_eq!(
        refused(&[("client_tls_key_file", "/cert")]),
        "client_tls_key_file = cert: no private key in PEM (one with a passphrase can't be used)"
    );
    assert!(
        refused(&[("client_tls_key_file", "/other-key")])
            .starts_with("client_tls_cert_file = cert: ")
    );
    assert_eq!(
        refused(&[("client_tls_protocols", "tlsv1.0")]),
        "client_tls_protocols = tlsv1.0: neither TLS 1.2 nor TLS 1.3 is left, and there are no others here"
    );
    assert!(
        refused(&[("client_tls_ciphers", "AES128-SHA")])
            .starts_with("client_tls_ciphers = AES128-SHA: no cipher of these is offered here; ")
    );
    assert_eq!(
        refused(&[("server_tls_key_file", "/key")]),
        "server_tls_cert_file is needed for server_tls_key_file"
    );
    assert_eq!(
        refused(&[("auth_type", "cert")]),
        "auth_type = cert: client_tls_sslmode is require, and must be verify-full"
    );
}

#[test]
fn what_is_less_than_asked_for_is_a_warning() {
    let setup = Files::new()
        .load(&[&CLIENTS[..], &[("client_tls_protocols", "all")]].concat())
        .unwrap();
    assert_eq!(
        setup.warnings,
        ["client_tls_protocols = all: TLS 1.0 and 1.1 are not offered"]
    );
}

#[test]
fn a_changed_file_or_setting_shows() {
    let files = Files::new();
    let load = |more: &[(&str, &str)]| files.load(more).unwrap().servers;
    let before = load(&[("server_tls_ca_file", "/cert")]);
    assert!(!before.differs(&load(&[("server_tls_ca_file", "/cert")])));
    assert!(before.differs(&load(&[])));
    assert!(before.differs(&load(&[
        ("server_tls_ca_file", "/cert"),
        ("server_tls_sslmode", "require")
    ])));
    assert!(before.differs(&load(&[
        ("server_tls_ca_file", "/cert"),
        ("server_tls_protocols", "tlsv1.3")
    ])));
    assert!(before.differs(&load(&[("server_tls_sslmode", "disable")])));
}
