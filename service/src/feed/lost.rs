//! The proof, by the feed's log, that a store has lost commits.
//!
//! Owns: this comparison and its refusal. Must not: write, or judge a log that was written without flushes in an earlier
//! boot of the machine. Runs on the main thread, before the feed is opened.
//!
//! A frame is flushed before the engine commits it, and the engine's commit is flushed before the next frame is appended.
//! So a store has every flushed frame that another frame follows. Without flushes the same holds until the machine stops,
//! because a process that ends, in whatever way, takes nothing from either file. The store's own check of its last seq, in
//! the marker, knows only where the store stood when it was last closed.

use std::fs::File;
use std::path::Path;

use engine_api::{Error, ErrorKind, Result};

use super::record::{Beginning, SEGMENT_HEADER_BYTES};
use super::segment::{Found, Segment, find, frame_at, header};
use super::writer::{boot_id, segment_paths};

/// Refuses a store that stands at `store_seq` and lacks commits that the log in `dir` holds. A log that is damaged, or of
/// two feeds, proves nothing.
///
/// # Errors
/// [`ErrorKind::FixInput`] with both sequence numbers and the ways out; I/O errors of reading the log.
pub(crate) fn refuse_lost(dir: &Path, store_seq: u64) -> Result<()> {
    let Some(committed_seq) = committed(dir, store_seq)? else { return Ok(()) };
    Err(Error::new(
        ErrorKind::FixInput,
        format!(
            "the store has lost changes: store_seq={store_seq} committed_seq={committed_seq}, by the feed's log: dir={}: put \
             back the files that are missing, or restore a snapshot; to go on without the changes, remove this directory: \
             the stream is then followed from the store's slot, and subscribers start over",
            dir.display()
        ),
    ))
}

/// Returns the sequence number that a commit after `store_seq` has reached, which was flushed or is of this boot of the
/// machine; `None` if the log has no such commit.
fn committed(dir: &Path, store_seq: u64) -> Result<Option<u64>> {
    let paths = if dir.is_dir() { segment_paths(dir)? } else { Vec::new() };
    // A name is the segment's first seq. Any other name is looked at.
    let begins_later = |path: &Path| {
        let name = path.file_stem().and_then(|name| name.to_str()).and_then(|name| name.parse::<u64>().ok());
        name.is_some_and(|first_seq| first_seq > store_seq)
    };
    let from = paths.iter().rposition(|path| !begins_later(path)).unwrap_or(0);
    // The last seq of such a commit's frame that the store lacks, until another frame follows it.
    let (mut lacked, mut feed_id) = (None, None);
    let certain = [0, boot_id()?];
    for path in &paths[from..] {
        let file = File::open(path)
            .map_err(|e| Error::io(format!("cannot read a segment of the feed: file={}", path.display()), e))?;
        let (identity, Beginning { first_seq, .. }) = match header(&file, path) {
            Ok(header) => header,
            Err(damaged) if damaged.kind() == ErrorKind::DataDamaged => return Ok(None),
            Err(failed) => return Err(failed),
        };
        if *feed_id.get_or_insert(identity.feed_id) != identity.feed_id {
            return Ok(None);
        }
        let segment = Segment { first_seq, path: path.clone(), bytes: 0 };
        let found = if first_seq > store_seq {
            Some((SEGMENT_HEADER_BYTES, first_seq))
        } else {
            find(&file, &segment, store_seq + 1)?
        };
        // Where changes were left out of the log, the segment before them does not lead to the store.
        let Some((mut at, mut seq)) = found else { continue };
        while let Found::Frame(frame, after) = frame_at(&file, at, seq, path)? {
            if lacked.is_some() {
                return Ok(lacked);
            }
            lacked = Some(frame.last_seq()).filter(|_| certain.contains(&identity.boot));
            (at, seq) = (after, frame.last_seq() + 1);
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt as _;

    use engine_api::Durability;

    use super::super::record::{Identity, segment_header};
    use super::super::tests::{Rig, at};
    use super::*;

    /// Refuses as [`refuse_lost`] does, and returns the proven seq.
    fn lost(dir: &Path, store_seq: u64) -> Option<u64> {
        let committed = committed(dir, store_seq).unwrap();
        let refused = refuse_lost(dir, store_seq);
        assert_eq!(committed.is_some(), refused.is_err());
        if let (Some(committed), Err(refused)) = (committed, refused) {
            let seqs = format!("store_seq={store_seq} committed_seq={committed}");
            assert!(refused.kind() == ErrorKind::FixInput && refused.to_string().contains(&seqs), "{refused}");
        }
        committed
    }

    #[test]
    fn a_store_that_lacks_a_flushed_commit_is_refused_and_one_frame_ahead_is_a_crash() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(lost(&dir.path().join("missing"), 7), None, "there is no log");
        let mut rig = Rig::synced(dir.path(), 5);
        (0..4).for_each(|_| rig.commit(5));
        for (store_seq, proven) in
            [(0, Some(10)), (5, Some(10)), (12, Some(15)), (15, Some(20)), (20, None), (25, None), (31, None)]
        {
            assert_eq!(lost(dir.path(), store_seq), proven, "store_seq={store_seq}");
        }
        // The frame of a commit that a crash has cut short.
        rig.append(5);
        assert_eq!((lost(dir.path(), 25), lost(dir.path(), 20)), (None, Some(25)));
    }

    #[test]
    fn segments_are_one_log_and_a_crash_at_their_border_is_one_as_well() {
        let dir = tempfile::tempdir().unwrap();
        let mut rig = Rig::open(dir.path(), 0, Durability::Synced, 1 << 20);
        rig.writer.keep(1 << 30);
        (0..40).for_each(|_| rig.commit(1000));
        let begins: Vec<u64> = segment_paths(dir.path()).unwrap().iter().map(|path| number(path)).collect();
        assert!(begins.len() > 3, "{begins:?}");
        for store_seq in (0..=38_000).step_by(1000) {
            assert_eq!(lost(dir.path(), store_seq), Some(store_seq + 1000), "{begins:?}");
        }
        assert_eq!((lost(dir.path(), 39_000), lost(dir.path(), 40_000)), (None, None));
        let last = begins[begins.len() - 1];
        for path in segment_paths(dir.path()).unwrap().into_iter().filter(|path| number(path) == last) {
            std::fs::remove_file(path).unwrap();
        }
        assert_eq!((lost(dir.path(), last - 1001), lost(dir.path(), last - 2001)), (None, Some(last - 1001)));
    }

    fn number(path: &Path) -> u64 {
        path.file_stem().unwrap().to_str().unwrap().parse().unwrap()
    }

    #[test]
    fn a_log_without_flushes_proves_as_much_in_its_own_boot_and_nothing_in_a_later_one() {
        let dir = tempfile::tempdir().unwrap();
        let mut rig = Rig::open(dir.path(), 0, Durability::Buffered, 1 << 30);
        (0..4).for_each(|_| rig.commit(5));
        let found = [0, 10, 15, 20].map(|store_seq| lost(dir.path(), store_seq));
        assert_eq!(found, [Some(5), Some(15), None, None]);
        of_earlier_boot(&segment_paths(dir.path()).unwrap()[0]);
        assert_eq!([0, 10].map(|store_seq| lost(dir.path(), store_seq)), [None; 2]);
    }

    #[test]
    fn a_log_with_flushes_proves_what_precedes_it_whatever_follows() {
        let dir = tempfile::tempdir().unwrap();
        let mut rig = Rig::open(dir.path(), 0, Durability::Buffered, 1 << 30);
        (0..4).for_each(|_| rig.commit(5));
        // From here on each commit is flushed, with all those before it.
        rig.durability = Durability::Synced;
        rig = rig.reopen();
        of_earlier_boot(&segment_paths(dir.path()).unwrap()[0]);
        rig.commit(5);
        assert_eq!(lost(dir.path(), 10), None, "the first of them may be cut short");
        rig.commit(5);
        assert_eq!((lost(dir.path(), 10), lost(dir.path(), 20), lost(dir.path(), 25)), (Some(25), Some(25), None));
        rig.durability = Durability::Buffered;
        rig = rig.reopen();
        rig.commit(5);
        rig.commit(5);
        of_earlier_boot(segment_paths(dir.path()).unwrap().last().unwrap());
        assert_eq!((lost(dir.path(), 25), lost(dir.path(), 30), lost(dir.path(), 35)), (Some(30), None, None));
    }

    /// Has a segment say that it was written before the machine last started.
    fn of_earlier_boot(path: &Path) {
        let (identity, beginning) = header(&File::open(path).unwrap(), path).unwrap();
        let earlier = Identity { boot: identity.boot ^ 1, ..identity };
        assert!(identity.boot != 0 && earlier.boot != 0, "written without flushes");
        let file = File::options().write(true).open(path).unwrap();
        file.write_all_at(&segment_header(earlier, beginning), 0).unwrap();
    }

    #[test]
    fn changes_that_were_left_out_are_a_hole_and_the_log_after_them_counts() {
        let dir = tempfile::tempdir().unwrap();
        let mut rig = Rig::synced(dir.path(), 0);
        rig.commit(10);
        rig.writer.leave_out(20, 70);
        rig.append(10);
        // A crash among them: the segment after them has been made, and has no frame.
        assert_eq!((lost(dir.path(), 10), lost(dir.path(), 20)), (None, None));
        rig.seq += 20;
        rig.writer.publish(&at(30));
        rig.commit(5);
        rig.commit(5);
        assert_eq!((lost(dir.path(), 20), lost(dir.path(), 30), lost(dir.path(), 35)), (Some(35), Some(35), None));
    }

    #[test]
    fn a_damaged_log_or_one_of_two_feeds_proves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let mut rig = Rig::synced(dir.path(), 0);
        (0..4).for_each(|_| rig.commit(5));
        assert_eq!(lost(dir.path(), 5), Some(10));
        let other = tempfile::tempdir().unwrap();
        Rig::synced(other.path(), 20).commit(5);
        let foreign = &segment_paths(other.path()).unwrap()[0];
        let here = dir.path().join(foreign.file_name().unwrap());
        std::fs::copy(foreign, &here).unwrap();
        assert_eq!(lost(dir.path(), 15), None);
        std::fs::remove_file(here).unwrap();
        let path = &segment_paths(dir.path()).unwrap()[0];
        std::fs::File::options().write(true).open(path).unwrap().set_len(SEGMENT_HEADER_BYTES / 2).unwrap();
        assert_eq!(lost(dir.path(), 5), None);
    }
}
