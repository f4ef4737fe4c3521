//! A dump: the copy of the map that a subscriber begins with, made range by range.
//!
//! Owns: the `feed-dump-N` threads, and the bounds of a range. Must not: hold a view of the store while a subscriber
//! takes the copied pairs, or keep the engine after [`Dumps::stop`].
//!
//! A view that stays open keeps every page that LMDB and redb free meanwhile, and the runs that strata merges away. A
//! subscriber that takes a dump slowly would thus fill the disk. A range is therefore copied into memory from a view of
//! its own, which is closed before the first pair is sent. Ranges of one dump are of different moments. They become one
//! map as follows:
//!
//! 1. Range `i` holds the pairs with `after < key <= through`, as they were after the change `seq(i)`.
//! 2. Before its pairs the subscriber is sent the changes from `seq(i-1)` (exclusive) to `seq(i)` of the keys up to
//!    `after`, which it already has. They come from the feed's log.
//! 3. Once it has the range, all keys up to `through` are therefore as they were after `seq(i)`. Changes of greater
//!    keys are not sent, because a later range will include them.
//! 4. After the last range the subscriber holds the whole map as of the last `seq(i)`; the tail goes on with the next
//!    change.
//!
//! At every message the subscriber's data are thus described by a key and a sequence number, and a subscription that
//! begins with these two resumes there. The log must still hold the changes after that number. Otherwise the subscriber
//! gets `OUT_OF_RANGE`.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use std::{io, mem};

use engine_api::{Key, Reader, Value};
use engine_latency::Measured;
use solana::ChainCheckpoint;

use super::Filter;
use super::pool::Pool;
use crate::base::published::{between_slots, is_between_slots};
use crate::base::views::Views;
use crate::base::{lock, stop};

/// Maximum number of dumps under way. Each holds one range that is sent and one that is copied, 32 MiB for all of them.
pub(crate) const DUMPS_MAX: usize = 8;

/// Number of threads that copy ranges, and so of views that dumps hold at a time. Two already saturate a device.
const DUMP_THREADS: usize = 2;

/// Maximum number of pairs of a range: 2 MiB.
const RANGE_PAIRS: usize = 32_768;

/// Time after which a range ends, however few pairs pass. A view thus pins only the changes of this time, and of the
/// read under way at its end.
const RANGE_TIME: Duration = Duration::from_millis(250);

/// Number of pairs between two checks of the clock and of whether the service stops.
const LOOK_EVERY: usize = 256;

/// Number of pairs that a scan may skip before it seeks the next prefix. A seek costs about as much as reading these.
const SKIP_PAIRS: usize = 512;

/// Number of keys of one read where the filter lists keys.
const KEYS_AT_ONCE: usize = 1024;

/// A range of the map, in ascending order of keys.
#[derive(Debug, Default)]
pub struct DumpRange {
    /// Sequence number of the newest change in it.
    pub seq: u64,
    /// The last slot that it holds as a whole; `None` before the first.
    pub slot: Option<u64>,
    /// Pairs that pass the filter, 64 bytes each: key, then value.
    pub packed_pairs: Vec<u8>,
    /// The last key checked. `None` when no key follows, so that this range is the last one.
    pub through: Option<Key>,
}

/// Reason why a range could not be copied.
#[derive(Debug)]
pub enum DumpError {
    /// The service is shutting down.
    Stopped,
    /// The engine returned this error.
    Engine(engine_api::Error),
}

/// Handle to the threads that copy ranges. Clones share them.
#[derive(Clone)]
pub struct Dumps {
    pool: Pool,
    source: Arc<Source>,
}

struct Source {
    /// The store; `None` once stopped.
    engine: Mutex<Option<Arc<Measured>>>,
    views: Arc<Views>,
    stop: AtomicBool,
}

impl Dumps {
    /// Starts the threads that copy ranges.
    ///
    /// # Errors
    /// I/O errors of starting a thread.
    pub fn start(engine: Arc<Measured>, views: Arc<Views>) -> io::Result<Self> {
        let source = Source { engine: Mutex::new(Some(engine)), views, stop: AtomicBool::new(false) };
        Ok(Self { pool: Pool::start("feed-dump", DUMP_THREADS)?, source: Arc::new(source) })
    }

    /// Copies the range after the key `after`, or the first range, from a view of the newest commit.
    ///
    /// # Errors
    /// [`DumpError::Stopped`] during shutdown; [`DumpError::Engine`] with an error of the engine.
    pub async fn range(&self, filter: Arc<Filter>, after: Option<Key>) -> Result<DumpRange, DumpError> {
        let source = Arc::clone(&self.source);
        self.pool.run(move || source.copy(&filter, after.as_ref())).await.unwrap_or(Err(DumpError::Stopped))
    }

    /// Ends the copies under way and the threads. Afterwards no thread holds the engine.
    ///
    /// # Errors
    /// The names of the threads that have not ended at `deadline`.
    pub fn stop(&self, deadline: Instant) -> Result<(), stop::Stuck> {
        // ORDERING: Relaxed: only a flag, the join orders everything else.
        self.source.stop.store(true, Ordering::Relaxed);
        drop(lock(&self.source.engine).take());
        self.pool.stop(deadline)
    }
}

impl Source {
    fn copy(&self, filter: &Filter, after: Option<&Key>) -> Result<DumpRange, DumpError> {
        let engine = lock(&self.engine).clone();
        let engine = engine.ok_or(DumpError::Stopped)?;
        let _held = self.views.hold();
        // Not the measured reader, because a range must not count as the latency of a lookup.
        let mut reader = engine.inner().reader().map_err(DumpError::Engine)?;
        let checkpoint =
            reader.checkpoint().and_then(|found| ChainCheckpoint::read(&found)).map_err(DumpError::Engine)?;
        if is_between_slots(&checkpoint) {
            return Err(DumpError::Engine(between_slots()));
        }
        let mut copy = Copy { filter, stop: &self.stop, begun: Instant::now(), looked: 0, range: DumpRange::default() };
        (copy.range.seq, copy.range.slot) = (checkpoint.seq, checkpoint.slot);
        let first = after.map_or(Some([0; 32]), following);
        let copied = match first {
            Some(first) if filter.names_keys() => copy.keys(&mut *reader, first),
            Some(first) => copy.ranges(&mut *reader, first),
            None => Ok(None),
        };
        copy.range.through = copied.map_err(DumpError::Engine)?;
        // ORDERING: Relaxed: see the store.
        if self.stop.load(Ordering::Relaxed) { Err(DumpError::Stopped) } else { Ok(mem::take(&mut copy.range)) }
    }
}

/// A range that is being copied.
struct Copy<'c> {
    filter: &'c Filter,
    stop: &'c AtomicBool,
    begun: Instant,
    looked: usize,
    range: DumpRange,
}

impl Copy<'_> {
    /// Copies the pairs from `first` on until the range is full. Returns the last key checked, or `None` at the end of
    /// the map.
    fn ranges(&mut self, reader: &mut dyn Reader, first: Key) -> engine_api::Result<Option<Key>> {
        let mut from = self.filter.first_wanted(&first);
        while let Some(first) = from {
            // Where the scan stopped, and whether the range has ended there.
            let mut broken = None;
            let mut passed_over = 0;
            reader.scan_from(&first, &mut |key, value| {
                if self.filter.passes_key(key) {
                    passed_over = 0;
                    self.take(key, value);
                } else {
                    passed_over += 1;
                }
                let full = self.is_full();
                if full || passed_over > SKIP_PAIRS {
                    broken = Some((*key, full));
                    return ControlFlow::Break(());
                }
                ControlFlow::Continue(())
            })?;
            match broken {
                None => return Ok(None),
                Some((key, true)) => return Ok(Some(key)),
                Some((key, false)) => from = following(&key).and_then(|next| self.filter.first_wanted(&next)),
            }
            // A seek may take as long as many pairs do, so check the clock after the next pair.
            self.looked = self.looked.next_multiple_of(LOOK_EVERY) - 1;
        }
        Ok(None)
    }

    /// Copies as [`Copy::ranges`] does, for a filter that lists keys.
    fn keys(&mut self, reader: &mut dyn Reader, first: Key) -> engine_api::Result<Option<Key>> {
        let keys = self.filter.wanted_keys(&first, KEYS_AT_ONCE);
        let mut values = vec![None; keys.len()];
        reader.get_many(&keys, &mut values)?;
        for (key, value) in keys.iter().zip(&values) {
            if let Some(value) = value {
                self.take(key, value);
            }
        }
        Ok(keys.last().copied().filter(|_| keys.len() == KEYS_AT_ONCE))
    }

    fn take(&mut self, key: &Key, value: &Value) {
        if self.filter.passes_pair(key, value) {
            self.range.packed_pairs.extend_from_slice(key);
            self.range.packed_pairs.extend_from_slice(value);
        }
    }

    /// Whether the range ends with the pair that was just checked.
    fn is_full(&mut self) -> bool {
        self.looked += 1;
        self.range.packed_pairs.len() >= RANGE_PAIRS * 64
            || (self.looked.is_multiple_of(LOOK_EVERY)
                // ORDERING: Relaxed: see the store.
                && (self.begun.elapsed() >= RANGE_TIME || self.stop.load(Ordering::Relaxed)))
    }
}

/// Returns the least key after `key`; `None` after the greatest one.
fn following(key: &Key) -> Option<Key> {
    let mut next = *key;
    for byte in next.iter_mut().rev() {
        let carried;
        (*byte, carried) = byte.overflowing_add(1);
        if !carried {
            return Some(next);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use engine_api::{Checkpoint, Durability, Engine as _, Result, Visitor};

    use super::*;
    use crate::lookups::tests::Pool as Store;

    /// A reader that counts the pairs it visits.
    struct Counting<'e>(Box<dyn Reader + 'e>, usize);

    impl Reader for Counting<'_> {
        fn get(&mut self, key: &Key) -> Result<Option<Value>> {
            self.0.get(key)
        }
        fn get_many(&mut self, keys: &[Key], values: &mut [Option<Value>]) -> Result<()> {
            self.1 += keys.len();
            self.0.get_many(keys, values)
        }
        fn scan_from(&mut self, first: &Key, visit: &mut Visitor<'_>) -> Result<()> {
            let visited = &mut self.1;
            self.0.scan_from(first, &mut |key, value| {
                *visited += 1;
                visit(key, value)
            })
        }
        fn checkpoint(&mut self) -> Result<Checkpoint> {
            self.0.checkpoint()
        }
        fn refresh(&mut self) -> Result<()> {
            self.0.refresh()
        }
    }

    /// Reads all ranges of a dump. Returns the map, and the numbers of visited pairs and of ranges.
    fn dump(store: &Store, filter: &Filter) -> (BTreeMap<Key, Value>, usize, usize) {
        let (mut map, mut visited, mut ranges, mut first) = (BTreeMap::new(), 0, 0, Some([0; 32]));
        while let Some(from) = first {
            let stop = AtomicBool::new(false);
            let mut reader = Counting(store.engine.inner().reader().unwrap(), 0);
            let mut copy = Copy { filter, stop: &stop, begun: Instant::now(), looked: 0, range: DumpRange::default() };
            let through = match filter.names_keys() {
                true => copy.keys(&mut reader, from).unwrap(),
                false => copy.ranges(&mut reader, from).unwrap(),
            };
            let (pairs, rest) = copy.range.packed_pairs.as_chunks::<64>();
            assert!(rest.is_empty() && pairs.len() <= RANGE_PAIRS);
            for pair in pairs {
                let (key, value): (Key, Value) = (pair[..32].try_into().unwrap(), pair[32..].try_into().unwrap());
                assert!(key >= from && through.is_none_or(|through| key <= through));
                assert_eq!(map.insert(key, value), None);
            }
            (visited, ranges, first) = (visited + reader.1, ranges + 1, through.as_ref().and_then(following));
        }
        (map, visited, ranges)
    }

    #[test]
    fn ranges_join_to_what_passes_and_read_little_else() {
        let store = Store::start();
        let mut txn = store.engine.begin().unwrap();
        let mut all = BTreeMap::from([([1; 32], [7; 32])]);
        for n in 0..80_000u64 {
            let mut key = [n as u8; 32];
            key[..8].copy_from_slice(&n.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes());
            txn.put(&key, &[(n % 5) as u8; 32]).unwrap();
            all.insert(key, [(n % 5) as u8; 32]);
        }
        txn.commit(&Checkpoint::new(80_000, &[]), Durability::Synced).unwrap();
        let bytes = |entries: &[&[u8]]| entries.iter().map(|entry| bytes::Bytes::copy_from_slice(entry)).collect();
        let (map, visited, ranges) = dump(&store, &Filter::default());
        assert!(map == all && visited == all.len() && ranges >= 3, "visited={visited} ranges={ranges}");
        let prefixes =
            proto::v1::Filter { key_prefixes: bytes(&[&[9], &[9, 9], &[200, 3], &[255; 4]]), ..Default::default() };
        let filter = Filter::new(&prefixes).unwrap();
        let (map, visited, ranges) = dump(&store, &filter);
        assert!(map.len() > 250 && map == all.clone().into_iter().filter(|(key, _)| filter.passes_key(key)).collect());
        assert!(visited <= map.len() + (ranges + 2) * (SKIP_PAIRS + 1), "visited={visited} of={}", map.len());
        let keys = all.keys().step_by(30).map(|key| &key[..]).chain([&[3; 32][..]]).collect::<Vec<_>>();
        let filter = Filter::new(&proto::v1::Filter { keys: bytes(&keys), ..Default::default() }).unwrap();
        let (map, visited, ranges) = dump(&store, &filter);
        assert_eq!((map.len(), visited, ranges), (keys.len() - 1, keys.len(), keys.len() / KEYS_AT_ONCE + 1));
    }

    #[test]
    fn the_following_key_carries_and_ends() {
        let key = |tail: [u8; 2]| {
            let mut key = [7; 32];
            key[30..].copy_from_slice(&tail);
            key
        };
        assert_eq!(following(&key([1, 2])), Some(key([1, 3])));
        assert_eq!(following(&key([1, 255])), Some(key([2, 0])));
        assert_eq!(following(&[255; 32]), None);
    }
}
