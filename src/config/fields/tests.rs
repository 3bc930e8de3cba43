//! Tests of the syntax that HBA and ident files share.

use std::collections::HashMap;

use proptest::prelude::*;

use super::*;

/// Files that are nowhere.
pub(crate) struct Memory(HashMap<PathBuf, String>);

impl Memory {
    pub(crate) fn new(files: &[(&str, &str)]) -> Self {
        let own = |(name, text): &(&str, &str)| (PathBuf::from(name), (*text).to_owned());
        Self(files.iter().map(own).collect())
    }
}

impl Files for Memory {
    fn read(&self, path: &Path) -> Result<String, Problem> {
        let missing = || Problem::Unreadable {
            file: path.display().to_string(),
            reason: std::io::ErrorKind::NotFound.into(),
        };
        self.0.get(path).cloned().ok_or_else(missing)
    }

    fn list(&self, directory: &Path) -> Result<Vec<PathBuf>, Problem> {
        let mut found: Vec<PathBuf> = self
            .0
            .keys()
            .filter(|path| path.parent() == Some(directory))
            .cloned()
            .collect();
        found.sort();
        Ok(found)
    }
}

/// Lines as `number: a|b "c"`, where quotes show what was quoted.
fn show(files: &[(&str, &str)]) -> Result<Vec<String>, String> {
    let lines = read(Path::new("/etc/hba"), &Memory::new(files)).map_err(|it| it.to_string())?;
    let show_name = |name: &Name| {
        if name.quoted {
            format!("\"{}\"", name.text)
        } else {
            name.text.clone()
        }
    };
    let show_field = |field: &Vec<Name>| field.iter().map(show_name).collect::<Vec<_>>().join("|");
    Ok(lines
        .iter()
        .map(|line| {
            let fields: Vec<String> = line.fields.iter().map(show_field).collect();
            format!("{}{}", line.place, fields.join(" "))
        })
        .collect())
}

fn one(text: &str) -> Result<String, String> {
    show(&[("/etc/hba", text)]).map(|lines| lines.join(";").replace("/etc/hba:", ""))
}

#[test]
fn blanks_separate_fields_and_commas_the_names_of_one() {
    let table = [
        ("", ""),
        ("# nothing", ""),
        ("  a\tb  c\r\n", "1: a b c"),
        ("a,b, c , d e", "1: a|b|c|d e"),
        ("a#comment", "1: a"),
        ("a b, # c", "1: a b"),
        ("\n\na # comment", "3: a"),
        (r#""a b" "c,d" "e#f""#, r#"1: "a b" "c,d" "e#f""#),
        (r#""say ""x""""#, r#"1: "say "x"""#),
        (r#"map="a b""#, "1: map=a b"),
        (r#""all" all"#, r#"1: "all" all"#),
        (r#""/^a{1,2}$",b"#, r#"1: "/^a{1,2}$"|b"#),
        ("a \\\nb \\\nc\nd", "1: a b c;4: d"),
        ("a\\", "1: a"),
        ("\"\" b", "1: \"\" b"),
    ];
    for (text, expected) in table {
        assert_eq!(one(text).unwrap(), expected, "{text:?}");
    }
}

#[test]
fn broken_lines_are_named() {
    let table = [
        ("a\n\"b", "2: unterminated quote"),
        ("a ,, b", "1: expected a name before the comma"),
        (", b", "1: expected a name before the comma"),
        ("include gone", "1: cannot read /etc/gone: entity not found"),
        ("x @gone", "1: cannot read /etc/gone: entity not found"),
    ];
    for (text, expected) in table {
        assert_eq!(one(text).unwrap_err().replace("/etc/hba:", ""), expected);
    }
}

#[test]
fn an_at_sign_stands_for_the_names_in_a_file() {
    let files = [
        ("/etc/hba", "x @lists/users,c y\nz \"@lists/users\" @"),
        ("/etc/lists/users", "a # first\n\"all\"\n\n@more, \"d e\"\n"),
        ("/etc/lists/more", "m,n o"),
    ];
    assert_eq!(
        show(&files).unwrap(),
        [
            r#"/etc/hba:1: x a|"all"|m|n|o|"d e"|c y"#,
            r#"/etc/hba:2: z "@lists/users" @"#
        ]
    );
    let files = [("/etc/hba", "\nx @users"), ("/etc/users", "a\n\"b")];
    assert_eq!(
        show(&files).unwrap_err(),
        "/etc/hba:2: /etc/users:2: unterminated quote"
    );
    let files = [("/etc/hba", "x @users"), ("/etc/users", "# nobody\n")];
    assert_eq!(
        show(&files).unwrap_err(),
        "/etc/hba:1: the list of names is empty"
    );
}

#[test]
fn included_lines_stand_in_the_place_of_the_line_that_includes_them() {
    let files = [
        (
            "/etc/hba",
            "a\ninclude sub/one\ninclude_if_exists gone\ninclude_if_exists /etc/two\ninclude_dir dir\nb",
        ),
        ("/etc/sub/one", "\none\ninclude deeper"),
        ("/etc/sub/deeper", "deep"),
        ("/etc/two", "two"),
        ("/etc/dir/20.conf", "later"),
        ("/etc/dir/10.conf", "sooner"),
    ];
    assert_eq!(
        show(&files).unwrap(),
        [
            "/etc/hba:1: a",
            "/etc/sub/one:2: one",
            "/etc/sub/deeper:1: deep",
            "/etc/two:1: two",
            "/etc/dir/10.conf:1: sooner",
            "/etc/dir/20.conf:1: later",
            "/etc/hba:6: b",
        ]
    );
}

#[test]
fn files_that_include_themselves_are_refused() {
    for text in ["include hba\ninclude hba", "x @hba"] {
        let error = one(text).unwrap_err();
        assert!(
            error.ends_with("files include each other more than 10 deep"),
            "{error}"
        );
    }
}

#[test]
fn a_directory_gives_its_conf_files_in_order() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["b.conf", "a.conf", ".hidden.conf", "c.conf~", "d"] {
        std::fs::write(folder.path().join(name), "").unwrap();
    }
    std::fs::create_dir(folder.path().join("e.conf")).unwrap();
    let found = Disk.list(folder.path()).unwrap();
    assert_eq!(
        found,
        ["a.conf", "b.conf"].map(|name| folder.path().join(name))
    );
    let error = Disk.list(&folder.path().join("none")).unwrap_err();
    assert!(error.to_string().starts_with("cannot read "));
}

#[test]
fn a_bad_pattern_says_what_is_wrong() {
    let error = Pattern::new("a(b").unwrap_err().to_string();
    assert_eq!(error, "the pattern /a(b cannot be read: unclosed group");
}

proptest! {
    #[test]
    fn no_text_makes_the_reader_panic(text in "[a@\"/,\\\\#\n \t(){}+*]{0,60}") {
        let _ = show(&[("/etc/hba", &text)]);
    }

    #[test]
    fn what_was_quoted_is_read_back(text in "[^\n\r]{0,20}") {
        let quoted = format!("\"{}\"", text.replace('"', "\"\""));
        // A backslash at the end of a line joins the next one, quoted or not.
        let fields = split(&quoted).unwrap();
        prop_assert_eq!(&fields[0][0].text, &text);
        prop_assert_eq!(fields.len(), 1);
    }
}
