//! Values and names put into a text of SQL, so that none can leave its quotes.

/// Appends a string literal that means the same whatever `standard_conforming_strings` is.
pub fn put_literal(sql: &mut Vec<u8>, value: &[u8]) {
    if value.contains(&b'\\') {
        sql.push(b'E');
    }
    sql.push(b'\'');
    for &byte in value {
        if matches!(byte, b'\'' | b'\\') {
            sql.push(byte);
        }
        sql.push(byte);
    }
    sql.push(b'\'');
}

/// Appends a name in quotes.
pub fn put_identifier(sql: &mut Vec<u8>, name: &[u8]) {
    sql.push(b'"');
    for &byte in name {
        if byte == b'"' {
            sql.push(byte);
        }
        sql.push(byte);
    }
    sql.push(b'"');
}
