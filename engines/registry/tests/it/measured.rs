//! The measured engine around real engines: each call is counted as the right operation.

use ::conformance::Store;
use engine_api::{Checkpoint, Durability, Engine, Reader};
use engine_latency::{Latency, Measured, Op};

use crate::conformance::compiled_columns;

#[test]
fn operations_are_counted_by_what_they_are() {
    for store in compiled_columns() {
        let dir = tempfile::tempdir().unwrap();
        let latency = Latency::new(store.name());
        let engine = Measured::new(store.open(dir.path()).unwrap(), latency.clone(), "ingest");

        let mut txn = engine.begin().unwrap();
        assert_eq!(txn.get(&[1; 32]).unwrap(), None);
        txn.put(&[1; 32], &[2; 32]).unwrap();
        txn.put(&[3; 32], &[4; 32]).unwrap();
        txn.delete(&[3; 32]).unwrap();
        assert_eq!(txn.get(&[1; 32]).unwrap(), Some([2; 32]));
        txn.commit(&Checkpoint { seq: 1, ..Checkpoint::default() }, Durability::Synced).unwrap();
        let first = latency.snapshot();

        let mut txn = engine.begin().unwrap();
        for key in 0..10 {
            txn.get(&[key; 32]).unwrap();
        }
        txn.commit(&Checkpoint { seq: 2, ..Checkpoint::default() }, Durability::Synced).unwrap();
        let read = latency.snapshot().since(&first);
        let commit = read.get("ingest", Op::Commit).unwrap().max();
        let per_item = read.get("ingest", Op::CommitPerItem).unwrap().max();
        assert!(per_item <= commit / 10 + commit / 1000 + 2, "events that change nothing are items too");
        let second = latency.snapshot();

        engine.begin().unwrap().commit(&Checkpoint { seq: 3, ..Checkpoint::default() }, Durability::Buffered).unwrap();
        let mut reader = engine.reader_for("rpc").unwrap();
        reader.get_many(&[[1; 32], [9; 32]], &mut [None; 2]).unwrap();
        assert_eq!(reader.get(&[9; 32]).unwrap(), None);
        reader.scan(&mut |_, _| std::ops::ControlFlow::Continue(())).unwrap();
        assert!(reader.get_many(&[[1; 32]], &mut []).is_err(), "what fails is not counted");
        drop(reader);

        let counts = |snapshot: &engine_latency::Snapshot| -> Vec<(String, Op, u64)> {
            snapshot.series.iter().map(|s| (s.source.clone(), s.op, s.histogram.len())).collect()
        };
        let ingest = |op, count| ("ingest".to_owned(), op, count);
        let rpc = |op, count| ("rpc".to_owned(), op, count);
        let expected = [
            ingest(Op::ReadNegative, 1),
            ingest(Op::ReadPositive, 1),
            ingest(Op::Write, 3),
            ingest(Op::Commit, 1),
            ingest(Op::CommitPerItem, 1),
        ];
        assert_eq!(counts(&first), expected, "{}", store.name());
        let commit = first.get("ingest", Op::Commit).unwrap().max();
        let per_item = first.get("ingest", Op::CommitPerItem).unwrap().max();
        assert!(per_item <= commit / 3 + commit / 1000 + 2, "commit={commit} per_item={per_item}");
        let interval = latency.snapshot().since(&second);
        let expected = [ingest(Op::Commit, 1), rpc(Op::ReadNegative, 1), rpc(Op::GetMany, 1), rpc(Op::Scan, 1)];
        assert_eq!(counts(&interval), expected, "an empty commit has no items to divide by");
    }
}
