//! Settings whose value is one of a few words: an enum each, with the words a file uses and SHOW prints.

use std::fmt;

use super::{Fault, Value};

/// The one of `words` that `text` is, case ignored.
pub(super) fn word(text: &str, words: &[&'static str]) -> Result<&'static str, Fault> {
    words
        .iter()
        .find(|known| known.eq_ignore_ascii_case(text))
        .copied()
        .ok_or_else(|| Fault::Expected(format!("one of {}", words.join(", "))))
}

/// Makes an enum whose variants are words of a file.
macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $word:literal,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
        pub enum $name {
            $($(#[$variant_doc])* $variant,)*
        }

        impl $name {
            /// The words of the setting, in the order of the variants.
            pub const WORDS: &'static [&'static str] = &[$($word,)*];

            /// The word a file uses and SHOW prints.
            pub fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $word,)*
                }
            }
        }

        impl Value for $name {
            fn parse(text: &str) -> Result<Self, Fault> {
                let found = word(text, Self::WORDS)?;
                let all = [$(Self::$variant,)*];
                Ok(all.into_iter().find(|it| it.as_str() == found).unwrap_or_default())
            }

            fn print(&self) -> String {
                self.as_str().to_owned()
            }
        }
    };
}

words! {
    /// Where syslog files our lines (PgBouncer setting `syslog_facility`, RFC 5424 section 6.2.1).
    Facility {
        /// Logins and permissions.
        Auth = "auth",
        /// The same, not for everybody's eyes.
        Authpriv = "authpriv",
        /// Processes in the background.
        #[default]
        Daemon = "daemon",
        /// Programs of users.
        User = "user",
        /// For local use.
        Local0 = "local0",
        /// For local use.
        Local1 = "local1",
        /// For local use.
        Local2 = "local2",
        /// For local use.
        Local3 = "local3",
        /// For local use.
        Local4 = "local4",
        /// For local use.
        Local5 = "local5",
        /// For local use.
        Local6 = "local6",
        /// For local use.
        Local7 = "local7",
    }
}

impl Facility {
    /// Its number in the head of a message (RFC 5424 section 6.2.1, table 1).
    pub fn number(self) -> u8 {
        match self {
            Self::User => 1,
            Self::Daemon => 3,
            Self::Auth => 4,
            Self::Authpriv => 10,
            Self::Local0 => 16,
            Self::Local1 => 17,
            Self::Local2 => 18,
            Self::Local3 => 19,
            Self::Local4 => 20,
            Self::Local5 => 21,
            Self::Local6 => 22,
            Self::Local7 => 23,
        }
    }
}

words! {
    /// What becomes of a client whose session is such that no other server could take it over, outside of session
    /// pooling (`pin_policy`).
    PinPolicy {
        /// It keeps its server for as long as that is so.
        #[default]
        Auto = "auto",
        /// It is sent away.
        Refuse = "refuse",
        /// As in PgBouncer: nobody looks, and whoever is next finds what it has left.
        Off = "off",
    }
}

words! {
    /// Is it seen to that `currval` and `lastval` say what the client itself has drawn, where sessions are followed
    /// (`follow_sequences`)?
    FollowSequences {
        /// From when somebody in the pool asks them.
        #[default]
        Auto = "auto",
        /// From the beginning: whoever draws keeps its server.
        On = "on",
        /// No: they say what whoever had the server before has drawn.
        Off = "off",
    }
}

words! {
    /// What SIGTERM does (`shutdown_mode`).
    ShutdownMode {
        /// Who is connected is served until it leaves, however long that takes.
        #[default]
        WaitForClients = "wait_for_clients",
        /// Clients are sent away between transactions, and all is over after `drain_timeout`.
        Drain = "drain",
    }
}

words! {
    /// Which texts of unnamed statements are prepared (`prepare_unnamed_texts`).
    UnnamedTexts {
        /// Those of which PostgreSQL notices whatever could change what they mean.
        #[default]
        Proven = "proven",
        /// Also those with parameters whose types PostgreSQL has to infer, and with words in string constants.
        All = "all",
    }
}

words! {
    /// What the log has of the text of a slow query (`log_statement_text`).
    LogText {
        /// Nothing.
        #[default]
        Off = "off",
        /// The text without its constants.
        Normalized = "normalized",
        /// The text as it came, with the data in it.
        Full = "full",
    }
}

words! {
    /// Where a client may say to which trace a transaction belongs (`otlp_traceparent`).
    TraceSource {
        /// Nowhere.
        #[default]
        Off = "off",
        /// In a comment at the beginning or the end of a text.
        Comment = "comment",
        /// In its `application_name`.
        ApplicationName = "application_name",
        /// In either; the comment comes first.
        Both = "both",
    }
}

words! {
    /// Which of several hosts a new server is made at (PgBouncer: `load_balance_hosts` of a database).
    LoadBalance {
        /// The next one, each time.
        #[default]
        RoundRobin = "round-robin",
        /// The same one, as long as it can be reached.
        Disable = "disable",
    }
}

/// When a server goes back to its pool (PgBouncer setting `pool_mode`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum PoolMode {
    /// When the client leaves.
    #[default]
    Session,
    /// At the end of each transaction.
    Transaction,
    /// At the end of each statement; transaction blocks are refused.
    Statement,
}

impl PoolMode {
    /// The words of the setting, in the order of the variants.
    pub const WORDS: &'static [&'static str] = &["session", "transaction", "statement"];

    /// The word a file uses and SHOW prints.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Session => "session",
            Self::Transaction => "transaction",
            Self::Statement => "statement",
        }
    }
}

impl fmt::Display for PoolMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Value for PoolMode {
    fn parse(text: &str) -> Result<Self, Fault> {
        let modes = [Self::Session, Self::Transaction, Self::Statement];
        let found = word(text, Self::WORDS)?;
        Ok(modes
            .into_iter()
            .find(|mode| mode.as_str() == found)
            .unwrap_or_default())
    }

    fn print(&self) -> String {
        self.as_str().to_owned()
    }
}

/// How far a side of the pooler insists on TLS (PgBouncer settings `client_tls_sslmode` and `server_tls_sslmode`),
/// from least to most.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SslMode {
    /// Never.
    #[default]
    Disable,
    /// As `prefer`.
    Allow,
    /// If the other side can.
    Prefer,
    /// Always; certificates are not looked at.
    Require,
    /// Always, and the other side's certificate must come from an authority we trust.
    VerifyCa,
    /// As `verify-ca`, and a server's certificate must be for its host name.
    VerifyFull,
}

impl SslMode {
    const ALL: [Self; 6] = [
        Self::Disable,
        Self::Allow,
        Self::Prefer,
        Self::Require,
        Self::VerifyCa,
        Self::VerifyFull,
    ];

    /// The words of the settings, in the order of the variants.
    pub const WORDS: &'static [&'static str] = &[
        "disable",
        "allow",
        "prefer",
        "require",
        "verify-ca",
        "verify-full",
    ];

    /// The word a file uses and SHOW prints.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Disable => "disable",
            Self::Allow => "allow",
            Self::Prefer => "prefer",
            Self::Require => "require",
            Self::VerifyCa => "verify-ca",
            Self::VerifyFull => "verify-full",
        }
    }
}

impl fmt::Display for SslMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Value for SslMode {
    fn parse(text: &str) -> Result<Self, Fault> {
        let found = word(text, Self::WORDS)?;
        Ok(Self::ALL
            .into_iter()
            .find(|mode| mode.as_str() == found)
            .unwrap_or_default())
    }

    fn print(&self) -> String {
        self.as_str().to_owned()
    }
}

/// How a client proves who it is (PgBouncer setting `auth_type`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum AuthType {
    /// No proof, and the name is ignored: every database needs a forced user.
    Any,
    /// No proof; the name must be known.
    Trust,
    /// The password in clear text.
    Plain,
    /// The MD5 challenge; SCRAM where the stored secret is a SCRAM one.
    #[default]
    Md5,
    /// SCRAM-SHA-256 (RFC 7677).
    ScramSha256,
    /// A TLS certificate made out to the user's name.
    Cert,
    /// As the first line of `auth_hba_file` says that matches.
    Hba,
    /// The password in clear text, which a directory checks (RFC 4511).
    Ldap,
    /// The password in clear text, which the system checks (PAM service `pgbouncer`).
    Pam,
}

impl AuthType {
    /// The words of the setting, built in or not.
    pub const WORDS: &'static [&'static str] = &[
        "any",
        "trust",
        "plain",
        "md5",
        "cert",
        "hba",
        "ldap",
        "pam",
        "scram-sha-256",
    ];

    /// The word a file uses and SHOW prints.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Any => "any",
            Self::Trust => "trust",
            Self::Plain => "plain",
            Self::Md5 => "md5",
            Self::ScramSha256 => "scram-sha-256",
            Self::Cert => "cert",
            Self::Hba => "hba",
            Self::Ldap => "ldap",
            Self::Pam => "pam",
        }
    }

    /// Is the password checked by somebody else, so that no secret is stored here?
    pub fn asks_others(self) -> bool {
        matches!(self, Self::Ldap | Self::Pam)
    }

    /// Itself, unless this program was built without what it takes.
    pub(super) fn if_built(self, with_pam: bool) -> Result<Self, Fault> {
        match self {
            Self::Pam if !with_pam => Err(Fault::NotBuiltIn("PAM", "pam")),
            built => Ok(built),
        }
    }
}

impl fmt::Display for AuthType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Value for AuthType {
    fn parse(text: &str) -> Result<Self, Fault> {
        let types = [
            Self::Any,
            Self::Trust,
            Self::Plain,
            Self::Md5,
            Self::ScramSha256,
            Self::Cert,
            Self::Hba,
            Self::Ldap,
            Self::Pam,
        ];
        let found = word(text, Self::WORDS)?;
        types
            .into_iter()
            .find(|auth| auth.as_str() == found)
            .unwrap_or_default()
            .if_built(cfg!(feature = "pam"))
    }

    fn print(&self) -> String {
        self.as_str().to_owned()
    }
}
