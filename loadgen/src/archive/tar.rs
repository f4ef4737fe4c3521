//! Headers of tar entries, byte by byte as agave's archives have them.
//!
//! Owns: the layout of a header. Must not: write, or know the order of entries. Plain functions, used on any thread.
//!
//! agave fills in the headers of accounts files itself: they have neither mode, user, group nor type. The other entries
//! come from a tar library that fills in everything.

use anyhow::{Result, ensure};

/// Bytes of a header. Contents are filled up with zeros to a multiple of it, and two blocks of zeros end a tar.
pub const BLOCK_BYTES: usize = 512;
/// Bytes of the longest name. The field has room for one more, which is the zero that ends it.
const NAME_BYTES_MAX: usize = 99;
/// First size that the eleven octal digits of the field do not hold: 8 GiB.
const SIZE_END: u64 = 1 << 33;
/// Place of the checksum, which counts as spaces while it is computed.
const CHECKSUM: std::ops::Range<usize> = 148..156;

/// Kind of an entry, on which most fields of its header depend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The version, the status cache or the manifest: a file as tar libraries write it.
    File,
    /// A directory, which has no contents.
    Directory,
    /// A file of accounts, as agave itself writes it.
    Accounts,
}

/// Makes the header of an entry with `size` bytes of contents.
///
/// # Errors
/// A name or a size that does not fit into its field.
pub fn header(kind: Kind, name: &str, size: u64, mtime: u64) -> Result<[u8; BLOCK_BYTES]> {
    ensure!(name.len() <= NAME_BYTES_MAX, "name too long for a tar entry: name={name:?}: max={NAME_BYTES_MAX} bytes");
    ensure!(size < SIZE_END, "too large for a tar entry: name={name:?} bytes={size}: max={}", SIZE_END - 1);
    let mut header = [0; BLOCK_BYTES];
    header[..name.len()].copy_from_slice(name.as_bytes());
    octal(&mut header[124..136], size);
    // The magic of GNU tar, with its version.
    header[257..265].copy_from_slice(b"ustar  \0");
    if kind == Kind::Accounts {
        octal(&mut header[136..148], 0);
    } else {
        // The mode has the type of the file, as the system reports it, and not the permissions alone.
        let (mode, letter) = if kind == Kind::Directory { (0o040_755, b'5') } else { (0o100_644, b'0') };
        octal(&mut header[100..108], mode);
        octal(&mut header[108..116], 0);
        octal(&mut header[116..124], 0);
        octal(&mut header[136..148], mtime);
        header[156] = letter;
        octal(&mut header[329..337], 0);
        octal(&mut header[337..345], 0);
    }
    let spaces = CHECKSUM.len() as u64 * u64::from(b' ');
    let sum = header.iter().map(|&byte| u64::from(byte)).sum::<u64>() + spaces;
    octal(&mut header[CHECKSUM], sum);
    Ok(header)
}

/// Returns the number of zeros after contents of `size` bytes.
pub fn padding(size: u64) -> usize {
    (size.next_multiple_of(BLOCK_BYTES as u64) - size) as usize
}

/// Fills a field with octal digits. Its last byte stays zero.
fn octal(field: &mut [u8], mut number: u64) {
    let digits = field.len() - 1;
    for digit in field[..digits].iter_mut().rev() {
        *digit = b'0' + (number & 7) as u8;
        number >>= 3;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_or_a_size_that_does_not_fit_is_refused() {
        let wrong = |name: &str, size| header(Kind::Accounts, name, size, 0).unwrap_err().to_string();
        assert!(wrong(&"n".repeat(100), 1).contains("max=99"));
        assert!(wrong("accounts/1.2", 1 << 33).contains("max=8589934591"));
        let largest = header(Kind::Accounts, &"n".repeat(99), (1 << 33) - 1, 0).unwrap();
        assert_eq!(&largest[124..136], b"77777777777\0");
    }

    #[test]
    fn contents_end_on_a_block() {
        assert_eq!([0, 1, 511, 512, 513].map(padding), [0, 511, 1, 0, 511]);
    }
}
