//! Archives of agave, rewritten into the shapes of other writers. The accounts in them stay the same.
//!
//! Owns: the shapes. Must not: share code with the reader. Two test programs have this file.

use std::ops::Range;

/// Bytes to which Firedancer pads each frame.
const FRAME_ALIGN: usize = 4096;

/// One entry of a tar file.
#[derive(Clone)]
pub(crate) struct Entry {
    pub(crate) name: String,
    pub(crate) kind: u8,
    pub(crate) bytes: Vec<u8>,
}

/// How Firedancer names the accounts files of an archive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Named {
    /// By the archive's slot, all of them.
    SameSlot,
    /// By the slots that end with the archive's.
    CountingDown,
    /// By slot 0, as at first.
    SlotZero,
}

/// Returns the entries of a tar file.
pub(crate) fn entries(tar: &[u8]) -> Vec<Entry> {
    let (mut entries, mut at) = (Vec::new(), 0);
    while tar[at] != 0 {
        let text = |field: Range<usize>| {
            let field = &tar[at..][field];
            String::from_utf8(field.iter().copied().take_while(|byte| *byte != 0).collect()).unwrap()
        };
        let size = usize::from_str_radix(text(124..135).trim(), 8).unwrap_or(0);
        let bytes = tar[at + 512..at + 512 + size].to_vec();
        entries.push(Entry { name: text(0..100), kind: tar[at + 156], bytes });
        at += 512 + size.next_multiple_of(512);
    }
    entries
}

/// Returns an entry with its header and padding.
pub(crate) fn block(entry: &Entry) -> Vec<u8> {
    let Entry { name, kind, bytes } = entry;
    let mut block = vec![0; 512];
    block[..name.len()].copy_from_slice(name.as_bytes());
    block[124..136].copy_from_slice(format!("{:011o}\0", bytes.len()).as_bytes());
    block[148..156].fill(b' ');
    block[156] = *kind;
    block[257..265].copy_from_slice(b"ustar  \0");
    let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    block.extend(bytes);
    block.resize(block.len().next_multiple_of(512), 0);
    block
}

/// Returns the parts of a tar file: each entry, and the two blocks that end it.
pub(crate) fn parts(entries: &[Entry]) -> Vec<Vec<u8>> {
    entries.iter().map(block).chain([vec![0; 1024]]).collect()
}

/// Empties the list of accounts files in the manifest, as agave 4.3 writes it. Nothing else changes.
pub(crate) fn without_list(tar: &[u8]) -> Vec<Entry> {
    let mut entries = entries(tar);
    // The one that looks least like other bytes.
    let last = entries.iter().filter_map(|entry| place(&entry.name)).max().unwrap();
    let manifest = entries.iter_mut().find(|entry| slot_of_manifest(&entry.name).is_some()).unwrap();
    let number = |at: usize| u64::from_le_bytes(manifest.bytes[at..at + 8].try_into().unwrap());
    // A slot, the number of its files, a file, and its length.
    let is_file = |at: usize| number(at + 8) == 1 && number(at) <= 1 << 32;
    let is_last = |at: &usize| (number(*at), number(at + 8), number(at + 16)) == (last.0, 1, last.1);
    let mut from = (0..manifest.bytes.len() - 32).find(is_last).unwrap();
    while is_file(from - 32) {
        from -= 32;
    }
    let count = number(from - 8);
    assert!((0..count as usize).all(|file| is_file(from + file * 32)));
    manifest.bytes.drain(from..from + count as usize * 32);
    manifest.bytes[from - 8..from].fill(0);
    entries
}

/// Rewrites an archive as Firedancer writes it: an empty list, and accounts files by other names in another order.
pub(crate) fn firedancer(tar: &[u8], named: Named) -> Vec<Entry> {
    let (mut accounts, others): (Vec<_>, Vec<_>) =
        without_list(tar).into_iter().partition(|entry| place(&entry.name).is_some());
    let slot = others.iter().find_map(|entry| slot_of_manifest(&entry.name)).unwrap();
    // The newer file of an account keeps the greater name.
    accounts.sort_by_key(|entry| place(&entry.name));
    let last = accounts.len() as u64 - 1;
    for (number, entry) in (0..).zip(&mut accounts) {
        let slot = match named {
            Named::SameSlot => slot,
            Named::CountingDown => slot - (last - number),
            Named::SlotZero => 0,
        };
        (entry.name, entry.kind) = (format!("accounts/{slot}.{number}"), b'0');
    }
    // The tiles that write them are as quick as they happen to be.
    accounts.reverse();
    let half = accounts.len() / 2;
    accounts.rotate_left(half);
    let (last, first): (Vec<_>, Vec<_>) = others.into_iter().partition(|entry| entry.name.ends_with("status_cache"));
    [first, accounts, last].concat()
}

/// Packs each part as a frame of its own, with a frame to be skipped up to the next 4 KiB.
pub(crate) fn zstd_frames(parts: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let frame = |part: &Vec<u8>| {
        let mut frame = if part.len() <= 1024 { raw_frame(part) } else { zstd::encode_all(&part[..], 1).unwrap() };
        let end = (frame.len() + 8).next_multiple_of(FRAME_ALIGN);
        let skipped = (end - frame.len() - 8) as u32;
        frame.extend([0x50, 0x2a, 0x4d, 0x18]);
        frame.extend(skipped.to_le_bytes());
        frame.resize(end, 0);
        frame
    };
    parts.iter().map(frame).collect()
}

/// Returns a frame with one block that is not packed.
fn raw_frame(bytes: &[u8]) -> Vec<u8> {
    let length = bytes.len() as u32;
    let [low, middle, high, _] = (length << 3 | 1).to_le_bytes();
    // One segment, with a length of four bytes.
    let header = [&[0x28, 0xb5, 0x2f, 0xfd, 0xa0][..], &length.to_le_bytes(), &[low, middle, high]].concat();
    [&header[..], bytes].concat()
}

/// Returns slot and number in the name of an accounts file.
fn place(name: &str) -> Option<(u64, u64)> {
    let (slot, file) = name.strip_prefix("accounts/")?.split_once('.')?;
    Some((slot.parse().ok()?, file.parse().ok()?))
}

fn slot_of_manifest(name: &str) -> Option<u64> {
    let (directory, file) = name.strip_prefix("snapshots/")?.split_once('/')?;
    (directory == file).then(|| file.parse().ok())?
}
