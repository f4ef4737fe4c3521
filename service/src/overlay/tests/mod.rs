//! Lookups at each commitment against a model world of forks, on a real engine. Blocks are applied in ingest-apply's
//! order of calls, but in pieces with lookups after each. This is stricter than the service, which commits whole slots
//! only.

mod model;

use bytesize::ByteSize;
use engine_api::{Durability, Engine, Key, Value};
use engine_latency::{Latency, Measured};
use engines::{EngineKind, EngineOptions, OpenMode};

use super::banks::Limits;
use super::patch::Patch;
use super::*;
use crate::lookups::{Answer, LookupError, LookupState};
use crate::reading::Reading;
use model::{KEYS, Map, Tally, Truth, World, key};

fn get_many(
    reading: &mut Reading<'_>,
    keys: &[Key],
    commitment: Commitment,
) -> Result<Answer<Vec<Option<Value>>>, LookupError> {
    let mut value = vec![None; keys.len()];
    let slot = reading.get_into(keys, &mut value, commitment)?;
    Ok(Answer { value, slot })
}

impl World {
    /// Applies the next confirmed block in pieces, with ingest-apply's order of calls, and checks all lookups after
    /// each piece.
    fn apply(&mut self, state: &LookupState, engine: &Measured, reading: &mut Reading<'_>, strict: bool) {
        if self.applied == self.confirmed {
            return;
        }
        let at = self.chain[self.applied];
        let before = self.truths[self.committed()].base;
        let block = self.truths[at].base;
        state.overlay.begin(block);
        let writes: Vec<(Key, Option<Value>)> =
            self.truths[at].writes.iter().map(|(key, value)| (*key, *value)).collect();
        let pieces = if self.rng.below(2) == 0 { 1 } else { 1 + self.rng.below(3) as usize };
        let size = writes.len().div_ceil(pieces).max(1);
        let mut parts: Vec<&[(Key, Option<Value>)]> = writes.chunks(size).collect();
        if parts.is_empty() {
            parts.push(&[]);
        }
        let count = parts.len();
        for (n, part) in parts.into_iter().enumerate() {
            let base = if n + 1 == count { block } else { before };
            let checkpoint =
                ChainCheckpoint { slot: Some(base.slot), blockhash: base.blockhash, ..ChainCheckpoint::default() };
            let mut txn = engine.begin().unwrap();
            let mut changes = Vec::new();
            for (key, value) in part {
                let old = txn.get(key).unwrap();
                if old == *value {
                    continue;
                }
                changes.push((block.slot, *key, old));
                match value {
                    Some(value) => {
                        txn.put(key, value).unwrap();
                        self.engine_map.insert(*key, *value);
                    }
                    None => {
                        txn.delete(key).unwrap();
                        self.engine_map.remove(key);
                    }
                }
            }
            state.overlay.committing(changes.into_iter());
            txn.commit(&checkpoint.write(), Durability::Buffered).unwrap();
            if n + 1 == count {
                self.applied += 1;
            } else {
                self.seen.mid_slot += 1;
            }
            state.published.publish(checkpoint);
            state.overlay.published(checkpoint.slot);
            self.check(state, reading, strict);
            if self.rng.below(2) == 0 {
                self.publish(state);
                self.check(state, reading, strict);
            }
        }
    }

    /// Checks that the values of a map that differ, and its keys of a value, lead from the map on disk to the answers at a
    /// commitment.
    fn check_patch(&self, patch: &Patch, keys: &[Key], answer: &Answer<Vec<Option<Value>>>) {
        assert_eq!(patch.slot, answer.slot);
        for (key, value) in keys.iter().zip(&answer.value) {
            assert_eq!(patch.value(key).value_or(|| self.engine_map.get(key).copied()), *value);
        }
        for value in answer.value.iter().flatten() {
            let mut found: Vec<Key> = patch.keys_of(value);
            let kept = self.engine_map.iter().filter(|(key, of)| *of == value && patch.value(key) == Known::Nothing);
            found.extend(kept.map(|(key, _)| *key));
            found.sort_unstable();
            let expected = keys.iter().zip(&answer.value).filter(|(_, of)| of.as_ref() == Some(value));
            assert_eq!(found, expected.map(|(key, _)| *key).collect::<Vec<_>>());
        }
    }

    /// Looks up every key at every commitment, and compares the answers with the model.
    fn check(&mut self, state: &LookupState, reading: &mut Reading<'_>, strict: bool) {
        let keys: Vec<Key> = (0..KEYS).map(key).collect();
        let values = |map: &Map| keys.iter().map(|key| map.get(key).copied()).collect::<Vec<_>>();
        let committed = self.truths[self.committed()].base.slot;
        let confirmed = get_many(reading, &keys, Commitment::Confirmed).unwrap();
        assert_eq!(confirmed, Answer { value: values(&self.engine_map), slot: Some(committed) });

        let base = self.truths[self.committed()].base;
        let at = ChainCheckpoint { slot: Some(base.slot), blockhash: base.blockhash, ..ChainCheckpoint::default() };
        let settled = self.patches.finalized(&state.overlay, &at);
        let first_applied = self.chain.get(1).map(|&at| self.truths[at].base.slot);
        let slot = self.final_named.range(..=committed).next_back().copied();
        match get_many(reading, &keys, Commitment::Finalized) {
            Ok(found) => {
                assert!(first_applied.is_some_and(|first| slot >= Some(first)));
                let at = self.chain.iter().rev().find(|&&at| Some(self.truths[at].base.slot) <= slot).unwrap();
                assert_eq!(found, Answer { value: values(&self.truths[*at].state), slot });
                self.check_patch(&settled.unwrap(), &keys, &found);
                self.seen.finalized += 1;
            }
            Err(LookupError::NotFinal) => {
                assert!(slot.is_none() || first_applied.is_none_or(|first| slot < Some(first)));
                assert!(settled.is_none());
                self.seen.not_final += 1;
            }
            Err(error) => panic!("{error:?}"),
        }

        let found = match get_many(reading, &keys, Commitment::Processed) {
            Err(LookupError::Overflowed) if !strict => {
                self.seen.overflowed += 1;
                return;
            }
            found => found.unwrap(),
        };
        let n = self.rng.below(KEYS);
        let one = reading.get(&key(n), Commitment::Processed).unwrap();
        assert_eq!((one.value, one.slot), (found.value[n as usize], found.slot));
        let view = state.overlay.processed().unwrap().view();
        self.check_patch(&self.patches.processed(&state.overlay, &view, Some(base)).unwrap(), &keys, &found);
        let expected = self.expected(state);
        self.seen.ahead += u64::from(found.slot > Some(committed));
        if strict {
            let state = expected.map_or(&self.engine_map, |at| &self.truths[at].state);
            let slot = expected.map_or(committed, |at| self.truths[at].base.slot);
            assert_eq!(found, Answer { value: values(state), slot: Some(slot) });
            self.seen.forked += u64::from(expected.is_some_and(|at| !self.truths[at].on_chain));
        } else {
            // The limits decide the fork here, but the answer must be the whole state of some bank of that slot.
            let slot = found.slot.unwrap();
            let of_bank = |truth: &&Truth| truth.base.slot == slot && values(&truth.state) == found.value;
            let of_engine = slot == committed && values(&self.engine_map) == found.value;
            assert!(of_engine || self.truths.iter().any(|truth| of_bank(&truth)), "{found:?}");
        }
    }

    /// Returns the bank whose state a processed lookup has to answer; `None` for the engine's state.
    fn expected(&self, state: &LookupState) -> Option<usize> {
        let committed = self.committed();
        let root = self.root(state);
        let path = self.tip.as_ref()?;
        let above: Vec<usize> =
            path.iter().copied().filter(|&at| self.truths[at].base.slot > self.truths[committed].base.slot).collect();
        let stands = self.truths[*above.last()?].parent == Some(committed);
        (stands && (root == committed || above.contains(&root))).then_some(above[0])
    }
}

/// Plays a world from `seed` and returns the counts of cases that occurred.
fn play(seed: u64, steps: u64, limits: Limits, strict: bool) -> Tally {
    let dir = tempfile::tempdir().unwrap();
    // Strata, because its buffered commits do not wait for the device.
    let options = EngineOptions { memory: Some(ByteSize::mib(64)), ..EngineOptions::new(EngineKind::Strata) };
    let engine = engines::open(&dir.path().join("store"), &options, OpenMode::Create).unwrap();
    let engine = Measured::new(engine, Latency::new("strata"), "ingest");
    let mut world = World::new(seed, limits);
    let base = world.truths[0].base;
    let checkpoint = ChainCheckpoint { slot: Some(base.slot), blockhash: base.blockhash, ..ChainCheckpoint::default() };
    let mut txn = engine.begin().unwrap();
    world.engine_map.iter().for_each(|(key, value)| txn.put(key, value).unwrap());
    txn.commit(&checkpoint.write(), Durability::Buffered).unwrap();
    let overlay = Arc::new(Overlay::new(&checkpoint, true, false));
    let state = LookupState::new(Arc::new(Published::new(checkpoint)), overlay);
    let mut reading = Reading::new(&engine, &state, "model");
    for _ in 0..steps {
        match world.rng.below(40) {
            0..=4 => world.grow(),
            5..=26 => world.deliver(),
            27..=30 => world.confirm(),
            31..=34 => world.apply(&state, &engine, &mut reading, strict),
            35 => match world.rng.below(8) {
                0 => world.reconnect(),
                _ => world.repeat(),
            },
            36 => {
                let at = world.chain[world.rng.below(world.confirmed as u64) as usize];
                let slot = world.truths[at].base.slot;
                state.overlay.name_final(slot);
                world.final_named.insert(slot);
                state.overlay.settle();
            }
            _ => world.publish(&state),
        }
        world.check(&state, &mut reading, strict);
    }
    assert!(world.applied as u64 > steps / 40, "the world grew: applied={}", world.applied);
    world.seen
}

#[test]
fn lookups_at_each_commitment_are_the_worlds() {
    let mut all = Tally::default();
    for seed in 1..=20 {
        let met = play(seed, 3000, Limits::default(), true);
        all.ahead += met.ahead;
        all.forked += met.forked;
        all.mid_slot += met.mid_slot;
        all.finalized += met.finalized;
        all.not_final += met.not_final;
    }
    let Tally { ahead, forked, mid_slot, finalized, not_final, .. } = all;
    assert!(ahead > 500 && forked > 50 && mid_slot > 50 && finalized > 500 && not_final > 10, "{all:?}");
}

#[test]
fn too_many_banks_are_refused_and_never_answered_wrong() {
    let met = play(11, 4000, Limits { banks_max: 7, bytes_max: usize::MAX }, false);
    assert!(met.overflowed > 100 && met.ahead > 50 && met.finalized > 100, "{met:?}");
    let met = play(13, 4000, Limits { banks_max: 100, bytes_max: 4000 }, false);
    assert!(met.overflowed > 50 && met.ahead > 50, "{met:?}");
}
