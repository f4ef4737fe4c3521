//! Receives the stream from as many providers at once as the settings say.
//!
//! Owns: which receivers there are, and their common end. Must not: know a message. Runs as one task on the tokio
//! runtime.

use futures::future::join_all;
use tokio::sync::{mpsc, watch};

use super::State;
use super::merge::Merge;
use super::phase::Taker;
use super::probe::probe;
use super::providers::LANES_MAX;
use super::receive::{Message, ReceiveConfig, Receiver, queue_batches};
use super::sequence::Sequence;
use super::upstream::Upstream;

/// Receives until `stop` turns true, its sender is dropped, or the channel's receiving end is dropped.
///
/// Each connection starts over from the newest slot that ingest-apply has taken over.
pub async fn receive(config: ReceiveConfig, tx: mpsc::Sender<Message>, state: State, stop: watch::Receiver<bool>) {
    receive_from(config.providers.clone(), config, tx, state, stop).await;
}

/// Receives as [`receive`] does, from any upstreams, at least one; the simulation passes scripted servers.
pub(super) async fn receive_from<U: Upstream>(
    upstreams: Vec<U>,
    config: ReceiveConfig,
    tx: mpsc::Sender<Message>,
    state: State,
    mut stop: watch::Receiver<bool>,
) {
    state.providers.begin_stream();
    let asks = probe(&upstreams, &state, config.commitment);
    let receives = async {
        if usize::from(config.settings.geyser_at_once).min(upstreams.len()) < 2 {
            Receiver { lane: 0, upstreams: &upstreams, config: &config, tx, state: state.clone() }.run().await;
        } else {
            receive_two(&upstreams, &config, tx, &state).await;
        }
    };
    tokio::select! {
        biased;
        () = receives => {}
        () = asks => {}
        // An error means that the sender of `stop` is gone, which counts as stop as well.
        _ = stop.wait_for(|stop| *stop) => {}
    }
}

/// Follows two providers at once, and passes on each slot of the one that sends it first.
async fn receive_two<U: Upstream>(upstreams: &[U], config: &ReceiveConfig, tx: mpsc::Sender<Message>, state: &State) {
    let (mut lanes, mut received, mut receivers) = (Vec::new(), Vec::new(), Vec::new());
    for lane in 0..LANES_MAX {
        let (tx, rx) = mpsc::channel(queue_batches());
        let own = Sequence::new(Taker::Merge, state.of_lane(), None, config.settings.gap_timeout);
        receivers.push(Receiver { lane, upstreams, config, tx, state: own.state().clone() });
        received.push(rx);
        lanes.push(own);
    }
    tokio::select! {
        biased;
        () = Merge::new(lanes, tx, state.clone()).run(received) => {}
        _ = join_all(receivers.iter().map(Receiver::run)) => {}
    }
}
