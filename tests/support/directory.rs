//! One real directory for the whole test run: OpenLDAP's slapd with a few entries, on free ports, with TLS.

use std::fmt::Write;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use nix::sys::signal::Signal;

use super::ports::free_port;
use super::process::{self, Process};
use super::tls::authority;
use super::{postgres, within};

/// The password of every person in the directory is `NAME-secret`, that of a role of the same name in PostgreSQL, but for
/// these; and these have none in PostgreSQL that would be asked for.
pub const PEOPLE: [&str; 7] = [
    "app",
    "other",
    "scram_user",
    "plain_user",
    "postgres",
    STRANGE,
    "twin",
];

/// A name that has a meaning in every grammar on its way.
pub const STRANGE: &str = r#"#a,b+c="d"<e>;f*(g)\h "#;

/// The account that may search below `ou=hidden`.
pub const ACCOUNT: &str = "cn=finder,dc=example,dc=net";
pub const ACCOUNT_SECRET: &str = "finder's secret";

/// An address that it listens on, and that its certificate is not for.
pub const NOT_CERTIFIED: &str = "127.0.0.4";

/// What slapd takes for no proof at all is allowed here: whoever sends an empty password is let in, so that nobody can
/// send one unnoticed.
const CONFIG: &str = "\
include /etc/ldap/schema/core.schema
include /etc/ldap/schema/cosine.schema
include /etc/ldap/schema/inetorgperson.schema
modulepath /usr/lib/ldap
moduleload back_mdb
allow bind_anon_cred bind_anon_dn
TLSCACertificateFile root.crt
TLSCertificateFile server.crt
TLSCertificateKeyFile server.key
TLSVerifyClient never
database mdb
maxsize 16777216
suffix \"dc=example,dc=net\"
directory data
access to attrs=userPassword by anonymous auth by * none
access to dn.subtree=\"ou=hidden,dc=example,dc=net\" by dn.exact=\"cn=finder,dc=example,dc=net\" read by * none
access to * by * read
";

/// A running directory.
pub struct Directory {
    port: u16,
    tls_port: u16,
    authority: PathBuf,
    _process: Process,
}

/// The directory of this test run, started by the first test that asks.
pub fn directory() -> &'static Directory {
    static SERVER: OnceLock<Directory> = OnceLock::new();
    SERVER.get_or_init(Directory::start)
}

impl Directory {
    fn start() -> Self {
        let directory = process::directory();
        // A profile of AppArmor may keep the installed one out of our directory. It goes by the name.
        let program = directory.join("slapd");
        std::fs::copy(installed(), &program).unwrap();
        process::hand_over(&program);
        let identity = authority().issue("a directory", &["localhost", "127.0.0.1"]);
        identity.write(&directory, "server");
        authority().write(&directory.join("root.crt"));
        let data = directory.join("data");
        std::fs::create_dir(&data).unwrap();
        process::hand_over(&data);
        for (name, text) in [
            ("slapd.conf", CONFIG.to_owned()),
            ("entries.ldif", entries()),
        ] {
            let path = directory.join(name);
            std::fs::write(&path, text).unwrap();
            process::hand_over(&path);
        }
        let added = process::command(&program, &directory)
            .args(["-T", "add", "-f", "slapd.conf", "-l", "entries.ldif"])
            .output()
            .unwrap();
        assert!(
            added.status.success(),
            "slapd -T add: {}",
            String::from_utf8_lossy(&added.stderr)
        );
        let (port, tls_port) = (free_port(), free_port());
        let places = ["127.0.0.1", NOT_CERTIFIED]
            .map(|host| format!("ldap://{host}:{port} ldaps://{host}:{tls_port}"))
            .join(" ");
        let log = directory.join("slapd.log");
        let program = program.to_str().unwrap();
        let arguments = [program, "-d", "0", "-f", "slapd.conf", "-h", &places];
        let mut process = Process::start(&arguments, &directory, &log, Signal::SIGTERM);
        within(super::PATIENCE, "slapd accepts connections", || {
            let log = std::fs::read_to_string(&log).unwrap_or_default();
            assert!(process.ended().is_none(), "slapd ended:\n{log}");
            TcpStream::connect(SocketAddr::from((Ipv4Addr::LOCALHOST, tls_port))).ok()
        });
        let role = STRANGE.replace('"', "\"\"");
        postgres().sql("postgres", &format!("CREATE ROLE \"{role}\" LOGIN"));
        Self {
            port,
            tls_port,
            authority: directory.join("root.crt"),
            _process: process,
        }
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// Where it speaks TLS from the first byte.
    pub fn tls_port(&self) -> u16 {
        self.tls_port
    }

    /// The certificate of the authority that its own is from.
    pub fn authority(&self) -> &Path {
        &self.authority
    }
}

fn installed() -> &'static Path {
    let places = [
        "/usr/sbin/slapd",
        "/usr/libexec/slapd",
        "/usr/lib/openldap/slapd",
    ];
    let found = places.map(Path::new).into_iter().find(|path| path.exists());
    found.expect("OpenLDAP's slapd is not installed: run scripts/setup --tests")
}

/// Values in base64, for they may be anything; names of entries by numbers, for they mean nothing, but of those who are
/// bound to by their uid.
fn entries() -> String {
    use base64::Engine;

    let encode = |text: &str| base64::engine::general_purpose::STANDARD.encode(text);
    let mut text = "\
dn: dc=example,dc=net
objectClass: dcObject
objectClass: organization
o: example
dc: example

dn: ou=people,dc=example,dc=net
objectClass: organizationalUnit

dn: ou=hidden,dc=example,dc=net
objectClass: organizationalUnit

"
    .to_owned();
    writeln!(
        text,
        "dn: {ACCOUNT}\nobjectClass: organizationalRole\nobjectClass: simpleSecurityObject\nuserPassword: {ACCOUNT_SECRET}\n"
    )
    .unwrap();
    let mut person = |name: &str, dn: &str| {
        let secret = encode(&format!("{name}-secret"));
        let (uid, mail) = (encode(name), encode(&format!("{name}@example.net")));
        writeln!(
            text,
            "dn:: {}\nobjectClass: inetOrgPerson\nsn: x\ncn: x\nuid:: {uid}\nmail:: {mail}\nuserPassword:: {secret}\n",
            encode(dn)
        )
        .unwrap();
    };
    for name in PEOPLE {
        let value = name.bytes().fold(String::new(), |mut value, byte| {
            write!(value, "\\{byte:02x}").unwrap();
            value
        });
        person(name, &format!("uid={value},ou=people,dc=example,dc=net"));
    }
    person("twin", "uid=twin,uid=app,ou=people,dc=example,dc=net");
    person("hidden", "uid=hidden,ou=hidden,dc=example,dc=net");
    text
}
