//! Decodes arbitrary bytes as a manifest, which is refused or the same when it is encoded again.
//!
//! Owns: nothing. Must not: check more than `solkv_engine_strata::fuzzing` does. One thread.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| solkv_engine_strata::fuzzing::manifest(bytes));
