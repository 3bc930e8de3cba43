//! What Describe tells of a statement, made short enough to be kept for each statement of each server and client: the types of its
//! parameters and the columns of its result.
//!
//! Two shapes are compared where PostgreSQL itself would compare (`RevalidateCachedQuery`): names, types and type modifiers of the columns. From which table a
//! column is, and in which format it is sent, is of no account. The types of the parameters are here besides: PostgreSQL keeps them
//! as long as the statement is there, and a pooler that prepares it elsewhere finds them anew.

use super::{Cursor, Error};

/// The shape of a statement: 32 bits of a hash of its parameters, and as many of its columns.
///
/// It goes along when a client goes to another process, which may be of another version: the hash (FNV-1a) must stay the same. It
/// need not withstand anybody: who can make tables to find two of one hash has no more of it than a wrong answer to clients of
/// the same database.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Shape(u64);

impl Shape {
    /// Nobody knows it.
    pub const UNKNOWN: Self = Self(0);

    /// Of these parts: [`parameters`] and [`columns`].
    pub fn new(parameters: u32, columns: u32) -> Self {
        Self(u64::from(parameters) << 32 | u64::from(columns))
    }

    /// As a number, for another process.
    pub fn to_bits(self) -> u64 {
        self.0
    }

    /// What [`to_bits`](Self::to_bits) has given.
    pub fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// Does anybody know it?
    #[inline]
    pub fn is_known(self) -> bool {
        self != Self::UNKNOWN
    }

    /// Is there a result, for all we know?
    pub fn has_columns(self) -> bool {
        self.0 & u64::from(u32::MAX) != u64::from(Hash::default().short())
    }

    /// Does it have the parameters of the other?
    pub fn has_parameters_of(self, other: Self) -> bool {
        self.0 >> 32 == other.0 >> 32
    }

    /// Does it have the columns of the other?
    pub fn has_columns_of(self, other: Self) -> bool {
        self.with_columns_of(other) == self
    }

    /// Its parameters, and the columns of the other.
    #[must_use]
    pub fn with_columns_of(self, other: Self) -> Self {
        let columns = u64::from(u32::MAX);
        Self(self.0 & !columns | other.0 & columns)
    }
}

/// What the body of a `ParameterDescription` says. Never 0.
pub fn parameters(body: &[u8]) -> u32 {
    let mut hash = Hash::default();
    hash.add(body);
    hash.short()
}

/// What the body of a `RowDescription` says, or that of a `NoData`, which is empty. Never 0.
pub fn columns(body: &[u8]) -> Result<u32, Error> {
    let mut hash = Hash::default();
    if body.is_empty() {
        return Ok(hash.short());
    }
    let mut cursor = Cursor(body);
    let count = cursor.u16()?;
    hash.add(&count.to_be_bytes());
    for _ in 0..count {
        hash.add(cursor.string()?);
        // No name has a NUL in it.
        hash.add(&[0]);
        // The table's OID and the column's number in it.
        cursor.bytes(6)?;
        hash.add(cursor.bytes(4)?);
        // The type's size, which goes with the type.
        cursor.bytes(2)?;
        hash.add(cursor.bytes(4)?);
        // The format: a statement has none yet.
        cursor.bytes(2)?;
    }
    cursor.finish()?;
    Ok(hash.short())
}

/// FNV-1a of 64 bits, by its authors' numbers.
struct Hash(u64);

impl Default for Hash {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Hash {
    fn add(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }

    #[allow(clippy::cast_possible_truncation, reason = "folded to half of it")]
    fn short(&self) -> u32 {
        ((self.0 ^ self.0 >> 32) as u32).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Name, table, number, type, size, modifier, format.
    fn described(columns: &[(&str, i32, i16, i32, i16, i32, i16)]) -> Vec<u8> {
        let mut body = u16::try_from(columns.len()).unwrap().to_be_bytes().to_vec();
        for (name, table, number, oid, size, modifier, format) in columns {
            body.extend_from_slice(name.as_bytes());
            body.push(0);
            body.extend_from_slice(&table.to_be_bytes());
            body.extend_from_slice(&number.to_be_bytes());
            body.extend_from_slice(&oid.to_be_bytes());
            body.extend_from_slice(&size.to_be_bytes());
            body.extend_from_slice(&modifier.to_be_bytes());
            body.extend_from_slice(&format.to_be_bytes());
        }
        body
    }

    #[test]
    fn names_types_and_modifiers_make_the_columns_and_nothing_else_does() {
        let plain = ("a", 1, 1, 23, 4, -1, 0);
        let known = columns(&described(&[plain])).unwrap();
        for same in [
            ("a", 2, 1, 23, 4, -1, 0),
            ("a", 1, 2, 23, 4, -1, 0),
            ("a", 1, 1, 23, 4, -1, 1),
        ] {
            assert_eq!(columns(&described(&[same])).unwrap(), known);
        }
        for other in [
            vec![("b", 1, 1, 23, 4, -1, 0)],
            vec![("a", 1, 1, 20, 8, -1, 0)],
            vec![("a", 1, 1, 23, 4, 24, 0)],
            vec![plain, plain],
            vec![],
        ] {
            assert_ne!(columns(&described(&other)).unwrap(), known);
        }
    }

    #[test]
    fn the_hash_is_what_it_was_in_every_process_before() {
        let mut hash = Hash::default();
        hash.add(b"foobar");
        assert_eq!(hash.0, 0x8594_4171_f739_67e8);
        let shape = Shape::new(3, 4);
        assert_eq!(Shape::from_bits(shape.to_bits()), shape);
    }

    #[test]
    fn no_data_is_not_a_row_without_columns() {
        assert_ne!(columns(b"").unwrap(), columns(&[0, 0]).unwrap());
        for (body, has_columns) in [(&b""[..], false), (&[0, 0], true)] {
            let shape = Shape::new(parameters(&[0, 0]), columns(body).unwrap());
            assert_eq!(shape.has_columns(), has_columns);
        }
        assert!(Shape::UNKNOWN.has_columns());
    }

    #[test]
    fn a_description_that_is_cut_short_or_goes_on_is_refused() {
        let whole = described(&[("a", 1, 1, 23, 4, -1, 0)]);
        for end in 1..whole.len() {
            assert!(columns(&whole[..end]).is_err());
        }
        assert!(columns(&[&whole[..], &[0]].concat()).is_err());
    }

    #[test]
    fn the_parts_are_compared_apart() {
        let known = Shape::new(1, 2);
        assert!(
            known.has_parameters_of(Shape::new(1, 3)) && !known.has_columns_of(Shape::new(1, 3))
        );
        assert!(
            !known.has_parameters_of(Shape::new(3, 2)) && known.has_columns_of(Shape::new(3, 2))
        );
        assert_eq!(known.with_columns_of(Shape::new(5, 6)), Shape::new(1, 6));
        assert!(known.is_known() && !Shape::UNKNOWN.is_known());
        assert_eq!(parameters(&[0, 0]), parameters(&[0, 0]));
        assert_ne!(parameters(&[0, 0]), parameters(&[0, 1, 0, 0, 0, 23]));
    }
}
