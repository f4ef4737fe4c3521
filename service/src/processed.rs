//! The `overlay` thread: takes in the processed stream, follows the engine's commits, publishes views.
//!
//! Owns: the banks, and the connection that fills them. Must not: touch the engine, or make ingest-apply wait. Runs on
//! the `overlay` thread from [`start`] until its receiver has ended; the receiver is a task on the tokio runtime.
//!
//! Processed slots have a subscription of their own. At confirmed a server sends whole slots without a gap. At
//! processed it sends events as they happen, and sends none of them again. A new follower cannot tell whether it has
//! all of a slot in flight, so it leaves such a bank out. It asks for no replay: the missing slots are confirmed a
//! second later.

mod convert;
#[cfg(any(test, fuzzing))]
#[path = "processed/tests/fuzzing.rs"]
pub(crate) mod fuzzing;
mod receive;

use std::io;
use std::sync::Arc;

use tokio::sync::{mpsc, watch};

use crate::base::chain::Base;
use crate::base::published::Published;
use crate::ingest::State;
use crate::ingest::receive::ReceiveConfig;
use crate::overlay::banks::{Banks, Limits};
use crate::overlay::{Message, Overlay};
use receive::receive;

/// Maximum number of batches in the channel between the overlay's receiver and the `overlay` thread, each of up to
/// [`BATCH_INPUTS`](crate::ingest::receive::BATCH_INPUTS) inputs. This is about 9 MiB, a second of a full stream. The
/// thread does no I/O, so it lags only while it gets no processor.
const QUEUE_BATCHES: usize = 64;

/// Starts to follow processed slots until `stop` turns true, of the provider that the ingest of `state` follows. Needs a tokio
/// runtime. Does nothing when processed slots are not followed.
///
/// # Errors
/// I/O errors of starting the thread.
pub(crate) fn start(config: ReceiveConfig, state: &State, stop: watch::Receiver<bool>) -> io::Result<()> {
    let Some(processed) = state.overlay.processed() else { return Ok(()) };
    let (tx, messages) = mpsc::channel(QUEUE_BATCHES);
    // Weak, so that the thread ends once the receiver has ended.
    processed.wake_by(tx.downgrade());
    let (overlay, published) = (Arc::clone(&state.overlay), Arc::clone(&state.published));
    std::thread::Builder::new().name("overlay".to_owned()).spawn(move || run(&overlay, &published, messages))?;
    tokio::spawn(receive(config, state.providers.followed(), tx, state.clone(), stop));
    Ok(())
}

fn run(overlay: &Overlay, published: &Published, mut messages: mpsc::Receiver<Message>) {
    let checkpoint = **published.checkpoint();
    let base = checkpoint.slot.map(|slot| Base { slot, blockhash: checkpoint.blockhash });
    let mut banks = Banks::new(base, Limits::default());
    while let Some(message) = messages.blocking_recv() {
        let mut changed = false;
        if let Message::Batch(batch) = message {
            for seen in batch {
                changed |= banks.push(seen);
            }
        }
        overlay.show(published, &mut banks, changed);
    }
}
