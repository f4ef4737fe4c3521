//! Names of snapshot archives: `snapshot-SLOT-HASH.tar.zst`, `incremental-snapshot-BASE-SLOT-HASH.tar.zst`.
//!
//! Owns: the parts of a name and the packing that it implies. Must not: do I/O. Any thread.

use std::fmt;

/// Longest base58 text of 32 bytes. Anything longer is not decoded at all.
const HASH_TEXT_BYTES: usize = 44;

/// Compression format of an archive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Packing {
    /// A plain tar file, not compressed.
    None,
    /// Zstandard, the default of every validator.
    Zstd,
    /// LZ4 frames, which agave offers too.
    Lz4,
    /// Gzip, as old validators wrote.
    Gzip,
}

/// Slot, base and hash of an archive, from its file name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name {
    /// Slot of the full archive that an incremental one adds to; `None` for a full archive.
    pub base: Option<u64>,
    /// Slot whose accounts the archive holds.
    pub slot: u64,
    /// Base58 text of the 32 bytes that the validator put into the name.
    pub hash: String,
    /// Compression that the name's ending implies.
    pub packing: Packing,
}

/// A file name that begins and ends as those of archives do, but has a wrong part.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "bad name of a snapshot archive: name={name} {part}={value}: expected snapshot-SLOT-HASH.tar.zst or \
     incremental-snapshot-BASE-SLOT-HASH.tar.zst, also .tar.lz4, .tar.gz or .tar"
)]
pub struct BadName {
    name: String,
    part: &'static str,
    value: String,
}

impl Name {
    /// Parses a file name. `None` when it is not an archive's name at all.
    pub fn parse(file_name: &str) -> Option<Result<Self, BadName>> {
        let (incremental, rest) = match file_name.strip_prefix("incremental-snapshot-") {
            Some(rest) => (true, rest),
            None => (false, file_name.strip_prefix("snapshot-")?),
        };
        let (parts, ending) = match rest.split_once(".tar.") {
            Some((parts, ending)) => (parts, Some(ending)),
            None => (rest.strip_suffix(".tar")?, None),
        };
        Some(Self::from_parts(incremental, parts, ending).map_err(|(part, value)| BadName {
            name: file_name.to_owned(),
            part,
            value: value.to_owned(),
        }))
    }

    /// Parses the name of a directory that an archive was unpacked into: an archive's name, with or without its ending.
    /// `None` for every other name.
    pub(super) fn of_directory(name: &str) -> Option<Self> {
        let parsed = Self::parse(name).or_else(|| Self::parse(&format!("{name}.tar")));
        parsed.and_then(Result::ok).map(|name| Self { packing: Packing::None, ..name })
    }

    fn from_parts<'a>(
        incremental: bool,
        parts: &'a str,
        ending: Option<&'a str>,
    ) -> Result<Self, (&'static str, &'a str)> {
        let packing = match ending {
            None => Packing::None,
            Some("zst") => Packing::Zstd,
            Some("lz4") => Packing::Lz4,
            Some("gz") => Packing::Gzip,
            Some(other) => return Err(("packing", other)),
        };
        let number = |part: &'static str, text: &'a str| number(text).ok_or((part, text));
        let (base, rest) = if incremental {
            let (base, rest) = parts.split_once('-').ok_or(("base", parts))?;
            (Some(number("base", base)?), rest)
        } else {
            (None, parts)
        };
        let (slot_text, hash) = rest.split_once('-').ok_or(("slot", rest))?;
        let slot = number("slot", slot_text)?;
        if base.is_some_and(|base| base >= slot) {
            return Err(("slot", slot_text));
        }
        let mut bytes = [0; 32];
        let is_hash =
            hash.len() <= HASH_TEXT_BYTES && bs58::decode(hash).onto(&mut bytes[..]).is_ok_and(|length| length == 32);
        if !is_hash {
            return Err(("hash", hash));
        }
        Ok(Self { base, slot, hash: hash.to_owned(), packing })
    }
}

impl fmt::Display for Packing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "none",
            Self::Zstd => "zstd",
            Self::Lz4 => "lz4",
            Self::Gzip => "gzip",
        })
    }
}

/// Parses digits and nothing else, not even a sign.
pub(super) fn number(text: &str) -> Option<u64> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    const HASH: &str = "EsRJJbTfoF5zDhboW3rMVYiY4xxzEFQJk4U2CEj1QwaQ";

    #[test]
    fn names_of_agave_are_read() {
        for (ending, packing) in [
            (".tar", Packing::None),
            (".tar.zst", Packing::Zstd),
            (".tar.lz4", Packing::Lz4),
            (".tar.gz", Packing::Gzip),
        ] {
            let full = Name { base: None, slot: 351_000_355, hash: HASH.to_owned(), packing };
            assert_eq!(Name::parse(&format!("snapshot-351000355-{HASH}{ending}")), Some(Ok(full.clone())));
            let incremental = Name { base: Some(351_000_355), slot: 351_000_368, ..full };
            let text = format!("incremental-snapshot-351000355-351000368-{HASH}{ending}");
            assert_eq!(Name::parse(&text), Some(Ok(incremental.clone())));
            assert_eq!(Name::of_directory(&text), Some(Name { packing: Packing::None, ..incremental }));
        }
        assert!(Name::of_directory(&format!("snapshot-1-{HASH}")).is_some());
    }

    #[test]
    fn wrong_parts_are_named() {
        let cases = [
            (format!("snapshot-x-{HASH}.tar.zst"), "slot=x"),
            (format!("snapshot--{HASH}.tar.zst"), "slot="),
            (format!("snapshot-+1-{HASH}.tar.zst"), "slot=+1"),
            (format!("snapshot-18446744073709551616-{HASH}.tar.zst"), "slot=18446744073709551616"),
            (format!("snapshot-1-{HASH}.tar.bz2"), "packing=bz2"),
            (format!("snapshot-1-{HASH}.tar.zst.part"), "packing=zst.part"),
            (format!("snapshot-1-{}.tar.zst", &HASH[4..]), "hash="),
            (format!("snapshot-1-{HASH}{HASH}.tar.zst"), "hash="),
            ("snapshot-1-0OIl.tar.zst".to_owned(), "hash=0OIl"),
            ("snapshot-1.tar.zst".to_owned(), "slot=1"),
            (format!("incremental-snapshot-1-{HASH}.tar"), "slot="),
            (format!("incremental-snapshot-2-2-{HASH}.tar"), "slot=2"),
            (format!("incremental-snapshot-x-2-{HASH}.tar"), "base=x"),
        ];
        for (name, part) in cases {
            let error = Name::parse(&name).unwrap_or_else(|| panic!("{name}")).unwrap_err().to_string();
            assert!(error.contains(&format!("name={name} {part}")), "{error}");
        }
    }

    #[test]
    fn other_files_have_no_archives_name() {
        for name in ["pairs.csv", "snapshot.tar.bz2", "snapshot-1.csv", "genesis.tar.bz2", "snapshots", ""] {
            assert_eq!(Name::parse(name), None, "{name}");
        }
        assert_eq!(Name::of_directory("ledger"), None);
    }
}
