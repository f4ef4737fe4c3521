//! Replays arbitrary bytes as a WAL file, up to the first record that is not whole.
//!
//! Owns: nothing. Must not: check more than `solkv_engine_strata::fuzzing` does. One thread.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| solkv_engine_strata::fuzzing::wal(bytes));
