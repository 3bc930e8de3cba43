//! Certificates of X.509 version 1 (RFC 5280 §4.1.2.1), which the library knows as authorities only. `openssl x509 -req`
//! has made them for most of its life, and with it the recipe in PostgreSQL's documentation (`ssl-certificate-creation`).
//!
//! Such a certificate has no extensions: its only name is the common name, and nothing restricts what it is for. It is
//! believed if a configured authority has signed it with its own key; it never vouches for another one.

use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::{
    WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature,
    verify_tls13_signature_with_raw_key,
};
use rustls::pki_types::{CertificateDer, SubjectPublicKeyInfoDer, UnixTime};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{CertificateError, DigitallySignedStruct, Error, InconsistentKeys};

use super::certificate::Certificate;

/// The certificate, if it is of this version.
pub(super) fn parse<'a>(der: &'a CertificateDer<'_>) -> Option<Certificate<'a>> {
    Certificate::parse(der).filter(Certificate::is_version_1)
}

/// Has one of the authorities signed it, and is it in date?
pub(super) fn verify(
    certificate: &Certificate<'_>,
    authorities: &[CertificateDer<'_>],
    now: UnixTime,
    algorithms: &WebPkiSupportedAlgorithms,
) -> Result<(), Error> {
    let mut authorities = authorities
        .iter()
        .filter_map(|authority| Certificate::parse(authority))
        // Names that an authority may not vouch for are looked at nowhere here.
        .filter(|authority| !authority.constrains_names())
        .filter(|authority| authority.has_issued(certificate))
        .peekable();
    if authorities.peek().is_none() {
        return Err(CertificateError::UnknownIssuer.into());
    }
    if !authorities.any(|authority| is_signed(certificate, &authority, algorithms)) {
        return Err(CertificateError::BadSignature.into());
    }
    is_in_date(certificate, now)
}

fn is_signed(
    certificate: &Certificate<'_>,
    authority: &Certificate<'_>,
    algorithms: &WebPkiSupportedAlgorithms,
) -> bool {
    let Some((signed, used, signature)) = certificate.signature() else {
        return false;
    };
    let Some((kind, key)) = authority.key() else {
        return false;
    };
    algorithms
        .all
        .iter()
        .filter(|it| it.signature_alg_id().as_ref() == used)
        .filter(|it| it.public_key_alg_id().as_ref() == kind)
        .any(|it| it.verify_signature(key, signed, signature).is_ok())
}

/// Do its dates include this time?
pub(super) fn is_in_date(certificate: &Certificate<'_>, now: UnixTime) -> Result<(), Error> {
    let seconds = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
    let now = jiff::Timestamp::from_second(seconds)
        .map_err(|_| Error::FailedToGetCurrentTime)?
        .strftime("%Y%m%d%H%M%S")
        .to_string();
    if certificate.is_valid_at(&now) {
        Ok(())
    } else {
        Err(CertificateError::Expired.into())
    }
}

/// Was the handshake of TLS 1.2 signed with the key of this certificate, of whichever version?
pub(super) fn signed_tls12(
    message: &[u8],
    der: &CertificateDer<'_>,
    dss: &DigitallySignedStruct,
    algorithms: &WebPkiSupportedAlgorithms,
) -> Result<HandshakeSignatureValid, Error> {
    let Some(certificate) = parse(der) else {
        return verify_tls12_signature(message, der, dss, algorithms);
    };
    let (kind, key) = certificate.key().ok_or(CertificateError::BadEncoding)?;
    // One scheme may go with keys of several kinds: 1.2 does not name the curve.
    let is_signed = algorithms
        .mapping
        .iter()
        .filter(|(scheme, _)| *scheme == dss.scheme)
        .flat_map(|(_, candidates)| candidates.iter())
        .filter(|it| it.public_key_alg_id().as_ref() == kind)
        .any(|it| it.verify_signature(key, message, dss.signature()).is_ok());
    if is_signed {
        Ok(HandshakeSignatureValid::assertion())
    } else {
        Err(CertificateError::BadSignature.into())
    }
}

/// The same for TLS 1.3.
pub(super) fn signed_tls13(
    message: &[u8],
    der: &CertificateDer<'_>,
    dss: &DigitallySignedStruct,
    algorithms: &WebPkiSupportedAlgorithms,
) -> Result<HandshakeSignatureValid, Error> {
    match parse(der) {
        None => verify_tls13_signature(message, der, dss, algorithms),
        Some(certificate) => {
            let key = SubjectPublicKeyInfoDer::from(certificate.key_info());
            verify_tls13_signature_with_raw_key(message, &key, dss, algorithms)
        }
    }
}

/// A certificate of our own, of whichever version, and its key; an error if they do not belong together.
pub(super) fn own(certified: CertifiedKey) -> Result<SingleCertAndKey, Error> {
    let matches = match parse(certified.end_entity_cert()?) {
        None => certified.keys_match(),
        Some(certificate) => match certified.key.public_key() {
            None => Ok(()),
            Some(key) if key.as_ref() == certificate.key_info() => Ok(()),
            Some(_) => Err(InconsistentKeys::KeyMismatch.into()),
        },
    };
    match matches {
        Ok(()) | Err(Error::InconsistentKeys(InconsistentKeys::Unknown)) => Ok(certified.into()),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests;
