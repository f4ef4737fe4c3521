//! Lives of stores beside a map, wherever the merge into the base is: commits, settling, kills, power losses, lost
//! manifests and unreadable segments, in any order. `STRATA_LIVES=N` runs as many of them.

use std::sync::Arc;

use engine_api::{Durability, Engine, Key, Value};
use solkv_engine_strata::storage::Storage;
use solkv_engine_strata::{Sizes, StrataEngine, StrataOptions};

use crate::faulty::FaultyStorage;
use crate::hooked::{Hooked, Hooks};
use crate::support::{Map, OPTIONS, Rng, all, apply, at, batch, key, try_commit, value};

const LIVES: u64 = 60;
/// Number of events of a life.
const EVENTS: u64 = 60;
/// So small that a life has some rounds of the merge into the base.
const SIZES: Sizes = Sizes { mem_records: 128, segment_records: 192, wal_bytes: 64 << 10 };
/// Too little for pages to stay in memory, so that merges read from the disk.
const FEW: StrataOptions = StrataOptions { memory_bytes: 64 << 10, ..OPTIONS };

struct Life {
    number: u64,
    rng: Rng,
    disk: FaultyStorage,
    hooks: Arc<Hooks>,
    /// `None` while the store is closed.
    engine: Option<StrataEngine>,
    map: Map,
    seq: u64,
}

impl Life {
    fn new(number: u64) -> Self {
        let (disk, hooks) = (FaultyStorage::default(), Arc::new(Hooks::default()));
        let mut life = Self { number, rng: Rng::new(number), disk, hooks, engine: None, map: Map::new(), seq: 1 };
        life.open();
        if life.number.is_multiple_of(3) {
            let mut pairs: Vec<(Key, Value)> = (0..4000).map(|n| (key(n), value(n))).collect();
            pairs.sort_unstable();
            life.engine().load_sorted(&pairs, &at(1)).unwrap();
            life.map.extend(pairs);
        }
        life
    }

    fn engine(&self) -> &StrataEngine {
        self.engine.as_ref().unwrap()
    }

    fn open(&mut self) {
        let storage = Hooked { inner: Arc::new(self.disk.clone()), hooks: Arc::clone(&self.hooks) };
        let opened = StrataEngine::open_sized(Arc::new(storage), &FEW, SIZES);
        self.engine = Some(opened.unwrap_or_else(|error| panic!("life={} seq={}: {error}", self.number, self.seq)));
    }

    fn commit(&mut self) {
        self.seq += 1;
        // Mostly a memtable, sometimes less; often among few of the keys, so that runs cover a part of the base.
        let mut changes = batch(self.number, self.seq, 1 + self.rng.below(120));
        if self.rng.below(3) == 0 {
            let first = self.rng.below(256) as u8;
            changes.retain(|(key, _)| key[0].wrapping_sub(first) < 64);
        }
        try_commit(self.engine(), &changes, self.seq, Durability::Synced).unwrap();
        apply(&mut self.map, &changes);
    }

    /// Ends the process, or with it the power, at any moment of the merges, and goes on with the files that are left.
    fn kill(&mut self, power: bool) {
        let disk = if power { self.disk.after_crash(self.rng.next()) } else { self.disk.copy() };
        self.engine = None;
        (self.disk, self.hooks) = (disk, Arc::new(Hooks::default()));
    }

    /// Removes the manifest of a store that was closed. After a kill or a loss of power, files that were replaced could be
    /// back, which the repair says.
    fn lose_manifest(&mut self) {
        self.engine = None;
        self.disk.remove("MANIFEST").unwrap();
        let storage: Arc<dyn Storage> = Arc::new(self.disk.clone());
        StrataEngine::repair_on(&storage).unwrap();
    }

    /// Lets the reads of a segment fail from now on, or those of the last one succeed again.
    fn change_unreadable(&mut self) {
        let segments: Vec<String> = self.disk.names().into_iter().filter(|name| name.ends_with(".seg")).collect();
        let mut unreadable = self.hooks.unreadable.lock();
        *unreadable = match unreadable.take() {
            None if !segments.is_empty() => Some(segments[self.rng.below(segments.len() as u64) as usize].clone()),
            _ => None,
        };
    }

    fn event(&mut self) {
        match self.rng.below(20) {
            0 => self.kill(false),
            1 => self.kill(true),
            2 => self.lose_manifest(),
            3 | 4 => self.change_unreadable(),
            // It fails if it cannot read a delta.
            5 | 6 => drop(self.engine().settle()),
            7 => {
                self.engine = None;
            }
            _ => (0..4).for_each(|_| self.commit()),
        }
        if self.engine.is_none() {
            *self.hooks.unreadable.lock() = None;
            self.open();
            self.assert_holds("opened");
        }
    }

    #[track_caller]
    fn assert_holds(&self, when: &str) {
        let found = all(self.engine()).unwrap_or_else(|error| panic!("life={} {when}: {error}", self.number));
        let differs = self.map.iter().find(|(key, value)| found.get(*key) != Some(*value));
        let back = found.keys().find(|key| !self.map.contains_key(*key));
        assert!(
            differs.is_none() && back.is_none(),
            "life={} seq={} {when}: {differs:x?} {back:x?}",
            self.number,
            self.seq
        );
    }
}

#[test]
fn a_store_holds_its_map_whatever_happens_wherever_the_merge_is() {
    let lives = std::env::var("STRATA_LIVES").map_or(LIVES, |lives| lives.parse().unwrap());
    for number in 0..lives {
        let mut life = Life::new(number);
        (0..EVENTS).for_each(|_| life.event());
        *life.hooks.unreadable.lock() = None;
        life.assert_holds("at the end");
        life.engine = None;
        life.open();
        life.engine().settle().unwrap();
        life.assert_holds("settled");
    }
}
