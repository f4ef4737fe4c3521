//! Salvage of the readable records of a damaged segment.
//!
//! Owns: which records of a segment are lost, and the new segment with the others. Runs on the thread that repairs.

use std::sync::Arc;

use engine_api::{Key, Result};

use crate::file::{PageBuffer, ReadFile, shown};
use crate::format::footer::{Origin, SegmentInfo};
use crate::format::page::Page;
use crate::format::ties::DirectoryBuilder;
use crate::read::sections::{check_against_pages, check_sections, is_damage, salvage_footer};
use crate::read::segment::name;
use crate::storage::{PAGE_BYTES, Storage};
use crate::write::segment_writer::{Room, SegmentWriter};

/// Result of salvaging a damaged segment.
pub(crate) struct Salvaged {
    /// The segment that takes its place; `None` if no record could be read.
    pub(crate) written: Option<SegmentInfo>,
    /// Ranges of keys whose records could not be read, a line each.
    pub(crate) lost: Vec<String>,
    pub(crate) why: String,
}

/// Reads the pages of a segment's file one by one.
struct Pages {
    file: ReadFile,
    buffer: PageBuffer,
    id: u64,
}

impl Pages {
    /// Reads page `number`. The inner error says why it cannot be read or is not whole.
    ///
    /// # Errors
    /// Those that say nothing of the page: see [`is_damage`].
    fn read(&mut self, number: u32) -> Result<Result<Page<'_>, String>> {
        match self.file.read(self.buffer.bytes_mut(), u64::from(number) * PAGE_BYTES as u64) {
            Ok(()) => Ok(Page::verify(self.buffer.page(0), self.id, number)),
            Err(error) if is_damage(&error) => Ok(Err(error.to_string())),
            Err(error) => Err(error),
        }
    }
}

/// Reads all of the segment `info`. Returns `None` if it is whole. Otherwise writes its readable records as segment
/// `id`, with `otherwise` as the origin if its own footer cannot be read.
pub(crate) fn salvage(
    storage: &Arc<dyn Storage>,
    info: &SegmentInfo,
    otherwise: &Origin,
    id: u64,
) -> Result<Option<Salvaged>> {
    let shown = shown(&**storage, &name(info.id));
    let file = match ReadFile::open(&**storage, &name(info.id)) {
        Ok(file) => file,
        Err(error) if !is_damage(&error) => return Err(error),
        Err(error) => {
            let lost = vec![range(&shown, 0, &info.first, &info.last)];
            return Ok(Some(Salvaged { written: None, lost, why: error.to_string() }));
        }
    };
    let footer = match salvage_footer(&file)? {
        Ok((footer, _)) if footer.info == *info && footer.origin.seed == otherwise.seed => Ok(footer),
        // A whole file is in the place of the named one, so its pages are not those of the segment.
        Ok((footer, _)) => {
            let of = if footer.origin.seed == otherwise.seed { "other records" } else { "another store" };
            let why = format!("segment is of {of} than the manifest says: file={shown}");
            let lost = vec![range(&shown, 0, &info.first, &info.last)];
            return Ok(Some(Salvaged { written: None, lost, why }));
        }
        Err(wrong) => Err(wrong.to_string()),
    };
    let sections = match footer.as_ref().map(|footer| check_sections(&file, footer)) {
        Ok(Err(error)) if !is_damage(&error) => return Err(error),
        Ok(checked) => checked.map_err(|error| error.to_string()),
        Err(why) => Err(why.clone()),
    };
    let blocks = (file.len()? / PAGE_BYTES as u64) as u32;
    let pages = footer.as_ref().map_or(blocks, |footer| footer.pages);
    let mut source = Pages { file, buffer: PageBuffer::new(1), id: info.id };
    let (mut damaged, mut whole, mut before) = (Vec::new(), DirectoryBuilder::default(), None);
    for number in 0..pages {
        match source.read(number)? {
            Ok(page) => {
                whole.push(&page.key(0), before.as_ref());
                before = Some(page.key(page.len() - 1));
            }
            Err(_) => damaged.push(number),
        }
    }
    let of_pages = |footer| check_against_pages(&source.file, footer, &whole).map_err(|error| error.to_string());
    let Err(why) = sections.and_then(|()| match damaged.first() {
        None => footer.as_ref().map_or_else(|why| Err(why.clone()), of_pages),
        Some(first) => {
            Err(format!("{} pages, the first at offset={}", damaged.len(), u64::from(*first) * PAGE_BYTES as u64))
        }
    }) else {
        return Ok(None);
    };
    // A delta may be the only place of a record that was lost here, so the new segment does not say what is in the base.
    let origin = Origin { merged: None, ..footer.as_ref().map_or(otherwise, |footer| &footer.origin).clone() };
    let (written, lost) = rewrite(storage, &mut source, info, (pages, &origin, id), &shown)?;
    // Messages about sections name the file already.
    let said = if why.contains(&shown) { why } else { format!("segment is damaged: file={shown} {why}") };
    Ok(Some(Salvaged { written, lost, why: said }))
}

/// Writes the records of all whole pages as segment `id`. Also returns the ranges of keys between them that are lost.
fn rewrite(
    storage: &Arc<dyn Storage>,
    source: &mut Pages,
    info: &SegmentInfo,
    (pages, origin, id): (u32, &Origin, u64),
    shown: &str,
) -> Result<(Option<SegmentInfo>, Vec<String>)> {
    let mut writer = SegmentWriter::create(storage, id, origin, Room::alone())?;
    let mut lost = Vec::new();
    // `gap` is the first page that could not be read since the last whole one, `before` the last key before the gap.
    let (mut gap, mut before) = (None, info.first);
    for number in 0..pages {
        let Ok(page) = source.read(number)? else {
            gap.get_or_insert(number);
            continue;
        };
        if let Some(first) = gap.take() {
            lost.push(range(shown, first, &before, &page.key(0)));
        }
        before = page.key(page.len() - 1);
        for index in 0..page.len() {
            writer.push(&page.key(index), page.value(index).as_ref())?;
        }
    }
    // Without the footer the end is unknown: blocks after the last page are no pages, and a cut file may end with a
    // whole page.
    if before < info.last || writer.records() == 0 {
        lost.push(range(shown, gap.unwrap_or(pages), &before, &info.last));
    }
    if lost.is_empty() && writer.records() < info.records {
        let (read, missing) = (writer.records(), info.records - writer.records());
        lost.push(format!("{} records={read} missing={missing}", range(shown, 0, &info.first, &info.last)));
    }
    let written = if writer.records() > 0 { Some(writer.finish_alone()?) } else { None };
    Ok((written, lost))
}

/// Describes a range of keys for a message.
fn range(shown: &str, page: u32, from: &Key, to: &Key) -> String {
    format!("file={shown} offset={} keys_from={} keys_to={}", u64::from(page) * PAGE_BYTES as u64, hex(from), hex(to))
}

fn hex(key: &Key) -> String {
    key.iter().map(|byte| format!("{byte:02x}")).collect()
}
