use super::*;

fn expected<T: std::fmt::Debug>(result: Result<T, Fault>) -> String {
    match result {
        Err(Fault::Expected(text)) => text,
        other => panic!("{other:?}"),
    }
}

#[test]
fn integers_are_read_in_any_base_c_knows() {
    assert_eq!(usize::parse("20"), Ok(20));
    assert_eq!(usize::parse("0x10"), Ok(16));
    assert_eq!(usize::parse("010"), Ok(8));
    assert_eq!(usize::parse("0"), Ok(0));
    assert_eq!(usize::parse("4294967295"), Ok(4_294_967_295));
    assert!(signed_int("2147483648").is_err());
    for bad in [
        "",
        "-1",
        "08",
        "1.5",
        "ten",
        "0x",
        "+-1",
        "4294967296",
        "1 2",
    ] {
        assert!(usize::parse(bad).is_err(), "{bad}");
    }
    assert_eq!(signed_int("-1"), Ok(-1));
}

#[test]
fn booleans_are_integers() {
    assert_eq!(bool::parse("1"), Ok(true));
    assert_eq!(bool::parse("0"), Ok(false));
    assert_eq!(expected(bool::parse("yes")), "0 or 1");
    assert_eq!(expected(bool::parse("true")), "0 or 1");
}

#[test]
fn times_are_decimal_seconds_kept_to_the_microsecond() {
    assert_eq!(Duration::parse("1.5"), Ok(Duration::from_millis(1500)));
    assert_eq!(Duration::parse(".25"), Ok(Duration::from_millis(250)));
    assert_eq!(Duration::parse("0.0000019"), Ok(Duration::from_micros(1)));
    for bad in ["", ".", "-1", "1s", "1,5", "inf", "1e3", "99999999999"] {
        assert!(Duration::parse(bad).is_err(), "{bad}");
    }
    assert_eq!(Duration::from_millis(1500).print(), "1.5");
    assert_eq!(Duration::from_secs(3600).print(), "3600");
}

#[test]
fn sizes_take_units_and_print_in_the_largest_that_is_exact() {
    assert_eq!(ByteSize::parse("256MB"), Ok(ByteSize(256 << 20)));
    assert_eq!(ByteSize::parse("64 kb"), Ok(ByteSize(64 << 10)));
    assert_eq!(ByteSize::parse("1000"), Ok(ByteSize(1000)));
    for bad in ["", "MB", "1TB", "-1", "99999999999999GB"] {
        assert!(ByteSize::parse(bad).is_err(), "{bad}");
    }
    assert_eq!(ByteSize(256 << 20).to_string(), "256MB");
    assert_eq!(ByteSize(1000).to_string(), "1000");
    assert_eq!(ByteSize(0).to_string(), "0");
}

#[test]
fn words_ignore_case_and_a_mode_is_octal_by_its_leading_zero() {
    assert_eq!(PoolMode::parse("Transaction"), Ok(PoolMode::Transaction));
    assert_eq!(
        expected(PoolMode::parse("x")),
        "one of session, transaction, statement"
    );
    assert_eq!(AuthType::parse("scram-sha-256"), Ok(AuthType::ScramSha256));
    assert_eq!(AuthType::parse("ldap"), Ok(AuthType::Ldap));
    assert_eq!(AuthType::Pam.if_built(true), Ok(AuthType::Pam));
    assert_eq!(
        AuthType::Pam.if_built(false),
        Err(Fault::NotBuiltIn("PAM", "pam"))
    );
    assert_eq!(
        AuthType::parse("pam"),
        AuthType::Pam.if_built(cfg!(feature = "pam"))
    );
    assert_eq!(
        Mode::parse("0777").map(|mode| mode.print()),
        Ok("511".to_owned())
    );
    assert!(Mode::parse("rwx").is_err());
}

#[test]
fn lists_are_separated_by_commas_or_blanks() {
    assert_eq!(
        Vec::parse("a, b c,,d"),
        Ok(vec!["a".into(), "b".into(), "c".into(), "d".into()])
    );
    assert_eq!(Vec::<String>::parse(""), Ok(vec![]));
}

#[test]
fn a_fraction_is_between_none_and_all() {
    for (text, value) in [("0", 0.0), ("1", 1.0), ("0.001", 0.001), (".5", 0.5)] {
        assert_eq!(Fraction::parse(text), Ok(Fraction(value)));
    }
    assert_eq!(Fraction(0.25).print(), "0.25");
    for text in ["", ".", "-0", "1.1", "1e-3", "nan", "inf", "10%", "+1"] {
        assert!(Fraction::parse(text).is_err(), "{text}");
    }
}
