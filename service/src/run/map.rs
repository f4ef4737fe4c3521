//! One map: its store, the state that the ingest writes, everything that reads it, and its change feed.
//!
//! Owns: the opened engine, the checkpoint's state, the overlay, the lookups, the feed, their figures, and the threads
//! that serve them. Must not: listen on a socket of the network, follow a stream, or handle a signal. Opened, started
//! and joined on the main thread.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result};
use engine_api::Engine;
use engine_latency::{Latency, Measured};
use solana::ChainCheckpoint;
use tokio::sync::watch;
use tracing::{error, info, warn};

use crate::admin::Admin;
use crate::base::failed::Failed;
use crate::base::pulse::Pulses;
use crate::base::stop::Stuck;
use crate::config::Config;
use crate::creation::Shown;
use crate::derive::{self, Context as Deriving, Derived};
use crate::feed::{FEED_DIR, Feed, FeedWriter, Ring, SubscriberLimits, Workers};
use crate::ingest;
use crate::ingest::apply::Apply;
use crate::ingest::batch::BatchLimits;
use crate::ingest::map_writer::MapConfig;
use crate::ingest::subscribe::Commitment;
use crate::lookups::{self, LookupThreads, Lookups};
use crate::overlay::Overlay;
use crate::pages::dashboard::Sampler;
use crate::pages::handles::Handles;
use crate::pages::http::HttpState;
use crate::rpc::FeedService;
use crate::shm::{Doorbell, ShmServer, ShmState};
use crate::store::{self, WarmUpArg};
use crate::systemd;
use crate::warmth::WarmUp;

/// A store that is open, and that nobody reads or writes yet.
pub(crate) struct Store {
    engine: Arc<Measured>,
    /// The block that the store stands at.
    pub(crate) checkpoint: ChainCheckpoint,
}

/// A map whose lookups are answered.
pub(crate) struct Map {
    pub(crate) engine: Arc<Measured>,
    /// The state that ingest-apply and the receiver write.
    pub(crate) state: ingest::State,
    /// Handles to the state of every part, for the pages that show it.
    pub(crate) handles: Handles,
    pub(crate) pulses: Pulses,
    pub(crate) lookups: Lookups,
    pub(crate) admin: Admin,
    /// State from which the pages are rendered, with the dashboard's past samples.
    pub(crate) pages: HttpState,
    /// Writer of the feed, until ingest-apply has it.
    writer: Option<FeedWriter>,
    threads: Threads,
}

/// The threads that serve a map.
struct Threads {
    lookups: LookupThreads,
    warm_up: Option<WarmUp>,
    shm: Option<ShmServer>,
    workers: Option<Workers>,
    sampler: Sampler,
}

impl Store {
    /// Opens the store, and logs its state, the division of the memory, and cautions.
    ///
    /// # Errors
    /// Any error of opening; a store that is complete only in part, where nothing is configured that completes it.
    pub(crate) fn open(config: &Config) -> Result<Self, Failed> {
        systemd::status(&format!("opening and recovering the store in {}", config.store.dir.display()));
        let engine = store::open(config.opening())?;
        let label = engine.label();
        let engine = Arc::new(Measured::new(engine, Latency::new(label), "ingest"));
        let checkpoint = ChainCheckpoint::read(&engine.checkpoint()?)?;
        store::refuse_part(&checkpoint, config.store.heals())?;
        info!(engine = label, dir = %config.store.dir.display(), seq = checkpoint.seq, slot = checkpoint.slot, "store is open");
        if checkpoint.slot.is_none() && checkpoint.seq > 0 {
            warn!(
                "the store was loaded without a slot: the stream is followed from its newest slot on, and changes between \
                 the load and that slot are missing: load it with --slot, or from a snapshot archive"
            );
        }
        let keeps_history = config.derived.keeps_history();
        let (options, memory) = derive::divide(config.engine.options(), &config.store.dir, keeps_history);
        let division = options.division();
        info!(
            memory_limit_bytes = division.limit.bytes,
            limit_from =
                division.limit.cgroup_file.as_ref().map_or("machine".to_owned(), |file| file.display().to_string()),
            engine_cache_bytes = division.cache_bytes,
            cache_by = if config.engine.memory.is_some() { "configured" } else { "default" },
            rest_bytes = division.rest_bytes,
            "the memory limit, and the engine's part of it"
        );
        for part in memory.parts() {
            info!(part, "a derived store's part of the engine's memory");
        }
        for note in engines::notes(&config.store.dir, &options)? {
            if note.is_warning { warn!("{}", note.text) } else { info!("{}", note.text) }
        }
        for caution in config.stream.selection().cautions(label, options.has_filter_in_memory()) {
            warn!("{caution}");
        }
        Ok(Self { engine, checkpoint })
    }
}

impl Map {
    /// Starts the threads that read the store. `shown` has the figures of the load and the spool before it.
    ///
    /// # Errors
    /// A thread that cannot be started, a feed that cannot be opened, and a socket of shared memory that cannot be bound.
    pub(crate) fn start(config: &Config, store: Store, shown: &Shown) -> Result<Self> {
        let Store { engine, checkpoint } = store;
        let finalized = config.stream.commitment == Commitment::Finalized;
        let overlay = Overlay::new(&checkpoint, config.stream.processed, finalized);
        let state = shown.ingest.at_checkpoint(checkpoint, overlay).with_heals(config.store.heals());
        let mut handles = Handles::new(engine.label(), &state).with(&shown.load, &shown.spool);
        handles.lookups.slow.set_threshold_ns(config.lookups.slow_request.as_nanos() as u64);
        handles.lookups.answers_from_memory = config.engine.engine.descriptor().answers_from_memory;
        handles.lookups.reads_together = !config.engine.engine.descriptor().get_many_waits_in_turn;
        let pulses = Pulses::default();
        let (lookups, lookup_threads) =
            Lookups::start(Arc::clone(&engine), lookup_thread_count(config), &handles.lookups, &pulses)
                .context("cannot start the lookup threads")?;
        let warm_up = start_warm_up(config, &engine, &handles).context("cannot start the warm-up's thread")?;
        let mut writer = open_feed(config, &checkpoint, &mut handles)?;
        handles.derived = start_derived(config, &engine, &handles)?;
        let shm = start_shm(config, &engine, &handles, &pulses, writer.as_mut()).context("shared memory")?;
        let start_workers = |_| Workers::start(Arc::clone(&engine), Arc::clone(&handles.views));
        let workers =
            handles.feed.as_ref().map(start_workers).transpose().context("cannot start the feed's threads")?;
        let (pages, sampler) = HttpState::start(config, Arc::clone(engine.latency()), handles.clone())?;
        let (snapshots, views) = (Arc::clone(&handles.snapshots), Arc::clone(&handles.views));
        let admin = Admin::new(&engine, handles.status.clone(), handles.derived.clone(), (snapshots, views));
        let threads = Threads { lookups: lookup_threads, warm_up, shm, workers, sampler };
        Ok(Self { engine, state, handles, pulses, lookups, admin, pages, writer, threads })
    }

    /// Returns the applying side of the ingest, which takes over the feed's writer.
    ///
    /// # Errors
    /// A checkpoint that cannot be read.
    pub(crate) fn apply(&mut self, config: &Config, stop: watch::Receiver<bool>) -> engine_api::Result<Apply> {
        let pulse = self.pulses.add_writer("ingest-apply", &config.store.dir.join(engines::DATA));
        let (engine, state) = (Arc::clone(&self.engine), self.state.clone());
        let durability = config.engine_use.durability.into();
        let settings = MapConfig::new(&config.commit, config.engine.engine, durability);
        let gap_timeout = config.receive.gap_timeout;
        let apply = Apply::new(engine, state, self.writer.take(), settings, gap_timeout, pulse, stop)?;
        Ok(apply.with_memory(&config.store.dir))
    }

    /// Returns the service that subscribers of the feed ask.
    pub(crate) fn feed_service(&self, config: &Config) -> FeedService {
        FeedService::new(
            self.handles.feed.clone().zip(self.threads.workers.clone()),
            SubscriberLimits::of(config.connections.max_connections),
        )
    }

    /// Returns the bell that wakes `shm-lookup`, if clients over shared memory are let in.
    pub(crate) fn doorbell(&self) -> Option<Doorbell> {
        self.threads.shm.as_ref().map(ShmServer::doorbell)
    }

    /// Tells the warm-up to end after its present reads. Call it as soon as the service is to stop, because these may take
    /// seconds on a slow device.
    pub(crate) fn end_warm_up(&self) {
        if let Some(warm_up) = &self.threads.warm_up {
            warm_up.end();
        }
    }

    /// Ends the map's threads, waiting until `deadline`, waits for a snapshot under way, and closes the store. Call it once
    /// no more requests are served. Returns the threads that have not ended.
    ///
    /// # Errors
    /// Any error of closing the engine.
    pub(crate) fn close(self, deadline: Instant) -> Result<Vec<String>, Failed> {
        let Self { engine, threads, admin, handles, .. } = self;
        // The derived stores end with the feed, which is closed already unless the service could not begin to serve.
        if let Some(feed) = &handles.feed {
            feed.close();
        }
        let joined = [
            handles.derived.stop(deadline),
            threads.workers.map_or(Ok(()), |workers| workers.stop(deadline)),
            threads.lookups.join(deadline),
            threads.sampler.join(deadline),
            threads.shm.map_or(Ok(()), |shm| shm.join(deadline)),
            // Last, because it may wait for mebibytes of a slow device, and the others are not told to stop before
            // their own turn.
            threads.warm_up.map_or(Ok(()), |warm_up| warm_up.join(deadline)),
        ];
        admin.wait_for_snapshot();
        match Arc::try_unwrap(engine) {
            Ok(engine) => Box::new(engine).close()?,
            // Every commit is durable already; a close would only make the next open quicker.
            Err(_) => error!("the store is still in use: not closed"),
        }
        Ok(joined.into_iter().filter_map(Result::err).flat_map(|Stuck(names)| names).collect())
    }
}

/// Starts the warm-up unless the configuration leaves it out.
fn start_warm_up(config: &Config, engine: &Arc<Measured>, handles: &Handles) -> io::Result<Option<WarmUp>> {
    if config.engine_use.warm_up == WarmUpArg::Off {
        info!("no warm-up, because warm_up is off: a page is read when a lookup needs it");
        handles.warmth.turn_off();
        return Ok(None);
    }
    let (figures, lookups) = (Arc::clone(&handles.warmth), Arc::clone(&handles.lookups.figures));
    WarmUp::start(Arc::clone(engine), figures, lookups).map(Some)
}

/// Opens the feed, if the configuration asks for it, and adds it to the handles. Returns its writer.
fn open_feed(config: &Config, checkpoint: &ChainCheckpoint, handles: &mut Handles) -> Result<Option<FeedWriter>> {
    if !config.feed.feed {
        return Ok(None);
    }
    let (dir, durability) = (config.store.dir.join(FEED_DIR), config.engine_use.durability.into());
    let (writer, feed) = FeedWriter::open(&dir, checkpoint, durability, config.feed.feed_retention_bytes.as_u64())?;
    handles.feed = Some(feed);
    Ok(Some(writer))
}

/// Opens the derived stores that there are, and starts their threads.
fn start_derived(config: &Config, engine: &Arc<Measured>, handles: &Handles) -> Result<Derived> {
    let Some(feed) = &handles.feed else { return Ok(Derived::default()) };
    let past = derived::dir(&config.store.dir, derived::history::NAME);
    if !config.derived.keeps_history() && past.exists() {
        warn!(
            dir = %past.display(),
            "the past that is there is not kept any more: set history_slots or history_bytes, or remove it with bootstrap derive \
             --history --drop while no service runs"
        );
    }
    let context = Deriving {
        dir: config.store.dir.clone(),
        map: Arc::downgrade(engine),
        // A change of the map touches two entries.
        changes_max: BatchLimits::within(probe::memory_limit().bytes, config.engine.engine, None).due / 2,
        feed: Arc::clone(feed),
        published: Arc::clone(&handles.status.ingest.published),
        overlay: Arc::clone(&handles.lookups.overlay),
    };
    Derived::start(context, &config.derived, config.engine.options())
        .context("cannot start the threads of a derived store")
}

/// Starts the thread `shm-lookup`, if the configuration asks for it. With a feed, its clients read the feed's ring.
fn start_shm(
    config: &Config,
    engine: &Arc<Measured>,
    handles: &Handles,
    pulses: &Pulses,
    writer: Option<&mut FeedWriter>,
) -> Result<Option<ShmServer>> {
    let Some(path) = &config.shm.shm else { return Ok(None) };
    let ring = writer.zip(handles.feed.as_deref()).map(|(writer, feed)| share(writer, feed)).transpose()?;
    let Handles { lookups, status, shm_sessions: sessions, .. } = handles.clone();
    let state = ShmState { lookups, status, sessions };
    ShmServer::start(path, &config.shm.access()?, Arc::clone(engine), state, pulses, ring).map(Some)
}

/// Gives the feed its ring in shared memory, and returns the memfd for readers.
fn share(writer: &mut FeedWriter, feed: &Feed) -> Result<OwnedFd> {
    let (ring, memfd) = Ring::create(feed).context("cannot make the feed's ring")?;
    writer.share(ring);
    Ok(memfd)
}

/// Returns the number of lookup threads: that of the settings, or the default for a store of this size.
fn lookup_thread_count(config: &Config) -> usize {
    let in_turn = config.engine.engine.descriptor().get_many_waits_in_turn;
    let default =
        || lookups::default_threads(in_turn, probe::disk_bytes(&config.store.dir), probe::memory_limit().bytes);
    config.lookups.lookup_threads.map_or_else(default, |threads| threads as usize)
}
