//! Entry point of the fuzz target `spool` in `service/fuzz`: opens, continues and reads a spool of arbitrary bytes.
//!
//! Owns: nothing. Must not: be called by the service. Any thread.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use super::record::{self, FRAME_HEADER_BYTES, HEADER_BYTES, Head};
use super::{FILE, Origin, Reader, SpoolFigures, Writer};
use crate::base::chain::{Base, Event, WholeSlot};

/// Opens four spools in `dir`, which is emptied before each: the bytes as the file, the bytes after a valid header, and
/// a valid file changed by the bytes, without and with right checksums. Asserts that the slots read form a chain, and
/// that a slot which is appended then is the last one.
pub fn file(bytes: &[u8], dir: &Path) {
    let origin = Origin { base: Base { slot: 6, blockhash: [6; 32] }, meaning: "token-owner exact".to_owned() };
    open(bytes, dir, &origin);
    let mut sample = origin.encode().to_vec();
    sample.extend_from_slice(bytes);
    open(&sample, dir, &origin);
    let mut sample = valid(&origin);
    for change in bytes.chunks_exact(3) {
        let at = usize::from(u16::from_le_bytes([change[0], change[1]])) % sample.len();
        sample[at] = change[2];
    }
    open(&sample, dir, &origin);
    seal(&mut sample);
    open(&sample, dir, &origin);
}

/// Returns slot `number`, the child of the one before, with as many events.
pub(super) fn slot(number: u64, parent_slot: u64) -> WholeSlot {
    let event = |n: u64| Event {
        key: [n as u8; 32],
        value: (!n.is_multiple_of(3)).then_some([number as u8; 32]),
        write_version: n,
    };
    WholeSlot {
        slot: number,
        blockhash: [number as u8; 32],
        parent: Base { slot: parent_slot, blockhash: [parent_slot as u8; 32] },
        created_unix_ms: number.wrapping_mul(400),
        events: (0..number % 7).map(event).collect(),
        late: 0,
    }
}

fn valid(origin: &Origin) -> Vec<u8> {
    let (mut out, mut frame) = (origin.encode().to_vec(), Vec::new());
    for number in origin.base.slot + 1..origin.base.slot + 4 {
        record::encode(&slot(number, number - 1), 7, &mut frame).expect("memory takes every write");
        out.extend_from_slice(&frame);
    }
    out
}

/// Sets the right checksum in every frame that can be found.
fn seal(file: &mut [u8]) {
    let Some(mut rest) = file.get_mut(HEADER_BYTES..) else { return };
    while rest.len() >= FRAME_HEADER_BYTES {
        let Some(head) = Head::read(&rest[..FRAME_HEADER_BYTES]) else { return };
        let Some((frame, after)) = rest.split_at_mut_checked(head.bytes) else { return };
        let crc = crc32c::crc32c(&frame[4..]);
        frame[..4].copy_from_slice(&crc.to_le_bytes());
        rest = after;
    }
}

fn open(bytes: &[u8], dir: &Path, origin: &Origin) {
    fs::remove_dir_all(dir).ok();
    fs::create_dir_all(dir).expect("a directory of the target's own");
    fs::write(dir.join(FILE), bytes).expect("a file of the target's own");
    let figures = Arc::new(SpoolFigures::default());
    let Ok(mut writer) = Writer::open(dir, origin, 1 << 30, Arc::clone(&figures)) else { return };
    let parent = writer.last().slot;
    let Some(next) = parent.checked_add(1) else { return };
    writer.append(&slot(next, parent)).expect("there is room");
    writer.flush().expect("a disk that works");
    let mut reader = Reader::open(dir).expect("a writer has made it");
    let mut last = reader.last().slot;
    loop {
        match reader.next(figures.flushed_bytes()) {
            Ok(Some(slot)) => {
                assert_eq!(slot.parent.slot, last);
                last = slot.slot;
            }
            Ok(None) => break,
            // Right checksums on events that cannot be unpacked: the opening does not unpack them.
            Err(_) => return,
        }
    }
    assert_eq!(last, next, "the slot that was appended is the last one");
}
