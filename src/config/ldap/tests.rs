use super::*;

fn parse(text: &str) -> Result<Directory, String> {
    match Options::parse(text) {
        Ok(options) => Ok((**options.directory().unwrap()).clone()),
        Err(Fault::Hidden(why)) => Err(why),
        Err(other) => panic!("{other:?}"),
    }
}

fn servers(text: &str) -> String {
    let directory = parse(text).unwrap();
    let servers: Vec<String> = directory.servers.iter().map(ToString::to_string).collect();
    format!("{:?} {}", directory.encryption, servers.join(" "))
}

#[test]
fn a_name_is_made_of_a_prefix_and_a_suffix() {
    let directory =
        parse(r#"ldapserver=h ldapprefix="cn=" ldapsuffix=", dc=example, dc=net""#).unwrap();
    let expected = Entry::Named {
        prefix: "cn=".to_owned(),
        suffix: ", dc=example, dc=net".to_owned(),
    };
    assert_eq!(directory.entry, expected);
    let with_one = parse(r#""ldapsuffix=@example.net" ldapserver=h"#).unwrap();
    let expected = Entry::Named {
        prefix: String::new(),
        suffix: "@example.net".to_owned(),
    };
    assert_eq!(with_one.entry, expected);
}

#[test]
fn an_entry_is_found_by_an_attribute_a_filter_or_its_uid() {
    let found = |text: &str| match parse(text).unwrap().entry {
        Entry::Found {
            base,
            scope,
            filter,
            account,
        } => (base, scope, filter, account.map(|account| account.name)),
        other @ Entry::Named { .. } => panic!("{other:?}"),
    };
    let expected = |filter: &str, account: Option<&str>| {
        let filter = Filter::parse(filter).unwrap();
        (
            "dc=x".to_owned(),
            Scope::Subtree,
            filter,
            account.map(str::to_owned),
        )
    };
    assert_eq!(
        found("ldapserver=h ldapbasedn=dc=x"),
        expected("(uid=$username)", None)
    );
    assert_eq!(
        found("ldapserver=h ldapbasedn=dc=x ldapsearchattribute=mail"),
        expected("(mail=$username)", None)
    );
    assert_eq!(
        found(
            r#"ldapserver=h ldapbasedn=dc=x ldapbinddn="cn=a b" ldapbindpasswd="p ""q""" ldapsearchfilter="(|(a=$username)(b=$username))""#
        ),
        expected("(|(a=$username)(b=$username))", Some("cn=a b"))
    );
}

#[test]
fn servers_are_a_list_with_one_port() {
    let rest = "ldapprefix=x";
    for (text, expected) in [
        ("ldapserver=h", "None h:389"),
        (
            "ldapserver=\"a b  c\" ldapport=1389",
            "None a:1389 b:1389 c:1389",
        ),
        ("ldapserver=h ldaptls=1", "StartTls h:389"),
        ("ldapserver=h ldaptls=0", "None h:389"),
        ("ldapserver=h ldapscheme=ldaps", "Ldaps h:636"),
        ("ldapserver=h ldapscheme=LDAP", "None h:389"),
        ("ldapserver=\"[::1] ::2\"", "None [::1]:389 [::2]:389"),
        ("ldapurl=ldap://h", "None h:389"),
        ("ldapurl=ldaps://h:7/", "Ldaps h:7"),
        ("ldapurl=ldap://[::1]:7", "None [::1]:7"),
        ("ldapserver=h ldapurl=ldap:///", "None h:389"),
        ("ldapurl=ldap://h%20i", "None h:389 i:389"),
    ] {
        assert_eq!(servers(&format!("{text} {rest}")), expected, "{text}");
    }
}

#[test]
fn a_url_stands_for_several_options() {
    let long = |text: &str| parse(&format!("ldapserver=h ldapbasedn=\"dc=x, dc=y\" {text}"));
    let table = [
        ("ldap://h/dc=x,%20dc=y?mail?sub", "ldapsearchattribute=mail"),
        (
            "ldap://h/dc=x,%20dc=y?mail,cn?sub",
            "ldapsearchattribute=mail",
        ),
        ("ldap://h/dc=x,%20dc=y??sub", ""),
        (
            "ldap://h/dc=x,%20dc=y??sub?(%26(a=$username)(b=c))",
            "ldapsearchfilter=(&(a=$username)(b=c))",
        ),
    ];
    for (url, options) in table {
        assert_eq!(parse(&format!("ldapurl=\"{url}\"")), long(options), "{url}");
    }
    for (word, expected) in [
        ("", Scope::Base),
        ("?base", Scope::Base),
        ("?one", Scope::OneLevel),
        ("?sub", Scope::Subtree),
    ] {
        let directory = parse(&format!("ldapurl=ldap://h/dc=x?uid{word}")).unwrap();
        let Entry::Found { scope, .. } = directory.entry else {
            panic!("no search")
        };
        assert_eq!(scope, expected, "{word}");
    }
}

#[test]
fn options_that_do_not_go_together_are_named_and_explained() {
    let texts = [
        "ldapprefix=cn=",
        "ldapserver=h",
        "ldapserver=\" \" ldapprefix=cn=",
        "ldapserver=h ldapprefix=cn= ldapbasedn=dc=x",
        "ldapserver=h ldapsuffix=x ldapsearchattribute=uid",
        "ldapprefix=cn= ldapurl=ldap://h/dc=x",
        "ldapserver=h ldapsearchattribute=uid",
        "ldapserver=h ldapbasedn=dc=x ldapsearchattribute=uid ldapsearchfilter=(uid=$username)",
        "ldapserver=h ldapbasedn=dc=x ldapbinddn=cn=a",
        "ldapserver=h ldapbasedn=dc=x ldapbindpasswd=s3cret",
        "ldapserver=h ldapbasedn=dc=x ldapbinddn=cn=a ldapbindpasswd=",
        "ldapserver=h ldapbasedn=dc=x ldapsearchfilter=(uid=jo)",
        "ldapserver=h ldapbasedn=dc=x ldapsearchfilter=(uid=$username",
        "ldapserver=h ldapbasedn=dc=x ldapsearchattribute=a*",
        "ldapserver=h ldapprefix=x ldaptls=1 ldapscheme=ldaps",
        "ldapserver=h ldapprefix=x ldaptls=yes",
        "ldapserver=h ldapprefix=x ldapport=0",
        "ldapserver=h ldapprefix=x ldapscheme=ldapi",
        "ldapserver=h ldapprefix=x ldapurl=ldap:h",
        "ldapurl=ldap://u@h/dc=x",
        "ldapurl=ldap://h/dc=x??sub??x-bindpw=s3cret",
        "ldapurl=ldap://h/dc=x?uid?all",
        "ldapurl=ldap://h/dc=%zz",
        "ldapserver=h ldapprefix=x ldapuser=y",
        "ldapserver=h ldapbindpasswd=s3cret s3cret=1",
        "ldapserver=h ldapbindpasswd=\"s3cret",
        "s3cret",
    ];
    let refused: Vec<String> = texts.map(|text| parse(text).unwrap_err()).to_vec();
    assert!(!refused.iter().any(|text| text.contains("s3cret")));
    insta::assert_snapshot!(refused.join("\n"), @r#"
    ldapserver is missing
    ldapprefix or ldapsuffix is needed, or ldapbasedn for a search
    ldapserver is missing
    ldapbasedn is for a search, and can't be used together with ldapprefix or ldapsuffix, which make the name without one
    ldapsearchattribute is for a search, and can't be used together with ldapprefix or ldapsuffix, which make the name without one
    ldapbasedn is for a search, and can't be used together with ldapprefix or ldapsuffix, which make the name without one
    ldapprefix or ldapsuffix is needed, or ldapbasedn for a search
    ldapsearchattribute and ldapsearchfilter can't be used together
    ldapbinddn and ldapbindpasswd need each other
    ldapbinddn and ldapbindpasswd need each other
    ldapbinddn and ldapbindpasswd need each other
    ldapsearchfilter: $username is not in it, so it would find the same entry for every user
    ldapsearchfilter: bad filter: a closing parenthesis is missing
    ldapsearchattribute: bad filter: a name of an attribute that cannot be one
    ldaptls=1 is for ldapscheme=ldap: with ldaps, TLS is there from the start
    ldaptls: expected 0 or 1
    ldapport: expected a port, 1 to 65535
    ldapscheme: expected ldap or ldaps
    ldapurl: expected a URL that begins with ldap:// or ldaps://
    ldapurl: a URL of LDAP has no user in it
    ldapurl: extensions are not supported
    ldapurl: the scope must be base, one or sub
    ldapurl: two hexadecimal digits must follow a percent sign
    ldapuser: no such option; there are ldapserver, ldapport, ldapscheme, ldaptls, ldapprefix, ldapsuffix, ldapbasedn, ldapbinddn, ldapbindpasswd, ldapsearchattribute, ldapsearchfilter, ldapurl
    a word that is none of ldapserver, ldapport, ldapscheme, ldaptls, ldapprefix, ldapsuffix, ldapbasedn, ldapbinddn, ldapbindpasswd, ldapsearchattribute, ldapsearchfilter, ldapurl (a value with a blank or a comma has to stand in double quotes)
    unterminated quote
    a word that is none of ldapserver, ldapport, ldapscheme, ldaptls, ldapprefix, ldapsuffix, ldapbasedn, ldapbinddn, ldapbindpasswd, ldapsearchattribute, ldapsearchfilter, ldapurl (a value with a blank or a comma has to stand in double quotes)
    "#);
}

#[test]
fn what_looks_like_no_option_is_not_shown() {
    for text in [
        "ldap\u{1b}[s3cret=x",
        "ldap-s3cret=x",
        "\"ldapserver s3cret=x\"",
    ] {
        let refused = parse(text).unwrap_err();
        assert!(
            refused.starts_with("a word that is none of ldapserver, "),
            "{refused}"
        );
    }
}

#[test]
fn what_is_shown_has_no_password() {
    let text = r#"ldapserver=h ldapbasedn="dc=x, dc=y" ldapbinddn=cn=a ldapbindpasswd="s3 cret""#;
    let options = Options::parse(text).unwrap();
    assert_eq!(
        options.print(),
        r#"ldapserver=h ldapbasedn="dc=x, dc=y" ldapbinddn=cn=a ldapbindpasswd=(..)"#
    );
    assert!(!format!("{options:?}").contains("s3"));
    let other = Options::parse(&text.replace("cret", "krit")).unwrap();
    assert_eq!(other.print(), options.print());
    assert_ne!(other, options);
    let whole = r#"ldapserver=h ldapbasedn=x ldapbinddn=y "ldapbindpasswd=s3 cret""#;
    let shown = Options::parse(whole).unwrap().print();
    assert!(shown.ends_with("ldapbindpasswd=(..)"), "{shown}");
}

#[test]
fn nothing_written_is_not_set() {
    let options = Options::parse(" ").unwrap();
    assert!(!options.is_set());
    assert_eq!(options.print(), "");
}
