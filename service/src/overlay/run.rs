//! The `overlay` thread: takes in the processed stream, follows the engine's commits, publishes views.
//!
//! Owns: the banks. Must not: touch the engine, or make ingest-apply wait. Runs on the `overlay` thread from [`start`]
//! until its receiver has ended.

use std::io;
use std::sync::Arc;

use tokio::sync::{mpsc, watch};

use super::Processed;
use super::banks::{Banks, Limits, Seen};
use super::receive::receive;
use crate::chain::{Base, Commitment};
use crate::ingest::receive::ReceiveConfig;
use crate::status::Shared;

/// Maximum number of batches in the channel between the overlay's receiver and the `overlay` thread, each of up to
/// [`BATCH_INPUTS`](crate::ingest::receive::BATCH_INPUTS) inputs. This is about 9 MiB, a second of a full stream. The
/// thread does no I/O, so it lags behind only while it gets no processor.
const QUEUE_BATCHES: usize = 64;

/// Message to the `overlay` thread.
#[derive(Debug)]
pub(super) enum Message {
    /// Inputs in the order in which they arrived.
    Batch(Vec<Seen>),
    /// The engine has committed, so the banks should follow it.
    Moved,
}

/// Starts to follow processed slots until `stop` turns true. Needs a tokio runtime. Does nothing when processed slots
/// are not followed.
///
/// # Errors
/// I/O errors of starting the thread.
pub fn start(config: ReceiveConfig, shared: &Arc<Shared>, stop: watch::Receiver<bool>) -> io::Result<()> {
    let Some(processed) = shared.overlay.processed() else { return Ok(()) };
    let (tx, messages) = mpsc::channel(QUEUE_BATCHES);
    // Weak, so that the thread ends once the receiver has ended.
    processed.wake.get_or_init(|| tx.downgrade());
    let thread = Arc::clone(shared);
    std::thread::Builder::new().name("overlay".to_owned()).spawn(move || run(&thread, messages))?;
    tokio::spawn(receive(config, tx, Arc::clone(shared), stop));
    Ok(())
}

fn run(shared: &Shared, mut messages: mpsc::Receiver<Message>) {
    let Some(processed) = shared.overlay.processed() else { return };
    let checkpoint = shared.checkpoint.load();
    let base = checkpoint.slot.map(|slot| Base { slot, blockhash: checkpoint.blockhash });
    let mut banks = Banks::new(base, Limits::default());
    while let Some(message) = messages.blocking_recv() {
        let mut changed = false;
        if let Message::Batch(batch) = message {
            for seen in batch {
                changed |= banks.push(seen);
            }
        }
        publish(shared, processed, &mut banks, changed);
        processed.show(&banks);
    }
}

/// Moves the banks on with the engine, and publishes the fork where it may have changed.
pub(super) fn publish(shared: &Shared, processed: &Processed, banks: &mut Banks, changed: bool) {
    // In this order, so that the root never lags behind the published slot.
    let committed = shared.checkpoint.load().slot;
    let root = processed.root();
    if !(banks.advance(committed, root) | changed) {
        return;
    }
    let view = banks.view();
    let slot = view.tip().max(committed);
    processed.view.store(Arc::new(view));
    shared.overlay.set_reached(Commitment::Processed, slot);
}
