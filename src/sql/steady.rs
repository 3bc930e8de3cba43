//! Does a text mean the same each time it is read?
//!
//! A prepared statement is read once, an unnamed one each time. PostgreSQL reads the prepared one again when a table, function or
//! schema that it uses has changed (`sql-prepare`), but never what was settled at the first reading and depends on nothing: the
//! types of parameters that it had to infer, and the values of constants. Owns the judgement on those. What texts
//! do to a session is `touches`', which is asked besides.

use super::lexer::{Lexer, TokenKind, begins_with};

/// How far a text can be trusted to mean the same when it is read again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Steady {
    /// It can't: it may be read differently at any time, or says something when it is read.
    No,
    /// As long as tables and types stay as they are.
    UntilChanged,
    /// Whatever becomes of tables and types, PostgreSQL notices.
    Always,
}

/// Longer names are cut by PostgreSQL, with a notice each time that it reads them.
const LONGEST_NAME: usize = 63;

/// The first type that is not PostgreSQL's own and so may be dropped (`FirstNormalObjectId`).
const FIRST_OWN_TYPE: u32 = 16_384;

/// The type `unknown`: the same as none.
const UNKNOWN_TYPE: u32 = 705;

/// No type: PostgreSQL is to infer it.
const NO_TYPE: u32 = 0;

/// String constants with these in them may stand for the moment at which they are read (`datatype-datetime-special-values`).
const MOMENTS: [&[u8]; 4] = [b"now", b"today", b"tomorrow", b"yesterday"];

/// Types that a parameter may be cast to, as they are named in the catalog or by SQL.
const CASTS: [&[u8]; 24] = [
    b"bigint",
    b"bool",
    b"boolean",
    b"bytea",
    b"date",
    b"decimal",
    b"float4",
    b"float8",
    b"int",
    b"int2",
    b"int4",
    b"int8",
    b"integer",
    b"json",
    b"jsonb",
    b"numeric",
    b"real",
    b"smallint",
    b"text",
    b"time",
    b"timestamp",
    b"timestamptz",
    b"uuid",
    b"varchar",
];

/// What can be prepared and only reads or writes rows.
const HEADS: [&[u8]; 7] = [
    b"select", b"insert", b"update", b"delete", b"with", b"values", b"merge",
];

/// How far a text can be trusted. Takes time in proportion to its length.
///
/// `types` are those of its parameters as Parse has them (`protocol-message-formats`): a 16-bit count and so many OIDs.
pub fn steadiness(sql: &[u8], types: &[u8]) -> Steady {
    let mut tokens = Lexer::new(sql).significant().peekable();
    let is_plain = |word: &[u8]| HEADS.iter().any(|head| word.eq_ignore_ascii_case(head));
    if !tokens.peek().is_some_and(|first| is_plain(first.of(sql))) || sql.contains(&b'\\') {
        return Steady::No;
    }
    let mut steady = Steady::Always;
    while let Some(token) = tokens.next() {
        let text = token.of(sql);
        let of_this = match token.kind {
            TokenKind::Unterminated | TokenKind::UnicodeName => Steady::No,
            TokenKind::Word | TokenKind::QuotedName if text.len() > LONGEST_NAME => Steady::No,
            TokenKind::Word if text.eq_ignore_ascii_case(b"pg_temp") => Steady::No,
            // A precision that is too high is warned of.
            TokenKind::Word if is_time(text) => match tokens.peek().map(|next| next.of(sql)) {
                Some(b"(") => Steady::No,
                _ => Steady::Always,
            },
            TokenKind::Text => constant(text),
            TokenKind::Number if text.starts_with(b"$") => {
                if has_type(types, text) {
                    Steady::Always
                } else {
                    let mut next = tokens.clone().map(|token| token.of(sql));
                    let is_cast = next.next() == Some(b":") && next.next() == Some(b":");
                    let cast = next.next().filter(|_| is_cast);
                    let is_known =
                        |name: &[u8]| CASTS.iter().any(|it| name.eq_ignore_ascii_case(it));
                    if cast.is_some_and(is_known) {
                        Steady::Always
                    } else {
                        Steady::UntilChanged
                    }
                }
            }
            _ => Steady::Always,
        };
        steady = steady.min(of_this);
    }
    steady
}

fn is_time(word: &[u8]) -> bool {
    [
        &b"time"[..],
        b"interval",
        b"localtime",
        b"current_time",
        b"minute",
        b"second",
    ]
    .into_iter()
    .any(|with| begins_with(word, with))
}

/// A string constant becomes a value when it is read, by the input function of whatever type it has then.
fn constant(text: &[u8]) -> Steady {
    let holds = |word: &&[u8]| {
        text.windows(word.len())
            .any(|part| part.eq_ignore_ascii_case(word))
    };
    if MOMENTS.iter().any(holds) {
        Steady::No
    } else if text
        .iter()
        .any(|byte| byte.is_ascii_alphabetic() || !byte.is_ascii())
    {
        // It may be the name of something: of a value of an enum, of a text search configuration.
        Steady::UntilChanged
    } else {
        Steady::Always
    }
}

/// Has the client said what type this parameter (`$1`) has, and can that one not be dropped?
fn has_type(types: &[u8], parameter: &[u8]) -> bool {
    let digits = parameter.get(1..).unwrap_or_default();
    let number: Option<usize> = std::str::from_utf8(digits)
        .ok()
        .and_then(|digits| digits.parse().ok());
    let oids = types.get(2..).unwrap_or_default();
    let (oids, _) = oids.as_chunks::<4>();
    let oid = number
        .and_then(|number| oids.get(number.checked_sub(1)?))
        .map_or(NO_TYPE, |oid| u32::from_be_bytes(*oid));
    oid != NO_TYPE && oid != UNKNOWN_TYPE && oid < FIRST_OWN_TYPE
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(sql: &str, types: &[u32]) -> Steady {
        let count = u16::try_from(types.len()).unwrap();
        let mut bytes = count.to_be_bytes().to_vec();
        for oid in types {
            bytes.extend_from_slice(&oid.to_be_bytes());
        }
        steadiness(sql.as_bytes(), &bytes)
    }

    #[test]
    fn what_is_typed_or_cast_or_without_parameters_is_always_the_same() {
        assert_eq!(of("select * from t", &[]), Steady::Always);
        assert_eq!(of("select * from t where id = $1", &[23]), Steady::Always);
        assert_eq!(
            of("select * from t where id = $1::INT", &[]),
            Steady::Always
        );
        assert_eq!(
            of("/* x */ values ($1 :: text, $2)", &[0, 25]),
            Steady::Always
        );
        assert_eq!(
            of("select '', '2020-01-01', 7.5, current_timestamp;", &[]),
            Steady::Always
        );
    }

    #[test]
    fn parameters_that_postgres_has_to_infer_depend_on_tables() {
        for types in [&[][..], &[0], &[705], &[16_390]] {
            assert_eq!(
                of("select * from t where id = $1", types),
                Steady::UntilChanged
            );
        }
        assert_eq!(of("select $1::int, $1", &[]), Steady::UntilChanged);
        assert_eq!(of("select $1::mood", &[]), Steady::UntilChanged);
        assert_eq!(of("select $1, $2", &[23]), Steady::UntilChanged);
        assert_eq!(
            of("select $0, $99999999999999999999", &[23]),
            Steady::UntilChanged
        );
    }

    #[test]
    fn constants_may_name_something_or_a_moment() {
        assert_eq!(
            of("select * from t where mood = 'sad'", &[]),
            Steady::UntilChanged
        );
        assert_eq!(of("select $x$y$x$, x'00'", &[]), Steady::UntilChanged);
        for text in [
            "'now'::timestamptz",
            "' TODAY'",
            "'{tomorrow}'",
            "E'yesterday'",
            "E'\\x6eow'",
        ] {
            assert_eq!(of(&format!("select {text}"), &[]), Steady::No, "{text}");
        }
    }

    #[test]
    fn what_is_no_query_or_says_something_when_it_is_read_is_not_steady() {
        for text in [
            "",
            "begin",
            "create table t ()",
            "explain select 1",
            "select * from pg_temp.t",
            "select 'open",
            "select U&\"x\"",
            "select null::timestamp(9)",
            "select current_timestamp(9)",
            "select interval '1' second (9)",
            &format!("select {}", "a".repeat(64)),
            &format!("select \"{}\"", "a".repeat(64)),
        ] {
            assert_eq!(of(text, &[]), Steady::No, "{text}");
        }
    }
}
