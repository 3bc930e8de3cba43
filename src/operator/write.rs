//! An answer of the console as a text: for people, for programs, for spreadsheets.

use std::fmt::Write;

use clap::ValueEnum;

use super::console::{Rows, printable, printable_row};

/// How rows are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Columns under their headings, numbers to the right
    Table,
    /// An array with an object for each row
    Json,
    /// Comma-separated values with a heading (RFC 4180)
    Csv,
}

/// The whole text, with a line break at its end.
pub(super) fn text(rows: &Rows, format: Format) -> String {
    match format {
        Format::Table => table(rows),
        Format::Json => json(rows),
        Format::Csv => csv(rows),
    }
}

fn table(rows: &Rows) -> String {
    let shown: Vec<Vec<String>> = rows.rows.iter().map(|row| printable_row(row)).collect();
    let names: Vec<String> = rows
        .columns
        .iter()
        .map(|column| printable(&column.name))
        .collect();
    let length = |text: &String| text.chars().count();
    let widths: Vec<usize> = names
        .iter()
        .enumerate()
        .map(|(at, name)| {
            let values = shown.iter().filter_map(|row| row.get(at));
            values.chain([name]).map(length).max().unwrap_or(0)
        })
        .collect();
    let mut out = String::new();
    let mut line = |cells: &[String]| {
        let mut text = String::new();
        for ((cell, width), column) in cells.iter().zip(&widths).zip(&rows.columns) {
            // Writing to a `String` cannot fail.
            let _ = if column.is_number {
                write!(text, "{cell:>width$}  ")
            } else {
                write!(text, "{cell:width$}  ")
            };
        }
        out.push_str(text.trim_end());
        out.push('\n');
    };
    let rule: Vec<String> = widths.iter().map(|width| "-".repeat(*width)).collect();
    line(&names);
    line(&rule);
    for row in &shown {
        line(row);
    }
    out
}

fn json(rows: &Rows) -> String {
    let mut out = String::from("[");
    for (at, row) in rows.rows.iter().enumerate() {
        out.push_str(if at == 0 { "\n  {" } else { ",\n  {" });
        for (at, (value, column)) in row.iter().zip(&rows.columns).enumerate() {
            out.push_str(if at == 0 { "" } else { ", " });
            quoted(&mut out, &column.name);
            out.push_str(": ");
            match value {
                None => out.push_str("null"),
                Some(value) if column.is_number && is_json_number(value) => out.push_str(value),
                Some(value) => quoted(&mut out, value),
            }
        }
        out.push('}');
    }
    out.push_str(if rows.rows.is_empty() { "]\n" } else { "\n]\n" });
    out
}

/// RFC 8259 section 6, without an exponent, which nobody sends: a type says what a value should be, not what it is.
fn is_json_number(text: &str) -> bool {
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let text = text.strip_prefix('-').unwrap_or(text);
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    digits(whole) && digits(fraction) && (whole.len() == 1 || !whole.starts_with('0'))
}

/// RFC 8259 section 7.
fn quoted(out: &mut String, text: &str) {
    out.push('"');
    for char in text.chars() {
        match char {
            '"' | '\\' => out.extend(['\\', char]),
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            // Those above 0x7f need not be escaped, but a terminal may obey them.
            char if char.is_control() => {
                let _ = write!(out, "\\u{:04x}", u32::from(char));
            }
            char => out.push(char),
        }
    }
    out.push('"');
}

fn csv(rows: &Rows) -> String {
    let mut out = String::new();
    let mut line = |cells: &mut dyn Iterator<Item = &str>| {
        for (at, cell) in cells.enumerate() {
            out.push_str(if at == 0 { "" } else { "," });
            if cell.contains([',', '"', '\n', '\r']) {
                let _ = write!(out, "\"{}\"", cell.replace('"', "\"\""));
            } else {
                out.push_str(cell);
            }
        }
        out.push_str("\r\n");
    };
    line(&mut rows.columns.iter().map(|column| column.name.as_str()));
    for row in &rows.rows {
        line(&mut row.iter().map(|value| value.as_deref().unwrap_or_default()));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::super::console::Column;
    use super::*;

    fn rows() -> Rows {
        let columns = [("database", false), ("cl_active", true), ("query", false)];
        let text = |text: &str| Some(text.to_owned());
        Rows {
            columns: columns
                .map(|(name, is_number)| Column {
                    name: name.to_owned(),
                    is_number,
                })
                .to_vec(),
            rows: vec![
                vec![text("app"), text("12"), None],
                vec![text("größe"), text("7"), text("say \"a,\nb\"\u{1b}")],
            ],
        }
    }

    #[test]
    fn a_table_lines_up_and_shows_no_control_characters() {
        insta::assert_snapshot!(text(&rows(), Format::Table), @r#"
        database  cl_active  query
        --------  ---------  -----------------
        app              12
        größe             7  say "a,\nb"\u{1b}
        "#);
    }

    #[test]
    fn json_has_numbers_and_nulls() {
        insta::assert_snapshot!(text(&rows(), Format::Json), @r#"
        [
          {"database": "app", "cl_active": 12, "query": null},
          {"database": "größe", "cl_active": 7, "query": "say \"a,\nb\"\u001b"}
        ]
        "#);
        assert_eq!(text(&Rows::default(), Format::Json), "[]\n");
    }

    #[test]
    fn a_number_is_one_only_if_json_says_so() {
        for number in ["0", "-1", "12.50"] {
            assert!(is_json_number(number), "{number}");
        }
        for other in ["", "-", "01", "1.", ".5", "NaN", "1e3", "1,2"] {
            assert!(!is_json_number(other), "{other}");
        }
    }

    #[test]
    fn csv_quotes_what_needs_it() {
        assert_eq!(
            text(&rows(), Format::Csv),
            "database,cl_active,query\r\napp,12,\r\ngröße,7,\"say \"\"a,\nb\"\"\u{1b}\"\r\n"
        );
    }
}
