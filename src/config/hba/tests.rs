//! Tests of reading HBA files and of finding the record of a client.

use proptest::prelude::*;

use super::*;
use crate::config::fields::tests::Memory;
use crate::config::ident;

fn read_with(text: &str, ident: &str) -> Result<(Rules, Vec<String>), String> {
    let files = Memory::new(&[
        ("/etc/hba", text),
        ("/etc/ident", ident),
        ("/etc/admins", "root, dba"),
    ]);
    let mut warnings = Vec::new();
    let rules = ident::read(Path::new("/etc/ident"), &files, &mut warnings)
        .and_then(|maps| read(Path::new("/etc/hba"), &files, &maps, &mut warnings))
        .map_err(|error| error.to_string())?;
    Ok((rules, warnings))
}

fn rules(text: &str) -> Rules {
    let (rules, warnings) = read_with(text, "").unwrap();
    assert!(warnings.is_empty(), "{warnings:?}");
    rules
}

fn refused(text: &str) -> String {
    read_with(text, "").unwrap_err()
}

/// `origin database user`, where the origin is `local`, an address, or one with `+tls`.
fn decide(rules: &Rules, attempt: &str) -> String {
    let words: Vec<&str> = attempt.split(' ').collect();
    let [origin, database, user] = words[..] else {
        panic!("{attempt}")
    };
    let (address, tls) = match origin.strip_suffix("+tls") {
        Some(address) => (address, true),
        None => (origin, false),
    };
    let origin = match address {
        "local" => Origin::Local,
        address => Origin::Host {
            address: address.parse().unwrap(),
            tls,
        },
    };
    let attempt = Attempt {
        origin,
        database,
        user,
        physical_replication: database == "(replication)",
    };
    let own = || {
        vec![(
            "10.0.0.5".parse().unwrap(),
            "255.255.255.0".parse().unwrap(),
        )]
    };
    match rules.decide(&attempt, &own) {
        Some(record) => format!("{} {}", record.place, record.method).replace("/etc/hba:", ""),
        None => "none".to_owned(),
    }
}

#[test]
fn the_first_record_that_matches_decides() {
    let rules = rules(
        r#"# TYPE   DATABASE      USER          ADDRESS            METHOD
local     pgbouncer     postgres                         peer
local     all           all                              md5
host      app           @admins       127.0.0.1/32       trust
host      app,report    "all","a b"   10.0.0.0 255.0.0.0 scram-sha-256
host      sameuser      all           samehost           password
hostssl   all           all           0.0.0.0/0          cert
hostnossl all           bad           all                reject
host      replication   repl          ::1/128            md5
host      "/^db\d{1,2}$" /^app_       samenet            md5
host      "sameuser"    all           all                trust
hostgssenc all          all           all                trust
hostnogssenc open       all           all                trust
"#,
    );
    let table = [
        ("local pgbouncer postgres", "2 peer"),
        ("local pgbouncer other", "3 md5"),
        ("127.0.0.1 app root", "4 trust"),
        ("127.0.0.1 app dba", "4 trust"),
        ("127.0.0.1 app @admins", "none"),
        ("127.0.0.2 app root", "none"),
        ("10.1.1.1 report all", "5 scram-sha-256"),
        ("10.1.1.1 report root", "none"),
        ("::1 report all", "none"),
        ("10.0.0.5 joe joe", "6 password"),
        ("10.0.0.6 joe joe", "none"),
        ("10.0.0.5 joe ann", "none"),
        ("192.0.2.1+tls x y", "7 cert"),
        ("192.0.2.1 x y", "none"),
        ("2001:db8::1+tls x bad", "none"),
        ("192.0.2.1 x bad", "8 reject"),
        ("::1 (replication) repl", "9 md5"),
        ("::1 replication repl", "none"),
        ("192.0.2.1+tls (replication) repl", "none"),
        ("10.0.0.77 db7 app_1", "10 md5"),
        ("10.0.0.77 db777 app_1", "none"),
        ("10.0.0.77 db7 my_app_1", "none"),
        ("192.0.2.1 sameuser joe", "11 trust"),
        ("192.0.2.1 open joe", "13 trust"),
    ];
    for (attempt, expected) in table {
        assert_eq!(decide(&rules, attempt), expected, "{attempt}");
    }
}

#[test]
fn without_a_record_nobody_gets_in_and_that_is_said() {
    let (rules, warnings) = read_with("# nothing\n", "").unwrap();
    assert!(rules.is_empty());
    assert_eq!(decide(&rules, "local app app"), "none");
    assert_eq!(
        warnings,
        ["/etc/hba: there are no rules in it, so nobody can log in"]
    );
}

#[test]
fn what_only_postgresql_can_know_is_skipped_with_a_warning() {
    let text = "host samerole all all md5
host app,samegroup all all md5
host all +staff all md5
host all all db.example md5
host all all all gss include_realm=0
local all all ident map=x
host all all all md5
";
    let (rules, warnings) = read_with(text, "").unwrap();
    assert_eq!(decide(&rules, "10.0.0.5 app app"), "7 md5");
    insta::assert_snapshot!(warnings.join("\n"), @r#"
    /etc/hba:1: line skipped: samerole: pgferry does not know who is a member of which role
    /etc/hba:2: line skipped: samegroup: pgferry does not know who is a member of which role
    /etc/hba:3: line skipped: +staff: pgferry does not know who is a member of which role
    /etc/hba:4: line skipped: db.example: names of hosts are not looked up
    /etc/hba:5: line skipped: method gss: only PostgreSQL itself has it
    /etc/hba:6: line skipped: method ident: only PostgreSQL itself has it
    "#);
}

#[test]
fn a_rejection_is_never_skipped() {
    insta::assert_snapshot!(
        ["host all +staff all reject", "host samerole all all reject", "host all all db.example reject"]
            .map(refused)
            .join("\n"),
        @r#"
        /etc/hba:1: +staff: pgferry does not know who is a member of which role, so it is not known whom to reject
        /etc/hba:1: samerole: pgferry does not know who is a member of which role, so it is not known whom to reject
        /etc/hba:1: db.example: names of hosts are not looked up, so it is not known whom to reject
        "#
    );
}

#[test]
fn a_quoted_sign_is_part_of_the_name() {
    let rules = rules(
        r#"host "samerole" "+staff" all trust
host all "@admins" all md5"#,
    );
    assert_eq!(decide(&rules, "10.0.0.5 samerole +staff"), "1 trust");
    assert_eq!(decide(&rules, "10.0.0.5 x @admins"), "2 md5");
}

#[test]
fn a_line_that_can_not_be_used_is_named_and_explained() {
    let lines = [
        "hots all all all md5",
        "host",
        "host all",
        "host all all",
        "host all all all",
        "local all all",
        "host all all 10.0.0.0/33 md5",
        "host all all 10.0.0.0 md5",
        "host all all 10.0.0.0 ffff:: md5",
        "host all all 10.0.0.300 md5",
        "host all all all,samenet md5",
        "host all all all mdfive",
        "host all all all ldap",
        "host all all all ldap ldapserver=x ldapprefix=cn=a,dc=b",
        "host all all all ldap map=m",
        "host all all all pam",
        "host all /( all md5",
        "host all \"a all md5",
        "host all a, all md5",
        "host all @nobody all md5",
        "host all all all md5 clientcert=verify-full",
        "host all all all md5 nonsense",
        "host all all all md5 map=m",
        "local all all peer map=m",
        "include nowhere",
    ];
    insta::assert_snapshot!(
        lines.map(|line| refused(&format!("\n{line}\n"))).join("\n"),
        @r#"
        /etc/hba:2: unknown kind of connection "hots": expected local, host, hostssl or hostnossl
        /etc/hba:2: the line ends where the databases should be
        /etc/hba:2: the line ends where the users should be
        /etc/hba:2: the line ends where the address should be
        /etc/hba:2: the line ends where the method should be
        /etc/hba:2: the line ends where the method should be
        /etc/hba:2: "10.0.0.0/33" is no network: the number behind the slash is wrong
        /etc/hba:2: "md5" is no mask
        /etc/hba:2: "ffff::" is no mask of this kind of address
        /etc/hba:2: "10.0.0.300" is no address
        /etc/hba:2: expected the address, not a list
        /etc/hba:2: unknown method "mdfive": expected one of trust, reject, md5, scram-sha-256, password, peer, cert, ldap
        /etc/hba:2: method ldap: ldapserver is missing
        /etc/hba:2: method ldap: a word that is none of ldapserver, ldapport, ldapscheme, ldaptls, ldapprefix, ldapsuffix, ldapbasedn, ldapbinddn, ldapbindpasswd, ldapsearchattribute, ldapsearchfilter, ldapurl (a value with a blank or a comma has to stand in double quotes)
        /etc/hba:2: method ldap: a word that is none of ldapserver, ldapport, ldapscheme, ldaptls, ldapprefix, ldapsuffix, ldapbasedn, ldapbinddn, ldapbindpasswd, ldapsearchattribute, ldapsearchfilter, ldapurl (a value with a blank or a comma has to stand in double quotes)
        /etc/hba:2: method pam: there is only auth_type = pam, for everybody
        /etc/hba:2: the pattern /( cannot be read: unclosed group
        /etc/hba:2: unterminated quote
        /etc/hba:2: the line ends where the method should be
        /etc/hba:2: cannot read /etc/nobody: entity not found
        /etc/hba:2: unknown option "clientcert": expected map
        /etc/hba:2: expected an option like map=name, not "nonsense"
        /etc/hba:2: option map is for the methods peer and cert, not for md5
        /etc/hba:2: auth_ident_file has no map "m"
        /etc/hba:2: cannot read /etc/nowhere: entity not found
        "#
    );
}

#[test]
fn a_line_with_ldap_says_which_directory() {
    let text = "host all all all ldap ldapserver=\"a b\" ldapprefix=\"cn=\" ldapsuffix=\",dc=x\", ldapport=7\n\
                host all all all ldap ldapurl=\"ldap://c/dc=x?uid?sub\"\n";
    let (rules, warnings) = read_with(text, "").unwrap();
    let servers: Vec<String> = rules
        .directories()
        .flat_map(|directory| &directory.servers)
        .map(ToString::to_string)
        .collect();
    assert_eq!(servers, ["a:7", "b:7", "c:389"]);
    assert!(warnings.is_empty());
    assert_eq!(decide(&rules, "10.0.0.5 app app"), "1 ldap");
}

#[test]
fn a_record_that_can_let_nobody_in_is_a_warning() {
    let text = "host all all all peer\nlocal all all cert\nhostnossl all all all cert\nhost all all all cert\n";
    let (rules, warnings) = read_with(text, "").unwrap();
    assert_eq!(decide(&rules, "local app app"), "2 cert");
    insta::assert_snapshot!(warnings.join("\n"), @r#"
    /etc/hba:1: peer needs a Unix socket: this line lets nobody in
    /etc/hba:2: cert needs TLS: this line lets nobody in
    /etc/hba:3: cert needs TLS: this line lets nobody in
    "#);
}

#[test]
fn without_a_map_names_must_be_equal_and_with_one_it_decides() {
    let (rules, _) = read_with(
        "local all all peer map=m\nlocal all all peer\n",
        "m alice app\n",
    )
    .unwrap();
    let [mapped, plain] = &rules.records[..] else {
        panic!()
    };
    assert!(mapped.admits("alice", "app") && !mapped.admits("app", "app"));
    assert!(plain.admits("app", "app") && !plain.admits("alice", "app"));
}

#[test]
fn the_same_text_makes_equal_rules_and_another_does_not() {
    let text = "host /^a all all md5\n";
    assert_eq!(rules(text), rules(text));
    assert_ne!(rules(text), rules("host /^b all all md5\n"));
}

fn word() -> impl Strategy<Value = String> {
    let words = [
        "local",
        "host",
        "hostssl",
        "hostnossl",
        "all",
        "sameuser",
        "samerole",
        "replication",
        "samenet",
        "10.0.0.0/8",
        "10.0.0.0",
        "255.0.0.0",
        "::/0",
        "trust",
        "reject",
        "md5",
        "peer",
        "cert",
        "map=m",
        "@admins",
        "/^a(b)?$",
        "+x",
        "\"q q\"",
        ",",
        "#",
        "\\\n",
        "\n",
        "include",
        "include_dir",
        "/etc",
        "\"",
        "a.example",
        "ldap",
    ];
    prop_oneof![
        8 => proptest::sample::select(words.to_vec()).prop_map(str::to_owned),
        1 => "\\PC{0,6}",
    ]
}

proptest! {
    #[test]
    fn no_text_makes_the_parser_panic(words in proptest::collection::vec(word(), 0..30), ident in "\\PC{0,40}") {
        let text = words.join(" ");
        if let Ok((rules, _)) = read_with(&text, &ident).or_else(|_| read_with(&text, "m a b")) {
            decide(&rules, "10.0.0.5 app app");
            decide(&rules, "local app app");
        }
    }
}
