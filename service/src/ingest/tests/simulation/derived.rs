//! Derived stores that follow the simulated map through its lives: they tell its values, and those that it had at each slot.
//!
//! Owns: the lives of these stores, which end at any moment, and their comparison with the model. Their threads run in real
//! time, beside the virtual time of the ingest. Must not: ask in a way that no client can.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytesize::ByteSize;
use derived::values::{self, NAME};
use derived::{DERIVED, Position};
use engine_api::{Engine as _, Key, Value};
use engine_latency::Measured;
use engines::{EngineOptions, OpenMode};
use solana::{ChainCheckpoint, MapPhase};
use workload::Rng;

use super::Simulation;
use super::chain::Chain;
use super::store::Opened;
use crate::base::chain::Commitment;
use crate::derive::{Context, Derived, DerivedError, DerivedSettings};
use crate::feed::Feed;
use crate::ingest::State;
use crate::overlay::Overlay;

/// Time that a store gets to catch up, or to end: a bound for a test that would hang.
const PATIENCE: Duration = Duration::from_secs(120);

/// So few that most commits of the map take several of a derived store.
const CHANGES_MAX: usize = 5;

/// Number of keys whose past is compared.
const KEYS: usize = 40;

/// The derived stores of one simulated map over all of its lives.
pub(super) struct Followers {
    /// Numbers of their own: a seed's chain and faults stay the same.
    rng: Rng,
    options: EngineOptions,
    /// The feed that they have followed.
    feed: Option<u64>,
    /// The slot at which the past begins; `None` before that.
    oldest_slot: Option<u64>,
}

impl Followers {
    /// Returns the derived stores of some maps; `None` for the others.
    pub(super) fn of(seed: u64, options: &EngineOptions) -> Option<Self> {
        let mut rng = Rng::new(seed ^ 0xDE41);
        rng.chance(0.1).then(|| Self { rng, options: options.clone(), feed: None, oldest_slot: None })
    }

    /// Opens the stores for a life of the map.
    fn open(&mut self, dir: &Path, engine: &Arc<Measured>, feed: &Arc<Feed>, state: &State) -> Derived {
        let checkpoint = **state.published.checkpoint();
        let is_whole = checkpoint.phase == MapPhase::Ready;
        let is_same = self.feed.replace(feed.id()) == Some(feed.id());
        let overlay = Arc::new(Overlay::new(&checkpoint, false, true));
        loop {
            if is_whole && !derived::dir(dir, NAME).exists() {
                self.build(dir, engine, &checkpoint);
            }
            // The past begins only where a slot ends.
            let keeps = is_whole || self.oldest_slot.is_some();
            if keeps && self.oldest_slot.is_none() {
                self.oldest_slot = checkpoint.slot;
            }
            let history_slots = if keeps { 1 << 40 } else { 0 };
            let settings = DerivedSettings { history_slots, history_bytes: ByteSize::b(0) };
            let context = Context {
                dir: dir.to_owned(),
                map: Arc::downgrade(engine),
                changes_max: CHANGES_MAX,
                feed: Arc::clone(feed),
                published: Arc::clone(&state.published),
                overlay: Arc::clone(&overlay),
            };
            let derived = Derived::start(context, &settings, self.options.clone()).expect("threads");
            if derived.lags().iter().all(|(_, lag)| lag.is_some()) {
                return derived;
            }
            // Only another feed does not lead on from where a store is. An operator removes the stores then.
            assert!(!is_same, "the feed is the same: {derived:?}");
            derived.kill();
            std::fs::remove_dir_all(dir.join(DERIVED)).expect("the stores can be removed");
            self.oldest_slot = None;
        }
    }

    /// Builds `values` of the map, as bootstrap does.
    fn build(&self, dir: &Path, engine: &Measured, checkpoint: &ChainCheckpoint) {
        let place = derived::dir(dir, NAME);
        let store = engines::open_on(&place, &self.options, OpenMode::Create, &derived::terms(NAME)).expect("a store");
        let position = Position::new(checkpoint.write(), checkpoint.slot).expect("a position");
        let mut pairs = Vec::new();
        let mut push = |key: &Key, value: &Value| {
            pairs.push((*key, None, Some(*value)));
            std::ops::ControlFlow::Continue(())
        };
        engine.reader().expect("a reader").scan(&mut push).expect("a scan");
        values::apply(&*store, &mut pairs.into_iter(), checkpoint.seq, &position).expect("a commit");
        store.close().expect("closed");
    }

    /// Compares the stores with the model, once they have all that the map has.
    fn compare(&mut self, derived: &Derived, chain: &Chain, state: &State, map: &BTreeMap<Key, Value>, heals: bool) {
        let since = Instant::now();
        while derived.lags().iter().any(|(_, lag)| *lag != Some(0)) {
            assert!(since.elapsed() < PATIENCE, "they do not catch up: {derived:?}");
            std::thread::sleep(Duration::from_micros(100));
        }
        let Some(slot) = state.published.slot() else { return };
        let oldest_slot = self.oldest_slot.expect("a map at a slot has a past");
        let slots: Vec<u64> = (0..8).map(|_| oldest_slot + self.rng.below(slot + 1 - oldest_slot)).collect();
        let ask = async {
            compare_values(derived, map, slot).await;
            // A wrong block is part of the past until a heal takes it back.
            if chain.wrong.is_none() {
                for at in slots.into_iter().chain([oldest_slot, slot]) {
                    compare_past(derived, &chain.map_at(at), at, heals).await;
                }
            }
        };
        // On a thread of its own, because the virtual time would go on while nothing but this waits.
        let runtime = || tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
        std::thread::scope(|scope| scope.spawn(|| runtime().block_on(ask)).join()).expect("the stores are the model's");
    }
}

/// Compares all entries with the map.
async fn compare_values(derived: &Derived, map: &BTreeMap<Key, Value>, slot: u64) {
    let values = derived.values().expect("it was built");
    let mut by_value: BTreeMap<Value, BTreeSet<Key>> = BTreeMap::new();
    map.iter().for_each(|(key, value)| _ = by_value.entry(*value).or_default().insert(*key));
    for (value, expected) in &by_value {
        let mut walk = values.keys_of(*value, None, u64::MAX, Commitment::Confirmed, PATIENCE).await.expect("a view");
        let (mut found, mut count) = (BTreeSet::new(), 0);
        while let Some(page) = walk.next().await.expect("a page") {
            assert_eq!(page.slot, Some(slot));
            count += page.keys.len();
            found.extend(page.keys);
        }
        assert_eq!((&found, count), (expected, expected.len()), "the keys of {value:?}");
    }
}

/// Compares the past of some keys with the map that there was at a slot.
async fn compare_past(derived: &Derived, map: &BTreeMap<Key, Value>, slot: u64, heals: bool) {
    let history = derived.history().expect("it is kept");
    for (key, value) in map.iter().take(KEYS) {
        match history.at(*key, slot, Commitment::Confirmed, PATIENCE).await {
            Ok(past) => assert_eq!(past.value.as_ref(), Some(value), "key={key:?} slot={slot}"),
            Err(DerivedError::OutOfRange(why)) => assert!(heals && why.contains("is not resolved"), "{why}"),
            Err(error) => panic!("{error:?}"),
        }
    }
}

impl Simulation {
    /// Opens the derived stores for a life, if this map has any. Compares them with the model now and then.
    pub(super) fn follow(
        &mut self,
        engine: &Arc<Measured>,
        feed: &Arc<Feed>,
        state: &State,
        must: bool,
    ) -> Option<Derived> {
        let followers = self.followers.as_mut()?;
        let derived = followers.open(self.store.dir(), engine, feed, state);
        let is_whole = state.published.checkpoint().phase == MapPhase::Ready;
        if is_whole && (must || followers.rng.chance(0.3)) {
            let heals = self.oracle.heals() > 0;
            followers.compare(&derived, &self.chain, state, self.oracle.map(), heals);
        }
        Some(derived)
    }

    /// Compares the derived stores of a map at rest with the model.
    pub(super) fn check_followers(&mut self) {
        if self.followers.is_none() {
            return;
        }
        let opened = self.store.open();
        self.oracle.opened(&opened, std::mem::take(&mut self.cut));
        let Opened { engine, writer: _writer, feed, plan: _ } = opened;
        let checkpoint = ChainCheckpoint::read(&engine.checkpoint().expect("a checkpoint")).expect("a chain's");
        let state = State::at(checkpoint);
        if let Some(derived) = self.follow(&engine, &feed, &state, true) {
            derived.kill();
        }
    }
}
