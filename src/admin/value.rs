//! The values the console answers with, in both of PostgreSQL's formats.
//!
//! Owns the four types that SHOW has and how a value of each travels. Which values there are is
//! `show`'s.

use crate::protocol::backend;

/// The type of a column (`datatype`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Type {
    /// `text`.
    Text,
    /// `int4`.
    Int4,
    /// `int8`.
    Int8,
    /// `numeric`; ours are whole numbers.
    Numeric,
    /// `bytea`; ours are NULL.
    Bytea,
}

impl Type {
    /// The type's OID in `pg_type`.
    pub fn oid(self) -> u32 {
        match self {
            Self::Text => 25,
            Self::Int4 => 23,
            Self::Int8 => 20,
            Self::Numeric => 1700,
            Self::Bytea => 17,
        }
    }

    /// Its size in bytes (`pg_type.typlen`); -1 where it varies.
    pub fn size(self) -> i16 {
        match self {
            Self::Text | Self::Numeric | Self::Bytea => -1,
            Self::Int4 => 4,
            Self::Int8 => 8,
        }
    }

    /// Its name in PostgreSQL.
    pub fn name(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Int4 => "int4",
            Self::Int8 => "int8",
            Self::Numeric => "numeric",
            Self::Bytea => "bytea",
        }
    }
}

/// How a value travels (`protocol-overview`, "Formats and Format Codes").
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// As text.
    Text,
    /// As the type's binary representation.
    Binary,
}

/// A column's name and type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Heading {
    /// Its name.
    pub name: &'static str,
    /// Its type.
    pub kind: Type,
}

impl Heading {
    /// The column as `RowDescription` has it.
    pub fn column(self) -> backend::Column<'static> {
        backend::Column {
            name: self.name,
            type_oid: self.kind.oid(),
            type_len: self.kind.size(),
        }
    }
}

/// One value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cell {
    /// NULL.
    Null,
    /// Of a column of type `text`.
    Text(String),
    /// Of a column of one of the other types.
    Number(i64),
}

impl From<&str> for Cell {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for Cell {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl<T: Into<Cell>> From<Option<T>> for Cell {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Null, Into::into)
    }
}

impl From<bool> for Cell {
    fn from(value: bool) -> Self {
        Self::Number(i64::from(value))
    }
}

/// Unsigned numbers stop at the largest signed one, which none of ours reaches.
macro_rules! from_unsigned {
    ($($type:ty)*) => {$(
        impl From<$type> for Cell {
            fn from(value: $type) -> Self {
                Self::Number(i64::try_from(value).unwrap_or(i64::MAX))
            }
        }
    )*};
}

from_unsigned!(u16 u32 i32 u64 usize);

impl Cell {
    /// As people read it; `None` for NULL.
    pub fn to_text(&self) -> Option<String> {
        match self {
            Self::Null => None,
            Self::Text(text) => Some(text.clone()),
            Self::Number(number) => Some(number.to_string()),
        }
    }

    /// The bytes of the value; `None` for NULL.
    pub fn encode(&self, kind: Type, format: Format) -> Option<Vec<u8>> {
        Some(match (self, format, kind) {
            (Self::Null, _, _) => return None,
            (Self::Text(text), _, _) => text.clone().into_bytes(),
            (Self::Number(number), Format::Text, _)
            | (Self::Number(number), _, Type::Text | Type::Bytea) => {
                number.to_string().into_bytes()
            }
            // An id may outgrow PgBouncer's type for it; in text it stays right.
            (Self::Number(number), Format::Binary, Type::Int4) => i32::try_from(*number)
                .unwrap_or(i32::MAX)
                .to_be_bytes()
                .to_vec(),
            (Self::Number(number), Format::Binary, Type::Int8) => number.to_be_bytes().to_vec(),
            (Self::Number(number), Format::Binary, Type::Numeric) => numeric(*number),
        })
    }
}

/// The binary form of a whole number as `numeric`: counts of digits and of those before the point, sign, scale,
/// and digits to base 10,000, the zeros at the end left out (`numeric_send` in PostgreSQL).
fn numeric(value: i64) -> Vec<u8> {
    let mut rest = value.unsigned_abs();
    let mut digits = Vec::new();
    while rest > 0 {
        digits.push(u16::try_from(rest % 10_000).unwrap_or_default());
        rest /= 10_000;
    }
    let places = |count: usize| u16::try_from(count).unwrap_or_default();
    let weight = places(digits.len().saturating_sub(1));
    let zeros = digits.iter().take_while(|&&digit| digit == 0).count();
    let kept = digits.iter().skip(zeros).rev();
    let sign = if value < 0 { 0x4000 } else { 0 };
    let fields = [places(digits.len() - zeros), weight, sign, 0];
    fields
        .iter()
        .chain(kept)
        .flat_map(|field| field.to_be_bytes())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numeric_fields(value: i64) -> Vec<u16> {
        numeric(value)
            .chunks(2)
            .map(|pair| u16::from_be_bytes([pair[0], pair[1]]))
            .collect()
    }

    #[test]
    fn whole_numbers_become_digits_to_base_ten_thousand() {
        assert_eq!(numeric_fields(0), [0, 0, 0, 0]);
        assert_eq!(numeric_fields(1), [1, 0, 0, 0, 1]);
        assert_eq!(numeric_fields(9_999), [1, 0, 0, 0, 9_999]);
        assert_eq!(numeric_fields(10_000), [1, 1, 0, 0, 1]);
        assert_eq!(numeric_fields(10_001), [2, 1, 0, 0, 1, 1]);
        assert_eq!(
            numeric_fields(-123_456_789),
            [3, 2, 0x4000, 0, 1, 2_345, 6_789]
        );
        assert_eq!(numeric_fields(500_000_000), [1, 2, 0, 0, 5]);
        assert_eq!(
            numeric_fields(i64::MAX),
            [5, 4, 0, 0, 922, 3_372, 368, 5_477, 5_807]
        );
    }

    #[test]
    fn values_travel_in_the_format_that_was_asked_for() {
        let seven = Cell::from(7_u64);
        assert_eq!(seven.encode(Type::Int4, Format::Text).unwrap(), b"7");
        assert_eq!(seven.encode(Type::Numeric, Format::Text).unwrap(), b"7");
        assert_eq!(
            seven.encode(Type::Int4, Format::Binary).unwrap(),
            [0, 0, 0, 7]
        );
        assert_eq!(
            seven.encode(Type::Int8, Format::Binary).unwrap(),
            [0, 0, 0, 0, 0, 0, 0, 7]
        );
        assert_eq!(
            Cell::from("a").encode(Type::Text, Format::Binary).unwrap(),
            b"a"
        );
        assert_eq!(Cell::Null.encode(Type::Int4, Format::Binary), None);
    }

    #[test]
    fn a_number_too_large_for_its_column_is_the_largest_in_binary_and_itself_in_text() {
        let large = Cell::from(5_000_000_000_u64);
        assert_eq!(
            large.encode(Type::Int4, Format::Binary).unwrap(),
            i32::MAX.to_be_bytes()
        );
        assert_eq!(
            large.encode(Type::Int4, Format::Text).unwrap(),
            b"5000000000"
        );
        assert_eq!(Cell::from(u64::MAX), Cell::Number(i64::MAX));
    }
}
