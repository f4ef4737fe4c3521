//! A Yellowstone server on synthetic slots: `loadgen stream`.
//!
//! ```text
//! chain thread --publish--> log (replay window) <--entry-- feed of each subscriber --chunks--> HTTP/2
//! ```
//! Owns: the run of a stream from options to its final digest. Must not: know the service that follows it. Threads:
//! `chain` generates; `stream` encodes and sends, on a single-threaded tokio runtime.

pub mod account;
pub(crate) mod chain;
mod compress;
mod feed;
pub mod filter;
pub(crate) mod keys;
mod like;
mod log;
mod options;
mod resume;
mod server;
mod shared;
mod wire;

use std::net::SocketAddr;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use tokio::sync::{Semaphore, oneshot};

pub use chain::Stand;
pub use chain::{Final, Gap};
pub use compress::Compression;
pub use keys::Keys;
pub use like::Like;
pub use options::{Delivery, Rate, SkewArg, Workload, options};

use chain::Chain;
use log::Log;
use shared::Shared;

/// Longest wait for clients to disconnect after a stop. Then their sockets are closed.
const STOP_BOUND: Duration = Duration::from_secs(1);

/// A running stream. It stops when dropped.
pub struct Stream {
    address: SocketAddr,
    shared: Arc<Shared>,
    chain: Option<JoinHandle<()>>,
    end: Arc<OnceLock<Final>>,
    shutdown: Option<oneshot::Sender<()>>,
    server: Option<JoinHandle<Result<()>>>,
}

impl Stream {
    /// Binds `listen` (port 0 picks a free one) and starts serving on threads of its own.
    pub fn start(workload: Workload, delivery: &Delivery, listen: &str) -> Result<Self> {
        Self::start_at(workload, delivery, listen, None)
    }

    /// Starts as [`Stream::start`] does, but continues from the position of a follower that has followed an earlier
    /// stream.
    ///
    /// # Errors
    /// Those of [`Stream::start`], and a position that is not on the chain of this workload, with the way out.
    pub fn start_at(workload: Workload, delivery: &Delivery, listen: &str, stand: Option<&Stand>) -> Result<Self> {
        workload.check()?;
        delivery.check()?;
        let token = delivery.x_token()?;
        let (extract, keys) = (workload.extract, Arc::new(Keys::load(&workload)?));
        let chain = Chain::at(workload, Arc::clone(&keys), stand)?;
        let listener = std::net::TcpListener::bind(listen)
            .with_context(|| format!("cannot listen: address={listen}; is another stream running there?"))?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let base = (!delivery.no_wait).then(|| chain.base());
        let shared = Arc::new(Shared {
            log: Log::new(delivery.replay_slots, delivery.confirm_after, delivery.like, base),
            keys,
            extract,
            next_cut: AtomicU64::new(chain.events() + delivery.disconnect_every),
            places: delivery.subscriptions_max.map(|max| Arc::new(Semaphore::new(max))),
            sent_events: AtomicU64::new(0),
            delivery: delivery.clone(),
        });
        let (shutdown, stopped) = oneshot::channel();
        let server = spawn_server(Arc::clone(&shared), token, listener, stopped)?;
        let end = Arc::new(OnceLock::new());
        let chain = spawn_chain(Arc::clone(&shared), chain, Arc::clone(&end))?;
        Ok(Self { address, shared, chain: Some(chain), end, shutdown: Some(shutdown), server: Some(server) })
    }

    /// Keeps the first slot back until [`Stream::release`]. Without effect on a stream that waits for no subscriber, or
    /// that already has one.
    pub fn hold(&self) {
        self.shared.log.set_held(true);
    }

    /// Lets the first slot go, as soon as there is a subscriber.
    pub fn release(&self) {
        self.shared.log.set_held(false);
    }

    /// Returns the bound address, with the port that was picked.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the newest slot that was processed; 0 before the first.
    pub fn newest_slot(&self) -> u64 {
        self.shared.log.tip().processed.map_or(0, |block| block.slot)
    }

    /// Returns the number of account updates sent so far, over all subscribers.
    pub fn sent_events(&self) -> u64 {
        // ORDERING: Relaxed: a statistic, paired with nothing.
        self.shared.sent_events.load(std::sync::atomic::Ordering::Relaxed)
    }

    /// Returns the end of the run once every slot has been generated, and `None` before. Fails if the end can no longer
    /// come.
    pub fn outcome(&self) -> Result<Option<&Final>> {
        // Read this first, because the thread sets the end before it finishes.
        let finished = self.chain.as_ref().is_none_or(JoinHandle::is_finished);
        let end = self.end.get();
        ensure!(end.is_some() || !finished, "the chain thread ended before the last slot; its message is above");
        Ok(end)
    }

    /// Ends all subscriptions and waits for the threads.
    pub fn stop(mut self) -> Result<()> {
        self.signal_stop();
        if let Some(chain) = self.chain.take() {
            chain.join().map_err(|_| anyhow!("the chain thread panicked; its message is above"))?;
        }
        match self.server.take() {
            Some(server) => server.join().map_err(|_| anyhow!("the stream's runtime panicked"))?,
            None => Ok(()),
        }
    }

    fn signal_stop(&mut self) {
        self.shared.log.stop();
        if let Some(shutdown) = self.shutdown.take() {
            // The receiver is gone only if the server has ended by itself. Then nothing is left to stop.
            shutdown.send(()).ok();
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.signal_stop();
    }
}

fn spawn_server(
    shared: Arc<Shared>,
    token: Option<String>,
    listener: std::net::TcpListener,
    stopped: oneshot::Receiver<()>,
) -> Result<JoinHandle<Result<()>>> {
    let run = move || {
        // One thread, because the stream must leave the machine to the service that it feeds.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let listener = tokio::net::TcpListener::from_std(listener)?;
            let (stopping, mut stop) = tokio::sync::watch::channel(false);
            let shutdown = async move {
                // A dropped sender means stop, too.
                stopped.await.ok();
                stopping.send_replace(true);
            };
            let bound = async move {
                // An error means that the sender is gone, which means stop, too.
                stop.wait_for(|stopping| *stopping).await.ok();
                tokio::time::sleep(STOP_BOUND).await;
            };
            tokio::select! {
                served = server::serve(shared, token, listener, shutdown) => served.context("the stream's server failed"),
                () = bound => Ok(()),
            }
        })
    };
    std::thread::Builder::new().name("stream".to_owned()).spawn(run).context("cannot start the stream thread")
}

fn spawn_chain(shared: Arc<Shared>, chain: Chain, end: Arc<OnceLock<Final>>) -> Result<JoinHandle<()>> {
    let run = move || {
        if let Some(outcome) = drive_chain(&shared.log, chain, &shared.delivery) {
            end.get_or_init(|| outcome);
        }
    };
    std::thread::Builder::new().name("chain".to_owned()).spawn(run).context("cannot start the chain thread")
}

/// Publishes every slot at the asked pace; returns `None` when stopped before the end.
fn drive_chain(log: &Log, mut chain: Chain, delivery: &Delivery) -> Option<Final> {
    let period = delivery.rate.slot_period(chain.events_per_slot());
    if !delivery.no_wait && !log.wait_to_begin() {
        return None;
    }
    let mut due = Instant::now();
    while let Some(block) = chain.next_block() {
        let go_on = match delivery.rate {
            Rate::Max => log.wait_for_room(!delivery.no_wait),
            Rate::PerSecond(_) => {
                due += period;
                log.sleep(due.saturating_duration_since(Instant::now()))
            }
        };
        if !go_on {
            return None;
        }
        log.publish(block);
    }
    log.finish();
    Some(chain.finish())
}
