//! The torture with fixed seeds: the table of durability, and every fault on every engine.
//!
//! The agents are processes of the crate's own program.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "helpers say what they skip or have measured")]

mod durability;
mod faults;

use std::path::Path;

use conformance::{Ability, able};
use solkv_torture::{Column, Life, Swarm, Totals, can_lose_power};

/// Returns the options of a test that sets no others: only batches, on the disk that loses power.
fn plain() -> Swarm {
    Swarm {
        fuse: true,
        chunks: false,
        changes: 60,
        large: 40_000,
        synced: 100,
        habits: 0,
        acks: 60,
        ends: Vec::new(),
        faults: Vec::new(),
        faults_every: 0,
        faults_within: 40,
        turns: 0,
    }
}

/// Returns the column of an engine with its defaults.
fn default_column(engine: &str) -> Column {
    Column::of(engine).next().expect("an engine of this build")
}

/// Runs the whole life of a store. Returns `None` if the disk that loses power cannot be mounted, which needs root.
fn live(column: Column, seed: u64, swarm: Swarm) -> Option<Totals> {
    if swarm.fuse {
        able(Ability::Fuse, can_lose_power())?;
    }
    let root = tempfile::tempdir().unwrap();
    let mut life = Life::new(column, seed, swarm, root.path(), Path::new(env!("CARGO_BIN_EXE_torture"))).unwrap();
    if let Err(violation) = life.run(&|| false) {
        panic!("{violation}");
    }
    Some(life.totals().clone())
}
