//! Entry point of the fuzz target `feed` in `service/fuzz`: opens and reads a log of arbitrary bytes.
//!
//! Owns: nothing. Must not: be called by the service. Any thread.

use std::fs;
use std::path::Path;

use engine_api::Durability;
use solana::ChainCheckpoint;

use super::record::{
    Beginning, Change, FRAME_HEADER_BYTES, Frame, Header, Identity, SEGMENT_HEADER_BYTES, SlotEnd, segment_header,
};
use super::segment::Segment;
use super::{Cursor, FeedError, FeedWriter};

/// Sequence number that the name of every segment gives.
const FIRST_SEQ: u64 = 5;

/// Opens four logs in `dir`, which is emptied before each. They are the bytes as a segment, the bytes after a valid
/// header, and a valid segment changed by the bytes, without and with right checksums. The first byte picks the store's
/// sequence number. Asserts that the changes read have ascending, gapless numbers.
pub fn log(bytes: &[u8], dir: &Path) {
    let [pick, bytes @ ..] = bytes else { return };
    let seqs = [FIRST_SEQ - 1, FIRST_SEQ, FIRST_SEQ + 2, FIRST_SEQ + 5, 1 << 62];
    let seq = seqs[usize::from(*pick) % seqs.len()];
    open(bytes, dir, seq);
    let begins = Beginning { first_seq: FIRST_SEQ, after_slot: None };
    let header = segment_header(Identity { feed_id: 9, boot: 0 }, begins);
    let mut sample = header.to_vec();
    sample.extend_from_slice(bytes);
    open(&sample, dir, seq);
    let mut sample = valid(&header);
    for change in bytes.chunks_exact(3) {
        let at = usize::from(u16::from_le_bytes([change[0], change[1]])) % sample.len();
        sample[at] = change[2];
    }
    open(&sample, dir, seq);
    seal(&mut sample);
    open(&sample, dir, seq);
}

/// Returns a segment of three frames with one to three changes.
fn valid(header: &[u8]) -> Vec<u8> {
    let (mut out, mut frame, mut first_seq) = (header.to_vec(), Vec::new(), FIRST_SEQ);
    for count in 1..4u8 {
        let change =
            |n: u8| Change { slot: 7, key: [n; 32], old: n.is_multiple_of(2).then_some([1; 32]), new: Some([n; 32]) };
        let changes: Vec<Change> = (0..count).map(change).collect();
        let seq = first_seq + u64::from(count) - 1;
        let ends = vec![SlotEnd { seq, slot: 7, blockhash: [8; 32], parent_slot: 6, is_healed: false }];
        Frame { first_seq, committed_unix_ms: 3, changes, ends }.encode(&mut frame);
        out.extend_from_slice(&frame);
        first_seq += u64::from(count);
    }
    out.resize(out.len() + 200, 0);
    out
}

/// Sets the right checksum in every frame that can be found.
fn seal(segment: &mut [u8]) {
    let Some(mut rest) = segment.get_mut(SEGMENT_HEADER_BYTES as usize..) else { return };
    while rest.len() >= FRAME_HEADER_BYTES {
        let Header::Frame { bytes, .. } = Frame::header(&rest[..FRAME_HEADER_BYTES]) else { return };
        let Some((frame, behind)) = rest.split_at_mut_checked(bytes) else { return };
        let crc = crc32c::crc32c(&frame[4..]);
        frame[..4].copy_from_slice(&crc.to_le_bytes());
        rest = behind;
    }
}

fn open(segment: &[u8], dir: &Path, seq: u64) {
    fs::remove_dir_all(dir).ok();
    fs::create_dir_all(dir).expect("a directory of the target's own");
    fs::write(Segment::path(dir, FIRST_SEQ), segment).expect("a file of the target's own");
    let checkpoint = ChainCheckpoint { seq, ..ChainCheckpoint::default() };
    let (mut writer, feed) =
        FeedWriter::open(dir, &checkpoint, Durability::Buffered, 1 << 20).expect("damage is no error");
    let change = Change { slot: 1, key: [1; 32], old: None, new: Some([2; 32]) };
    writer.append(seq + 1, vec![change], Vec::new()).expect("the log goes on");
    writer.publish(&ChainCheckpoint { seq: seq + 1, ..checkpoint });
    let (mut cursor, mut next_seq) = (Cursor::new(feed.oldest_seq()), feed.oldest_seq());
    loop {
        match feed.read(&mut cursor) {
            Ok(frames) if frames.is_empty() => break,
            Ok(frames) => frames.iter().for_each(|frame| {
                assert_eq!(frame.first_seq, next_seq);
                next_seq = frame.last_seq() + 1;
            }),
            // Damage in a part that opening does not check.
            Err(FeedError::Log(_)) => return,
            Err(FeedError::Gone { oldest_seq }) => panic!("oldest_seq={oldest_seq} is gone"),
        }
    }
    assert_eq!(next_seq, seq + 2, "what was published can be read");
}
