//! The changes of the store's newest slot, whose block no other provider may have confirmed.
//!
//! Owns: which incremental archives can heal the store alone, and the changes of the newest slot that such a heal
//! reverts. Must not: read an archive, or write. Runs on the task of the heal, in a blocking section.
//!
//! A slot's block is confirmed by the next slot, which names it; until then one provider alone has sent it. A gap comes
//! before that, so the store's newest block may be a wrong one. An incremental archive has every account that was
//! written after its base. So if the store was at the base or later before its newest slot, the accounts that this slot
//! changed and that the archive lacks were not written by the chain. They get their old values back, which the feed's
//! log has. A full archive needs none of this. Neither does a store at the slot of its load, or one that a heal has
//! brought to its slot, because an archive names all of its values. Its old values may be those of a wrong block.

use std::path::Path;

use anyhow::{Context as _, Result};
use bootstrap::audit::{TooManyKeys, Undo};
use engine_api::{Error, ErrorKind};
use solana::ChainCheckpoint;

use crate::feed::{FRAME_CHANGES_MAX, History};

/// The changes of a store's newest slot.
#[derive(Debug)]
pub(crate) struct NewestChanges {
    /// The largest base of an incremental archive that can heal the store alone.
    pub(crate) base_max: u64,
    /// Changes of the newest slot that a heal with an incremental archive reverts.
    pub(crate) undo: Undo,
}

impl NewestChanges {
    /// Reads the changes of the newest slot of a store at `store` from the log in `feed`. `loaded_slot` is the slot to
    /// which the store was loaded, if that is known.
    ///
    /// # Errors
    /// The store has no slot; the log does not have all changes of its slot; errors of reading the log.
    pub(crate) fn read(feed: &Path, store: &ChainCheckpoint, loaded_slot: Option<u64>) -> Result<Self> {
        let slot = store.slot.context("the store has no slot")?;
        let history = match History::open(feed, slot.saturating_sub(1), store) {
            Ok(history) => history,
            // The slot did not come from the stream. In any other store the log may have begun anew right after a wrong block:
            // the store was restored or moved, or its log was damaged.
            Err(_) if loaded_slot == store.slot => return Ok(Self { base_max: slot, undo: Undo::nothing() }),
            Err(too_short) => return Err(too_short.into()),
        };
        let bytes_max = FRAME_CHANGES_MAX as u64 * Undo::KEY_BYTES;
        let too_many = |error: TooManyKeys| Error::new(ErrorKind::FixInput, error.to_string());
        let mut undo = Undo::within(bytes_max, history.changes()).map_err(too_many)?;
        let came = history.newest_slot(&mut |change| undo.add(change.key, change.old, change.new).map_err(too_many))?;
        if came.is_healed {
            return Ok(Self { base_max: slot, undo: Undo::nothing() });
        }
        undo.finish();
        Ok(Self { base_max: came.from_slot, undo })
    }
}

#[cfg(test)]
mod tests {
    use engine_api::Durability;

    use super::*;
    use crate::feed::{Change, FeedWriter, SlotEnd};

    fn at(seq: u64, slot: u64) -> ChainCheckpoint {
        ChainCheckpoint { seq, slot: Some(slot), blockhash: [slot as u8; 32], ..ChainCheckpoint::default() }
    }

    #[test]
    fn an_incremental_archive_has_to_begin_before_the_newest_slot_unless_the_store_was_brought_there() {
        let temp = tempfile::tempdir().unwrap();
        let keep_all = 1 << 30;
        let newest = |store: &ChainCheckpoint| {
            let read = NewestChanges::read(temp.path(), store, Some(10));
            read.map(|newest| (newest.base_max, newest.undo.keys())).map_err(|error| error.to_string())
        };
        assert_eq!(newest(&at(5, 10)), Ok((10, 0)), "a load names it all");
        assert!(newest(&at(5, 11)).unwrap_err().contains("there is no log"));
        let (mut writer, _) = FeedWriter::open(temp.path(), &at(5, 10), Durability::Synced, keep_all).unwrap();
        assert_eq!(newest(&at(5, 10)), Ok((10, 0)));
        let change = |key: u8| Change { slot: 13, key: [key; 32], old: None, new: Some([13; 32]) };
        let end = SlotEnd { seq: 8, slot: 13, blockhash: [13; 32], parent_slot: 11, is_healed: false };
        writer.append(6, vec![change(1), change(2), change(1)], vec![end]).unwrap();
        writer.publish(&at(8, 13));
        assert_eq!(newest(&at(8, 13)), Ok((11, 2)));
        assert_eq!(newest(&at(8, 15)), Ok((13, 0)), "slot 15 has changed nothing, and its parent is not in the log");
        assert!(newest(&at(9, 16)).unwrap_err().contains("does not lead to the store"));
        assert!(newest(&ChainCheckpoint::default()).is_err());
        let healed = SlotEnd { seq: 9, blockhash: [99; 32], is_healed: true, ..end };
        writer.append(9, vec![change(1)], vec![healed]).unwrap();
        writer.publish(&ChainCheckpoint { blockhash: [99; 32], ..at(9, 13) });
        assert_eq!(
            newest(&ChainCheckpoint { blockhash: [99; 32], ..at(9, 13) }),
            Ok((13, 0)),
            "an archive names it all"
        );
    }
}
