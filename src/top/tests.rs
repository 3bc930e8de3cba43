//! The screen as texts, by ratatui's backend for tests; one of them stands in `docs/top.md`.

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::*;
use crate::config::Config;
use crate::operator::console::{Column, Rows};
use crate::operator::target::Address;
use feed::Sample;
use views::VIEWS;

/// Rows from a text: headings (`#` before a number's) and values, between blanks; `-` is NULL.
fn rows(text: &str) -> Rows {
    let mut lines = text.lines().map(str::split_whitespace);
    let column = |name: &str| Column {
        name: name.trim_start_matches('#').to_owned(),
        is_number: name.starts_with('#'),
    };
    let value = |value: &str| (value != "-").then(|| value.to_owned());
    Rows {
        columns: lines.next().unwrap().map(column).collect(),
        rows: lines.map(|line| line.map(value).collect()).collect(),
    }
}

const POOLS: &str = "\
database user #cl_active #cl_waiting #cl_active_cancel_req #sv_active #sv_idle #sv_used #sv_login #maxwait #maxwait_us pool_mode #prepare_cache_hit #prepare_cache_miss
billing api 9 0 0 2 6 0 0 0 0 transaction 120345 40
pgbouncer admin 1 0 0 0 0 0 0 0 0 statement 0 0
reports etl 3 2 0 3 0 0 1 0 412000 session 0 0
shop api 118 0 0 14 6 0 0 0 0 transaction 8812345 312";

const CLIENTS: &str = "\
type user database state addr #port application_name #wait #wait_us connect_time request_time tls
C api shop active 10.0.0.5 41000 web - 0 08:00:00 12:29:59 -
C etl reports waiting 10.0.0.9 41001 etl\u{1b}[2J 0 3000 08:00:01 12:30:00 -
C etl reports waiting 10.0.0.9 41002 etl 0 412000 08:00:01 12:30:00 -";

fn sample(view: usize, rows: Result<Rows, String>, (at, queries): (u64, u64)) -> Sample {
    let view = &VIEWS[view];
    let mut rows = rows;
    if let Ok(rows) = &mut rows {
        view.keep(rows);
    }
    let stats = format!(
        "database #total_xact_count #total_query_count\nshop {} {queries}\nreports 0 0",
        queries / 2
    );
    Sample {
        view,
        rows,
        pools: self::rows(POOLS),
        stats: self::rows(&stats),
        version: "pgferry (PgBouncer 1.25.2 compatible) 0.1.0".to_owned(),
        at: Duration::from_secs(at),
        clock: "12:30:01".to_owned(),
    }
}

fn app() -> App {
    let target = Target {
        address: Address::Tcp {
            host: "127.0.0.1".to_owned(),
            port: 6432,
        },
        user: "admin".to_owned(),
        secret: None,
        database: "pgbouncer".to_owned(),
        tls: Config::default(),
    };
    App::new(&target, 1)
}

fn pools() -> App {
    let mut app = app();
    app.sample(Ok(sample(0, Ok(rows(POOLS)), (1, 1000))));
    app.sample(Ok(sample(0, Ok(rows(POOLS)), (3, 21_000))));
    app
}

fn press(app: &mut App, keys: &[KeyCode]) {
    for code in keys {
        app.key(KeyEvent::new(*code, KeyModifiers::NONE));
    }
}

fn write(app: &mut App, text: &str) {
    let keys: Vec<_> = text.chars().map(KeyCode::Char).collect();
    press(app, &keys);
}

/// The screen's lines, without the blanks at their ends.
fn screen(app: &App, (width, height): (u16, u16)) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw::draw(frame, app)).unwrap();
    let buffer = terminal.backend().buffer();
    let mut text = String::new();
    for line in buffer.content().chunks(usize::from(width)) {
        let line: String = line.iter().map(ratatui::buffer::Cell::symbol).collect();
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// The first column of the table's rows.
fn first(app: &App) -> Vec<String> {
    let screen = screen(app, (100, 12));
    let lines = screen.lines().skip(4);
    let words = lines.filter_map(|line| line.split_whitespace().next());
    words
        .map(str::to_owned)
        .take_while(|word| word != "?")
        .collect()
}

#[test]
fn the_documentation_shows_what_the_screen_shows() {
    let file = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/top.md");
    let written = std::fs::read_to_string(&file).unwrap();
    let (begin, rest) = written.split_once("```text\n").unwrap();
    let (_, end) = rest.split_once("```\n").unwrap();
    let made = format!("{begin}```text\n{}```\n{end}", screen(&pools(), (118, 9)));
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&file, made).unwrap();
        return;
    }
    assert!(
        made == written,
        "docs/top.md is stale: UPDATE_DOCS=1 cargo test --features top --lib top"
    );
}

#[test]
fn rates_are_between_two_samples_and_not_across_a_restart() {
    let mut app = pools();
    assert!(screen(&app, (118, 9)).contains("5000 tx/s, 10000 queries/s"));
    app.sample(Err("connection lost: broken pipe".to_owned()));
    let shown = screen(&app, (118, 9));
    assert!(
        shown.contains("connection lost") && !shown.contains("tx/s"),
        "{shown}"
    );
    app.sample(Ok(sample(0, Ok(rows(POOLS)), (4, 5))));
    let shown = screen(&app, (118, 9));
    assert!(
        !shown.contains("connection lost") && !shown.contains("tx/s"),
        "{shown}"
    );
}

#[test]
fn rows_are_sorted_by_any_column_either_way() {
    let mut app = pools();
    assert_eq!(first(&app), ["shop", "billing", "reports", "pgbouncer"]);
    write(&mut app, "r");
    assert_eq!(first(&app), ["pgbouncer", "reports", "billing", "shop"]);
    press(&mut app, &[KeyCode::Left, KeyCode::Left, KeyCode::Left]);
    assert_eq!(first(&app), ["billing", "pgbouncer", "reports", "shop"]);
    // The sorting stays with its view.
    write(&mut app, "21");
    assert_eq!(app.sort().column, "database");
}

#[test]
fn the_column_that_is_sorted_by_stays_in_sight() {
    let mut app = pools();
    for _ in 0..20 {
        press(&mut app, &[KeyCode::Right]);
    }
    let shown = screen(&app, (60, 9));
    assert!(
        shown.contains("prepare_cache_miss↓") && shown.contains("database"),
        "{shown}"
    );
}

#[test]
fn a_filter_looks_at_every_column_and_esc_drops_it() {
    let mut app = pools();
    write(&mut app, "/ETL");
    assert_eq!(first(&app), ["reports", "/ETL_"]);
    press(&mut app, &[KeyCode::Backspace, KeyCode::Enter]);
    assert_eq!(first(&app), ["reports"]);
    press(&mut app, &[KeyCode::Esc]);
    assert_eq!(first(&app).len(), 4);
}

#[test]
fn waits_are_the_clients_that_wait_the_longest_first() {
    let mut app = app();
    write(&mut app, "4");
    app.sample(Ok(sample(3, Ok(rows(CLIENTS)), (1, 0))));
    let shown = screen(&app, (118, 9));
    let lines: Vec<_> = shown.lines().skip(4).take(2).collect();
    assert!(
        lines[0].contains("41002") && lines[1].contains("41001"),
        "{shown}"
    );
    assert!(
        !shown.contains("10.0.0.5") && shown.contains("etl\\u{1b}[2J"),
        "{shown}"
    );
}

#[test]
fn a_console_without_the_view_says_so() {
    let mut app = app();
    write(&mut app, "7");
    assert!(screen(&app, (80, 9)).contains('…'));
    let refused = Err("invalid command 'SHOW PINS', use SHOW HELP;".to_owned());
    app.sample(Ok(sample(6, refused, (1, 0))));
    assert!(screen(&app, (80, 9)).contains("This console has no SHOW PINS: invalid command"));
}

#[test]
fn a_pause_asks_nothing_until_the_view_changes() {
    let mut app = pools();
    assert!(app.is_asking(true) && !app.is_asking(false));
    write(&mut app, "p");
    assert!(!app.is_asking(true));
    assert!(screen(&app, (80, 9)).contains("PAUSED"));
    press(&mut app, &[KeyCode::Tab]);
    assert!(app.is_asking(false));
    app.asked();
    assert!(!app.is_asking(true));
}

#[test]
fn the_help_goes_with_any_key_and_q_ends() {
    let mut app = pools();
    write(&mut app, "?");
    assert!(screen(&app, (80, 20)).contains("another view"));
    write(&mut app, "q");
    assert!(!app.is_over() && app.keys == app::Keys::Commands);
    write(&mut app, "q");
    assert!(app.is_over());
    let mut app = pools();
    app.key(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL));
    assert!(app.is_over());
}

#[test]
fn all_columns_are_there_on_request() {
    let mut app = pools();
    assert!(!screen(&app, (300, 9)).contains("cl_active_cancel_req"));
    write(&mut app, "a");
    assert!(screen(&app, (300, 9)).contains("cl_active_cancel_req"));
}

#[test]
fn any_size_of_the_terminal_and_any_scrolling_is_drawn() {
    let mut app = pools();
    write(&mut app, "?");
    for size in [(1, 1), (5, 3), (20, 5), (300, 100)] {
        screen(&app, size);
    }
    write(&mut app, " ");
    press(&mut app, &[KeyCode::End, KeyCode::PageDown, KeyCode::Down]);
    assert_eq!(first(&app), ["pgbouncer"]);
    press(&mut app, &[KeyCode::PageUp, KeyCode::Up, KeyCode::Home]);
    assert_eq!(first(&app).len(), 4);
    for size in [(1, 1), (5, 3), (20, 5), (300, 100)] {
        screen(&app, size);
    }
}

#[test]
fn where_rows_have_gone_the_next_step_up_is_seen() {
    let mut app = pools();
    press(&mut app, &[KeyCode::End]);
    let fewer: Vec<&str> = POOLS.lines().take(4).collect();
    app.sample(Ok(sample(0, Ok(rows(&fewer.join("\n"))), (5, 30_000))));
    assert_eq!(first(&app).len(), 1);
    press(&mut app, &[KeyCode::Up]);
    assert_eq!(first(&app).len(), 2);
}

#[test]
fn a_column_with_numbers_texts_and_nulls_has_one_order() {
    let mut app = pools();
    let mixed = "cl_active\n10\n5x\n9\n-\nabc\n-1";
    app.sample(Ok(sample(0, Ok(rows(mixed)), (5, 30_000))));
    let column = |app: &App| -> Vec<Option<String>> {
        let Some(Ok(rows)) = app.rows() else { panic!() };
        app.shown(rows).iter().map(|row| row[0].clone()).collect()
    };
    let texts = ["abc", "5x", "10", "9", "-1"].map(|text| Some(text.to_owned()));
    let all: Vec<_> = texts.into_iter().chain([None]).collect();
    assert_eq!(column(&app), all);
}
