//! Merges two ascending streams of pairs, and finds the keys that only one of them has, or that have different values.
//!
//! Owns: the merge, and the thread that scans a store for it. Must not: hold either map in memory. Threads: a store is
//! scanned on a thread of its own, a few chunks ahead of the merge.

use std::cmp::Ordering;
use std::iter::{Flatten, Peekable};
use std::ops::ControlFlow;
use std::sync::mpsc::{IntoIter, Receiver, sync_channel};
use std::thread::{self, Builder, Scope, ScopedJoinHandle};

use anyhow::{Context, Result, anyhow};
use engine_api::{Engine, Key, Value};

use crate::limits::CHUNK_PAIRS;
use crate::undo::{LostChanges, TakeBack, Undo};

/// Largest number of chunks by which a scan is ahead of the merge: 16 MiB, so that neither side waits for the other's
/// pauses.
const CHUNKS_AHEAD: usize = 64;

type Pair = (Key, Value);

/// Handle of a scanning thread, which returns the engine's error if the scan failed, and otherwise the changes that the
/// store has lost.
type Scanning<'s> = ScopedJoinHandle<'s, engine_api::Result<LostChanges>>;

/// Scans `engine` on a new thread called `name`, as the store was before the changes of `undo`. The scan ends early when
/// the receiver is dropped.
fn scan<'s>(
    scope: &'s Scope<'s, '_>,
    engine: &'s dyn Engine,
    undo: &'s Undo,
    name: &str,
) -> Result<(Scanning<'s>, Receiver<Vec<Pair>>)> {
    let (chunks, received) = sync_channel::<Vec<Pair>>(CHUNKS_AHEAD);
    let scan = move || {
        let (mut chunk, mut is_wanted) = (Vec::with_capacity(CHUNK_PAIRS), true);
        let mut pass_on = |pair| {
            chunk.push(pair);
            if chunk.len() == CHUNK_PAIRS {
                let full = std::mem::replace(&mut chunk, Vec::with_capacity(CHUNK_PAIRS));
                is_wanted = is_wanted && chunks.send(full).is_ok();
            }
            is_wanted
        };
        let mut back = TakeBack::new(undo);
        engine.reader()?.scan(&mut |key, value| match back.push(key, value, &mut pass_on) {
            true => ControlFlow::Continue(()),
            false => ControlFlow::Break(()),
        })?;
        let lost = back.finish(&mut pass_on);
        chunks.send(chunk).ok();
        Ok(lost)
    };
    let scanning = Builder::new()
        .name(name.to_owned())
        .spawn_scoped(scope, scan)
        .with_context(|| format!("cannot start the thread of a scan: thread={name}"))?;
    Ok((scanning, received))
}

/// Merges this side, which `push_all` pushes pair by pair, with a scan of `engine` on a new thread called `thread`, as the
/// store was before the changes of `undo`. `name` is called for the first `show` keys that differ. Returns the counts, and
/// the changes that the store has lost.
///
/// # Errors
/// Those of the scan, and of `push_all`.
pub(crate) fn merge<N: FnMut(&Key, Option<&Value>, Option<&Value>)>(
    (engine, undo, thread): (&dyn Engine, &Undo, &str),
    show: u64,
    name: N,
    push_all: impl FnOnce(&mut Sides<N>) -> Result<()>,
) -> Result<(Counts, LostChanges)> {
    thread::scope(|scope| {
        let (scanning, received) = scan(scope, engine, undo, thread)?;
        let mut both = Sides::new(received, show, name);
        // Dropping the merge ends a scan of the store that is still running.
        let counts = push_all(&mut both).map(|()| both.finish());
        // Return the scan's error first, because a scan that was cut short looks like missing pairs.
        let lost = scanning.join().map_err(|_| anyhow!("the scan has panicked: this is a bug"))??;
        Ok((counts?, lost))
    })
}

/// Result of comparing two sides, in numbers of pairs and keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Number of pairs on this side.
    pub pairs: u64,
    pub other_pairs: u64,
    /// Keys that only this side has.
    pub only_here: u64,
    pub only_there: u64,
    /// Keys that both sides have, with different values.
    pub different: u64,
}

impl Counts {
    /// Number of keys in which the sides differ.
    pub(crate) fn unequal(&self) -> u64 {
        self.only_here + self.only_there + self.different
    }

    /// Names the usual cause where both sides have pairs, but no key in common.
    pub fn hint(&self) -> Option<&'static str> {
        let has_no_common_key = self.only_here == self.pairs && self.only_there == self.other_pairs;
        (has_no_common_key && self.pairs > 0 && self.other_pairs > 0).then_some(
            "store and source have no key in common: the source is probably of another chain, or of another --extract",
        )
    }
}

/// Merges this side, which is pushed pair by pair, with the other side, which is received in chunks.
pub(crate) struct Sides<N> {
    others: Peekable<Flatten<IntoIter<Vec<Pair>>>>,
    counts: Counts,
    show: u64,
    name: N,
}

impl<N: FnMut(&Key, Option<&Value>, Option<&Value>)> Sides<N> {
    /// Begins a merge with `received`. `name` is called for the first `show` keys in which the sides differ, with the
    /// value on each side.
    fn new(received: Receiver<Vec<Pair>>, show: u64, name: N) -> Self {
        Self { others: received.into_iter().flatten().peekable(), counts: Counts::default(), show, name }
    }

    /// Adds this side's next pair. Its key must be greater than the last one.
    pub(crate) fn push(&mut self, key: &Key, value: &Value) {
        self.counts.pairs += 1;
        while let Some((other, there)) = self.others.next_if(|(other, _)| other < key) {
            self.only_there(&other, &there);
        }
        match self.others.next_if(|(other, _)| other.cmp(key) == Ordering::Equal) {
            Some((_, there)) => {
                self.counts.other_pairs += 1;
                if *value != there {
                    self.counts.different += 1;
                    self.name(key, Some(value), Some(&there));
                }
            }
            None => {
                self.counts.only_here += 1;
                self.name(key, Some(value), None);
            }
        }
    }

    /// Ends this side. The remaining pairs of the other side have no counterpart.
    fn finish(mut self) -> Counts {
        while let Some((other, there)) = self.others.next() {
            self.only_there(&other, &there);
        }
        self.counts
    }

    fn only_there(&mut self, key: &Key, there: &Value) {
        self.counts.other_pairs += 1;
        self.counts.only_there += 1;
        self.name(key, None, Some(there));
    }

    fn name(&mut self, key: &Key, here: Option<&Value>, there: Option<&Value>) {
        if self.counts.unequal() <= self.show {
            (self.name)(key, here, there);
        }
    }
}

/// Formats a key or a value in base58, the usual form of a pubkey.
pub(crate) fn base58(bytes: &[u8; 32]) -> String {
    bs58::encode(bytes).into_string()
}

/// Formats a value in base58, or "nothing" where there is none.
pub(crate) fn base58_or_nothing(value: Option<&Value>) -> String {
    value.map_or_else(|| "nothing".to_owned(), base58)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn sides_are_compared_as_maps_are(
            here in prop::collection::btree_map(0u8..60, 0u8..3, 0..50),
            there in prop::collection::btree_map(0u8..60, 0u8..3, 0..50),
            chunk in 1usize..7,
            show in 0u64..9,
        ) {
            let pairs = |map: &BTreeMap<u8, u8>| -> Vec<Pair> { map.iter().map(|(k, v)| ([*k; 32], [*v; 32])).collect() };
            let (sender, received) = sync_channel(100);
            pairs(&there).chunks(chunk).for_each(|chunk| sender.send(chunk.to_vec()).unwrap());
            drop(sender);
            let mut named = Vec::new();
            let name = |key: &Key, here: Option<&Value>, there: Option<&Value>| {
                named.push((key[0], here.map(|value| value[0]), there.map(|value| value[0])));
            };
            let mut sides = Sides::new(received, show, name);
            pairs(&here).iter().for_each(|(key, value)| sides.push(key, value));
            let counts = sides.finish();
            let all: std::collections::BTreeSet<u8> = here.keys().chain(there.keys()).copied().collect();
            type Unequal = (u8, Option<u8>, Option<u8>);
            let unequal: Vec<Unequal> = all
                .into_iter()
                .map(|key| (key, here.get(&key).copied(), there.get(&key).copied()))
                .filter(|(_, here, there)| here != there)
                .collect();
            let count = |of: fn(&Unequal) -> bool| unequal.iter().filter(|key| of(key)).count() as u64;
            prop_assert_eq!(counts, Counts {
                pairs: here.len() as u64,
                other_pairs: there.len() as u64,
                only_here: count(|(_, here, there)| here.is_some() && there.is_none()),
                only_there: count(|(_, here, _)| here.is_none()),
                different: count(|(_, here, there)| here.is_some() && there.is_some()),
            });
            prop_assert_eq!(&named[..], &unequal[..unequal.len().min(show as usize)]);
        }
    }
}
