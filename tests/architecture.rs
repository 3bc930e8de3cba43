//! Every line knows its room: a module of `src/` imports only from rows below its own.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test may fail so"
)]

use std::path::{Path, PathBuf};

/// The house, from the roof down. A row stands on the rows behind it.
const ROWS: &[&[&str]] = &[
    &["main", "lib"],
    &["daemon"],
    &["admin", "top"],
    &["client"],
    &["pool"],
    &["server", "operator"],
    &["auth", "prepared"],
    &["net"],
    &["config", "stats"],
    &["protocol", "sql"],
];

#[test]
fn a_module_imports_only_from_rows_below_it() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut wrong = Vec::new();
    for file in files(&source) {
        let inside = file.strip_prefix(&source).unwrap();
        let own = inside
            .components()
            .next()
            .unwrap()
            .as_os_str()
            .to_str()
            .unwrap()
            .trim_end_matches(".rs");
        let text = std::fs::read_to_string(&file).unwrap();
        for (number, line) in text.lines().enumerate() {
            let code = line.split("//").next().unwrap_or_default();
            for other in imports(code) {
                if other != own && row(other) <= row(own) {
                    wrong.push(format!(
                        "src/{}:{}: {own} imports {other}",
                        inside.display(),
                        number + 1
                    ));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "\n{}\n", wrong.join("\n"));
}

#[test]
fn what_the_compiler_cannot_check_is_in_one_file() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let with_unsafe: Vec<_> = files(&source)
        .into_iter()
        .filter(|file| {
            let text = std::fs::read_to_string(file).unwrap();
            text.contains("unsafe {") || text.contains("allow(unsafe")
        })
        .map(|file| file.strip_prefix(&source).unwrap().to_owned())
        .collect();
    assert_eq!(with_unsafe, [Path::new("net/sys.rs")]);
}

/// The rooms that a line names behind `crate::`.
fn imports(code: &str) -> Vec<&str> {
    let rooms = code.split("crate::").skip(1);
    rooms
        .map(|rest| {
            rest.split(|c: char| !c.is_alphanumeric() && c != '_')
                .next()
                .unwrap()
        })
        .collect()
}

fn row(room: &str) -> usize {
    let found = ROWS.iter().position(|row| row.contains(&room));
    found.unwrap_or_else(|| panic!("no row has a room {room:?}; write `use crate::room::…`"))
}

fn files(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let (directories, files): (Vec<_>, Vec<_>) = entries.partition(|path| path.is_dir());
    let rust = files
        .into_iter()
        .filter(|path| path.extension().is_some_and(|end| end == "rs"));
    rust.chain(directories.iter().flat_map(|inner| self::files(inner)))
        .collect()
}
