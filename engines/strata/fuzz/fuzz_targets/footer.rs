//! Decodes arbitrary bytes as a segment's footer, which is refused or has consistent lengths.
//!
//! Owns: nothing. Must not: check more than `solkv_engine_strata::fuzzing` does. One thread.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| solkv_engine_strata::fuzzing::footer(bytes));
