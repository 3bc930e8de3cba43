//! What we want to know of an X.509 certificate beyond its verification, read straight from DER (RFC 5280 §4.1):
//! its names, its dates, and the hash for channel binding.
//!
//! Trusts nothing: certificates come from peers. Everything here gives `None` for what is not as it should be.

use sha2::{Digest, Sha224, Sha256, Sha384, Sha512};

const INTEGER: u8 = 0x02;
const BITS: u8 = 0x03;
const OCTETS: u8 = 0x04;
const OBJECT: u8 = 0x06;
const UTF8: u8 = 0x0c;
const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
const PRINTABLE: u8 = 0x13;
const IA5: u8 = 0x16;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;
/// `[0] EXPLICIT`, as in the version of a certificate and the hash of RSASSA-PSS.
const TAGGED_0: u8 = 0xa0;
/// `[3] EXPLICIT`: the extensions.
const TAGGED_3: u8 = 0xa3;

/// id-at-commonName, 2.5.4.3.
const COMMON_NAME: &[u8] = &[0x55, 0x04, 0x03];
/// id-ce-subjectAltName, 2.5.29.17.
const ALTERNATIVE_NAMES: &[u8] = &[0x55, 0x1d, 0x11];
/// id-ce-nameConstraints, 2.5.29.30.
const NAME_CONSTRAINTS: &[u8] = &[0x55, 0x1d, 0x1e];
/// GeneralName `dNSName [2]`.
const DNS_NAME: u8 = 0x82;
/// GeneralName `iPAddress [7]`.
const IP_ADDRESS: u8 = 0x87;

/// One element: its tag, its content, and what follows.
fn element(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&tag, rest) = bytes.split_first()?;
    let (&first, rest) = rest.split_first()?;
    let (length, rest) = if first < 0x80 {
        (usize::from(first), rest)
    } else {
        // 0x80, a length left open, is not DER.
        let digits = usize::from(first & 0x7f);
        if !(1..=4).contains(&digits) {
            return None;
        }
        let (digits, rest) = rest.split_at_checked(digits)?;
        let length = digits
            .iter()
            .fold(0_usize, |length, &digit| length << 8 | usize::from(digit));
        (length, rest)
    };
    let (content, rest) = rest.split_at_checked(length)?;
    Some((tag, content, rest))
}

/// The first element as it stands, tag and length included.
fn whole(bytes: &[u8]) -> Option<&[u8]> {
    let (_, _, rest) = element(bytes)?;
    bytes.get(..bytes.len() - rest.len())
}

/// The content of a BIT STRING of whole bytes.
fn bit_string(bytes: &[u8]) -> Option<&[u8]> {
    let (content, _) = expect(bytes, BITS)?;
    content.strip_prefix(&[0])
}

/// An element that must have this tag: its content, and what follows.
fn expect(bytes: &[u8], wanted: u8) -> Option<(&[u8], &[u8])> {
    element(bytes)
        .filter(|(tag, _, _)| *tag == wanted)
        .map(|(_, content, rest)| (content, rest))
}

/// The elements one after the other, up to the first that is none.
fn elements(bytes: &[u8]) -> impl Iterator<Item = (u8, &[u8])> {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        let (tag, content, after) = element(rest)?;
        rest = after;
        Some((tag, content))
    })
}

/// The parts of a certificate that matter here.
#[derive(Debug, Clone, Copy)]
pub struct Certificate<'a> {
    /// What is signed, as it stands.
    signed: &'a [u8],
    is_version_1: bool,
    /// The same as `signature_algorithm`, where it is signed.
    signed_algorithm: &'a [u8],
    issuer: &'a [u8],
    validity: &'a [u8],
    subject: &'a [u8],
    /// The SubjectPublicKeyInfo, as it stands.
    key_info: &'a [u8],
    /// The GeneralNames of the alternative names; empty if there are none.
    alternatives: &'a [u8],
    constrains_names: bool,
    /// The content of its AlgorithmIdentifier.
    signature_algorithm: &'a [u8],
    /// The signature, a BIT STRING as it stands.
    signature: &'a [u8],
}

impl<'a> Certificate<'a> {
    /// Finds the parts.
    pub fn parse(der: &'a [u8]) -> Option<Self> {
        let (certificate, _) = expect(der, SEQUENCE)?;
        let signed = whole(certificate)?;
        let (body, rest) = expect(certificate, SEQUENCE)?;
        let (signature_algorithm, signature) = expect(rest, SEQUENCE)?;
        // The version may be left out: it is 1 then.
        let version = expect(body, TAGGED_0);
        let body = version.map_or(body, |(_, rest)| rest);
        let (_serial, rest) = expect(body, INTEGER)?;
        let (signed_algorithm, rest) = expect(rest, SEQUENCE)?;
        let (issuer, rest) = expect(rest, SEQUENCE)?;
        let (validity, rest) = expect(rest, SEQUENCE)?;
        let (subject, rest) = expect(rest, SEQUENCE)?;
        let key_info = whole(rest)?;
        let (_key, rest) = expect(rest, SEQUENCE)?;
        let extensions = elements(rest).find(|(tag, _)| *tag == TAGGED_3);
        let (mut alternatives, mut constrains_names): (&[u8], _) = (&[], false);
        if let Some((_, extensions)) = extensions {
            alternatives = alternative_names(extensions)?;
            constrains_names = extension(extensions, NAME_CONSTRAINTS).ok()?.is_some();
        }
        Some(Self {
            signed,
            is_version_1: version.is_none() && rest.is_empty(),
            signed_algorithm,
            issuer,
            validity,
            subject,
            key_info,
            alternatives,
            constrains_names,
            signature_algorithm,
            signature,
        })
    }

    /// Is it of version 1, and so without extensions?
    pub fn is_version_1(&self) -> bool {
        self.is_version_1
    }

    /// Is it an authority for some names only?
    pub fn constrains_names(&self) -> bool {
        self.constrains_names
    }

    /// Does the other one say that its authority has this one's name?
    pub fn has_issued(&self, other: &Certificate<'_>) -> bool {
        self.subject == other.issuer
    }

    /// What was signed, the AlgorithmIdentifier's content, and the signature.
    pub fn signature(&self) -> Option<(&'a [u8], &'a [u8], &'a [u8])> {
        let is_one = self.signed_algorithm == self.signature_algorithm;
        is_one.then_some((
            self.signed,
            self.signature_algorithm,
            bit_string(self.signature)?,
        ))
    }

    /// Its SubjectPublicKeyInfo in DER.
    pub fn key_info(&self) -> &'a [u8] {
        self.key_info
    }

    /// Its key: the AlgorithmIdentifier's content, and the bits.
    pub fn key(&self) -> Option<(&'a [u8], &'a [u8])> {
        let (key_info, _) = expect(self.key_info, SEQUENCE)?;
        let (algorithm, bits) = expect(key_info, SEQUENCE)?;
        Some((algorithm, bit_string(bits)?))
    }

    /// The first common name of the subject, if it is text without NUL.
    pub fn common_name(&self) -> Option<&'a str> {
        let attributes = elements(self.subject)
            .filter(|(tag, _)| *tag == SET)
            .flat_map(|(_, set)| elements(set))
            .filter(|(tag, _)| *tag == SEQUENCE);
        for (_, attribute) in attributes {
            let (kind, value) = expect(attribute, OBJECT)?;
            if kind != COMMON_NAME {
                continue;
            }
            let (tag, value, _) = element(value)?;
            if !matches!(tag, UTF8 | PRINTABLE | IA5) || value.contains(&0) {
                return None;
            }
            return str::from_utf8(value).ok();
        }
        None
    }

    /// The DNS names among the alternative names.
    pub fn dns_names(&self) -> impl Iterator<Item = &'a str> {
        elements(self.alternatives)
            .filter(|(tag, _)| *tag == DNS_NAME)
            .filter_map(|(_, name)| str::from_utf8(name).ok())
    }

    /// Has it alternative names of the kinds a host can have? Then the common name is no host name (RFC 6125 §6.4.4).
    pub fn has_host_names(&self) -> bool {
        elements(self.alternatives).any(|(tag, _)| matches!(tag, DNS_NAME | IP_ADDRESS))
    }

    /// Does a name that it is made out to pass the test?
    pub fn has_name(&self, test: impl Fn(&str) -> bool) -> bool {
        let mut names = self.common_name().into_iter().chain(self.dns_names());
        names.any(|name| !name.is_empty() && test(name))
    }

    /// Is the common name this host, or a wildcard for it? Only for a certificate without host names.
    pub fn common_name_is_host(&self, host: &str) -> bool {
        let Some(name) = self.common_name().filter(|_| !self.has_host_names()) else {
            return false;
        };
        if name.eq_ignore_ascii_case(host) {
            return true;
        }
        // As libpq has it: a star stands for the first label, and only for that.
        let Some(domain) = name.strip_prefix("*.") else {
            return false;
        };
        host.parse::<std::net::IpAddr>().is_err()
            && host
                .split_once('.')
                .is_some_and(|(label, rest)| !label.is_empty() && rest.eq_ignore_ascii_case(domain))
    }

    /// Is it valid at this time (`YYYYMMDDHHMMSS`, UTC)?
    pub fn is_valid_at(&self, now: &str) -> bool {
        let mut times = elements(self.validity).map(|(tag, text)| moment(tag, text));
        match (times.next().flatten(), times.next().flatten()) {
            (Some(from), Some(to)) => from.as_str() <= now && now <= to.as_str(),
            _ => false,
        }
    }

    /// The hash of its signature algorithm.
    fn hash(&self) -> Option<Hash> {
        let (algorithm, parameters) = expect(self.signature_algorithm, OBJECT)?;
        if algorithm != RSASSA_PSS {
            return hash_of(algorithm);
        }
        let (parameters, _) = expect(parameters, SEQUENCE)?;
        match expect(parameters, TAGGED_0) {
            Some((hash, _)) => {
                let (hash, _) = expect(hash, SEQUENCE)?;
                hash_of(expect(hash, OBJECT)?.0)
            }
            // The default is SHA-1, for which SHA-256 stands in.
            None => Some(Hash::Sha256),
        }
    }
}

/// The GeneralNames of the subject's alternative names; `None` if the extensions make no sense.
fn alternative_names(extensions: &[u8]) -> Option<&[u8]> {
    match extension(extensions, ALTERNATIVE_NAMES).ok()? {
        Some(octets) => expect(octets, SEQUENCE).map(|(names, _)| names),
        None => Some(&[]),
    }
}

/// Extensions that make no sense.
struct Malformed;

/// The octets of an extension, if there is such a one.
fn extension<'a>(extensions: &'a [u8], wanted: &[u8]) -> Result<Option<&'a [u8]>, Malformed> {
    let (extensions, _) = expect(extensions, SEQUENCE).ok_or(Malformed)?;
    for (_, extension) in elements(extensions) {
        let (kind, rest) = expect(extension, OBJECT).ok_or(Malformed)?;
        if kind == wanted {
            let octets = elements(rest).find(|(tag, _)| *tag == OCTETS);
            return octets.map(|(_, octets)| Some(octets)).ok_or(Malformed);
        }
    }
    Ok(None)
}

/// A time of RFC 5280 §4.1.2.5 as `YYYYMMDDHHMMSS`.
fn moment(tag: u8, text: &[u8]) -> Option<String> {
    let text = str::from_utf8(text).ok()?.strip_suffix('Z')?;
    if !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    match (tag, text.len()) {
        (UTC_TIME, 12) if text < "50" => Some(format!("20{text}")),
        (UTC_TIME, 12) => Some(format!("19{text}")),
        (GENERALIZED_TIME, 14) => Some(text.to_owned()),
        _ => None,
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Hash {
    Sha224,
    Sha256,
    Sha384,
    Sha512,
}

/// 1.2.840.113549.1.1.10.
const RSASSA_PSS: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x0a];
/// 1.2.840.113549.1.1: PKCS #1, the last arc tells the hash.
const PKCS1: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01];
/// 1.2.840.10045.4.3: ECDSA with SHA-2.
const ECDSA_SHA2: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x03];
/// 1.2.840.10045.4.1: ECDSA with SHA-1.
const ECDSA_SHA1: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x01];
/// 2.16.840.1.101.3.4.2: the hashes themselves.
const NIST_HASHES: &[u8] = &[0x60, 0x86, 0x48, 0x01, 0x65, 0x03, 0x04, 0x02];
/// 1.3.14.3.2.26: SHA-1 itself.
const SHA1: &[u8] = &[0x2b, 0x0e, 0x03, 0x02, 0x1a];

/// RFC 5929 §4.1: MD5 and SHA-1 are replaced by SHA-256; an algorithm with no hash, or more than one, has none.
fn hash_of(algorithm: &[u8]) -> Option<Hash> {
    if algorithm == ECDSA_SHA1 || algorithm == SHA1 {
        return Some(Hash::Sha256);
    }
    let (&last, family) = algorithm.split_last()?;
    match (family, last) {
        (family, 4 | 5 | 11) if family == PKCS1 => Some(Hash::Sha256),
        (family, 12) if family == PKCS1 => Some(Hash::Sha384),
        (family, 13) if family == PKCS1 => Some(Hash::Sha512),
        (family, 14) if family == PKCS1 => Some(Hash::Sha224),
        (family, 1) if family == ECDSA_SHA2 => Some(Hash::Sha224),
        (family, 2) if family == ECDSA_SHA2 => Some(Hash::Sha256),
        (family, 3) if family == ECDSA_SHA2 => Some(Hash::Sha384),
        (family, 4) if family == ECDSA_SHA2 => Some(Hash::Sha512),
        (family, 1) if family == NIST_HASHES => Some(Hash::Sha256),
        (family, 2) if family == NIST_HASHES => Some(Hash::Sha384),
        (family, 3) if family == NIST_HASHES => Some(Hash::Sha512),
        (family, 4) if family == NIST_HASHES => Some(Hash::Sha224),
        _ => None,
    }
}

/// The data of `tls-server-end-point` for this certificate (RFC 5929 §4.1); `None` if it is not defined.
pub fn end_point(der: &[u8]) -> Option<Vec<u8>> {
    Some(match Certificate::parse(der)?.hash()? {
        Hash::Sha224 => Sha224::digest(der).to_vec(),
        Hash::Sha256 => Sha256::digest(der).to_vec(),
        Hash::Sha384 => Sha384::digest(der).to_vec(),
        Hash::Sha512 => Sha512::digest(der).to_vec(),
    })
}

#[cfg(test)]
mod tests;
