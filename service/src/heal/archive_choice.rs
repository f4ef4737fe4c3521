//! The choice of an archive for a heal.
//!
//! Owns: which archives can be used now, in which order, and the messages about the lack of one. Must not: read an
//! archive, or ask a source. Runs on the task of the heal; the search asks it on the blocking pool.

use std::collections::HashMap;

use solana::{ChainCheckpoint, MapPhase};
use tokio::time::{Duration, Instant};

use super::archives::{Archives, FileState, Found, Search};

/// Time until an archive that could not be used is tried again, after its first failure. Each further failure doubles it.
const REFUSED_FOR: Duration = Duration::from_secs(60);
/// Largest number of these doublings: about an hour.
const DOUBLINGS_MAX: u32 = 6;

/// Maximum number of archives that are remembered as refused. A validator makes an incremental one each minute, so this is
/// several hours of them.
const REFUSALS_MAX: usize = 256;

/// Archives that could not be used, by [`Found::newest`]. Of a file that grows there is one entry, of its newest state.
#[derive(Debug, Default)]
pub(super) struct RefusedArchives(HashMap<String, Refused>);

#[derive(Debug)]
struct Refused {
    /// State of the file that could not be used. Another one has not been tried.
    state: Option<FileState>,
    until: Instant,
    failures: u32,
    why: String,
}

/// Conditions that an archive has to meet now.
#[derive(Clone, Debug)]
pub(super) struct Wanted {
    /// The least slot that joins the kept slots and is not before the store.
    pub(super) slot: u64,
    /// Slot of the archive that an interrupted heal has begun with; 0 if there is none.
    healed_to: u64,
    /// Slot of the store's checkpoint.
    store_slot: u64,
    /// The largest base of an incremental archive that can heal the store alone, or the reason why none can.
    base_max: Result<u64, String>,
    /// Archives that are not tried again yet, by location, with the state that could not be used.
    resting: HashMap<String, Option<FileState>>,
}

impl RefusedArchives {
    /// Notes that an archive cannot be used, and returns the reason with its slot. It is tried again later, because a
    /// download or a disk may have failed; a file that changes is tried again at once.
    pub(super) fn add(&mut self, found: &Found, failed: &anyhow::Error) -> String {
        let why = format!("archive_slot={}: {failed:#}", found.slot);
        self.make_room(found.newest());
        let fresh = || Refused { state: found.state, until: Instant::now(), failures: 0, why: String::new() };
        let refused = self.0.entry(found.newest().to_owned()).or_insert_with(fresh);
        if refused.state != found.state {
            *refused = fresh();
        }
        refused.until = Instant::now() + REFUSED_FOR * (1 << refused.failures.min(DOUBLINGS_MAX));
        refused.failures += 1;
        refused.why.clone_from(&why);
        why
    }

    /// Forgets the archive that may be tried again first, if there are too many for another one.
    fn make_room(&mut self, location: &str) {
        if self.0.len() < REFUSALS_MAX || self.0.contains_key(location) {
            return;
        }
        let first = self.0.iter().min_by_key(|(_, refused)| refused.until).map(|(location, _)| location.clone());
        first.into_iter().for_each(|first| _ = self.0.remove(&first));
    }

    /// Returns the conditions for a store at `checkpoint` and slots that are kept from the one after `first` on.
    /// `base_max` is the largest base of an incremental archive that can heal the store alone, or the reason why none can.
    pub(super) fn wanted(&self, first: u64, checkpoint: &ChainCheckpoint, base_max: Result<u64, String>) -> Wanted {
        let healed_to = match checkpoint.phase {
            MapPhase::Healing { to_slot, .. } => to_slot,
            MapPhase::Ready | MapPhase::Loading => 0,
        };
        let (store_slot, now) = (checkpoint.slot.unwrap_or(0), Instant::now());
        let resting = self.0.iter().filter(|(_, refused)| refused.until > now);
        let resting = resting.map(|(location, refused)| (location.clone(), refused.state)).collect();
        Wanted { slot: first.max(healed_to).max(store_slot), healed_to, store_slot, base_max, resting }
    }

    /// Says why none of the archives can be used now.
    pub(super) fn lack(&self, wanted: &Wanted, search: &Search) -> String {
        let Wanted { slot: needed, store_slot, .. } = *wanted;
        let Search { found, failed, .. } = search;
        let mut why = format!("waiting for a snapshot archive of slot={needed} or later");
        match found.first().map(|found| found.slot) {
            Some(newest) if newest < needed => why += &format!(": the newest one is too old: slot={newest}"),
            Some(_) if found.iter().all(|found| found.slot < needed || !wanted.is_wide_enough(found)) => {
                let takes = |found: &Found| found.slot >= needed && found.takes(store_slot);
                let reason = match &wanted.base_max {
                    _ if !found.iter().any(takes) => "ones whose full archive is newer than the store".to_owned(),
                    Ok(base_max) => format!("ones that begin after base_max_slot={base_max}"),
                    Err(why) => format!("ones, of which none is enough alone, because {why}"),
                };
                why += &format!(": there are only incremental {reason}: store_slot={store_slot}");
            }
            Some(_) => {}
            None => why += ": there is none",
        }
        let refused = |found: &Found| self.0.get(found.newest()).filter(|refused| refused.state == found.state);
        let refused = found.iter().find_map(refused);
        if let Some(Refused { why: reason, until, .. }) = refused {
            let seconds = until.saturating_duration_since(Instant::now()).as_secs();
            why += &format!("; {reason} (tried again in {seconds}s, or once the file changes)");
        }
        for reason in failed {
            why += &format!("; {reason}");
        }
        why
    }
}

impl Wanted {
    /// Whether an archive can be used by its name.
    pub(super) fn takes(&self, found: &Found) -> bool {
        let rests = self.resting.get(found.newest()).is_some_and(|state| *state == found.state);
        found.slot >= self.slot && self.is_wide_enough(found) && !rests
    }

    /// Whether the archives have every account in which the store may differ from their slot.
    fn is_wide_enough(&self, found: &Found) -> bool {
        match found.archives {
            Archives::Full(_) | Archives::Both { .. } => true,
            Archives::Incremental { base, .. } => self.base_max.as_ref().is_ok_and(|base_max| base <= *base_max),
        }
    }

    /// Returns the archives that can be used, the best one first. The rest of an interrupted heal belongs to the same slot
    /// as its beginning, if that archive is still there. Otherwise the one of which less is read is better, because the kept
    /// slots have everything after it: a full archive alone, for example, because its source may remove an incremental one
    /// meanwhile. Of two of a kind the newer one is better.
    pub(super) fn candidates(&self, search: &Search) -> Vec<Found> {
        let mut usable: Vec<Found> = search.found.iter().filter(|found| self.takes(found)).cloned().collect();
        // A stable sort: the newest stays first among the others.
        usable.sort_by_key(|found| (found.slot != self.healed_to, found.cost()));
        usable
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn full(slot: u64) -> Found {
        Found { slot, archives: Archives::Full(format!("/nowhere/{slot}")), state: None }
    }

    fn at(slot: u64, phase: MapPhase) -> ChainCheckpoint {
        ChainCheckpoint { slot: Some(slot), phase, ..ChainCheckpoint::default() }
    }

    #[test]
    fn the_newest_archives_come_first_and_the_one_that_was_begun_with_before_them() {
        let search = Search { found: [99, 40, 30, 20].map(full).into(), ..Search::default() };
        let slots = |wanted: &Wanted| wanted.candidates(&search).iter().map(|found| found.slot).collect::<Vec<_>>();
        let mut refusals = RefusedArchives::default();
        let ready = at(10, MapPhase::Ready);
        assert_eq!(slots(&refusals.wanted(30, &ready, Ok(u64::MAX))), [99, 40, 30]);
        let healing = at(10, MapPhase::Healing { to_slot: 30, next_key: [1; 32] });
        assert_eq!(slots(&refusals.wanted(25, &healing, Ok(u64::MAX))), [30, 99, 40]);
        refusals.add(&full(40), &anyhow::anyhow!("cut short"));
        let wanted = refusals.wanted(30, &ready, Ok(u64::MAX));
        assert_eq!(slots(&wanted), [99, 30], "a refused archive rests");
        assert!(refusals.lack(&wanted, &search).contains("archive_slot=40: cut short (tried again in "));
    }

    #[test]
    fn of_archives_that_the_kept_slots_follow_the_one_with_less_to_read_is_taken() {
        let of = |slot, archives| Found { slot, archives, state: None };
        let (newer, older) = ("/nowhere/60".to_owned(), "/nowhere/50".to_owned());
        let both = of(60, Archives::Both { full: "/nowhere/40".to_owned(), incremental: newer });
        let alone = of(50, Archives::Incremental { base: 40, incremental: older });
        let search = Search { found: vec![both, alone, full(40)], ..Search::default() };
        let slots = |first, store| {
            let wanted = RefusedArchives::default().wanted(first, &at(store, MapPhase::Ready), Ok(store));
            wanted.candidates(&search).iter().map(|found| found.slot).collect::<Vec<_>>()
        };
        assert_eq!(slots(30, 20), [40, 60]);
        assert_eq!(slots(41, 40), [50, 60]);
        assert_eq!(slots(55, 20), [60]);
    }

    #[test]
    fn an_incremental_archive_alone_has_to_begin_early_enough() {
        let of = |slot, archives| Found { slot, archives, state: None };
        let alone = of(50, Archives::Incremental { base: 40, incremental: "/nowhere/50".to_owned() });
        let (full_of_it, newer) = ("/nowhere/40".to_owned(), "/nowhere/60".to_owned());
        let both = of(60, Archives::Both { full: full_of_it, incremental: newer });
        let search = |found| Search { found, ..Search::default() };
        let slots = |base_max| {
            let wanted = RefusedArchives::default().wanted(41, &at(41, MapPhase::Ready), base_max);
            let why = RefusedArchives::default().lack(&wanted, &search(vec![alone.clone()]));
            let found = wanted.candidates(&search(vec![both.clone(), alone.clone()]));
            (found.iter().map(|found| found.slot).collect::<Vec<_>>(), why)
        };
        assert_eq!(slots(Ok(40)).0, [50, 60]);
        let (found, why) = slots(Ok(39));
        assert!(found == [60] && why.contains("ones that begin after base_max_slot=39"), "{why}");
        let (found, why) = slots(Err("there is no log".to_owned()));
        assert!(found == [60] && why.contains("none is enough alone, because there is no log"), "{why}");
    }

    #[test]
    fn of_too_many_refused_archives_the_one_that_may_be_tried_again_first_is_forgotten() {
        let mut refusals = RefusedArchives::default();
        for slot in 0..=REFUSALS_MAX as u64 {
            refusals.add(&full(slot), &anyhow::anyhow!("cut short"));
        }
        let wanted = refusals.wanted(0, &at(0, MapPhase::Ready), Ok(u64::MAX));
        assert_eq!((refusals.0.len(), wanted.takes(&full(0)), wanted.takes(&full(1))), (REFUSALS_MAX, true, false));
    }

    #[test]
    fn a_refused_file_that_changes_is_tried_again_at_once_and_has_one_entry() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("archive");
        let write = |text: &str| {
            std::fs::write(&path, text).unwrap();
            let state = FileState::of(&std::fs::metadata(&path).unwrap());
            Found { slot: 7, archives: Archives::Full(path.to_str().unwrap().to_owned()), state: Some(state) }
        };
        let mut refusals = RefusedArchives::default();
        for text in ["half", "three quarters"] {
            let found = write(text);
            assert!(refusals.wanted(5, &at(5, MapPhase::Ready), Ok(u64::MAX)).takes(&found), "{text}");
            refusals.add(&found, &anyhow::anyhow!("cut short"));
            assert!(!refusals.wanted(5, &at(5, MapPhase::Ready), Ok(u64::MAX)).takes(&found), "{text}");
        }
        let whole = write("a whole one, at last");
        let wanted = refusals.wanted(5, &at(5, MapPhase::Ready), Ok(u64::MAX));
        assert!(wanted.takes(&whole) && refusals.0.len() == 1);
        let search = Search { found: vec![whole], ..Search::default() };
        assert!(!refusals.lack(&wanted, &search).contains("cut short"), "that was another state");
    }
}
