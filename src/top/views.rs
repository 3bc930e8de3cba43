//! The views: which SHOW each is made of, which columns it shows first, and how it is sorted at the start.

use crate::operator::console::Rows;

/// A view: one row of [`VIEWS`].
#[derive(Debug, PartialEq, Eq)]
pub struct View {
    /// Its name in the line of views.
    pub name: &'static str,
    /// The SHOW it is made of.
    pub show: &'static str,
    /// The columns at first, as far as the console has them; `a` shows all that there are.
    pub columns: &'static [&'static str],
    /// The column it is sorted by at first, the greatest values on top.
    pub sort: &'static str,
    /// Only rows of clients that wait.
    pub is_waiting_only: bool,
}

/// All views, in the order of their numbers.
pub static VIEWS: [View; 7] = [
    View {
        name: "pools",
        show: "POOLS",
        columns: &[
            "database",
            "user",
            "cl_active",
            "cl_waiting",
            "sv_active",
            "sv_idle",
            "sv_used",
            "sv_login",
            "maxwait",
            "pool_mode",
            "prepare_cache_hit",
            "prepare_cache_miss",
        ],
        sort: "cl_active",
        is_waiting_only: false,
    },
    View {
        name: "clients",
        show: "CLIENTS",
        columns: CLIENT,
        sort: "wait",
        is_waiting_only: false,
    },
    View {
        name: "servers",
        show: "SERVERS",
        columns: &[
            "database",
            "user",
            "state",
            "addr",
            "port",
            "connect_time",
            "request_time",
            "remote_pid",
            "tls",
            "application_name",
            "prepared_statements",
        ],
        sort: "request_time",
        is_waiting_only: false,
    },
    View {
        name: "waits",
        show: "CLIENTS",
        columns: CLIENT,
        sort: "wait",
        is_waiting_only: true,
    },
    View {
        name: "stats",
        show: "STATS",
        columns: &[
            "database",
            "avg_xact_count",
            "avg_query_count",
            "avg_xact_time",
            "avg_query_time",
            "avg_wait_time",
            "avg_recv",
            "avg_sent",
            "total_xact_count",
            "total_query_count",
        ],
        sort: "avg_query_count",
        is_waiting_only: false,
    },
    View {
        name: "statements",
        show: "PREPARED",
        columns: &["name", "holders", "bytes", "query"],
        sort: "holders",
        is_waiting_only: false,
    },
    View {
        name: "pins",
        show: "PINS",
        columns: &[
            "client", "user", "database", "server", "reason", "age", "query",
        ],
        sort: "age",
        is_waiting_only: false,
    },
];

const CLIENT: &[&str] = &[
    "database",
    "user",
    "state",
    "addr",
    "port",
    "application_name",
    "wait",
    "wait_us",
    "connect_time",
    "request_time",
    "tls",
];

impl View {
    /// The rows that belong to it.
    pub fn keep(&self, rows: &mut Rows) {
        let state = rows.column("state").filter(|_| self.is_waiting_only);
        if let Some(state) = state {
            rows.rows.retain(|row| {
                let state = row.get(state).and_then(Option::as_deref);
                state.is_some_and(|state| state.starts_with("waiting"))
            });
        }
    }
}
