//! Reads arbitrary bytes as a segment's directory and ties, which are refused or name a page for any key.
//!
//! Owns: nothing. Must not: check more than `solkv_engine_strata::fuzzing` does. One thread.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| solkv_engine_strata::fuzzing::ties(bytes));
