//! The start of a stream for a follower of an earlier one: after the follower's slot.
//!
//! Owns: the check that a follower's position is on the chain of a workload. Must not: look at a store. Runs on the
//! caller's thread.
//!
//! The values of the keys at a slot depend on the options and on every slot before it. So a stream that resumes
//! generates the earlier slots again without delivering them. Slots are always whole, so it needs not know where the
//! runs before have ended.

use anyhow::{Result, bail, ensure};

use super::chain::{Chain, Stand};

/// Largest number of events that are generated again, which takes at most a minute or two.
const REPEATED_EVENTS_MAX: u64 = 1 << 30;

impl Chain {
    /// Continues from `stand`. The chain must not have begun yet.
    pub(super) fn resume(&mut self, stand: &Stand) -> Result<()> {
        let (slot, first) = (stand.slot, self.first_slot());
        let is_loaded = stand.blockhash == [0; 32];
        // A load from an archive of this stream holds the map at its slot, any other load the map at the first slot.
        let is_of_archive = is_loaded
            && slot >= first
            && stand.digest.as_ref().is_some_and(|digest| *digest != self.digest().to_string());
        if is_loaded && !is_of_archive {
            self.begin_at(slot.saturating_add(1));
            return Ok(());
        }
        ensure!(
            is_loaded || stand.blockhash == self.hash_of(slot),
            "the store stands on another chain: slot={slot} blockhash={}: give the --seed of the stream that it has \
             followed, or load a new store",
            bs58::encode(stand.blockhash).into_string()
        );
        let repeated = slot.checked_sub(first).map(|slots| slots.saturating_mul(u64::from(self.events_per_slot())));
        match repeated {
            _ if slot.checked_add(1) == Some(first) => return Ok(()),
            Some(events) if events <= REPEATED_EVENTS_MAX => {}
            _ => bail!(
                "the store stands too far from the first slot: slot={slot} start-slot={first}: give the --start-slot of \
                 the first stream that it has followed, or load a new store"
            ),
        }
        self.skip_to(slot)?;
        let wanted = stand.digest.as_ref().filter(|digest| **digest != self.digest().to_string());
        ensure!(
            wanted.is_none(),
            "the store holds another map than the stream has made by slot={slot}: give the options of the runs before, or \
             load a new store"
        );
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::stream::chain::Block;
    use crate::stream::{Keys, Workload, options};

    fn workload(more: &str) -> Workload {
        let line = "--pairs 500 --seed 3 --events 950 --events-per-slot 100 --change-share 0.4 --close-share 0.1";
        options(&format!("{line} {more}")).unwrap().0
    }

    fn chain(workload: &Workload, stand: Option<&Stand>) -> Result<Chain> {
        Chain::at(workload.clone(), Arc::new(Keys::load(workload).unwrap()), stand)
    }

    fn rest(chain: &mut Chain) -> Vec<Arc<Block>> {
        std::iter::from_fn(|| chain.next_block()).collect()
    }

    fn stand(chain: &Chain, slot: u64) -> Stand {
        Stand { slot, blockhash: chain.hash_of(slot), digest: None }
    }

    #[test]
    fn a_second_run_has_its_own_events_from_where_the_first_one_ended_or_was_cut() {
        for faults in ["", "--dead-every 4 --skip-every 5 --out-of-order-every 3"] {
            let workload = workload(faults);
            let mut first = chain(&workload, None).unwrap();
            let blocks = rest(&mut first);
            let end = first.finish();
            let whole = Stand { digest: Some(end.digest.clone()), ..stand(&first, end.slot) };
            let mut second = chain(&workload, Some(&whole)).unwrap();
            assert_eq!((second.base().slot, second.base().hash), (end.slot, whole.blockhash));
            let sent: u64 = rest(&mut second).iter().map(|block| block.updates.len() as u64).sum();
            let again = second.finish();
            assert!(again.slot > end.slot && sent >= again.events && again.events == 1000, "{again:?}");
            // A run that was cut short, and one with another number of events.
            let cut = blocks.iter().find(|block| block.slot > 1003 && block.parent_slot >= 1000).unwrap().parent_slot;
            let few = Workload { events: 250, ..workload.clone() };
            let mut resumed = chain(&few, Some(&stand(&first, cut))).unwrap();
            let slots: Vec<u64> = rest(&mut resumed).iter().map(|block| block.slot).collect();
            assert!(slots.iter().all(|slot| *slot > cut), "{slots:?}");
            let resumed = resumed.finish();
            assert_eq!(resumed.events, 300);
            let mut all = chain(&Workload { events: u64::MAX, ..workload }, None).unwrap();
            while all.next_sealed().unwrap().slot < resumed.slot {}
            assert_eq!(all.digest().to_string(), resumed.digest, "a slot's content depends on where a run has ended");
        }
    }

    #[test]
    fn a_store_loaded_from_an_archive_is_followed_from_the_archives_slot() {
        let workload = workload("");
        let mut first = chain(&workload, None).unwrap();
        let base = first.digest().to_string();
        let slot = std::iter::from_fn(|| first.next_sealed()).nth(4).unwrap().slot;
        let digest = Some(first.digest().to_string());
        let loaded = |digest| Stand { slot, blockhash: [0; 32], digest };
        let mut resumed = chain(&workload, Some(&loaded(digest.clone()))).unwrap();
        assert_eq!((resumed.base().slot, resumed.base().hash), (slot, first.hash_of(slot)));
        assert_eq!(Some(resumed.digest().to_string()), digest);
        assert_eq!(rest(&mut resumed)[0].slot, slot + 1);
        // The pairs of the first slot, loaded as if they were of a later one.
        let early = chain(&workload, Some(&loaded(Some(base.clone())))).unwrap();
        assert_eq!((early.base().slot, early.digest().to_string()), (slot, base));
        let other = chain(&workload, Some(&loaded(Some("1:00".to_owned())))).err().unwrap().to_string();
        assert!(other.contains("options of the runs before"), "{other}");
    }

    #[test]
    fn a_store_as_loaded_is_followed_from_its_own_slot_and_one_of_another_chain_is_refused() {
        let workload = workload("");
        let loaded = Stand { slot: 312_000_000, blockhash: [0; 32], digest: None };
        assert_eq!(rest(&mut chain(&workload, Some(&loaded)).unwrap())[0].slot, 312_000_001);
        let ended = chain(&workload, None).unwrap();
        let wrong = |stand: Stand| chain(&workload, Some(&stand)).err().unwrap().to_string();
        let foreign = Stand { blockhash: [7; 32], ..stand(&ended, 1005) };
        assert!(wrong(foreign).contains("--seed"));
        assert!(wrong(stand(&ended, 900)).contains("--start-slot"));
        assert!(wrong(stand(&ended, 1 << 50)).contains("--start-slot"));
        let other = Stand { digest: Some("1:00".to_owned()), ..stand(&ended, 1005) };
        assert!(wrong(other).contains("options of the runs before"));
    }
}
