//! Directories: a server that says whatever it likes, names that stay names, options whose password nobody sees.

use pgferry::config::Settings;
use pgferry::protocol::ldap::{self, Filter, MAX_MESSAGE, Reply, Scope, Search};

use super::texts;

/// What a directory sends.
pub fn ldap_reply(input: &[u8]) {
    match ldap::read(input) {
        Ok(None) => assert!(input.len() < MAX_MESSAGE, "it would wait for ever"),
        Ok(Some((message, used))) => {
            assert!(used <= input.len() && used <= MAX_MESSAGE);
            let bytes = &input[..used];
            for end in 0..used {
                assert_eq!(
                    ldap::read(&bytes[..end]),
                    Ok(None),
                    "not before it is complete"
                );
            }
            match &message.reply {
                Reply::Bind(outcome) | Reply::Done(outcome) | Reply::Extended(outcome) => {
                    // A byte that is no UTF-8 becomes three.
                    let count = outcome.words.chars().count();
                    assert!(outcome.words.len() <= 3 * used && count <= 200);
                    assert!(!outcome.to_string().contains(char::is_control));
                }
                Reply::Entry(name) => assert!(name.len() <= used),
                Reply::Other => {}
            }
            assert_eq!(ldap::read(bytes), Ok(Some((message, used))));
        }
        Err(error) => {
            assert!(error.to_string().len() < 200);
            assert!(ldap::read(&[input, b"more"].concat()).is_err());
        }
    }
}

/// A filter, and the name of a user, which changes no more than values.
pub fn ldap_filter(input: &[u8]) {
    let [filter, user, base] = texts(input);
    let escaped = ldap::escape_dn(&user);
    assert_eq!(unescaped(&escaped), user);
    let has_meaning = |at: usize| !escaped[..at].ends_with('\\');
    assert!(
        !escaped
            .match_indices(['"', '+', ',', ';', '<', '=', '>'])
            .any(|(at, _)| has_meaning(at))
    );
    let Ok(filter) = Filter::parse(&filter) else {
        return;
    };
    let shape_for = |user: &str| {
        let search = Search {
            base: &base,
            scope: Scope::Subtree,
            filter: &filter,
            user,
        };
        shape(&ldap::search(7, &search))
    };
    assert_eq!(shape_for(&user), shape_for("joe"));
}

/// The value that a part of a distinguished name stands for.
fn unescaped(escaped: &str) -> String {
    let mut value = String::new();
    let mut parts = escaped.split('\\');
    value.push_str(parts.next().unwrap());
    for part in parts {
        let (number, rest) = part.split_at(2);
        value.push(char::from(u8::from_str_radix(number, 16).unwrap()));
        value.push_str(rest);
    }
    value
}

/// The kinds of all elements of a message, those within others behind them.
fn shape(bytes: &[u8]) -> Vec<u8> {
    let mut kinds = Vec::new();
    let mut rest = bytes;
    while let [tag, first, after @ ..] = rest {
        let count = usize::from(first & 0x7f);
        let (length, content) = if first & 0x80 == 0 {
            (count, after)
        } else {
            let (digits, content) = after.split_at(count);
            let length = digits
                .iter()
                .fold(0, |sum, &digit| sum << 8 | usize::from(digit));
            (length, content)
        };
        let (content, more) = content.split_at(length);
        kinds.push(*tag);
        if tag & 0x20 != 0 {
            kinds.extend(shape(content));
            kinds.push(0);
        }
        rest = more;
    }
    assert!(rest.is_empty());
    kinds
}

/// The value of `auth_ldap_options`.
pub fn ldap_options(input: &[u8]) {
    let [options] = texts(input);
    let mut settings = Settings::default();
    match settings.assign("auth_ldap_options", &options) {
        Ok(_) => {
            let Some(shown) = settings.get("auth_ldap_options") else {
                return;
            };
            let mut again = Settings::default();
            again
                .assign("auth_ldap_options", &shown)
                .unwrap_or_else(|problem| panic!("{problem}: {shown}"));
            assert_eq!(again.get("auth_ldap_options"), Some(shown));
            let is_password =
                |word: &str| word.starts_with("ldapbindpasswd=") && word.contains("s3cret");
            let is_plain = !options.contains('"') && options.matches("s3cret").count() == 1;
            if is_plain && options.split([' ', '\t']).any(is_password) {
                assert!(!format!("{settings:?}").contains("s3cret"));
            }
        }
        Err(problem) => {
            let problem = problem.to_string();
            assert!(problem.len() < 1000);
            // Only the name of an option is shown, if it looks like one.
            let shown = problem.split(": ").nth(1).unwrap_or_default();
            let name = Some(shown).filter(|shown| shown.starts_with("ldap"));
            let rest = name.map_or(problem.clone(), |name| problem.replacen(name, "", 1));
            assert!(!rest.contains("s3cret"), "{problem}");
        }
    }
}
