//! A map with its feed, its overlay and its derived stores, and the model of all that they have to answer.

use super::*;

/// So few that most commits of the map take several of the derived store.
pub(super) const CHANGES_MAX: usize = 7;
pub(super) const WAIT: Duration = Duration::from_secs(60);

/// A map with its feed, and with derived stores beside it.
pub(super) struct World {
    pub(super) home: tempfile::TempDir,
    pub(super) model: BTreeMap<Key, Value>,
    /// The map at the end of each slot, as far as the past is asked for.
    pub(super) past: BTreeMap<u64, BTreeMap<Key, Value>>,
    pub(super) settings: DerivedSettings,
    pub(super) at: ChainCheckpoint,
    pub(super) map: Arc<Measured>,
    pub(super) writer: FeedWriter,
    pub(super) feed: Arc<Feed>,
    pub(super) published: Arc<Published>,
    pub(super) overlay: Arc<Overlay>,
    pub(super) derived: Derived,
}

pub(super) fn key(n: u8) -> Key {
    [n; 32]
}

pub(super) fn numbered(n: u32) -> Key {
    let mut key = [0; 32];
    key[..4].copy_from_slice(&n.to_be_bytes());
    key
}

pub(super) fn run<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(future)
}

pub(super) fn options() -> EngineOptions {
    EngineOptions { memory: Some(ByteSize::mib(64)), ..EngineOptions::new(EngineKind::Strata) }
}

pub(super) fn settings(history_slots: u64) -> DerivedSettings {
    DerivedSettings { history_slots, history_bytes: ByteSize::b(0) }
}

/// Makes the home of a map of two keys at slot 10, and of its derived store.
pub(super) fn built() -> (tempfile::TempDir, BTreeMap<Key, Value>, ChainCheckpoint) {
    let home = tempfile::tempdir().unwrap();
    let model = BTreeMap::from([(key(1), key(9)), (key(2), key(9))]);
    let at = ChainCheckpoint { seq: 2, slot: Some(10), ..ChainCheckpoint::default() };
    let map = engines::open(home.path(), &options(), OpenMode::Create).unwrap();
    let mut txn = map.begin().unwrap();
    model.iter().for_each(|(key, value)| txn.put(key, value).unwrap());
    txn.commit(&at.write(), Durability::Synced).unwrap();
    map.close().unwrap();
    build_values(home.path(), &model, &at);
    (home, model, at)
}

pub(super) fn build_values(home: &Path, model: &BTreeMap<Key, Value>, at: &ChainCheckpoint) {
    let place = derived::dir(home, NAME);
    let store = engines::open_on(&place, &options(), OpenMode::Create, &derived::terms(NAME)).unwrap();
    let position = Position::new(at.write(), at.slot).unwrap();
    let mut changes = model.iter().map(|(key, value)| (*key, None, Some(*value)));
    values::apply(&*store, &mut changes, at.seq, &position).unwrap();
    store.close().unwrap();
}

impl World {
    /// Opens a map of two keys at slot 10, of which the derived store was built, and begins its past.
    pub(super) fn new() -> Self {
        let (home, model, at) = built();
        Self::open(home, model, at, settings(100))
    }

    pub(super) fn open(
        home: tempfile::TempDir,
        model: BTreeMap<Key, Value>,
        at: ChainCheckpoint,
        settings: DerivedSettings,
    ) -> Self {
        let engine = engines::open(home.path(), &options(), OpenMode::Existing).unwrap();
        let map = Arc::new(Measured::new(engine, Latency::new("test"), "ingest"));
        let (writer, feed) = FeedWriter::open(&home.path().join("feed"), &at, Durability::Synced, 1 << 30).unwrap();
        let published = Arc::new(Published::new(at));
        let overlay = Arc::new(Overlay::new(&at, false, false));
        let context = Context {
            dir: home.path().to_owned(),
            map: Arc::downgrade(&map),
            changes_max: CHANGES_MAX,
            feed: Arc::clone(&feed),
            published: Arc::clone(&published),
            overlay: Arc::clone(&overlay),
        };
        let derived = Derived::start(context, &settings, options()).unwrap();
        let past = BTreeMap::from([(at.slot.unwrap(), model.clone())]);
        Self { home, model, past, settings, at, map, writer, feed, published, overlay, derived }
    }

    /// Stops all and starts it again.
    pub(super) fn restart(self) -> Self {
        let Self { home, model, at, past, settings, .. } = self.stop();
        Self { past, ..Self::open(home, model, at, settings) }
    }

    /// Stops all, and puts nothing in the map's place.
    pub(super) fn stop(mut self) -> Self {
        self.feed.close();
        self.derived.stop(Instant::now() + WAIT).unwrap();
        let elsewhere = tempfile::tempdir().unwrap();
        let other = engines::open(elsewhere.path(), &options(), OpenMode::Create).unwrap();
        let other = Arc::new(Measured::new(other, Latency::new("test"), "ingest"));
        let map = Arc::into_inner(std::mem::replace(&mut self.map, other)).unwrap();
        Box::new(map).close().unwrap();
        self
    }

    pub(super) fn values(&self) -> Values {
        self.derived.values().unwrap()
    }

    pub(super) fn history(&self) -> &History {
        self.derived.history().unwrap()
    }

    /// Commits changes, of which the last one ends the next slot if `is_whole`.
    pub(super) fn commit(&mut self, changes: &[(Key, Option<Value>)], is_whole: bool) {
        self.commit_to(self.at.slot.unwrap() + 1, changes, is_whole, false);
    }

    /// Commits changes that lead to `slot`.
    pub(super) fn commit_to(&mut self, slot: u64, changes: &[(Key, Option<Value>)], is_whole: bool, is_healed: bool) {
        let changes = changes.iter().map(|(key, new)| {
            let old = match new {
                Some(new) => self.model.insert(*key, *new),
                None => self.model.remove(key),
            };
            Change { slot, key: *key, old, new: *new }
        });
        let changes: Vec<Change> = changes.collect();
        let (first, seq) = (self.at.seq + 1, self.at.seq + changes.len() as u64);
        let mut txn = self.map.begin().unwrap();
        for change in &changes {
            match &change.new {
                Some(new) => txn.put(&change.key, new).unwrap(),
                None => txn.delete(&change.key).unwrap(),
            }
        }
        let parent_slot = self.at.slot.unwrap();
        let end = SlotEnd { seq, slot, blockhash: [0; 32], parent_slot, is_healed };
        self.overlay.begin(Base { slot, blockhash: [0; 32] });
        self.overlay.committing(changes.iter().map(|change| (slot, change.key, change.old)));
        self.writer.append(first, changes, if is_whole { vec![end] } else { Vec::new() }).unwrap();
        let phase = if is_whole { MapPhase::Ready } else { MapPhase::Healing { to_slot: slot, next_key: key(3) } };
        self.at = ChainCheckpoint { seq, slot: if is_whole { Some(slot) } else { self.at.slot }, phase, ..self.at };
        txn.commit(&self.at.write(), Durability::Synced).unwrap();
        self.published.publish(self.at);
        self.writer.publish(&self.at);
        self.overlay.published(self.at.slot);
        if is_whole {
            self.past.insert(slot, self.model.clone());
        }
    }

    pub(super) fn keys_of(&self, value: u8) -> Result<(BTreeSet<Key>, Option<u64>), DerivedError> {
        self.keys_at(value, Commitment::Confirmed)
    }

    pub(super) fn keys_at(
        &self,
        value: u8,
        commitment: Commitment,
    ) -> Result<(BTreeSet<Key>, Option<u64>), DerivedError> {
        run(async {
            let mut walk = self.values().keys_of(key(value), None, u64::MAX, commitment, WAIT).await?;
            let (mut keys, mut slot) = (BTreeSet::new(), None);
            while let Some(page) = walk.next().await? {
                keys.extend(page.keys);
                slot = page.slot;
            }
            Ok((keys, slot))
        })
    }

    /// Compares the derived stores at finalized with the model of the slot that is final.
    pub(super) fn assert_final(&self, slot: u64) {
        let (_, map) = self.past.range(..=slot).next_back().unwrap();
        for value in 0..10 {
            let expected = map.iter().filter(|(_, of)| **of == key(value)).map(|(key, _)| *key).collect();
            assert_eq!(self.keys_at(value, Commitment::Finalized).unwrap(), (expected, Some(slot)));
            // A key page by page, and never twice.
            let mut cursor = None;
            let mut found = Vec::new();
            loop {
                let page = run(async {
                    let mut walk =
                        self.values().keys_of(key(value), cursor, 1, Commitment::Finalized, WAIT).await.unwrap();
                    walk.next().await.unwrap().unwrap()
                });
                found.extend(page.keys);
                cursor = page.cursor;
                if cursor.is_none() {
                    break;
                }
            }
            let count = found.len();
            let found: BTreeSet<Key> = found.into_iter().collect();
            assert_eq!((count, &found), (found.len(), &self.keys_at(value, Commitment::Finalized).unwrap().0));
        }
        for n in 0..20 {
            let past = run(self.history().at(key(n), 10, Commitment::Finalized, WAIT)).unwrap();
            let first = self.past[&10].get(&key(n));
            let differs = |(_, later): &(&u64, &BTreeMap<Key, Value>)| later.get(&key(n)) != first;
            let until_slot = self.past.range(..=slot).find(differs).map(|(slot, _)| *slot);
            assert_eq!(past, Past { value: first.copied(), until_slot, slot: Some(slot) });
            let changes = run(self.history().changes(key(n), None, 100, Commitment::Finalized, WAIT)).unwrap();
            assert_eq!(changes.slot, Some(slot));
            let newest = changes.changes.first().map_or(first.copied(), |change| change.after);
            assert_eq!(newest.as_ref(), map.get(&key(n)));
            assert!(changes.changes.iter().all(|change| change.slot <= slot));
        }
    }

    pub(super) fn assert_whole(&self) {
        for value in 0..10 {
            let expected = self.model.iter().filter(|(_, of)| **of == key(value)).map(|(key, _)| *key).collect();
            assert_eq!(self.keys_of(value).unwrap(), (expected, self.at.slot));
        }
    }

    /// Compares the past of some keys, at every slot from `oldest_slot` on, with the model's.
    pub(super) fn assert_past(&self, oldest_slot: u64) {
        let newest = self.at.slot.unwrap();
        for n in 0..20 {
            for slot in oldest_slot..=newest {
                let (_, map) = self.past.range(..=slot).next_back().unwrap();
                let past = run(self.history().at(key(n), slot, Commitment::Confirmed, WAIT)).unwrap();
                let differs = |of: &&BTreeMap<Key, Value>| of.get(&key(n)) != map.get(&key(n));
                let until_slot = self.past.range(slot + 1..).find(|(_, later)| differs(later)).map(|(slot, _)| *slot);
                let expected = Past { value: map.get(&key(n)).copied(), until_slot, slot: Some(newest) };
                assert_eq!(past, expected, "key={n} slot={slot}");
            }
            let (mut expected, mut before) = (Vec::new(), self.past[&oldest_slot].get(&key(n)).copied());
            for (slot, map) in self.past.range(oldest_slot + 1..) {
                let after = map.get(&key(n)).copied();
                if after != before {
                    expected.insert(0, (*slot, before, after));
                }
                before = after;
            }
            let (mut found, mut cursor) = (Vec::new(), None);
            loop {
                let page = run(self.history().changes(key(n), cursor, 3, Commitment::Confirmed, WAIT)).unwrap();
                assert!(page.oldest_slot <= oldest_slot && page.slot == Some(newest) && page.changes.len() <= 3);
                found.extend(page.changes.iter().map(|change| (change.slot, change.before, change.after)));
                cursor = page.cursor;
                if cursor.is_none() {
                    break;
                }
            }
            found.retain(|(slot, ..)| *slot > oldest_slot);
            assert_eq!(found, expected, "key={n}");
        }
    }
}
