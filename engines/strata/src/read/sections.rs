//! The parts of a segment's file that are not pages: footer, filter planes, directory, ties.
//!
//! Owns: reading them from the file and comparing them with their checksums. Must not: keep any of them in memory; the
//! segment does. Used on the threads that open, flush, merge, scrub and repair.

use engine_api::{Error, ErrorKind, Result};

use crate::file::{PageBuffer, ReadFile, io_error};
use crate::format::footer::{Footer, Section, SegmentInfo, Wrong};
use crate::format::page::prefix;
use crate::format::ties::DirectoryBuilder;
use crate::huge::{HugeBytes, Pool};
use crate::storage::PAGE_BYTES;

/// A footer with its offset in the file, or the reason why it cannot be used.
pub(crate) type Stored = std::result::Result<(Footer, u64), Wrong>;

/// How a footer is read: [`read_footer`] or [`salvage_footer`].
pub(crate) type ReadFooter = fn(&ReadFile) -> Result<Stored>;

/// Reads a footer for a repair, to which one that the device does not give is damage as well.
pub(crate) fn salvage_footer(file: &ReadFile) -> Result<Stored> {
    match read_footer(file) {
        Err(failed) if is_damage(&failed) => Ok(Err(Wrong::Damaged(failed.to_string()))),
        read => read,
    }
}

/// Whether the error of a read means that something of the file is lost. A want of descriptors or memory passes, and
/// permissions can be mended.
pub(crate) fn is_damage(error: &Error) -> bool {
    !matches!(error.kind(), ErrorKind::Retry | ErrorKind::FixInput)
}

pub(crate) fn read_footer(file: &ReadFile) -> Result<Stored> {
    let length = file.len()?;
    if length < PAGE_BYTES as u64 || !length.is_multiple_of(PAGE_BYTES as u64) {
        return Ok(Err(Wrong::Damaged(format!("length_bytes={length} is not whole pages"))));
    }
    let mut buffer = PageBuffer::new(1);
    let at = length - PAGE_BYTES as u64;
    file.read(buffer.bytes_mut(), at)?;
    Ok(Footer::decode(buffer.page(0)).and_then(|footer| {
        let expected = footer.offset() + PAGE_BYTES as u64;
        match expected == length {
            true => Ok((footer, at)),
            false => Err(Wrong::Damaged(format!("length_bytes={length} expected_bytes={expected}"))),
        }
    }))
}

/// Checks that the pages' first keys ascend within the range from the segment's first key to its last.
pub(super) fn check_directory(directory: &[u64], info: &SegmentInfo) -> Result<(), &'static str> {
    let ends = directory.first().zip(directory.last());
    if ends.is_none_or(|(first, last)| *first != prefix(&info.first) || *last > prefix(&info.last)) {
        return Err("the directory is not of the range from the first key to the last");
    }
    if !directory.is_sorted() {
        return Err("the directory is out of order");
    }
    Ok(())
}

/// Reads a section into memory of `pool`.
///
/// # Errors
/// `DataDamaged` naming the file and the offset; `Retry`: there is no memory; I/O errors of reading.
pub(super) fn read_section(file: &ReadFile, section: Section, pool: &Pool) -> Result<HugeBytes> {
    let mut bytes = pool
        .take(section.bytes as usize)
        .map_err(|e| io_error(format!("no memory: file={} bytes={}", file.shown(), section.bytes), e))?;
    file.read(bytes.whole_pages_mut(), section.offset)?;
    let computed = crc32c::crc32c(bytes.bytes());
    if computed != section.crc {
        let stored = section.crc;
        return Err(damaged(file, section.offset, &format!("checksum stored={stored:08x} computed={computed:08x}")));
    }
    Ok(bytes)
}

/// Makes the error of a damaged segment, which names file and offset.
pub(super) fn damaged(file: &ReadFile, offset: u64, why: &str) -> Error {
    Error::new(ErrorKind::DataDamaged, format!("segment is damaged: file={} offset={offset} {why}", file.shown()))
}

/// Checks that directory and ties on disk are those of the segment's pages.
///
/// # Errors
/// As [`read_section`].
pub(crate) fn check_against_pages(file: &ReadFile, footer: &Footer, pages: &DirectoryBuilder) -> Result<()> {
    let [directory_bytes, ties_bytes] = pages.bytes();
    let (mut directory, mut ties) = (vec![0; directory_bytes], vec![0; ties_bytes]);
    pages.encode_directory(&mut directory);
    pages.encode_ties(&mut ties);
    let pool = Pool::default();
    for (section, expected) in [(footer.directory, directory), (footer.ties, ties)] {
        if read_section(file, section, &pool)?.bytes() != expected {
            return Err(damaged(file, section.offset, "the directory is not that of the pages"));
        }
    }
    Ok(())
}

/// Checks the filter planes, the directory and its ties on disk against their checksums.
pub(crate) fn check_sections(file: &ReadFile, footer: &Footer) -> Result<()> {
    let pool = Pool::default();
    footer.sections().into_iter().try_for_each(|section| read_section(file, *section, &pool).map(drop))
}
