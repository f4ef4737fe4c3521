//! The log of a store as another process reads it: every change after a slot, up to the commit at which a copy of the
//! store stands. The service that writes the log may go on meanwhile.
//!
//! Owns: the proof that no change is missing. Must not: write, or read a frame that may be half written. Runs on the
//! main thread of a command.
//!
//! A segment says at which slot the store stood before its first change. So the log is whole back to a slot if a
//! segment begins at that slot or an earlier one, and every later change follows without a hole. A commit's frame is
//! complete before the engine has the commit. So every frame up to the copy's sequence number can be read, and no other
//! is.
//!
//! The copy is made first and the log read after it. All segments are opened before any is read, so that the retention
//! cannot remove one in between.

use std::collections::VecDeque;
use std::fs::File;
use std::io::ErrorKind as Io;
use std::path::{Path, PathBuf};

use engine_api::{Error, ErrorKind, Result};
use solana::{ChainCheckpoint, MapPhase};

use super::record::{Beginning, Change, Frame, Identity, SEGMENT_HEADER_BYTES, SlotEnd};
use super::segment::{Found, frame_at, header};
use super::writer::{boot_id, segment_paths};

/// The changes of a store after a slot, which are known to be all of them.
#[derive(Debug)]
pub(crate) struct History {
    dir: PathBuf,
    slot: u64,
    store: ChainCheckpoint,
    /// The segments that hold the changes, ascending. They are open, so that the retention cannot take them away.
    segments: VecDeque<Opened>,
}

/// How the store came to its newest slot.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Came {
    /// The slot's parent. Where that is not in the log: the newest slot in it, which is the parent or before it.
    pub(crate) from_slot: u64,
    /// Whether a heal has brought the store there.
    pub(crate) is_healed: bool,
}

#[derive(Debug)]
struct Opened {
    path: PathBuf,
    file: File,
    identity: Identity,
    begins: Beginning,
}

impl History {
    /// Opens the log in `dir` of a store that stands at `store`, and checks that it goes back to `slot`.
    ///
    /// # Errors
    /// [`ErrorKind::FixInput`] if there is no log, or if it does not go back to `slot`, with the slot that it does go
    /// back to; [`ErrorKind::DataDamaged`] for segments that do not belong together; I/O errors.
    pub(crate) fn open(dir: &Path, slot: u64, store: &ChainCheckpoint) -> Result<Self> {
        let mut segments: VecDeque<Opened> = VecDeque::new();
        let paths = if dir.is_dir() { segment_paths(dir)? } else { Vec::new() };
        for path in paths.into_iter().rev() {
            let Some(opened) = Opened::before(path, store.seq)? else { continue };
            if let Some(next) = segments.front().filter(|next| next.identity.feed_id != opened.identity.feed_id) {
                let (one, two) = (opened.path.display(), next.path.display());
                return Err(damaged(format!("segments of two feeds: file={one} other_file={two}")));
            }
            let is_enough = opened.begins.after_slot.is_some_and(|after_slot| after_slot <= slot);
            segments.push_front(opened);
            if is_enough {
                return Ok(Self { dir: dir.to_owned(), slot, store: *store, segments });
            }
        }
        Err(too_short(dir, slot, segments.front().and_then(|oldest| oldest.begins.after_slot)))
    }

    /// Number of changes in the log's part that is read: at least as many as [`History::for_each`] passes on.
    pub(crate) fn changes(&self) -> u64 {
        let first_seq = self.segments.front().map_or(0, |oldest| oldest.begins.first_seq);
        (self.store.seq + 1).saturating_sub(first_seq)
    }

    /// Passes every change after the slot on to `take`, in order, up to the store's sequence number.
    ///
    /// # Errors
    /// [`ErrorKind::DataDamaged`] for a hole or damage, naming the place; [`ErrorKind::FixInput`] if the log does not
    /// lead to the store; I/O errors of reading; errors of `take`.
    pub(crate) fn for_each(&self, take: &mut dyn FnMut(&Change) -> Result<()>) -> Result<()> {
        let (next_seq, newest) = self.walk(&mut |frame| {
            frame.ends.iter().try_for_each(|end| self.check_passed(end))?;
            frame.changes.iter().filter(|change| change.slot > self.slot).try_for_each(&mut *take)
        })?;
        self.check_end(next_seq, newest.as_ref())
    }

    /// Passes every change of the store's own slot on to `take`, in order. Returns how the store came to that slot. A heal may
    /// have begun after it.
    ///
    /// # Errors
    /// Those of [`History::for_each`].
    pub(crate) fn newest_slot(&self, take: &mut dyn FnMut(&Change) -> Result<()>) -> Result<Came> {
        let begins = self.segments.front().and_then(|oldest| oldest.begins.after_slot);
        let mut came = Came { from_slot: begins.unwrap_or(0), is_healed: false };
        let (next_seq, newest) = self.walk(&mut |frame| {
            for end in &frame.ends {
                came = match Some(end.slot) == self.store.slot {
                    true => Came { from_slot: end.parent_slot, is_healed: end.is_healed },
                    // A slot without changes has no end in the log.
                    false => Came { from_slot: end.slot, is_healed: false },
                };
            }
            frame.changes.iter().filter(|change| Some(change.slot) == self.store.slot).try_for_each(&mut *take)
        })?;
        match self.store.phase {
            // The newest changes are a part of the heal.
            MapPhase::Healing { .. } if next_seq == self.store.seq + 1 => {}
            _ => self.check_end(next_seq, newest.as_ref())?,
        }
        Ok(came)
    }

    /// Passes each frame up to the store's sequence number on to `look_at`. Returns the sequence number after the last
    /// one, and that one.
    fn walk(&self, look_at: &mut dyn FnMut(&Frame) -> Result<()>) -> Result<(u64, Option<Frame>)> {
        self.check_boot()?;
        let (mut next_seq, mut newest) = (self.segments.front().map_or(0, |oldest| oldest.begins.first_seq), None);
        for segment in &self.segments {
            let Beginning { first_seq, .. } = segment.begins;
            if first_seq != next_seq {
                let path = segment.path.display();
                return Err(damaged(format!("changes are missing: file={path} seq={next_seq} first_seq={first_seq}")));
            }
            let mut at = SEGMENT_HEADER_BYTES;
            while next_seq <= self.store.seq {
                match frame_at(&segment.file, at, next_seq, &segment.path)? {
                    Found::Frame(frame, after) => {
                        look_at(&frame)?;
                        (at, next_seq) = (after, frame.last_seq() + 1);
                        newest = Some(frame);
                    }
                    Found::End => break,
                    Found::Damaged => {
                        let path = segment.path.display();
                        return Err(damaged(format!("a frame is damaged: file={path} offset={at} seq={next_seq}")));
                    }
                }
            }
        }
        Ok((next_seq, newest))
    }

    /// Refuses a slot in a gap that a heal has closed. The heal took the store from the slot before the gap to the
    /// archive's slot in one step, so no changes lead from a slot in the gap to the store.
    fn check_passed(&self, end: &SlotEnd) -> Result<()> {
        let &SlotEnd { slot, parent_slot, is_healed, .. } = end;
        if !(parent_slot + 1..slot).contains(&self.slot) {
            return Ok(());
        }
        let (why, way_out) = match is_healed {
            true => (
                "a heal brought it past",
                format!(
                    "slot={slot} or later; one of slot={parent_slot} or before differs in the values that the heal has \
                     corrected, if there are any"
                ),
            ),
            false => {
                ("the archive is of another fork", format!("slot={parent_slot} or before, or of slot={slot} or later"))
            }
        };
        let message = format!(
            "the store never stood at the archive's slot: archive_slot={} store_went_from_slot={parent_slot} to_slot={slot}: \
             {why}: take an archive of {way_out}",
            self.slot
        );
        Err(Error::new(ErrorKind::FixInput, message))
    }

    /// Refuses a log that was written without flushes before the machine last started. The service refuses it as well.
    fn check_boot(&self) -> Result<()> {
        let boot = self.segments.back().map_or(0, |newest| newest.identity.boot);
        if boot == 0 || boot == boot_id()? {
            return Ok(());
        }
        Err(self.leads_elsewhere("it was written without flushes before the machine last started"))
    }

    /// Checks that the log leads to the store: its last change and slot are the store's own.
    fn check_end(&self, next_seq: u64, newest: Option<&Frame>) -> Result<()> {
        let (log_seq, store_seq) = (next_seq.saturating_sub(1), self.store.seq);
        if log_seq != store_seq {
            return Err(self.leads_elsewhere(&format!("log_seq={log_seq} store_seq={store_seq}")));
        }
        let Some(frame) = newest else { return Ok(()) };
        let ends_there = frame.ends.last().is_some_and(|end| {
            let same_block = Some(end.slot) != self.store.slot || end.blockhash == self.store.blockhash;
            end.seq == store_seq && Some(end.slot) <= self.store.slot && same_block
        });
        if ends_there { Ok(()) } else { Err(self.leads_elsewhere("its last slot is another one than the store's")) }
    }

    fn leads_elsewhere(&self, how: &str) -> Error {
        Error::new(
            ErrorKind::FixInput,
            format!(
                "the feed's log does not lead to the store: dir={} {how}: the service has to run with feed = true; \
                 otherwise only an archive of the store's own slot will do",
                self.dir.display()
            ),
        )
    }
}

impl Opened {
    /// Opens a segment, unless all its changes come after `store_seq`, or the retention has removed it.
    fn before(path: PathBuf, store_seq: u64) -> Result<Option<Self>> {
        let number = path.file_stem().and_then(|name| name.to_str()).and_then(|name| name.parse::<u64>().ok());
        if number.is_some_and(|first_seq| first_seq > store_seq + 1) {
            return Ok(None);
        }
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == Io::NotFound => return Ok(None),
            Err(error) => {
                let message = format!("cannot read a segment of the feed: file={}", path.display());
                return Err(Error::io(message, error));
            }
        };
        match header(&file, &path) {
            Ok((identity, begins)) => Ok(Some(Self { path, file, identity, begins })),
            // The service is making this segment, for the changes of its next commit.
            Err(error) if error.kind() == ErrorKind::DataDamaged && number == Some(store_seq + 1) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

fn too_short(dir: &Path, slot: u64, oldest_slot: Option<u64>) -> Error {
    let dir = dir.display();
    let message = match oldest_slot {
        Some(oldest_slot) => format!(
            "the feed's log does not go back to the archive: archive_slot={slot} oldest_slot={oldest_slot} dir={dir}: \
             take an archive of slot={oldest_slot} or later, and raise feed_retention_bytes for the next one"
        ),
        None => format!(
            "there is no log of the store's changes since the archive: archive_slot={slot} dir={dir}: run the service \
             with feed = true and take an archive of a later slot, or one of the store's own slot"
        ),
    };
    Error::new(ErrorKind::FixInput, message)
}

fn damaged(how: String) -> Error {
    Error::new(
        ErrorKind::DataDamaged,
        format!("the feed's log cannot be used, {how}: take an archive of a slot after this place"),
    )
}

#[cfg(test)]
mod tests {
    use engine_api::Durability;

    use super::super::{FeedWriter, SlotEnd};
    use super::*;

    const KEEP_ALL: u64 = 1 << 30;

    fn at(seq: u64, slot: u64) -> ChainCheckpoint {
        ChainCheckpoint { seq, slot: Some(slot), blockhash: [slot as u8; 32], ..ChainCheckpoint::default() }
    }

    /// Writes slots 11 to `last_slot` of two changes each, for a store that stands at change 5 and slot 10. Slot 11
    /// changes nothing.
    fn write(dir: &Path, last_slot: u64, durability: Durability) -> ChainCheckpoint {
        let mut newest = at(5, 10);
        let (mut writer, _) = FeedWriter::open(dir, &newest, durability, KEEP_ALL).unwrap();
        for slot in 11..=last_slot {
            let seq = newest.seq + if slot == 11 { 0 } else { 2 };
            let change = |key: u8| Change { slot, key: [key; 32], old: None, new: Some([slot as u8; 32]) };
            let end = SlotEnd { seq, slot, blockhash: [slot as u8; 32], parent_slot: slot - 1, is_healed: false };
            let (changes, ends) = if slot == 11 { (vec![], vec![]) } else { (vec![change(1), change(2)], vec![end]) };
            writer.append(newest.seq + 1, changes, ends).unwrap();
            newest = at(seq, slot);
            writer.publish(&newest);
        }
        newest
    }

    /// Returns the slot of each change after `slot`.
    fn read(dir: &Path, slot: u64, store: &ChainCheckpoint) -> Result<Vec<u64>> {
        let (history, mut slots) = (History::open(dir, slot, store)?, Vec::new());
        history.for_each(&mut |change| {
            slots.push(change.slot);
            Ok(())
        })?;
        assert!(history.changes() >= slots.len() as u64);
        Ok(slots)
    }

    fn refused(dir: &Path, slot: u64, store: &ChainCheckpoint) -> String {
        read(dir, slot, store).unwrap_err().to_string()
    }

    #[test]
    fn the_log_goes_back_to_the_slot_at_which_it_began_and_no_further() {
        let temp = tempfile::tempdir().unwrap();
        let store = write(temp.path(), 14, Durability::Synced);
        // Slot 11 changed nothing. So only the segment's header, and not its first change, shows that the log goes back
        // to slot 10.
        for (slot, after) in [(10, &[12, 12, 13, 13, 14, 14][..]), (11, &[12, 12, 13, 13, 14, 14]), (13, &[14, 14])] {
            assert_eq!(read(temp.path(), slot, &store).unwrap(), after);
        }
        assert!(refused(temp.path(), 9, &store).contains("archive_slot=9 oldest_slot=10"));
        let missing = temp.path().join("missing");
        assert!(refused(&missing, 13, &store).contains("there is no log"));
    }

    #[test]
    fn the_changes_of_the_newest_slot_lead_to_the_store_from_the_slot_before_it() {
        let temp = tempfile::tempdir().unwrap();
        let store = write(temp.path(), 14, Durability::Synced);
        let newest = |store: &ChainCheckpoint| {
            let (slot, mut changes) = (store.slot.unwrap(), 0);
            let history = History::open(temp.path(), slot - 1, store)?;
            history
                .newest_slot(&mut |change| {
                    assert_eq!(change.slot, slot);
                    changes += 1;
                    Ok(())
                })
                .map(|came| (came.from_slot, came.is_healed, changes))
        };
        assert_eq!(newest(&store).unwrap(), (13, false, 2));
        assert_eq!(newest(&at(5, 11)).unwrap(), (10, false, 0), "slot 11 changed nothing");
        assert!(newest(&at(5, 10)).is_err(), "the log begins there");
        let other_block = ChainCheckpoint { blockhash: [99; 32], ..store };
        assert!(newest(&other_block).is_err());
        let (mut writer, _) = FeedWriter::open(temp.path(), &store, Durability::Synced, KEEP_ALL).unwrap();
        let change = |key: u8| Change { slot: 30, key: [key; 32], old: None, new: Some([30; 32]) };
        writer.append(store.seq + 1, vec![change(3)], vec![]).unwrap();
        let phase = MapPhase::Healing { to_slot: 30, next_key: [4; 32] };
        let healing = ChainCheckpoint { seq: store.seq + 1, phase, ..store };
        writer.publish(&healing);
        assert_eq!(newest(&healing).unwrap(), (13, false, 2), "a heal has begun");
        let end = SlotEnd { seq: store.seq + 2, slot: 30, blockhash: [30; 32], parent_slot: 14, is_healed: true };
        writer.append(store.seq + 2, vec![change(4)], vec![end]).unwrap();
        writer.publish(&at(store.seq + 2, 30));
        assert_eq!(newest(&at(store.seq + 2, 30)).unwrap(), (14, true, 2), "a heal went there from slot 14");
    }

    /// The changes of a heal are the difference from the slot before the gap, and not from a slot in it.
    #[test]
    fn a_slot_that_a_heal_has_left_out_is_refused() {
        let temp = tempfile::tempdir().unwrap();
        let store = write(temp.path(), 14, Durability::Synced);
        let (mut writer, _) = FeedWriter::open(temp.path(), &store, Durability::Synced, KEEP_ALL).unwrap();
        let change = Change { slot: 30, key: [3; 32], old: None, new: Some([30; 32]) };
        let end = SlotEnd { seq: store.seq + 1, slot: 30, blockhash: [30; 32], parent_slot: 14, is_healed: true };
        writer.append(store.seq + 1, vec![change], vec![end]).unwrap();
        let healed = at(store.seq + 1, 30);
        writer.publish(&healed);
        for slot in [15, 22, 29] {
            let said = refused(temp.path(), slot, &healed);
            assert!(said.contains(&format!("archive_slot={slot} store_went_from_slot=14 to_slot=30")), "{said}");
        }
        assert_eq!(read(temp.path(), 14, &healed).unwrap(), [30]);
        assert_eq!(read(temp.path(), 13, &healed).unwrap(), [14, 14, 30]);
    }

    /// The log lacks the first changes of the heal, so it does not lead from the slot before the heal to the store.
    #[test]
    fn a_log_that_begins_within_a_heal_goes_back_to_no_slot_before() {
        let temp = tempfile::tempdir().unwrap();
        let within = ChainCheckpoint { phase: MapPhase::Healing { to_slot: 30, next_key: [3; 32] }, ..at(7, 10) };
        let (mut writer, _) = FeedWriter::open(temp.path(), &within, Durability::Synced, KEEP_ALL).unwrap();
        let change = Change { slot: 30, key: [3; 32], old: None, new: Some([30; 32]) };
        let end = SlotEnd { seq: 8, slot: 30, blockhash: [30; 32], parent_slot: 10, is_healed: true };
        writer.append(8, vec![change], vec![end]).unwrap();
        let healed = at(8, 30);
        writer.publish(&healed);
        let said = refused(temp.path(), 10, &healed);
        assert!(said.contains("there is no log of the store's changes since the archive"), "{said}");
    }

    #[test]
    fn changes_after_the_store_are_left_out_whatever_follows() {
        let temp = tempfile::tempdir().unwrap();
        let store = write(temp.path(), 14, Durability::Synced);
        assert_eq!(read(temp.path(), 11, &at(9, 13)).unwrap(), [12, 12, 13, 13]);
        // The store may have passed slots that change nothing.
        assert_eq!(read(temp.path(), 11, &at(store.seq, 20)).unwrap().len(), 6);
        assert_eq!(read(temp.path(), 10, &at(5, 11)).unwrap(), [0; 0]);
        // A frame that is being written.
        let path = &segment_paths(temp.path()).unwrap()[0];
        let mut bytes = std::fs::read(path).unwrap();
        let written = bytes.iter().rposition(|byte| *byte != 0).unwrap();
        bytes[written - 100] ^= 1;
        std::fs::write(path, &bytes).unwrap();
        assert_eq!(read(temp.path(), 11, &at(9, 13)).unwrap(), [12, 12, 13, 13]);
        assert!(refused(temp.path(), 11, &store).contains("a frame is damaged: file="));
        // The service is making the next segment.
        std::fs::write(temp.path().join(format!("{:020}.log", 10)), "").unwrap();
        assert_eq!(read(temp.path(), 11, &at(9, 13)).unwrap(), [12, 12, 13, 13]);
    }

    #[test]
    fn a_log_of_another_history_is_refused() {
        let temp = tempfile::tempdir().unwrap();
        let store = write(temp.path(), 14, Durability::Synced);
        let other_block = ChainCheckpoint { blockhash: [99; 32], ..store };
        for elsewhere in [other_block, at(store.seq, 13), at(store.seq + 1, 15), at(store.seq - 1, 14)] {
            let said = refused(temp.path(), 11, &elsewhere);
            assert!(said.contains("does not lead to the store"), "{elsewhere}: {said}");
        }
        // Two feeds in one directory.
        let other = tempfile::tempdir().unwrap();
        FeedWriter::open(other.path(), &at(3, 9), Durability::Synced, KEEP_ALL).unwrap();
        let foreign = &segment_paths(other.path()).unwrap()[0];
        std::fs::copy(foreign, temp.path().join(foreign.file_name().unwrap())).unwrap();
        assert!(refused(temp.path(), 9, &store).contains("segments of two feeds"));
        // A log without flushes, of an earlier boot of the machine.
        let temp = tempfile::tempdir().unwrap();
        let store = write(temp.path(), 14, Durability::Buffered);
        assert_eq!(read(temp.path(), 13, &store).unwrap(), [14, 14]);
        let mut history = History::open(temp.path(), 13, &store).unwrap();
        history.segments[0].identity.boot ^= 1;
        let said = history.for_each(&mut |_| Ok(())).unwrap_err().to_string();
        assert!(said.contains("without flushes before the machine last started"), "{said}");
    }
}
