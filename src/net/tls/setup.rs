//! The `client_tls_*` and `server_tls_*` settings and their files, made into what connections are encrypted with.
//!
//! Everything is read and checked before anything is used: a [`Setup`] is complete, or there is none.

use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arc_swap::ArcSwap;
use rustls::client::Resumption;
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::crypto::{CryptoProvider, SupportedKxGroup};
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoClientAuth, NoServerSessionStorage, WebPkiClientVerifier};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{ClientConfig, ClientConnection, ServerConfig, ServerConnection};
use rustls::{NamedGroup, RootCertStore, SupportedCipherSuite, SupportedProtocolVersion};
use sha2::{Digest, Sha256};
use zeroize::Zeroizing;

use super::super::socket::{Raw, Socket};
use super::verify::{Authorities, ClientVerifier, Verifier};
use super::{HandshakeError, TlsStream, certificate, ciphers, version1};
use crate::config::{AuthType, Config, Settings, SslMode};

mod directories;

pub use directories::WithDirectories;

/// What PostgreSQL's protocol is called in the handshake (docs: protocol-flow-ssl).
const PROTOCOL: &[u8] = b"postgresql";

/// Why the settings can't be put to use. The texts follow `TLS setup failed: `.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// A file is needed and none is named.
    #[error("{setting} is needed for {what}")]
    Missing {
        /// The setting that is empty.
        setting: &'static str,
        /// The setting that needs it, and its value.
        what: String,
    },
    /// A file can't be read.
    #[error("{setting} = {}: {source}", path.display())]
    Unreadable {
        /// The setting that names it.
        setting: &'static str,
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A file has not in it what it should.
    #[error("{setting} = {}: {why}", path.display())]
    Content {
        /// The setting that names it.
        setting: &'static str,
        /// The file.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// A value means nothing here.
    #[error("{setting} = {value}: {why}")]
    Value {
        /// The setting.
        setting: &'static str,
        /// Its value.
        value: String,
        /// What is wrong.
        why: String,
    },
    /// The authorities of the system can't be read.
    #[error("the system has no certificates of authorities; name some in server_tls_ca_file")]
    NoSystemAuthorities,
    /// The library does not take it.
    #[error("{0}")]
    Library(#[from] rustls::Error),
}

/// TLS as configured, for both sides.
#[derive(Debug, Default)]
pub struct Setup {
    /// With clients.
    pub clients: WithClients,
    /// With PostgreSQL.
    pub servers: WithServers,
    /// With directories.
    pub directories: WithDirectories,
    /// What was asked for and is not to be had.
    pub warnings: Vec<String>,
}

/// The current [`Setup`]; clones share it.
#[derive(Debug, Clone, Default)]
pub struct TlsHandle(Arc<ArcSwap<Setup>>);

impl TlsHandle {
    /// The setup of this moment.
    pub fn load(&self) -> Arc<Setup> {
        self.0.load_full()
    }

    /// Replaces the setup: for connections made from now on.
    pub fn store(&self, setup: Setup) {
        self.0.store(Arc::new(setup));
    }
}

/// How connections of clients are encrypted.
#[derive(Debug, Default)]
pub struct WithClients {
    mode: SslMode,
    config: Option<Arc<ServerConfig>>,
    end_point: Option<Arc<[u8]>>,
}

impl WithClients {
    /// Is it offered?
    pub fn is_offered(&self) -> bool {
        self.config.is_some()
    }

    /// Must a client that comes over TCP use it?
    pub fn is_required(&self) -> bool {
        self.mode >= SslMode::Require
    }

    /// Encrypts a client's connection; `incoming` is what was read of its first message already.
    pub async fn accept(
        &self,
        socket: Socket,
        incoming: Vec<u8>,
    ) -> Result<TlsStream, HandshakeError> {
        let Some(config) = &self.config else {
            return Err(HandshakeError::NotSetUp);
        };
        let session = ServerConnection::new(config.clone())?;
        let stream = TlsStream::establish(socket, session, incoming).await?;
        Ok(stream.with_own_end_point(self.end_point.clone()))
    }
}

/// How connections to PostgreSQL are encrypted.
#[derive(Debug, Default)]
pub struct WithServers {
    mode: SslMode,
    config: Option<Arc<ClientConfig>>,
    /// Of the settings and the files, so that a change shows.
    fingerprint: [u8; 32],
}

impl WithServers {
    /// Is a server asked for it?
    pub fn is_wanted(&self) -> bool {
        self.config.is_some()
    }

    /// Must a server that is reached over TCP have it?
    pub fn is_required(&self) -> bool {
        self.mode >= SslMode::Require
    }

    /// Would servers be connected to in another way than by `other`?
    pub fn differs(&self, other: &Self) -> bool {
        self.fingerprint != other.fingerprint || self.mode != other.mode
    }

    /// Encrypts the connection to the server that is called `host` in the configuration.
    pub async fn connect(&self, socket: Socket, host: &str) -> Result<TlsStream, HandshakeError> {
        let address = match socket.raw() {
            Raw::Tcp(socket) => socket.peer_addr()?.ip(),
            Raw::Unix(_) => return Err(HandshakeError::NotSetUp),
        };
        let session = self.session(address, host)?;
        TlsStream::establish(socket, session, Vec::new()).await
    }

    /// The client's side of a session with a server that is called `host` and was found at `address`; whose bytes to
    /// move is the caller's part.
    pub fn session(&self, address: IpAddr, host: &str) -> Result<ClientConnection, HandshakeError> {
        let Some(config) = &self.config else {
            return Err(HandshakeError::NotSetUp);
        };
        let name = if self.mode == SslMode::VerifyFull {
            ServerName::try_from(host.to_owned())
                .map_err(|_| HandshakeError::Name(host.to_owned()))?
        } else {
            // Neither sent nor compared.
            ServerName::IpAddress(address.into())
        };
        Ok(ClientConnection::new(config.clone(), name)?)
    }
}

impl Setup {
    /// Reads the settings and the files they name.
    pub fn load(config: &Config) -> Result<Self, SetupError> {
        let settings = &config.settings;
        let mut warnings = Vec::new();
        Ok(Self {
            clients: with_clients(settings, &mut warnings)?,
            servers: with_servers(settings, &mut warnings)?,
            directories: directories::with_directories(config, &mut warnings)?,
            warnings,
        })
    }
}

fn with_clients(
    settings: &Settings,
    warnings: &mut Vec<String>,
) -> Result<WithClients, SetupError> {
    let mode = settings.client_tls_sslmode;
    if settings.auth_type == AuthType::Cert && mode < SslMode::VerifyCa {
        return Err(SetupError::Value {
            setting: "auth_type",
            value: "cert".to_owned(),
            why: format!("client_tls_sslmode is {mode}, and must be verify-full"),
        });
    }
    if mode == SslMode::Disable {
        return Ok(WithClients::default());
    }
    let what = format!("client_tls_sslmode = {mode}");
    let words = Words {
        protocols: ("client_tls_protocols", &settings.client_tls_protocols),
        ciphers: ("client_tls_ciphers", &settings.client_tls_ciphers),
        ciphers13: (
            "client_tls13_ciphers",
            settings.client_tls13_ciphers.as_deref().unwrap_or_default(),
        ),
        curve: ("client_tls_ecdhcurve", &settings.client_tls_ecdhcurve),
    };
    let chosen = words.read(warnings)?;
    let key = needed(
        ("client_tls_key_file", &settings.client_tls_key_file),
        &what,
    )?;
    let chain = needed(
        ("client_tls_cert_file", &settings.client_tls_cert_file),
        &what,
    )?;
    let (key, chain_der) = (key.private_key()?, chain.certificates()?);
    let verifier = client_verifier(settings, &chosen.provider)?;
    let end_point = chain_der
        .first()
        .and_then(|certificate| certificate::end_point(certificate))
        .map(Arc::from);
    let identity = chain.identity(chain_der, key, &chosen.provider)?;
    let mut config = ServerConfig::builder_with_provider(chosen.provider)
        .with_protocol_versions(&chosen.versions)?
        .with_client_cert_verifier(verifier)
        .with_cert_resolver(identity);
    config.alpn_protocols = vec![PROTOCOL.to_vec()];
    // The order of the settings counts, as in PgBouncer.
    config.ignore_client_order = true;
    // As PostgreSQL: its clients don't resume sessions, and each would cost memory here.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(WithClients {
        mode,
        config: Some(Arc::new(config)),
        end_point,
    })
}

fn client_verifier(
    settings: &Settings,
    provider: &Arc<CryptoProvider>,
) -> Result<Arc<dyn ClientCertVerifier>, SetupError> {
    let mode = settings.client_tls_sslmode;
    let is_needed = mode >= SslMode::VerifyCa;
    let setting = ("client_tls_ca_file", &settings.client_tls_ca_file);
    let file = if is_needed {
        needed(setting, &format!("client_tls_sslmode = {mode}"))?
    } else {
        match read(setting)? {
            Some(file) => file,
            // Nobody could be verified, so nobody is asked.
            None => return Ok(Arc::new(NoClientAuth)),
        }
    };
    let authorities = file.authorities()?;
    let roots = Arc::new(authorities.roots);
    let builder = WebPkiClientVerifier::builder_with_provider(roots, provider.clone());
    let builder = if is_needed {
        builder
    } else {
        builder.allow_unauthenticated()
    };
    let verifier = builder
        .build()
        .map_err(|error| file.wrong(&error.to_string()))?;
    Ok(ClientVerifier::new(
        provider,
        verifier,
        authorities.certificates,
    ))
}

fn with_servers(
    settings: &Settings,
    warnings: &mut Vec<String>,
) -> Result<WithServers, SetupError> {
    let mode = settings.server_tls_sslmode;
    if mode == SslMode::Disable {
        return Ok(WithServers::default());
    }
    let words = Words {
        protocols: ("server_tls_protocols", &settings.server_tls_protocols),
        ciphers: ("server_tls_ciphers", &settings.server_tls_ciphers),
        ciphers13: (
            "server_tls13_ciphers",
            settings.server_tls13_ciphers.as_deref().unwrap_or_default(),
        ),
        curve: ("server_tls_ecdhcurve", "auto"),
    };
    let mut chosen = words.read(warnings)?;
    // PostgreSQL before 18 takes this one only, and asks for a second hello if its share is not in the first.
    Arc::make_mut(&mut chosen.provider)
        .kx_groups
        .sort_by_key(|group| group.name() != NamedGroup::secp256r1);
    let key = read(("server_tls_key_file", &settings.server_tls_key_file))?;
    let chain = read(("server_tls_cert_file", &settings.server_tls_cert_file))?;
    let ca_file = read(("server_tls_ca_file", &settings.server_tls_ca_file))?;
    let mut hash = Sha256::new();
    for (_, text) in [words.protocols, words.ciphers, words.ciphers13] {
        hash.update((text.len() as u64).to_be_bytes());
        hash.update(text);
    }
    for file in [&key, &chain, &ca_file] {
        let bytes = file.as_ref().map_or(&[][..], |file| &file.bytes);
        hash.update((bytes.len() as u64).to_be_bytes());
        hash.update(bytes);
    }
    let authorities = match (&ca_file, mode >= SslMode::VerifyCa) {
        (Some(file), true) => Some(file.authorities()?),
        (None, true) => Some(system_authorities()?),
        (_, false) => None,
    };
    let verifier = Verifier::new(&chosen.provider, authorities, mode == SslMode::VerifyFull);
    let identity = match (key, chain) {
        (Some(key), Some(chain)) => {
            let (certificates, key) = (chain.certificates()?, key.private_key()?);
            Some(chain.identity(certificates, key, &chosen.provider)?)
        }
        (None, None) => None,
        (Some(_), None) => return Err(missing("server_tls_cert_file", "server_tls_key_file")),
        (None, Some(_)) => return Err(missing("server_tls_key_file", "server_tls_cert_file")),
    };
    let builder = ClientConfig::builder_with_provider(chosen.provider)
        .with_protocol_versions(&chosen.versions)?
        .dangerous()
        .with_custom_certificate_verifier(verifier);
    let mut config = match identity {
        Some(identity) => builder.with_client_cert_resolver(identity),
        None => builder.with_no_client_auth(),
    };
    config.enable_sni = mode == SslMode::VerifyFull;
    // PostgreSQL does not resume sessions.
    config.resumption = Resumption::disabled();
    Ok(WithServers {
        mode,
        config: Some(Arc::new(config)),
        fingerprint: hash.finalize().into(),
    })
}

pub(super) fn system_authorities() -> Result<Authorities, SetupError> {
    let mut roots = RootCertStore::empty();
    let found = rustls_native_certs::load_native_certs();
    roots.add_parsable_certificates(found.certs);
    if roots.is_empty() {
        return Err(SetupError::NoSystemAuthorities);
    }
    Ok(Authorities {
        roots,
        certificates: Vec::new(),
    })
}

/// The settings that are words of OpenSSL's, by name and value.
struct Words<'a> {
    protocols: (&'static str, &'a str),
    ciphers: (&'static str, &'a str),
    ciphers13: (&'static str, &'a str),
    curve: (&'static str, &'a str),
}

struct Chosen {
    versions: Vec<&'static SupportedProtocolVersion>,
    provider: Arc<CryptoProvider>,
}

impl Words<'_> {
    fn read(&self, warnings: &mut Vec<String>) -> Result<Chosen, SetupError> {
        let versions = understood(self.protocols, "secure", ciphers::protocols, warnings)?;
        let mut cipher_suites: Vec<SupportedCipherSuite> =
            understood(self.ciphers13, "", ciphers::tls13, warnings)?;
        if versions.contains(&&rustls::version::TLS12) {
            let older = understood(self.ciphers, "default", ciphers::tls12, warnings)?;
            cipher_suites.extend(older);
        }
        let kx_groups: Vec<&'static dyn SupportedKxGroup> =
            understood(self.curve, "auto", ciphers::groups, warnings)?;
        let provider = Arc::new(CryptoProvider {
            cipher_suites,
            kx_groups,
            ..default_provider()
        });
        Ok(Chosen { versions, provider })
    }
}

fn understood<T>(
    (setting, value): (&'static str, &str),
    default: &str,
    reads: fn(&str) -> ciphers::Read<T>,
    warnings: &mut Vec<String>,
) -> Result<Vec<T>, SetupError> {
    let text = if value.is_empty() { default } else { value };
    let (found, warning) = reads(text).map_err(|why| SetupError::Value {
        setting,
        value: value.to_owned(),
        why,
    })?;
    warnings.extend(warning.map(|warning| format!("{setting} = {value}: {warning}")));
    Ok(found)
}

/// A file that a setting names, as it was read.
struct File<'a> {
    setting: &'static str,
    path: &'a Path,
    bytes: Zeroizing<Vec<u8>>,
}

fn read<'a>(
    (setting, path): (&'static str, &'a Option<PathBuf>),
) -> Result<Option<File<'a>>, SetupError> {
    let Some(path) = path else { return Ok(None) };
    match std::fs::read(path) {
        Ok(bytes) => Ok(Some(File {
            setting,
            path,
            bytes: Zeroizing::new(bytes),
        })),
        Err(source) => Err(SetupError::Unreadable {
            setting,
            path: path.clone(),
            source,
        }),
    }
}

fn needed<'a>(
    (setting, path): (&'static str, &'a Option<PathBuf>),
    what: &str,
) -> Result<File<'a>, SetupError> {
    read((setting, path))?.ok_or_else(|| missing(setting, what))
}

fn missing(setting: &'static str, what: &str) -> SetupError {
    SetupError::Missing {
        setting,
        what: what.to_owned(),
    }
}

impl File<'_> {
    fn wrong(&self, why: &str) -> SetupError {
        SetupError::Content {
            setting: self.setting,
            path: self.path.to_owned(),
            why: why.to_owned(),
        }
    }

    fn private_key(&self) -> Result<PrivateKeyDer<'static>, SetupError> {
        PrivateKeyDer::from_pem_slice(&self.bytes).map_err(|error| match error {
            pem::Error::NoItemsFound => {
                self.wrong("no private key in PEM (one with a passphrase can't be used)")
            }
            other => self.wrong(&other.to_string()),
        })
    }

    fn certificates(&self) -> Result<Vec<CertificateDer<'static>>, SetupError> {
        let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&self.bytes).collect();
        match found {
            Ok(found) if found.is_empty() => Err(self.wrong("no certificate in PEM")),
            Ok(found) => Ok(found),
            Err(error) => Err(self.wrong(&error.to_string())),
        }
    }

    /// What we show: this file's certificates, and the key that belongs to them.
    fn identity(
        &self,
        certificates: Vec<CertificateDer<'static>>,
        key: PrivateKeyDer<'static>,
        provider: &CryptoProvider,
    ) -> Result<Arc<SingleCertAndKey>, SetupError> {
        provider
            .key_provider
            .load_private_key(key)
            .and_then(|key| version1::own(CertifiedKey::new(certificates, key)))
            .map(Arc::new)
            .map_err(|error| self.wrong(&error.to_string()))
    }

    fn authorities(&self) -> Result<Authorities, SetupError> {
        let certificates = self.certificates()?;
        let mut roots = RootCertStore::empty();
        for certificate in &certificates {
            roots
                .add(certificate.clone())
                .map_err(|error| self.wrong(&error.to_string()))?;
        }
        Ok(Authorities {
            roots,
            certificates,
        })
    }
}

#[cfg(test)]
mod tests;
