//! The arithmetic of `PostgreSQL`'s md5 method (docs: auth-password; protocol-flow, `AuthenticationMD5Password`).
//!
//! Owns the answer to a salted request. The stored hash is `secret::Md5Hash`.

use crate::auth::secret::Md5Hash;
use md5::{Digest, Md5};

/// What a frontend sends: `md5` + hex of `md5(hash + salt)`, where the hash is `md5(password + user)` in hex.
pub fn response(hash: &Md5Hash, salt: [u8; 4]) -> [u8; 35] {
    let mut response = *b"md5________________________________";
    let digest = hex_digest(&[hash.expose(), &salt]);
    for (place, digit) in response.iter_mut().skip(3).zip(digest) {
        *place = digit;
    }
    response
}

/// The md5 of the parts one after the other, as 32 lower-case hex digits.
pub(in crate::auth) fn hex_digest(parts: &[&[u8]]) -> [u8; 32] {
    let mut md5 = Md5::new();
    for part in parts {
        md5.update(part);
    }
    let mut hex = [0; 32];
    for (pair, byte) in hex.as_chunks_mut().0.iter_mut().zip(md5.finalize()) {
        *pair = [digit(byte >> 4), digit(byte & 15)];
    }
    hex
}

fn digit(value: u8) -> u8 {
    match value {
        0..=9 => b'0' + value,
        _ => b'a' + (value - 10),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::secret::PlainSecret;
    use postgres_protocol::authentication::md5_hash;
    use proptest::prelude::*;

    #[test]
    fn the_known_answer_comes_out() {
        let hash = Md5Hash::derive(&PlainSecret::new("password"), "md5_user");
        assert_eq!(
            &response(&hash, [0x2a, 0x3d, 0x8f, 0xe0]),
            b"md562af4dd09bbb41884907a838a3233294"
        );
    }

    proptest! {
        #[test]
        fn another_client_answers_the_same(user in "\\PC{0,20}", password in "\\PC{0,20}", salt: [u8; 4]) {
            let ours = response(&Md5Hash::derive(&PlainSecret::new(password.as_str()), &user), salt);
            let theirs = md5_hash(user.as_bytes(), password.as_bytes(), salt);
            prop_assert_eq!(&ours[..], theirs.as_bytes());
        }
    }
}
