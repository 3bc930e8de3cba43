//! Whom we trust as a server: nobody asks, any host of an authority's, or the very host.
//!
//! `rustls` checks chains and names the way browsers want them. PostgreSQL's world has two habits that browsers gave
//! up: a certificate that is its own authority, and the host name in the common name. Both are accepted here, as libpq
//! and PgBouncer do. That the server has the certificate's key is checked in any mode: channel binding rests on it.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{verify_server_cert_signed_by_trust_anchor, verify_server_name};
use rustls::crypto::{
    CryptoProvider, WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature,
};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};

use super::certificate::Certificate;

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
            return is_in_date(end_entity, now);
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

fn is_in_date(certificate: &CertificateDer<'_>, now: UnixTime) -> Result<(), Error> {
    let seconds = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
    let now = jiff::Timestamp::from_second(seconds)
        .map_err(|_| Error::FailedToGetCurrentTime)?
        .strftime("%Y%m%d%H%M%S")
        .to_string();
    let parsed = Certificate::parse(certificate).ok_or(CertificateError::BadEncoding)?;
    if parsed.is_valid_at(&now) {
        Ok(())
    } else {
        Err(CertificateError::Expired.into())
    }
}

fn is_for_host(certificate: &CertificateDer<'_>, name: &ServerName<'_>) -> Result<(), Error> {
    let parsed = ParsedCertificate::try_from(certificate)?;
    match verify_server_name(&parsed, name) {
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
        verify_tls12_signature(message, cert, dss, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, dss, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}
