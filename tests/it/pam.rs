//! `auth_type = pam`, against the system's PAM library with a service of our own.

#[cfg(not(feature = "pam"))]
use crate::support::pooler::run_once;

#[cfg(not(feature = "pam"))]
#[test]
fn without_the_feature_it_is_refused_with_the_way_to_have_it() {
    let (good, said) = run_once("--check", |ini| {
        ini.set("auth_type", "pam");
    });
    assert!(!good);
    let text = "auth_type = pam: pgferry was built without PAM (cargo feature \"pam\")";
    assert!(said.contains(text), "{said}");
}

#[cfg(feature = "pam")]
mod built_in {
    use std::io::{Read, Write};
    use std::ops::Deref;
    use std::os::unix::net::UnixStream;

    use nix::sys::signal::Signal;

    use crate::support::pam::Service;
    use crate::support::pooler::Ini;
    use crate::support::postgres::password;
    use crate::support::{Pooler, Wire, eventually, frontend, wait_until};

    const FAILED: &str = "PAM authentication failed";

    /// How many are asked about at the same time.
    const THREADS: usize = 8;

    /// A pooler that ends by itself: then pam_wrapper tidies up.
    struct Gentle(Pooler);

    impl Deref for Gentle {
        type Target = Pooler;

        fn deref(&self) -> &Pooler {
            &self.0
        }
    }

    impl Drop for Gentle {
        fn drop(&mut self) {
            if self.0.running() {
                self.0.signal(Signal::SIGQUIT);
                self.0.wait();
            }
        }
    }

    fn pooler(service: &Service, change: impl FnOnce(&mut Ini)) -> Gentle {
        Gentle(Pooler::start(|ini| {
            service.install(ini);
            change(ini);
        }))
    }

    #[test]
    fn who_knows_the_password_comes_in_and_nobody_else() {
        let service = Service::new();
        let pooler = pooler(&service, |ini| {
            // What is in the auth file does not matter.
            ini.secret("app", "another")
                .no_secret("other")
                .set("verbose", 3);
        });
        for user in ["app", "other"] {
            assert_eq!(pooler.outcome(user, &password(user)), "in");
        }
        assert_eq!(pooler.outcome("app", "another"), FAILED);
        assert_eq!(pooler.outcome("stranger", "a guess"), FAILED);
        assert_eq!(
            pooler.outcome("app", ""),
            "empty password returned by client"
        );
        assert_eq!(
            service.asked(),
            "pgbouncer auth app 127.0.0.1\n\
             pgbouncer account app 127.0.0.1\n\
             pgbouncer auth other 127.0.0.1\n\
             pgbouncer account other 127.0.0.1\n\
             pgbouncer auth app 127.0.0.1\n\
             pgbouncer auth stranger 127.0.0.1\n"
        );
        let log = pooler.log();
        assert!(log.contains("PAM: "), "{log}");
        for secret in ["another", "a guess", "app-secret"] {
            assert!(!log.contains(secret), "{secret}");
        }
    }

    #[test]
    fn an_account_that_may_not_be_used_is_refused_and_that_is_fatal() {
        let service = Service::new();
        let pooler = pooler(&service, |_| ());
        let login = pooler.login("expired", "postgres", Some("expired-secret"));
        let Err(crate::support::wire::Refusal::Error(message)) = login else {
            panic!("told nothing");
        };
        assert_eq!(message.field('S').as_deref(), Some("FATAL"));
        assert_eq!(message.field('C').as_deref(), Some("08P01"));
        assert_eq!(message.field('M').as_deref(), Some(FAILED));
        assert!(service.asked().contains("pgbouncer account expired"));
    }

    #[test]
    fn the_password_that_the_client_gave_logs_in_to_the_server() {
        let service = Service::new();
        let pooler = pooler(&service, |ini| {
            ini.no_secret("scram_user").secret("plain_user", "outdated");
        });
        for user in ["scram_user", "plain_user"] {
            assert_eq!(pooler.outcome(user, &password(user)), "in");
        }
    }

    #[test]
    fn a_client_of_a_unix_socket_has_no_address() {
        let service = Service::new();
        let pooler = pooler(&service, |ini| {
            ini.set("unix_socket_dir", ".");
        });
        let mut stream = eventually("the socket is there", || {
            UnixStream::connect(pooler.socket()).ok()
        });
        let parameters = [("user", "app"), ("database", "postgres")];
        stream.write_all(&frontend::startup(&parameters)).unwrap();
        let mut request = [0; 9];
        stream.read_exact(&mut request).unwrap();
        assert_eq!(request, *b"R\0\0\0\x08\0\0\0\x03");
        stream.write_all(&frontend::password("app-secret")).unwrap();
        stream.read_exact(&mut request).unwrap();
        assert_eq!(request, *b"R\0\0\0\x08\0\0\0\0");
        assert!(service.asked().starts_with("pgbouncer auth app unix\n"));
    }

    #[test]
    fn together_with_auth_user_it_is_an_error_of_the_configuration() {
        let service = Service::new();
        let pooler = pooler(&service, |ini| {
            ini.set("auth_user", "postgres");
        });
        assert_eq!(
            pooler.outcome("app", &password("app")),
            "bouncer config error"
        );
        assert_eq!(service.asked(), "");
    }

    /// A client that has sent its password, which nobody answers for the time being.
    fn waiting(pooler: &Pooler, turn: usize) -> Wire {
        let user = format!("slow_{turn}");
        let mut client = Wire::connect(pooler.address()).unwrap();
        client.send(&frontend::startup(&[
            ("user", &user),
            ("database", "forced"),
        ]));
        assert_eq!(client.read_message().map(|request| request.tag), Some(b'R'));
        client.send(&frontend::password(&format!("{user}-secret")));
        client
    }

    fn slow(service: &Service) -> usize {
        service.asked().matches("auth slow_").count()
    }

    #[test]
    fn those_who_wait_hold_up_no_worker_and_form_a_queue() {
        let service = Service::new();
        let pooler = pooler(&service, |ini| {
            ini.database("forced", "dbname=postgres user=app")
                .set("worker_threads", 1)
                .set("min_worker_threads", 1);
        });
        let mut other = pooler
            .login("other", "postgres", Some(&password("other")))
            .unwrap();
        let mut clients: Vec<Wire> = (0..THREADS + 3)
            .map(|turn| waiting(&pooler, turn))
            .collect();
        wait_until("all threads ask", || slow(&service) == THREADS);
        assert_eq!(other.value("SELECT 1"), "1");
        assert_eq!(slow(&service), THREADS, "and no more than these");
        service.go();
        for client in &mut clients {
            client.read_until(b'Z');
            assert_eq!(client.value("SELECT current_user"), "app");
        }
        assert_eq!(slow(&service), THREADS + 3);
    }

    #[test]
    fn whoever_waits_too_long_is_told_so_and_does_not_keep_the_process_from_ending() {
        let service = Service::new();
        let mut pooler = pooler(&service, |ini| {
            ini.database("forced", "dbname=postgres user=app")
                .set("client_login_timeout", 1);
        });
        let mut clients: Vec<Wire> = (0..=THREADS).map(|turn| waiting(&pooler, turn)).collect();
        for client in &mut clients {
            let refusal = client.read_message().unwrap();
            assert_eq!(refusal.field('M').as_deref(), Some("client_login_timeout"));
        }
        // Their threads still wait; the one in the queue has left it.
        assert_eq!(slow(&service), THREADS);
        pooler.signal(Signal::SIGQUIT);
        assert!(pooler.0.wait().success());
        service.go();
    }
}
