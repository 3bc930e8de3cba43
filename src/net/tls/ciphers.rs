//! The words of the `*_tls_*` settings, which are OpenSSL's, in terms of what `rustls` has.
//!
//! What it does not have falls into two: what is only *less* than was asked for (an old cipher among modern ones) is
//! left out with a warning; what would leave nothing, or nothing of what was meant, is an error.

use rustls::crypto::SupportedKxGroup;
use rustls::crypto::aws_lc_rs::{ALL_CIPHER_SUITES, DEFAULT_KX_GROUPS, kx_group};
use rustls::{CipherSuite, Connection, NamedGroup, ProtocolVersion};
use rustls::{SupportedCipherSuite, SupportedProtocolVersion};

/// The ciphers of TLS 1.2 under OpenSSL's names, in its order: how they authenticate, and the cipher's class.
const TLS12: [(&str, CipherSuite, [&str; 3]); 6] = [
    (
        "ECDHE-ECDSA-AES256-GCM-SHA384",
        CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
        ["ECDSA", "AES256", "AESGCM"],
    ),
    (
        "ECDHE-RSA-AES256-GCM-SHA384",
        CipherSuite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
        ["RSA", "AES256", "AESGCM"],
    ),
    (
        "ECDHE-ECDSA-CHACHA20-POLY1305",
        CipherSuite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
        ["ECDSA", "CHACHA20", "CHACHA20"],
    ),
    (
        "ECDHE-RSA-CHACHA20-POLY1305",
        CipherSuite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
        ["RSA", "CHACHA20", "CHACHA20"],
    ),
    (
        "ECDHE-ECDSA-AES128-GCM-SHA256",
        CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
        ["ECDSA", "AES128", "AESGCM"],
    ),
    (
        "ECDHE-RSA-AES128-GCM-SHA256",
        CipherSuite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
        ["RSA", "AES128", "AESGCM"],
    ),
];

/// The ciphers of TLS 1.3, under their registered names.
const TLS13: [(&str, CipherSuite); 3] = [
    (
        "TLS_AES_256_GCM_SHA384",
        CipherSuite::TLS13_AES_256_GCM_SHA384,
    ),
    (
        "TLS_CHACHA20_POLY1305_SHA256",
        CipherSuite::TLS13_CHACHA20_POLY1305_SHA256,
    ),
    (
        "TLS_AES_128_GCM_SHA256",
        CipherSuite::TLS13_AES_128_GCM_SHA256,
    ),
];

/// What a setting comes to, and what was left out of it.
pub(super) type Read<T> = Result<(Vec<T>, Option<String>), String>;

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| matches!(c, ':' | ',') || c.is_whitespace())
        .filter(|word| !word.is_empty())
}

/// Reads `*_tls_protocols`.
pub(super) fn protocols(text: &str) -> Read<&'static SupportedProtocolVersion> {
    // 1.0, 1.1, 1.2, 1.3.
    let mut chosen = [false; 4];
    let mut is_old_named = false;
    for word in words(text) {
        let (wanted, word) = match word.strip_prefix('!') {
            Some(word) => (false, word),
            None => (true, word),
        };
        let versions: &[usize] = match word.to_ascii_lowercase().as_str() {
            "all" | "legacy" | "tlsv1" => &[0, 1, 2, 3],
            "secure" | "default" => &[2, 3],
            "tlsv1.0" => &[0],
            "tlsv1.1" => &[1],
            "tlsv1.2" => &[2],
            "tlsv1.3" => &[3],
            _ => return Err(format!("\"{word}\" is no TLS protocol")),
        };
        for &version in versions {
            if let Some(choice) = chosen.get_mut(version) {
                *choice = wanted;
            }
        }
        is_old_named |= wanted && versions.iter().any(|&version| version < 2);
    }
    let [old, less_old, tls12, tls13] = chosen;
    let mut versions = Vec::new();
    if tls13 {
        versions.push(&rustls::version::TLS13);
    }
    if tls12 {
        versions.push(&rustls::version::TLS12);
    }
    if versions.is_empty() {
        return Err("neither TLS 1.2 nor TLS 1.3 is left, and there are no others here".to_owned());
    }
    let left_out = is_old_named && (old || less_old);
    Ok((
        versions,
        left_out.then(|| "TLS 1.0 and 1.1 are not offered".to_owned()),
    ))
}

/// Does a word of OpenSSL's cipher language (docs: openssl-ciphers) stand for this cipher?
fn stands_for(word: &str, row: &(&str, CipherSuite, [&str; 3])) -> bool {
    let (name, _, classes) = row;
    word.split('+').all(|part| match part {
        "ALL" | "HIGH" | "DEFAULT" | "TLSv1.2" | "ECDHE" | "EECDH" | "kECDHE" | "kEECDH" => true,
        "AES" => classes.contains(&"AESGCM"),
        "aRSA" => classes.contains(&"RSA"),
        "aECDSA" => classes.contains(&"ECDSA"),
        "SHA256" => name.ends_with("SHA256"),
        "SHA384" => name.ends_with("SHA384"),
        part => {
            *name == part
                || (matches!(part, "ECDSA" | "AES256" | "AES128" | "AESGCM" | "CHACHA20")
                    && classes.contains(&part))
        }
    })
}

/// Reads `*_tls_ciphers`, the ciphers up to TLS 1.2.
pub(super) fn tls12(text: &str) -> Read<SupportedCipherSuite> {
    let mut chosen: Vec<CipherSuite> = Vec::new();
    let mut unknown = Vec::new();
    for word in words(text) {
        let library_default = ["default", "secure", "fast", "normal", "all"]
            .iter()
            .any(|known| known.eq_ignore_ascii_case(word));
        let (removes, word) = match word.strip_prefix(['!', '-']) {
            Some(word) => (true, word),
            None => (false, word),
        };
        // `@STRENGTH` and `+word` are about the order, which is the library's here, and so is its `@SECLEVEL`.
        let word = word.split('@').next().unwrap_or_default();
        if word.is_empty() || word.starts_with('+') {
            continue;
        }
        let found = TLS12
            .iter()
            .filter(|row| library_default || stands_for(word, row))
            .map(|(_, suite, _)| *suite);
        if removes {
            // What is unknown here cannot be left out any further.
            let found: Vec<_> = found.collect();
            chosen.retain(|suite| !found.contains(suite));
            continue;
        }
        let before = chosen.len();
        let found: Vec<_> = found.filter(|suite| !chosen.contains(suite)).collect();
        chosen.extend(found);
        if chosen.len() == before
            && !library_default
            && !TLS12.iter().any(|row| stands_for(word, row))
        {
            unknown.push(word);
        }
    }
    if chosen.is_empty() {
        let known = TLS12.map(|(name, _, _)| name).join(", ");
        return Err(format!(
            "no cipher of these is offered here; there are {known}"
        ));
    }
    Ok((supported(&chosen), left_out(&unknown)))
}

/// Reads `*_tls13_ciphers`; nothing given is everything.
pub(super) fn tls13(text: &str) -> Read<SupportedCipherSuite> {
    if text.is_empty() {
        return Ok((supported(&TLS13.map(|(_, suite)| suite)), None));
    }
    let (mut chosen, mut unknown) = (Vec::new(), Vec::new());
    for word in words(text) {
        match TLS13.iter().find(|(name, _)| *name == word) {
            Some((_, suite)) => chosen.push(*suite),
            None => unknown.push(word),
        }
    }
    if chosen.is_empty() {
        return Err(format!(
            "none of these is among {}",
            TLS13.map(|(name, _)| name).join(", ")
        ));
    }
    Ok((supported(&chosen), left_out(&unknown)))
}

fn left_out(words: &[&str]) -> Option<String> {
    (!words.is_empty()).then(|| format!("not offered here: {}", words.join(", ")))
}

/// In the order they were chosen.
fn supported(suites: &[CipherSuite]) -> Vec<SupportedCipherSuite> {
    suites
        .iter()
        .filter_map(|wanted| ALL_CIPHER_SUITES.iter().find(|it| it.suite() == *wanted))
        .copied()
        .collect()
}

/// Reads `*_tls_ecdhcurve`.
pub(super) fn groups(text: &str) -> Read<&'static dyn SupportedKxGroup> {
    if text.is_empty() || text.eq_ignore_ascii_case("auto") {
        return Ok((DEFAULT_KX_GROUPS.to_vec(), None));
    }
    let (mut chosen, mut unknown): (Vec<&'static dyn SupportedKxGroup>, Vec<&str>) =
        (Vec::new(), Vec::new());
    for word in words(text) {
        match word.to_ascii_lowercase().as_str() {
            "x25519" => chosen.push(kx_group::X25519),
            "prime256v1" | "secp256r1" | "p-256" => chosen.push(kx_group::SECP256R1),
            "secp384r1" | "p-384" => chosen.push(kx_group::SECP384R1),
            "x25519mlkem768" => chosen.push(kx_group::X25519MLKEM768),
            "secp256r1mlkem768" => chosen.push(kx_group::SECP256R1MLKEM768),
            _ => unknown.push(word),
        }
    }
    if chosen.is_empty() {
        let known = "X25519, prime256v1, secp384r1, X25519MLKEM768";
        return Err(format!(
            "no curve of these is known here; there are {known}"
        ));
    }
    Ok((chosen, left_out(&unknown)))
}

/// `TLSv1.3/TLS_AES_256_GCM_SHA384/ECDH=X25519`.
pub(super) fn describe(session: &Connection) -> String {
    let version = match session.protocol_version() {
        Some(ProtocolVersion::TLSv1_3) => "TLSv1.3",
        Some(ProtocolVersion::TLSv1_2) => "TLSv1.2",
        _ => "TLS",
    };
    let suite = session.negotiated_cipher_suite().map(|it| it.suite());
    let tls13 = TLS13.iter().find(|(_, known)| Some(*known) == suite);
    let tls12 = TLS12.iter().find(|(_, known, _)| Some(*known) == suite);
    let cipher = tls13
        .map(|(name, _)| *name)
        .or(tls12.map(|(name, _, _)| *name))
        .unwrap_or("unknown");
    let group = match session
        .negotiated_key_exchange_group()
        .map(SupportedKxGroup::name)
    {
        Some(NamedGroup::secp256r1) => "prime256v1".to_owned(),
        Some(group) => group
            .as_str()
            .map_or_else(|| "unknown".to_owned(), str::to_owned),
        None => return format!("{version}/{cipher}"),
    };
    format!("{version}/{cipher}/ECDH={group}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(read: Read<SupportedCipherSuite>) -> (Vec<CipherSuite>, Option<String>) {
        let (suites, warning) = read.unwrap();
        (
            suites.iter().map(SupportedCipherSuite::suite).collect(),
            warning,
        )
    }

    #[test]
    fn protocols_are_1_2_and_1_3_unless_one_is_left_out() {
        let count = |text: &str| {
            protocols(text).map(|(versions, warning)| (versions.len(), warning.is_some()))
        };
        assert_eq!(count("secure"), Ok((2, false)));
        assert_eq!(count("tlsv1.3"), Ok((1, false)));
        assert_eq!(count("tlsv1.2, tlsv1.3"), Ok((2, false)));
        assert_eq!(count("all,!tlsv1.3"), Ok((1, true)));
        assert_eq!(count("all,!tlsv1.0,!tlsv1.1"), Ok((2, false)));
        assert_eq!(count("tlsv1.1,tlsv1.2"), Ok((1, true)));
        assert!(count("tlsv1.0").is_err() && count("tlsv9").is_err() && count("").is_err());
    }

    #[test]
    fn openssls_words_choose_among_the_ciphers_there_are() {
        assert_eq!(names(tls12("default")).0.len(), 6);
        assert_eq!(names(tls12("HIGH:MEDIUM:+3DES:!aNULL")).0.len(), 6);
        assert_eq!(names(tls12("fast")).0.len(), 6);
        assert_eq!(names(tls12("ECDHE+AESGCM")).0.len(), 4);
        assert_eq!(names(tls12("HIGH:!AES128:!aECDSA")).0.len(), 2);
        let (suites, warning) = names(tls12("ECDHE-RSA-AES128-GCM-SHA256:AES128-SHA"));
        assert_eq!(suites, [CipherSuite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256]);
        assert_eq!(warning.as_deref(), Some("not offered here: AES128-SHA"));
        assert!(tls12("AES128-SHA").is_err() && tls12("HIGH:!ECDHE").is_err());
        assert_eq!(names(tls12("DEFAULT@SECLEVEL=1:@STRENGTH")).0.len(), 6);
    }

    #[test]
    fn tls_1_3_ciphers_have_their_registered_names() {
        assert_eq!(names(tls13("")).0.len(), 3);
        let (suites, warning) = names(tls13("TLS_AES_128_GCM_SHA256:TLS_AES_128_CCM_SHA256"));
        assert_eq!(suites, [CipherSuite::TLS13_AES_128_GCM_SHA256]);
        assert!(warning.is_some());
        assert!(tls13("AES").is_err());
    }

    #[test]
    fn curves_have_openssls_names() {
        let count =
            |text: &str| groups(text).map(|(groups, warning)| (groups.len(), warning.is_some()));
        assert_eq!(count("auto").unwrap().0, DEFAULT_KX_GROUPS.len());
        assert_eq!(count("prime256v1"), Ok((1, false)));
        assert_eq!(count("X25519:secp521r1"), Ok((1, true)));
        assert!(count("none").is_err() && count("secp521r1").is_err());
    }
}
