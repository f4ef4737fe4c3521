//! Threads that read a store while it changes.
//!
//! Owns: the reading threads of one session, and their models. Must not: write. The threads end with the session.

use std::sync::atomic::{AtomicBool, Ordering};

use engine_api::Engine;
use engine_kit::Rng;

use crate::model::{Bad, Check, Model, wrong};

/// Stores with more pairs than this are scanned seldom.
pub(crate) const MANY_PAIRS: u64 = 100_000;

/// Runs `work` while `threads` other threads read the store, whose content is the model's. A reading thread that finds
/// an error sets the flag that `work` checks, and ends.
///
/// # Errors
/// The second value, in addition to the result of `work`. If one thread got a wrong answer and another an error of the
/// engine, the wrong answer is returned.
pub(crate) fn beside<T>(
    engine: &dyn Engine,
    model: &Model,
    threads: u64,
    seed: u64,
    work: impl FnOnce(&AtomicBool) -> T,
) -> (T, Check) {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let start = |nth| {
            let (model, stop, rng) = (model.clone(), &stop, Rng::of(seed, nth));
            scope.spawn(move || {
                let seen = watch(engine, model, stop, rng);
                // ORDERING: Relaxed: the flag guards no other memory.
                stop.store(true, Ordering::Relaxed);
                seen
            })
        };
        let watchers: Vec<_> = (0..threads).map(start).collect();
        let worked = work(&stop);
        // ORDERING: Relaxed: as above.
        stop.store(true, Ordering::Relaxed);
        let mut outcome = Ok(());
        for watcher in watchers {
            let seen = watcher.join().unwrap_or_else(|_| wrong("a reader's thread panicked"));
            if outcome.is_ok() || matches!(seen, Err(Bad::Wrong(_))) {
                outcome = seen;
            }
        }
        (worked, outcome)
    })
}

/// Reads until told to stop. Each snapshot must be exactly the content of its checkpoint.
fn watch(engine: &dyn Engine, mut model: Model, stop: &AtomicBool, mut rng: Rng) -> Check {
    let mut reader = engine.reader()?;
    // ORDERING: Relaxed: the flag guards no other memory.
    while !stop.load(Ordering::Relaxed) {
        if rng.once_in(4) {
            reader = engine.reader()?;
        } else {
            reader.refresh()?;
        }
        let seq = reader.checkpoint()?.seq;
        if seq < model.seq {
            return wrong(format!("a reader went back: seq={seq} before={}", model.seq));
        }
        model.advance_to(seq);
        if let Some(chunk) = model.plan.chunk_of(seq + 1) {
            // The writer may be loading this chunk now, so any of its pairs may be there.
            model.cut(chunk);
        }
        for _ in 0..rng.below(4) {
            model.check_gets(&mut *reader, &mut rng, 300)?;
        }
        if rng.once_in(if model.pairs > MANY_PAIRS { 64 } else { 4 }) {
            model.check_scan(&mut *reader)?;
        }
    }
    Ok(())
}
