//! Accounts files of any shape, written by a simple model, give the same versions however they are cut into slices.

use proptest::prelude::*;
use solkv_solana::archive::append_vec::AppendVec;

use crate::support::{Row, accounts, record, row};

/// Zeros after the last record.
#[derive(Clone, Copy, Debug)]
enum Tail {
    Exact,
    Zeros(usize),
}

fn tail() -> impl Strategy<Value = Tail> {
    prop_oneof![Just(Tail::Exact), (0..8usize).prop_map(Tail::Zeros), (8..2000usize).prop_map(Tail::Zeros)]
}

/// Lengths of data around every limit that the parser knows, and any others.
fn data_len() -> impl Strategy<Value = usize> {
    prop_oneof![0..40usize, 160..170usize, 100..1000usize, Just(70_000)]
}

proptest! {
    #[test]
    fn slices_do_not_matter(
        records in prop::collection::vec((any::<u8>(), 0..3u64, data_len()), 0..30),
        tail in tail(),
        slices in prop::collection::vec(1..700usize, 1..40),
    ) {
        // The account of all zeros without lamports and data would be the beginning of padding.
        let records: Vec<_> = records.into_iter().filter(|(number, ..)| *number != 0).collect();
        let written: Vec<_> = records.iter().map(|(number, lamports, len)| record(*number, *lamports, *len)).collect();
        let mut bytes = accounts(&written);
        if let Tail::Zeros(zeros) = tail {
            bytes.resize(bytes.len() + zeros, 0);
        }
        let mut offset = 0;
        let expected: Vec<Row> = records
            .iter()
            .zip(&written)
            .map(|((number, lamports, len), written)| {
                let row = row((5, 6, offset), *number, *lamports, *len);
                offset = (offset + written.len() as u64).next_multiple_of(8);
                row
            })
            .collect();

        let mut found = Vec::new();
        let mut file = AppendVec::new(5, 6, bytes.len() as u64);
        let mut rest = &bytes[..];
        for slice in slices.iter().cycle() {
            let (now, later) = rest.split_at((*slice).min(rest.len()));
            let pushed = file.push(now, &mut |version| {
                found.push(Row::from(version));
                Ok(())
            });
            prop_assert!(pushed.is_ok(), "{pushed:?}");
            rest = later;
            if rest.is_empty() {
                break;
            }
        }
        prop_assert_eq!(file.finish().ok(), Some(expected.len() as u64));
        prop_assert_eq!(found, expected);
    }

    #[test]
    fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..2000), piece in 1..300usize) {
        let mut file = AppendVec::new(5, 6, bytes.len() as u64);
        let pushed = bytes.chunks(piece).try_for_each(|part| file.push(part, &mut |_| Ok(())));
        let _ = pushed.and_then(|()| file.finish());
    }
}
