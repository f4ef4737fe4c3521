//! The start through the spool: the stream is kept on disk, then replayed into a store, then followed.
//!
//! Owns: the lives of a spool, how each ends, and the slots that must be left of it. Must not: copy the spool. The
//! spool's thread is a task of the simulation's runtime here. The replay has its thread of the blocking pool, and the
//! simulated time stops while it runs.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use solana::ChainCheckpoint;
use tokio::sync::mpsc;
use tokio::task::yield_now;
use tokio::time::{Instant, advance, sleep};
use workload::Rng;

use super::fault::Nature;
use super::seeds::try_seeds;
use super::server::Server;
use super::sources::{Begin, Start};
use super::{Simulation, Until, in_virtual_time};
use crate::base::chain::Base;
use crate::ingest::State;
use crate::ingest::receive::{Message, ReceiveConfig};
use crate::ingest::spooling::{Replay, SpoolConfig, Spooler, Spooling};
use crate::spool::{self, SpoolFigures};

/// Number of chains that `make test` tries.
const SEEDS: u64 = 100;

/// The spool of one simulated service over all of its lives.
pub(super) struct Spool {
    dir: PathBuf,
    base: Base,
    bytes_max: u64,
}

/// One life of the spool.
struct Life {
    spooling: Spooling,
    figures: Arc<SpoolFigures>,
    /// Dropped with the task that writes.
    written: Arc<()>,
}

/// The parts of a simulated service that keep the stream on disk.
#[derive(Clone)]
pub(super) struct Keeper {
    servers: Vec<Server>,
    stream: ReceiveConfig,
    config: SpoolConfig,
}

impl Keeper {
    /// Begins a life of the spool, after the block `base` or with the stream's next slot. `written` is held until the
    /// task that writes is gone.
    pub(super) fn keep(
        &self,
        base: Option<Base>,
        figures: &Arc<SpoolFigures>,
        written: &Arc<()>,
        state: &State,
    ) -> Spooling {
        let held = Arc::clone(written);
        let on_task = |spooler: Spooler, received: mpsc::Receiver<Message>| {
            Ok(tokio::spawn(async move {
                take_all(spooler, received).await;
                drop(held);
            }))
        };
        self.servers.iter().for_each(Server::forget);
        let (servers, config, stream) = (self.servers.clone(), self.config.clone(), self.stream.clone());
        let started = Spooling::start_from(servers, config, base, stream, Arc::clone(figures), state, on_task);
        started.expect("a spool that was killed opens again")
    }
}

impl Simulation {
    /// Names of the servers, by which spooled slots are known.
    pub(super) fn names(&self) -> Vec<String> {
        self.servers.iter().map(|server| format!("{:?}", server.nature())).collect()
    }

    /// Begins a life of the spool, if there is one, and its replay into a store at `checkpoint`.
    pub(super) async fn replay_for(&self, checkpoint: &ChainCheckpoint, state: &State) -> Start {
        // A spool that was replayed is gone.
        let Some(spool) = self.spool.as_ref().filter(|spool| spool.dir.exists()) else {
            return Start { begin: Begin::Follow(None), healer: None, spool: Arc::default(), written: Arc::default() };
        };
        let Life { spooling, figures, written } = self.follow_into(spool, state);
        let replay = Replay::of(spooling, checkpoint).await.expect("the spool begins at the chain's base");
        Start { begin: Begin::Follow(replay), healer: None, spool: figures, written }
    }

    /// Returns the keeper of a spool in `dir`.
    pub(super) fn keeper(&self, dir: PathBuf, bytes_max: u64) -> Keeper {
        let config = SpoolConfig { dir, bytes_max };
        Keeper { servers: self.servers.clone(), stream: self.receive.clone(), config }
    }

    /// Begins a life of the spool, which follows the stream from its last slot on.
    fn follow_into(&self, spool: &Spool, state: &State) -> Life {
        let (figures, written) = (Arc::default(), Arc::default());
        let spooling =
            self.keeper(spool.dir.clone(), spool.bytes_max).keep(Some(spool.base), &figures, &written, state);
        Life { spooling, figures, written }
    }
}

async fn take_all(mut spooler: Spooler, mut received: mpsc::Receiver<Message>) {
    spooler.begin();
    while let Some(message) = received.recv().await {
        if !spooler.goes_on(message, received.is_empty()) {
            return;
        }
    }
    spooler.end();
}

/// Waits until the task that writes the spool is gone, and with it the spool's lock.
pub(super) async fn gone(written: Arc<()>) {
    while Arc::strong_count(&written) > 1 {
        yield_now().await;
    }
}

impl Life {
    /// Kills the process of the spool, and leaves a part of a frame at its end.
    async fn kill(self, spool: &Spool, rng: &mut Rng) {
        let Self { spooling, figures, written } = self;
        spooling.abort();
        gone(written).await;
        let slots = figures.slots.load(Ordering::Relaxed);
        tear(&spool.dir, figures.flushed_bytes(), rng);
        let found = spool::look(&spool.dir).expect("a spool").expect("a spool");
        assert!(found.slots >= slots, "flushed slots are lost: {found:?} slots={slots}");
    }
}

/// Leaves the spool's file as the end of its process may: cut anywhere after the flushed bytes, or with a part of a
/// frame at its end.
pub(super) fn tear(dir: &Path, flushed_bytes: u64, rng: &mut Rng) {
    let path = dir.join(spool::FILE);
    let mut bytes = std::fs::read(&path).expect("the spool's file");
    if rng.chance(0.5) {
        let lost = rng.below(bytes.len() as u64 - flushed_bytes + 1) as usize;
        bytes.truncate(bytes.len() - lost);
    } else {
        // A frame whose rest never reached the disk.
        let from = rng.below(bytes.len() as u64) as usize;
        let part = bytes[from..bytes.len().min(from + 90)].to_vec();
        bytes.extend(part);
    }
    std::fs::write(&path, bytes).expect("the spool's file can be written");
}

/// Lets a service spool, die, spool on, replay into a store that stands anywhere, die again, and reach the tip.
fn start_through_the_spool(seed: u64) {
    in_virtual_time(async {
        let mut rng = Rng::new(seed ^ 0x5B00);
        let mut simulation =
            Simulation::of(Rng::new(seed), seed, &[[Nature::Alone, Nature::Honest][rng.below(2) as usize]]);
        let temp = tempfile::tempdir().expect("a directory for the spool can be made");
        let base = simulation.chain.base;
        let blockhash = if simulation.oracle.base_known() { base.blockhash } else { [0; 32] };
        let bytes_max = if rng.chance(0.3) { 200 + rng.below(3000) } else { 1 << 30 };
        let spool = Spool { dir: temp.path().join("spool"), base: Base { blockhash, ..base }, bytes_max };
        for _ in 0..1 + rng.below(4) {
            let state = State::at(ChainCheckpoint::default()).with_providers(simulation.names());
            let life = simulation.follow_into(&spool, &state);
            sleep(Duration::from_millis(rng.below(9000))).await;
            life.kill(&spool, &mut rng).await;
            advance(Duration::from_millis(rng.below(1000))).await;
        }
        // The load ends at any slot: the store is brought there by the stream.
        if rng.chance(0.5) {
            simulation.life(Until::Stopped(Instant::now() + Duration::from_millis(rng.below(4000)))).await;
        }
        // Nobody else has the spool's slots now.
        let kept = spool::look(&spool.dir).expect("a spool").expect("a spool").last.slot;
        simulation.servers.iter().for_each(|server| server.keep_from(kept));
        simulation.spool = Some(spool);
        for _ in 0..rng.below(4) {
            simulation.life(Until::Killed(rng.below(60))).await;
        }
        let now = Instant::now();
        let (verdict, _) = simulation.life(Until::AtTip(now, now + Duration::from_secs(300))).await;
        let tip = simulation.chain.tip().slot;
        assert_eq!(simulation.oracle.slot(), tip, "{verdict:?}");
    });
}

#[test]
fn a_start_through_the_spool_loses_no_slot() {
    try_seeds(SEEDS, "simulation::spooled", start_through_the_spool);
}
