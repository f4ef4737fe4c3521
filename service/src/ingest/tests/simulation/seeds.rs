//! Which seeds a test of the simulation tries.
//!
//! Owns: the seeds of the environment, and the words for one that fails. Must not: run the simulation.
//!
//! `SIM_SEEDS=100000` tries more seeds, of the spool and of heals a share of them; `SIM_SEED=7` tries that one and prints
//! its log.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Number of seeds that `make test` tries.
pub(super) const SEEDS: u64 = 2000;

/// Tries `seeds` seeds, or the same share of those that the environment asks for as `seeds` has of [`SEEDS`].
pub(super) fn try_seeds(seeds: u64, test: &str, simulate: fn(u64)) {
    let asked = number("SIM_SEEDS").map(|asked| (asked * seeds).div_ceil(SEEDS));
    each_seed(asked.unwrap_or(seeds), test, simulate);
}

/// Tries `seeds` seeds on all cores, or the one that the environment asks for. Names a seed that fails, and the `test`
/// to see it again with.
pub(super) fn each_seed(seeds: u64, test: &str, simulate: fn(u64)) {
    if let Some(seed) = number("SIM_SEED") {
        let filter = tracing_subscriber::EnvFilter::from_default_env();
        tracing_subscriber::fmt().with_env_filter(filter).with_test_writer().without_time().try_init().ok();
        return simulate(seed);
    }
    let (next, failed) = (AtomicU64::new(0), AtomicBool::new(false));
    let work = || {
        // ORDERING: Relaxed: each number is given out once, nothing else is inferred.
        while !failed.load(Ordering::Relaxed) {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds {
                return;
            }
            if catch_unwind(AssertUnwindSafe(|| simulate(seed))).is_err() {
                failed.store(true, Ordering::Relaxed);
                eprintln!(
                    "the simulation failed: SIM_SEED={seed} RUST_LOG=info cargo test --release --locked -p solkv-service \
                     --lib {test} -- --nocapture"
                );
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(work);
        }
    });
    assert!(!failed.into_inner(), "a seed failed: see above for how to see it again");
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().expect("a number"))
}
