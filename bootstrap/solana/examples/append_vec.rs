//! Measures the parser of accounts files from memory: cargo run --release -p solkv-solana --example append_vec
//!
//! Owns: the parsed file. Its records are token accounts, as most of mainnet's are, of 304 bytes with their header.
//! Must not: touch a disk. One thread.

#![allow(clippy::print_stdout, reason = "an example for developers")]

use std::hint::black_box;
use std::time::Instant;

use solkv_solana::Extract;
use solkv_solana::archive::append_vec::{AppendVec, HEADER_BYTES};
use solkv_solana::extract::TOKEN_PROGRAM;

/// Number of records in the file. At 304 bytes each they exceed the processor's caches, and fit into the memory of any
/// machine.
const RECORDS: usize = 1 << 20;

/// Bytes pushed at a time, as when an archive is read.
const SLICE_BYTES: usize = 1 << 20;

/// Number of runs. The first ones warm up the memory.
const RUNS: usize = 7;

fn main() {
    let mut owner = [0; 32];
    bs58::decode(TOKEN_PROGRAM).onto(&mut owner[..]).expect("an address");
    let bytes: Vec<u8> = (0..RECORDS as u64).flat_map(|number| record(number, &owner)).collect();
    for run in 1..=RUNS {
        let (mut versions, mut values) = (0u64, 0u64);
        let start = Instant::now();
        let mut file = AppendVec::new(1, 1, bytes.len() as u64);
        for slice in bytes.chunks(SLICE_BYTES) {
            let pushed = file.push(slice, &mut |version| {
                versions += 1;
                let value = Extract::TokenOwner.value(version.lamports, version.owner, version.data_len, version.data);
                values += u64::from(black_box(value).is_some());
                Ok(())
            });
            pushed.expect("a good file");
        }
        let elapsed = start.elapsed();
        assert_eq!((versions, values), (RECORDS as u64, RECORDS as u64));
        let rate = bytes.len() as f64 / elapsed.as_secs_f64() / 1e9;
        println!("run={run} bytes={} elapsed={elapsed:.1?} gb_per_s={rate:.2}", bytes.len());
    }
}

fn record(number: u64, owner: &[u8; 32]) -> Vec<u8> {
    let mut record = vec![0; (HEADER_BYTES + 165).next_multiple_of(8)];
    record[0x08..0x10].copy_from_slice(&165u64.to_le_bytes());
    record[0x10..0x18].copy_from_slice(&number.to_le_bytes());
    record[0x30..0x38].copy_from_slice(&1u64.to_le_bytes());
    record[0x40..0x60].copy_from_slice(owner);
    record[HEADER_BYTES + 108] = 1;
    record
}
