//! SCRAM keys that passwords came down to, kept for the next login with the same password, salt and count.
//!
//! Owns the place where PBKDF2 is paid, and that it is paid once: whoever needs keys that are being derived waits for
//! them. Does not own how long a ring lives: who has it drops it when the secret changes, and all in it is wiped then.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::auth::scram::ScramKeys;
use crate::auth::secret::{PlainSecret, opaque_debug};

/// Most keys of one ring: several hosts of a pool may each have a salt of its own.
const MOST: usize = 8;

opaque_debug!(Keyring, Known);

/// Keys and what they were made from. Clones share them.
#[derive(Clone, Default)]
pub struct Keyring {
    /// The one used last comes first.
    known: Arc<Mutex<Vec<Known>>>,
}

/// Keys together with all they were made from, so that they are used only where they fit.
struct Known {
    password: PlainSecret,
    salt: Vec<u8>,
    iterations: u32,
    keys: ScramKeys,
}

impl Known {
    fn fits(&self, password: &PlainSecret, iterations: u32, salt: &[u8]) -> bool {
        self.iterations == iterations && self.salt == salt && self.password == *password
    }
}

impl Keyring {
    /// The keys of a password under this salt and count. Slow on purpose if they are not known yet (PBKDF2); whoever asks
    /// meanwhile waits.
    pub(in crate::auth) fn keys(
        &self,
        password: &PlainSecret,
        iterations: u32,
        salt: &[u8],
    ) -> ScramKeys {
        let mut known = self.known.lock();
        if let Some(at) = known
            .iter()
            .position(|known| known.fits(password, iterations, salt))
        {
            if let Some(used) = known.get_mut(..=at) {
                used.rotate_right(1);
            }
            if let Some(first) = known.first() {
                return first.keys.clone();
            }
        }
        tracing::debug!("SCRAM keys derived in {iterations} rounds");
        let keys = ScramKeys::derive(password, iterations, salt);
        known.truncate(MOST - 1);
        let new = Known {
            password: password.clone(),
            salt: salt.to_vec(),
            iterations,
            keys: keys.clone(),
        };
        known.insert(0, new);
        keys
    }

    /// Forgets the keys of passwords that are not wanted any more; says whether any are left.
    pub fn retain(&self, mut is_wanted: impl FnMut(&PlainSecret) -> bool) -> bool {
        let mut known = self.known.lock();
        known.retain(|known| is_wanted(&known.password));
        !known.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::scram::derivations;

    fn password(text: &str) -> PlainSecret {
        PlainSecret::new(text)
    }

    #[test]
    fn keys_are_derived_once_for_each_password_salt_and_count() {
        let ring = Keyring::default();
        let asked = [
            ("x", 2, b"salt"),
            ("y", 2, b"salt"),
            ("x", 3, b"salt"),
            ("x", 2, b"pepp"),
        ];
        let derive = |(text, count, salt): (&str, u32, &[u8; 4])| {
            let before = derivations();
            let keys = ring.clone().keys(&password(text), count, salt);
            assert!(keys == ScramKeys::derive(&password(text), count, salt));
            derivations() - before - 1
        };
        for case in asked {
            assert_eq!(derive(case), 1);
        }
        for case in asked {
            assert_eq!(derive(case), 0);
        }
    }

    #[test]
    fn those_used_longest_ago_are_forgotten() {
        let ring = Keyring::default();
        let derive = |salt: usize| {
            let before = derivations();
            ring.keys(&password("x"), 1, &salt.to_be_bytes());
            derivations() - before
        };
        for salt in 0..MOST {
            assert_eq!(derive(salt), 1);
        }
        assert_eq!(derive(0), 0);
        assert_eq!(derive(MOST), 1);
        assert_eq!((derive(0), derive(1)), (0, 1));
    }

    #[test]
    fn those_of_a_password_that_is_no_more_are_forgotten() {
        let ring = Keyring::default();
        ring.keys(&password("x"), 1, b"salt");
        ring.keys(&password("y"), 1, b"salt");
        assert!(ring.retain(|known| *known == password("x")));
        let before = derivations();
        ring.keys(&password("x"), 1, b"salt");
        assert_eq!(derivations(), before);
        assert!(!ring.retain(|_| false));
    }

    #[test]
    fn many_at_once_derive_once() {
        let ring = Keyring::default();
        let derived: u64 = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8)
                .map(|_| {
                    scope.spawn(|| {
                        ring.keys(&password("x"), 1000, b"salt");
                        derivations()
                    })
                })
                .collect();
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap())
                .sum()
        });
        assert_eq!(derived, 1);
    }

    #[test]
    fn debug_shows_no_secret() {
        let ring = Keyring::default();
        ring.keys(&password("hunter2"), 1, b"salt");
        assert_eq!(format!("{ring:?}"), "Keyring(..)");
    }
}
