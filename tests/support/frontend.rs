//! Encoders for what a frontend sends (PostgreSQL docs: protocol-message-formats), written apart from
//! the pooler's own so that both cannot share a mistake.

/// A message with a tag.
pub fn message(tag: u8, body: &[u8]) -> Vec<u8> {
    let mut bytes = vec![tag];
    bytes.extend(length(body.len() + 4));
    bytes.extend(body);
    bytes
}

/// An untagged first packet.
pub fn packet(code: u32, body: &[u8]) -> Vec<u8> {
    let mut bytes = length(body.len() + 8).to_vec();
    bytes.extend(code.to_be_bytes());
    bytes.extend(body);
    bytes
}

fn length(value: usize) -> [u8; 4] {
    u32::try_from(value).unwrap().to_be_bytes()
}

fn count(value: usize) -> [u8; 2] {
    u16::try_from(value).unwrap().to_be_bytes()
}

fn text(bytes: &mut Vec<u8>, value: &str) {
    bytes.extend(value.as_bytes());
    bytes.push(0);
}

pub fn startup(parameters: &[(&str, &str)]) -> Vec<u8> {
    startup_of_version(0x0003_0000, parameters)
}

pub fn startup_of_version(version: u32, parameters: &[(&str, &str)]) -> Vec<u8> {
    let mut body = Vec::new();
    for (key, value) in parameters {
        text(&mut body, key);
        text(&mut body, value);
    }
    body.push(0);
    packet(version, &body)
}

pub fn cancel(pid: u32, key: &[u8]) -> Vec<u8> {
    let mut body = pid.to_be_bytes().to_vec();
    body.extend(key);
    packet(80_877_102, &body)
}

pub fn password(secret: &str) -> Vec<u8> {
    let mut body = Vec::new();
    text(&mut body, secret);
    message(b'p', &body)
}

pub fn sasl_initial(mechanism: &str, data: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    text(&mut body, mechanism);
    body.extend(length(data.len()));
    body.extend(data);
    message(b'p', &body)
}

pub fn query(sql: &str) -> Vec<u8> {
    let mut body = Vec::new();
    text(&mut body, sql);
    message(b'Q', &body)
}

pub fn parse(name: &str, sql: &str, types: &[u32]) -> Vec<u8> {
    let mut body = Vec::new();
    text(&mut body, name);
    text(&mut body, sql);
    body.extend(count(types.len()));
    for oid in types {
        body.extend(oid.to_be_bytes());
    }
    message(b'P', &body)
}

/// One parameter: `None` is NULL.
pub type Value = Option<Vec<u8>>;

pub fn bind(portal: &str, statement: &str, values: &[Value]) -> Vec<u8> {
    bind_with_formats(portal, statement, &[], values, &[])
}

pub fn bind_with_formats(
    portal: &str,
    statement: &str,
    formats: &[u16],
    values: &[Value],
    results: &[u16],
) -> Vec<u8> {
    let mut body = Vec::new();
    text(&mut body, portal);
    text(&mut body, statement);
    codes(&mut body, formats);
    arguments(&mut body, values);
    codes(&mut body, results);
    message(b'B', &body)
}

fn codes(body: &mut Vec<u8>, formats: &[u16]) {
    body.extend(count(formats.len()));
    for format in formats {
        body.extend(format.to_be_bytes());
    }
}

fn arguments(body: &mut Vec<u8>, values: &[Value]) {
    body.extend(count(values.len()));
    for value in values {
        match value {
            Some(value) => {
                body.extend(length(value.len()));
                body.extend(value);
            }
            None => body.extend([0xff; 4]),
        }
    }
}

/// `kind` is `S` for a statement, `P` for a portal.
pub fn describe(kind: u8, name: &str) -> Vec<u8> {
    let mut body = vec![kind];
    text(&mut body, name);
    message(b'D', &body)
}

/// `kind` is `S` for a statement, `P` for a portal.
pub fn close(kind: u8, name: &str) -> Vec<u8> {
    let mut body = vec![kind];
    text(&mut body, name);
    message(b'C', &body)
}

/// `rows` 0 asks for all of them.
pub fn execute(portal: &str, rows: u32) -> Vec<u8> {
    let mut body = Vec::new();
    text(&mut body, portal);
    body.extend(rows.to_be_bytes());
    message(b'E', &body)
}

pub fn flush() -> Vec<u8> {
    message(b'H', &[])
}

pub fn sync() -> Vec<u8> {
    message(b'S', &[])
}

pub fn terminate() -> Vec<u8> {
    message(b'X', &[])
}

pub fn copy_data(data: &[u8]) -> Vec<u8> {
    message(b'd', data)
}

pub fn copy_done() -> Vec<u8> {
    message(b'c', &[])
}

pub fn copy_fail(reason: &str) -> Vec<u8> {
    let mut body = Vec::new();
    text(&mut body, reason);
    message(b'f', &body)
}

/// Arguments and result travel as text.
pub fn function_call(oid: u32, values: &[Value]) -> Vec<u8> {
    let mut body = oid.to_be_bytes().to_vec();
    codes(&mut body, &[]);
    arguments(&mut body, values);
    body.extend(0_u16.to_be_bytes());
    message(b'F', &body)
}
