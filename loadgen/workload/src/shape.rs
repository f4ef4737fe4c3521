//! The leading bytes that keys share: none, or one of four kinds.
//!
//! Owns: the kinds and their names. Must not: know a pair's key. Plain values, used on any thread.

use std::fmt;
use std::str::FromStr;

/// Kind of the keys of synthetic pairs, by the leading bytes that they share.
///
/// Hashes and pubkeys are random. Other keys are not: vanity addresses begin alike, sequence numbers begin with zeros, and an
/// index begins each of its keys with the thing that it lists.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Shape {
    /// All bytes of a key are random.
    #[default]
    Random,
    /// All keys have the same first 25 bytes, and the last 7 are random.
    Alike,
    /// One key in a hundred has the first 8 to 20 bytes of one of a thousand prefixes. The others are random.
    SomeAlike,
    /// Even numbers that count up, in the last 8 bytes after zeros. Absent keys are the odd numbers between them. Pairs come
    /// in the order of their keys, and every seed has the same keys.
    Counting,
    /// Each key begins with one of a thousand prefixes of 16 bytes, and the last 16 bytes are random.
    Grouped,
}

impl Shape {
    /// All kinds with their names.
    const ALL: [(Self, &'static str); 5] = [
        (Self::Random, "random"),
        (Self::Alike, "alike"),
        (Self::SomeAlike, "some-alike"),
        (Self::Counting, "counting"),
        (Self::Grouped, "grouped"),
    ];
}

impl FromStr for Shape {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.iter().find(|(_, name)| *name == text).map(|(shape, _)| *shape);
        found.ok_or_else(|| format!("not a kind of keys: {text:?}: {}", Self::ALL.map(|(_, name)| name).join(", ")))
    }
}

/// Writes the form that is parsed.
impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(Self::ALL.iter().find(|(shape, _)| shape == self).map_or("", |(_, name)| name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_read_as_they_are_written() {
        for name in ["random", "alike", "some-alike", "counting", "grouped"] {
            assert_eq!(name.parse::<Shape>().unwrap().to_string(), name);
        }
        assert_eq!("random".parse(), Ok(Shape::default()));
        let error = "uniform".parse::<Shape>().unwrap_err();
        assert!(error.contains("not a kind of keys") && error.contains("some-alike"), "{error}");
    }
}
