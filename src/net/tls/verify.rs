//! Whom we trust as a server: nobody asks, any host of an authority's, or the very host.
//!
//! `rustls` checks chains and names the way browsers want them. PostgreSQL's world has two habits that browsers gave
//! up: a certificate that is its own authority, and the host name in the common name. Both are accepted here, as libpq
//! and PgBouncer do. That the server has the certificate's key is checked in any mode: channel binding rests on it.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{verify_server_cert_signed_by_trust_anchor, verify_server_name};
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{CertificateError, DigitallySignedStruct, DistinguishedName, Error};
use rustls::{RootCertStore, SignatureScheme};

use super::certificate::Certificate;
use super::version1;

/// The authorities of a file, or of the system.
#[derive(Debug)]
pub(super) struct Authorities {
    pub(super) roots: RootCertStore,
    /// The certificates of the file as they are: one of them may be the server's own.
    pub(super) certificates: Vec<CertificateDer<'static>>,
}

/// Verifies servers.
#[derive(Debug)]
pub(super) struct Verifier {
    /// `None`: any certificate will do (`require` and below).
    authorities: Option<Authorities>,
    checks_name: bool,
    algorithms: WebPkiSupportedAlgorithms,
}

impl Verifier {
    pub(super) fn new(
        provider: &CryptoProvider,
        authorities: Option<Authorities>,
        checks_name: bool,
    ) -> Arc<Self> {
        Arc::new(Self {
            authorities,
            checks_name,
            algorithms: provider.signature_verification_algorithms,
        })
    }
}

impl Authorities {
    fn verify(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
        algorithms: &WebPkiSupportedAlgorithms,
    ) -> Result<(), Error> {
        if self.certificates.contains(end_entity) {
            // What `openssl req -x509` makes says that it is an authority, which a chain must not end with.
            let parsed = Certificate::parse(end_entity).ok_or(CertificateError::BadEncoding)?;
            return version1::is_in_date(&parsed, now);
        }
        if let Some(certificate) = version1::parse(end_entity) {
            return version1::verify(&certificate, &self.certificates, now, algorithms);
        }
        let parsed = ParsedCertificate::try_from(end_entity)?;
        verify_server_cert_signed_by_trust_anchor(
            &parsed,
            &self.roots,
            intermediates,
            now,
            algorithms.all,
        )
    }
}

fn is_for_host(certificate: &CertificateDer<'_>, name: &ServerName<'_>) -> Result<(), Error> {
    let by_alternative_names = if version1::parse(certificate).is_some() {
        // It has none.
        Err(CertificateError::NotValidForName.into())
    } else {
        verify_server_name(&ParsedCertificate::try_from(certificate)?, name)
    };
    match by_alternative_names {
        Err(error) => {
            let common_name_will_do = Certificate::parse(certificate)
                .is_some_and(|certificate| certificate.common_name_is_host(&name.to_str()));
            if common_name_will_do {
                Ok(())
            } else {
                Err(error)
            }
        }
        Ok(()) => Ok(()),
    }
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        if let Some(authorities) = &self.authorities {
            authorities.verify(end_entity, intermediates, now, &self.algorithms)?;
            if self.checks_name {
                is_for_host(end_entity, server_name)?;
            }
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        version1::signed_tls12(message, cert, dss, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        version1::signed_tls13(message, cert, dss, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

/// Verifies clients: as the library does, and certificates of version 1 besides.
#[derive(Debug)]
pub(super) struct ClientVerifier {
    inner: Arc<dyn ClientCertVerifier>,
    /// The certificates of the authorities.
    authorities: Vec<CertificateDer<'static>>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl ClientVerifier {
    pub(super) fn new(
        provider: &CryptoProvider,
        inner: Arc<dyn ClientCertVerifier>,
        authorities: Vec<CertificateDer<'static>>,
    ) -> Arc<Self> {
        Arc::new(Self {
            inner,
            authorities,
            algorithms: provider.signature_verification_algorithms,
        })
    }
}

impl ClientCertVerifier for ClientVerifier {
    fn offer_client_auth(&self) -> bool {
        self.inner.offer_client_auth()
    }

    fn client_auth_mandatory(&self) -> bool {
        self.inner.client_auth_mandatory()
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.inner.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        match version1::parse(end_entity) {
            Some(certificate) => {
                version1::verify(&certificate, &self.authorities, now, &self.algorithms)
                    .map(|()| ClientCertVerified::assertion())
            }
            None => self
                .inner
                .verify_client_cert(end_entity, intermediates, now),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        version1::signed_tls12(message, cert, dss, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        version1::signed_tls13(message, cert, dss, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.inner.supported_verify_schemes()
    }
}
