//! Decodes arbitrary bytes as a manifest, which is refused or the same when it is encoded again.
//!
//! Owns: nothing. Must not: check more than `engine_strata::fuzzing` does. One thread.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| engine_strata::fuzzing::manifest(bytes));
