//! A model of `history`: changes are recorded slot by slot in several periods, and each key is asked for at every slot.

use std::collections::BTreeMap;

use engine_api::Checkpoint;
use engines::{EngineKind, EngineOptions, OpenMode};
use proptest::prelude::*;

use super::*;
use crate::{Origin, terms};

fn key(n: u8) -> Key {
    [n; 32]
}

struct Row {
    home: tempfile::TempDir,
    periods: Vec<Arc<Period>>,
}

impl Row {
    fn new() -> Self {
        Self { home: tempfile::tempdir().unwrap(), periods: Vec::new() }
    }

    /// Begins a period with the changes after `slot`.
    fn begin(&mut self, slot: u64, seq: u64) -> Position {
        let place = period_dir(self.home.path(), slot);
        let options = EngineOptions::new(EngineKind::Strata);
        let engine = engines::open_on(&place, &options, OpenMode::Create, &terms(NAME)).unwrap();
        let position =
            Position { origin: Origin::Feed(1), ..Position::new(Checkpoint::default(), Some(slot)).unwrap() };
        engine.begin().unwrap().commit(&position.write(seq), Durability::Synced).unwrap();
        let (period, read, at) = Period::new(slot, engine).unwrap();
        assert_eq!((read, at), (position.clone(), seq));
        self.periods.push(Arc::new(period));
        position
    }

    /// Closes all periods and opens them again.
    fn reopen(self) -> Self {
        let Self { home, periods } = self;
        periods.into_iter().for_each(|period| Arc::into_inner(period).unwrap().close().unwrap());
        let open = |(first_slot, place): (u64, PathBuf)| {
            let options = EngineOptions::new(EngineKind::Strata);
            let engine = engines::open_on(&place, &options, OpenMode::Existing, &terms(NAME)).unwrap();
            Arc::new(Period::new(first_slot, engine).unwrap().0)
        };
        let periods = self::periods(home.path()).unwrap().into_iter().map(open).collect();
        Self { home, periods }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    #[test]
    fn a_key_has_at_each_slot_the_value_that_it_had(
        slots in prop::collection::vec(
            (prop::collection::btree_map(0u8..12, prop::option::of(0u8..4), 0..8), 1u64..4, any::<bool>(), any::<bool>()),
            1..20,
        ),
        limit in 1usize..9,
    ) {
        let (mut row, mut map, mut at, mut seq) = (Row::new(), BTreeMap::new(), 100, 7);
        let mut position = row.begin(at, seq);
        let mut states = vec![(at, map.clone())];
        let mut all: Vec<(u8, Change, Option<Value>)> = Vec::new();
        for (changes, later, twice, begins) in slots {
            at += later;
            let mut records = Vec::new();
            for (n, new) in changes {
                let new = new.map(key);
                let before = match new { Some(new) => map.insert(n, new), None => map.remove(&n) };
                if before != new {
                    seq += 1;
                    records.push((at, seq, key(n), before));
                    all.push((n, Change { slot: at, seq, before }, new));
                }
            }
            for _ in 0..1 + u8::from(twice) {
                let newest = row.periods.last().unwrap();
                newest.record(&mut records.iter().copied(), &[], seq, &position).unwrap();
            }
            states.push((at, map.clone()));
            if begins {
                position = row.begin(at, seq);
            }
        }
        let row = row.reopen();
        for n in 0..12 {
            for asked in 99..at + 3 {
                let known = states.iter().rfind(|(slot, _)| *slot <= asked).map(|(_, map)| map.get(&n).copied());
                let found = match super::at(&row.periods, &key(n), asked).unwrap() {
                    At::Before(change) => Some(change.before),
                    At::Unchanged => Some(map.get(&n).copied()),
                    At::Gone { oldest_slot: 100 } => None,
                    other => panic!("{other:?}"),
                };
                prop_assert_eq!(found, known, "key={} slot={}", n, asked);
            }
            let expected: Vec<Change> = all.iter().rev().filter(|(of, ..)| *of == n).map(|(_, change, _)| *change).collect();
            let (mut found, mut until) = (Vec::new(), (u64::MAX, u64::MAX));
            loop {
                let page = changes(&row.periods, &key(n), until, limit).unwrap();
                prop_assert!(page.len() <= limit);
                let Some(last) = page.last() else { break };
                until = (last.slot, last.seq);
                prop_assert_eq!(find(&row.periods, &key(n), until).unwrap(), Some(*last));
                found.extend(page);
            }
            prop_assert_eq!(found, expected);
        }
    }
}

#[test]
fn slots_that_a_heal_jumped_over_are_not_resolved() {
    let mut row = Row::new();
    let position = row.begin(10, 1);
    let mark = Unresolved { from_slot: 12, to_slot: 20 };
    let healed = [(20, 2, key(1), Some(key(5)))];
    row.periods[0].record(&mut healed.into_iter(), &[mark], 2, &position).unwrap();
    row.begin(20, 2);
    {
        let row = row.reopen();
        for slot in 0..30 {
            let found = at(&row.periods, &key(1), slot).unwrap();
            let expected = match slot {
                0..10 => At::Gone { oldest_slot: 10 },
                10..=12 => At::Before(Change { slot: 20, seq: 2, before: Some(key(5)) }),
                13..20 => At::Unresolved(mark),
                _ => At::Unchanged,
            };
            assert_eq!(found, expected, "slot={slot}");
        }
    }
    assert_eq!(at(&[], &key(1), 5).unwrap(), At::Gone { oldest_slot: u64::MAX });
}
