//! TLS with directories that check passwords (LDAP).
//!
//! The options of a directory do not say whom to trust: PostgreSQL and PgBouncer leave that to libldap. So its words
//! for it count here as well: `LDAPTLS_CACERT` in the environment, or `TLS_CACERT` in `ldap.conf`; without them the
//! authorities of the system. A certificate is always looked at, and must be for the host by the name that is
//! configured.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::client::Resumption;
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, RootCertStore};

use super::{Authorities, HandshakeError, SetupError, Socket, TlsStream, Verifier};
use crate::config::Config;
use crate::config::ldap::Encryption;

/// Where distributions keep libldap's configuration.
const FILES: [&str; 2] = ["/etc/ldap/ldap.conf", "/etc/openldap/ldap.conf"];

/// How connections to directories are encrypted.
#[derive(Debug, Default)]
pub struct WithDirectories {
    config: Option<Arc<ClientConfig>>,
}

impl WithDirectories {
    /// Encrypts the connection to the server that is called `host` in the configuration.
    pub async fn connect(&self, socket: Socket, host: &str) -> Result<TlsStream, HandshakeError> {
        let Some(config) = &self.config else {
            return Err(HandshakeError::NotSetUp);
        };
        let name = ServerName::try_from(host.to_owned())
            .map_err(|_| HandshakeError::Name(host.to_owned()))?;
        let session = ClientConnection::new(config.clone(), name)?;
        TlsStream::establish(socket, session, Vec::new()).await
    }
}

/// Reads what libldap would, if a directory is asked with TLS.
pub(super) fn with_directories(
    config: &Config,
    warnings: &mut Vec<String>,
) -> Result<WithDirectories, SetupError> {
    let wanted = config
        .directories()
        .any(|directory| directory.encryption != Encryption::None);
    if !wanted {
        return Ok(WithDirectories::default());
    }
    let variable = |name: &str| std::env::var(name).ok();
    let trust = Trust::read(&variable, &FILES.map(PathBuf::from));
    warnings.extend(trust.lax.as_ref().map(|word| {
        format!("{word} of libldap's configuration is not heeded: certificates of directories are always verified")
    }));
    let authorities = match &trust.file {
        Some((setting, path)) => of_file(setting, path)?,
        None => super::system_authorities()?,
    };
    let provider = Arc::new(default_provider());
    let verifier = Verifier::new(&provider, Some(authorities), true);
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .dangerous()
        .with_custom_certificate_verifier(verifier)
        .with_no_client_auth();
    config.resumption = Resumption::disabled();
    Ok(WithDirectories {
        config: Some(Arc::new(config)),
    })
}

/// A bundle may be the system's, in which there may be one that nobody but its authority can read.
fn of_file(setting: &'static str, path: &Path) -> Result<Authorities, SetupError> {
    let path = Some(path.to_owned());
    let file = super::needed((setting, &path), "TLS with a directory")?;
    let certificates = file.certificates()?;
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(certificates.iter().cloned());
    if roots.is_empty() {
        return Err(file.wrong("no certificate that can be used"));
    }
    Ok(Authorities {
        roots,
        certificates,
    })
}

/// Whom libldap is told to trust.
#[derive(Debug, Default, PartialEq, Eq)]
struct Trust {
    /// Certificates of authorities, and where that is said.
    file: Option<(&'static str, PathBuf)>,
    /// What would let it trust others as well.
    lax: Option<String>,
}

impl Trust {
    /// The environment comes before the file (libldap docs: ldap.conf(5)).
    fn read(variable: &dyn Fn(&str) -> Option<String>, files: &[PathBuf]) -> Self {
        let named = variable("LDAPCONF").map(PathBuf::from);
        let text = named
            .iter()
            .chain(files)
            .find_map(|path| std::fs::read_to_string(path).ok())
            .unwrap_or_default();
        let in_file = |keyword: &str| {
            let lines = text.lines().map(str::trim);
            let mut values = lines
                .filter(|line| !line.starts_with('#'))
                .filter_map(|line| line.split_once(char::is_whitespace))
                .filter(|(word, _)| word.eq_ignore_ascii_case(keyword));
            values.next_back().map(|(_, value)| value.trim().to_owned())
        };
        let file = match variable("LDAPTLS_CACERT") {
            Some(path) => Some(("LDAPTLS_CACERT", path)),
            None => in_file("TLS_CACERT").map(|path| ("TLS_CACERT of ldap.conf", path)),
        };
        let lax = variable("LDAPTLS_REQCERT").or_else(|| in_file("TLS_REQCERT"));
        Self {
            file: file.map(|(setting, path)| (setting, PathBuf::from(path))),
            lax: lax
                .filter(|word| !["demand", "hard"].contains(&word.to_ascii_lowercase().as_str()))
                .map(|word| format!("TLS_REQCERT {word}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)], file: &str) -> Trust {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("ldap.conf");
        std::fs::write(&path, file).unwrap();
        let variable = |name: &str| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        Trust::read(&variable, &[directory.path().join("none"), path])
    }

    fn file(setting: &'static str, path: &str) -> (&'static str, PathBuf) {
        (setting, PathBuf::from(path))
    }

    #[test]
    fn authorities_are_those_of_libldap_the_environment_first() {
        let text = "# TLS_CACERT /not\nURI ldap://x\nTLS_CACERT\t/etc/ca.pem\ntls_reqcert demand\n";
        let trust = read(&[], text);
        assert_eq!(
            trust.file.unwrap(),
            file("TLS_CACERT of ldap.conf", "/etc/ca.pem")
        );
        assert_eq!(trust.lax, None);
        let trust = read(&[("LDAPTLS_CACERT", "/other.pem")], text);
        assert_eq!(trust.file.unwrap(), file("LDAPTLS_CACERT", "/other.pem"));
        assert_eq!(read(&[], ""), Trust::default());
    }

    #[test]
    fn what_would_switch_verification_off_is_noticed() {
        let lax = |variables: &[(&str, &str)], text: &str| read(variables, text).lax;
        assert_eq!(lax(&[], "TLS_REQCERT never").unwrap(), "TLS_REQCERT never");
        assert_eq!(
            lax(&[("LDAPTLS_REQCERT", "allow")], "TLS_REQCERT hard").unwrap(),
            "TLS_REQCERT allow"
        );
    }

    #[test]
    fn a_directory_without_tls_needs_no_authorities_and_one_with_tls_does() {
        let load = |options: &str| {
            let mut config = Config::default();
            for (name, value) in [("auth_type", "ldap"), ("auth_ldap_options", options)] {
                config.settings.assign(name, value).unwrap();
            }
            with_directories(&config, &mut Vec::new()).map(|with| with.config.is_some())
        };
        assert!(!load("ldapserver=h ldapprefix=x").unwrap());
        // What is on this machine decides how it ends, but not that it is looked for.
        assert!(!matches!(
            load("ldapserver=h ldapprefix=x ldaptls=1"),
            Ok(false)
        ));
    }
}
