//! The tar format of snapshots: headers of 512 bytes, each followed by its entry's bytes.
//!
//! Owns: the fields of a header that matter. Must not: know the entries of a snapshot, allocate as much as a header
//! asks for, or panic on any bytes. Runs on the thread that reads the archive.
//!
//! This is a parser of our own and not a crate, because archives come from strangers. In the extensions of tar (long
//! names, PAX headers, sparse files) a header of 512 bytes can ask for any amount of memory. No entry of a snapshot
//! needs them, so they are refused by name.

use super::error::Fault;

/// Length of a header; every entry's bytes are padded to a multiple of it.
pub(super) const BLOCK_BYTES: usize = 512;

/// One header or one part of an entry's bytes, as it lies in an archive.
pub(super) type Block = [u8; BLOCK_BYTES];

/// The fields of an entry's header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Header {
    /// The name as it stands there: at most 256 bytes of visible ASCII.
    pub(super) path: String,
    pub(super) kind: Kind,
    /// Number of the entry's bytes, without their padding.
    pub(super) size: u64,
}

/// The kinds of entries that snapshots have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    File,
    Directory,
}

impl Header {
    /// Parses the block after an entry, or at the beginning. `None` for a block of zeros, which belongs to the end.
    ///
    /// # Errors
    /// A damaged header, or one of an entry that no snapshot has.
    pub(super) fn parse(block: &Block) -> Result<Option<Self>, Fault> {
        if block.iter().all(|byte| *byte == 0) {
            return Ok(None);
        }
        check_sum(block)?;
        let kind = kind(block[156])?;
        let size = number(&block[124..136]).ok_or(Fault::HeaderNumber("size"))?;
        Ok(Some(Self { path: path(block)?, kind, size }))
    }

    /// Returns the number of padding bytes after the entry's own.
    pub(super) fn padding(&self) -> usize {
        let over = (self.size % BLOCK_BYTES as u64) as usize;
        (BLOCK_BYTES - over) % BLOCK_BYTES
    }
}

fn check_sum(block: &Block) -> Result<(), Fault> {
    let stored = number(&block[148..156]).ok_or(Fault::HeaderNumber("checksum"))?;
    let sum = |bytes: &[u8]| bytes.iter().map(|byte| u64::from(*byte)).sum::<u64>();
    // The sum counts its own field as eight spaces.
    let computed = sum(&block[..148]) + 8 * u64::from(b' ') + sum(&block[156..]);
    if stored == computed { Ok(()) } else { Err(Fault::Checksum { stored, computed }) }
}

fn kind(flag: u8) -> Result<Kind, Fault> {
    Err(Fault::Kind(match flag {
        // agave writes NUL for accounts files, as tar did before POSIX.
        0 | b'0' => return Ok(Kind::File),
        b'5' => return Ok(Kind::Directory),
        b'1' => "hard link",
        b'2' => "symbolic link",
        b'3' => "character device",
        b'4' => "block device",
        b'6' => "FIFO",
        b'7' => "contiguous file",
        b'g' => "PAX global header",
        b'x' => "PAX header",
        b'L' => "GNU long name",
        b'K' => "GNU long link",
        b'S' => "sparse file",
        b'M' => "continued file",
        b'V' => "volume label",
        _ => "unknown",
    }))
}

/// Parses a number of a header: octal digits between spaces and NULs, or big-endian bytes after 0x80. `None` when there
/// is none, or one that does not fit.
fn number(field: &[u8]) -> Option<u64> {
    if let [0x80, high @ .., _, _, _, _, _, _, _, _] = field {
        let low: [u8; 8] = *field.last_chunk()?;
        return high.iter().all(|byte| *byte == 0).then(|| u64::from_be_bytes(low));
    }
    let digits = field.trim_ascii_start();
    let length = digits.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(digits.len());
    let (digits, rest) = digits.split_at(length);
    let is_ended = rest.iter().all(|byte| matches!(byte, 0 | b' '));
    let text = std::str::from_utf8(digits).ok().filter(|_| is_ended)?;
    u64::from_str_radix(text, 8).ok()
}

fn path(block: &Block) -> Result<String, Fault> {
    // Only POSIX's format has the rest of a long name there; GNU's has times.
    let prefix = if &block[257..263] == b"ustar\0" { text(&block[345..500])? } else { "" };
    let name = text(&block[..100])?;
    let path = if prefix.is_empty() { name.to_owned() } else { format!("{prefix}/{name}") };
    if path.is_empty() { Err(Fault::Path) } else { Ok(path) }
}

/// Returns the text of a field up to its end or the first NUL. After that only NULs may come, so that no other reader
/// sees another name.
fn text(field: &[u8]) -> Result<&str, Fault> {
    let length = field.iter().position(|byte| *byte == 0).unwrap_or(field.len());
    let (text, rest) = field.split_at(length);
    let is_clean = text.iter().all(u8::is_ascii_graphic) && rest.iter().all(|byte| *byte == 0);
    std::str::from_utf8(text).ok().filter(|_| is_clean).ok_or(Fault::Path)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a header as agave writes it for accounts files: no mode, owner or time, and the kind NUL.
    fn block(name: &str, kind: u8, size: &[u8]) -> Block {
        let mut block = [0; BLOCK_BYTES];
        block[..name.len()].copy_from_slice(name.as_bytes());
        block[124..124 + size.len()].copy_from_slice(size);
        block[156] = kind;
        block[257..265].copy_from_slice(b"ustar  \0");
        seal(block)
    }

    fn seal(mut block: Block) -> Block {
        block[148..156].fill(b' ');
        let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
        block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        block
    }

    fn header(path: &str, kind: Kind, size: u64) -> Result<Option<Header>, Fault> {
        Ok(Some(Header { path: path.to_owned(), kind, size }))
    }

    #[test]
    fn headers_of_snapshots_are_read() {
        for flag in [0, b'0'] {
            let read = Header::parse(&block("accounts/1.2", flag, b"00000000017\0"));
            assert_eq!(read, header("accounts/1.2", Kind::File, 15));
        }
        assert_eq!(Header::parse(&block("snapshots/", b'5', b"0")), header("snapshots/", Kind::Directory, 0));
        assert_eq!(Header::parse(&[0; BLOCK_BYTES]), Ok(None));
        let longest = "a".repeat(100);
        assert_eq!(Header::parse(&block(&longest, 0, b"0")), header(&longest, Kind::File, 0));
        let mut posix = block("1.2", b'0', b"7");
        posix[257..265].copy_from_slice(b"ustar\x0000");
        posix[345..353].copy_from_slice(b"accounts");
        assert_eq!(Header::parse(&seal(posix)), header("accounts/1.2", Kind::File, 7));
    }

    #[test]
    fn sizes_are_read_in_every_form() {
        let sizes: [(&[u8], Option<u64>); 12] = [
            (b"   17 \0", Some(15)),
            (b"777777777777", Some((1 << 36) - 1)),
            (b"\x80\0\0\0\0\0\0\0\0\0\x01\x02", Some(258)),
            (b"\x80\0\0\0\xff\xff\xff\xff\xff\xff\xff\xff", Some(u64::MAX)),
            (b"\x80\0\0\x01\0\0\0\0\0\0\0\0", None),
            (b"\x81\0\0\0\0\0\0\0\0\0\0\0", None),
            (b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", None),
            (b"", None),
            (b"8", None),
            (b"-1", None),
            (b"+1", None),
            (b"1 1", None),
        ];
        for (field, expected) in sizes {
            let read = Header::parse(&block("version", b'0', field));
            match expected {
                Some(size) => assert_eq!(read, header("version", Kind::File, size), "{field:?}"),
                None => assert_eq!(read, Err(Fault::HeaderNumber("size")), "{field:?}"),
            }
        }
    }

    #[test]
    fn every_other_kind_is_refused_by_name() {
        for flag in (0..=255).filter(|flag| ![0, b'0', b'5'].contains(flag)) {
            let error = Header::parse(&block("version", flag, b"0")).unwrap_err();
            assert!(matches!(error, Fault::Kind(_)), "{flag}: {error}");
        }
        let error = Header::parse(&block("x", b'x', b"0")).unwrap_err();
        let expected =
            "neither a regular file nor a directory: kind=PAX header: unpack the archive, and pack its files again";
        assert!(error.to_string().contains(expected), "{error}");
    }

    #[test]
    fn a_flipped_bit_of_a_header_is_seen_or_changes_nothing() {
        let good = block("accounts/351000320.6", 0, b"00005430635\0");
        for at in 0..BLOCK_BYTES {
            for bit in 0..8 {
                let mut damaged = good;
                damaged[at] ^= 1 << bit;
                let read = Header::parse(&damaged);
                // Only the stored sum can be spelled in two ways, such as a space for a leading zero.
                let may_pass = (148..156).contains(&at) && read == Header::parse(&good);
                assert!(read.is_err() || may_pass, "at={at} bit={bit}");
            }
        }
    }

    #[test]
    fn names_with_other_bytes_are_refused() {
        for name in ["", "a\0b", "a b", "a\nb", "\u{fc}"] {
            assert_eq!(Header::parse(&block(name, 0, b"0")), Err(Fault::Path), "{name:?}");
        }
    }

    #[test]
    fn padding_fills_the_last_block() {
        for (size, padding) in [(0, 0), (1, 511), (511, 1), (512, 0), (513, 511), (u64::MAX, 1)] {
            assert_eq!(Header { path: String::new(), kind: Kind::File, size }.padding(), padding, "{size}");
        }
    }
}
