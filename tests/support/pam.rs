//! A PAM of our own for a pooler: pam_wrapper shows it a directory of services in place of the system's, and the service
//! asks a script.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use super::pooler::Ini;
use super::postgres::postgres;
use super::process;

/// Takes `NAME-secret` for the password of everybody whose name has no `stranger` in it; keeps those called `slow…`
/// waiting until there is a file named `go`; and has no account for `expired`.
const SCRIPT: &str = r#"#!/bin/sh
unset LD_PRELOAD
cd "$(dirname "$0")" || exit 1
echo "$PAM_SERVICE $PAM_TYPE $PAM_USER $PAM_RHOST" >>asked
case "$PAM_TYPE $PAM_USER" in
"account expired" | *stranger*) exit 1 ;;
account*) exit 0 ;;
*" slow"*) until [ -e go ]; do sleep 0.05; done ;;
esac
[ "$(tr -d '\000')" = "$PAM_USER-secret" ]
"#;

/// A service.
pub struct Service {
    directory: PathBuf,
}

impl Service {
    /// Writes one.
    pub fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("pam-{}", COUNT.fetch_add(1, Ordering::Relaxed));
        // It goes when PostgreSQL's goes.
        let directory = postgres().directory().join(name);
        let services = directory.join("services");
        std::fs::create_dir_all(&services).unwrap();
        let script = directory.join("script");
        std::fs::write(&script, SCRIPT).unwrap();
        std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
        let asks = script.display();
        let lines = format!(
            "auth required pam_exec.so expose_authtok quiet {asks}\naccount required pam_exec.so quiet {asks}\n"
        );
        let service = services.join("pgbouncer");
        std::fs::write(&service, lines).unwrap();
        for path in [&directory, &services, &script, &service] {
            process::hand_over(path);
        }
        Self { directory }
    }

    /// Has the pooler use it.
    pub fn install(&self, ini: &mut Ini) {
        ini.set("auth_type", "pam")
            .variable("LD_PRELOAD", &wrapper())
            .variable("PAM_WRAPPER", Path::new("1"))
            .variable("PAM_WRAPPER_SERVICE_DIR", &self.directory.join("services"));
    }

    /// What it was asked: the service, the kind of question, the user and the user's host, a line for each.
    pub fn asked(&self) -> String {
        std::fs::read_to_string(self.directory.join("asked")).unwrap_or_default()
    }

    /// Answers those who wait.
    pub fn go(&self) {
        std::fs::write(self.directory.join("go"), "").unwrap();
    }
}

/// Without it the pooler would ask the system's PAM, so it must be there.
fn wrapper() -> PathBuf {
    let name = "libpam_wrapper.so";
    let mut places = vec![PathBuf::from("/usr/lib64"), PathBuf::from("/usr/lib")];
    let entries = std::fs::read_dir("/usr/lib")
        .into_iter()
        .flatten()
        .flatten();
    places.extend(entries.map(|entry| entry.path()));
    places
        .into_iter()
        .map(|place| place.join(name))
        .find(|path| path.exists())
        .expect("libpam_wrapper.so is not installed: run scripts/setup --tests")
}
