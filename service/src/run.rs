//! Runs the service: connects engine, lookups, servers, receiver and ingest-apply, from the start to a clean stop.
//!
//! Owns: threads and the order in which they stop. Threads: `net-N` (tokio: sockets only), `ingest-apply` (the only
//! writer), `lookup-N` and `shm-lookup` (readers), `overlay` (processed slots, if followed), `sample` (the dashboard's
//! history), `warm-up` (reads the store in after the opening), and the feed's threads (see [`Workers`]).

use std::hash::{BuildHasher as _, RandomState};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use engine_api::{Engine, ErrorKind};
use engine_latency::{Latency, Measured};
use solana::ChainCheckpoint;
use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tracing::{error, info, warn};

use crate::admin::{self, Admin};
use crate::config::{Config, Moment};
use crate::creation::{self, Shown};
use crate::dashboard::{Identity, Sampler};
use crate::failed::Failed;
use crate::feed::{Feed, FeedWriter, Ring, Workers};
use crate::handles::Handles;
use crate::heal::Healer;
use crate::http::{self, Hosts, HttpState};
use crate::ingest;
use crate::ingest::apply::{Apply, ApplyConfig, FULL_RETRY};
use crate::ingest::batch;
use crate::ingest::provider::{self, Provider};
use crate::ingest::receive::{ReceiveConfig, queue_batches};
use crate::ingest::spooling::Spooling;
use crate::ingest::subscribe::Commitment;
use crate::lookups::{self, Lookups};
use crate::net::limit;
use crate::net::{Access, Edge, Ports, Tokens};
use crate::overlay::Overlay;
use crate::processed;
use crate::pulse::Pulses;
use crate::rpc::{self, Door, FeedService, UdsListener};
use crate::shm::{Doorbell, ShmServer, ShmState};
use crate::slots::{Begin, Slots};
use crate::stop::Stuck;
use crate::store::{self, WarmUpArg};
use crate::systemd::{self, Sleepers};
use crate::warmth::WarmUp;

/// Threads of the network edge, so that one can answer while the other reads the stream.
const NET_THREADS: usize = 2;

/// How long a stop waits for threads after the last request was served. Each thread ends within milliseconds, unless
/// its device does not answer.
const JOIN_LIMIT: Duration = Duration::from_secs(5);

/// Directory of the feed's log, in the store's directory next to the engine's.
pub(crate) const FEED_DIR: &str = "feed";

/// The resources that the configuration names, read and checked.
pub struct Checked {
    /// Addresses, certificates, and the tokens of clients.
    pub edge: Edge,
    /// Settings of the stream's servers. Their secrets were read once as a check, and are not kept.
    pub providers: Vec<provider::Settings>,
}

impl Checked {
    /// Reads and checks these resources, the sockets and the store's marker. Changes nothing.
    ///
    /// # Errors
    /// The first resource that cannot be used. The error's exit code says whether starting again could help.
    pub fn of(config: &Config, at: Moment) -> Result<Self, Failed> {
        let edge = Edge::open(config.net())?;
        config.check_sockets(at).map_err(Failed::wrong)?;
        if at == Moment::Start {
            // Limits belong to the process: they may differ from those of a process that checks the configuration
            // ahead.
            limit::open_files(config.connections.max_connections).map_err(Failed::wrong)?;
        }
        let providers = config.stream.providers();
        providers.iter().try_for_each(provider::Settings::check).map_err(Failed::wrong)?;
        store::check(config.opening())?;
        creation::check(config)?;
        Ok(Self { edge, providers })
    }
}

/// Runs the service until SIGTERM or SIGINT, or until the engine fails.
pub fn run(config: &Config) -> Result<(), Failed> {
    probe::limit_arenas(probe::memory_limit().bytes);
    // The load of a store and the comparison of a heal have lines of their own.
    bootstrap::log_with(|line| info!(target: "solkv_bootstrap", "{line}"));
    // All refusals come before the store is touched.
    let Checked { edge, .. } = Checked::of(config, Moment::Start)?;
    edge.addresses.warn(config.net(), &edge.access);
    for (key, access) in [("uds_group", config.grpc.uds_access()?), ("shm_group", config.shm.access()?)] {
        access.group.iter().try_for_each(|group| group.check_may_give(key)).map_err(Failed::wrong)?;
    }
    let ports = edge.addresses.bind()?;
    let runtime = network_threads().context("cannot start the network threads")?;
    let shown = Shown::default();
    let Some(Prepared { ports, spooling, stops }) = runtime.block_on(prepare(config, ports, &shown))? else {
        info!("stopped");
        return Ok(());
    };
    let (engine, checkpoint) = open_store(config)?;
    let begin = runtime.block_on(Begin::of(config, spooling, &checkpoint))?;
    let overlay = Overlay::new(&checkpoint, config.stream.processed, config.stream.commitment == Commitment::Finalized);
    let names = config.stream.providers().into_iter().map(|provider| provider::shown(&provider.url));
    let state = ingest::State::new(checkpoint, overlay, config.readiness).with_providers(names);
    let state = state.with_heals(config.store.heals());
    let mut handles = Handles::new(engine.label(), &state).with(&shown.load, &shown.spool);
    handles.lookups.slow.set_threshold_ns(config.lookups.slow_request.as_nanos() as u64);
    let pulses = Pulses::default();
    // Take over the signals before serving, so that a client that got an answer may stop the service in good order.
    let stops = stops.map_or_else(|| runtime.block_on(async { Stops::take_over() }), Ok)?;
    let front = Front { ports, access: edge.access, stops };
    let (lookups, lookup_threads) =
        Lookups::start(Arc::clone(&engine), lookup_thread_count(config), &handles.lookups, &pulses)
            .context("cannot start the lookup threads")?;
    let warm_up = start_warm_up(config, &engine, &handles, &pulses).context("cannot start the warm-up's thread")?;
    let (mut writer, feed) = open_feed(config, &checkpoint)?.unzip();
    handles.feed = feed;
    let shm = start_shm(config, &engine, &handles, &pulses, writer.as_mut()).context("shared memory")?;
    let views = Arc::clone(&handles.views);
    let workers = handles
        .feed
        .as_ref()
        .map(|_| Workers::start(Arc::clone(&engine), views, config.feed.feed_subscribers as usize))
        .transpose()
        .context("cannot start the feed's threads")?;
    let latency = Arc::clone(engine.latency());
    let (sampler, history) = Sampler::start(Arc::clone(&latency), handles.clone(), config.store.dir.clone())
        .context("cannot start the sampling thread")?;
    let (status, snapshots, views) =
        (handles.status.clone(), Arc::clone(&handles.snapshots), Arc::clone(&handles.views));
    let admin = Admin::new(&engine, status, snapshots, views);
    let feed_service = FeedService::new(handles.feed.clone().zip(workers.clone()), config.feed);
    let doorbell = shm.as_ref().map(ShmServer::doorbell);
    let healer = Healer::new(config, &engine, &shown);
    let apply = ApplyParts { engine: Arc::clone(&engine), state, pulses, writer, doorbell, begin, healer };
    let http_state = HttpState {
        latency,
        handles,
        history,
        identity: Arc::new(Identity::of(config)),
        hosts: Arc::new(Hosts::new(&config.http)),
    };
    let outcome = runtime.block_on(serve(config, front, apply, lookups, feed_service, http_state, admin.clone()));
    let deadline = Instant::now() + JOIN_LIMIT;
    let workers = workers.map_or(Ok(()), |workers| workers.stop(deadline));
    runtime.shutdown_timeout(Duration::from_secs(1));
    let joined = [
        warm_up.map_or(Ok(()), |warm_up| warm_up.join(deadline)),
        workers,
        lookup_threads.join(deadline),
        sampler.join(deadline),
        shm.map_or(Ok(()), |shm| shm.join(deadline)),
    ];
    admin.wait_for_snapshot();
    close(engine, outcome, joined)
}

/// Starts the warm-up unless the configuration leaves it out.
fn start_warm_up(
    config: &Config,
    engine: &Arc<Measured>,
    handles: &Handles,
    pulses: &Pulses,
) -> io::Result<Option<WarmUp>> {
    if config.engine_use.warm_up != WarmUpArg::Auto {
        return Ok(None);
    }
    let (figures, lookups) = (Arc::clone(&handles.warmth), Arc::clone(&handles.lookups.figures));
    WarmUp::start(Arc::clone(engine), figures, lookups, pulses.add("warm-up")).map(Some)
}

fn network_threads() -> io::Result<Runtime> {
    tokio::runtime::Builder::new_multi_thread().worker_threads(NET_THREADS).thread_name("net").enable_all().build()
}

/// The state before the store is opened.
struct Prepared {
    ports: Ports,
    /// Slots of the stream that the store lacks, if a start has begun to keep them.
    spooling: Option<Spooling>,
    /// The signals, if they were taken over already.
    stops: Option<Stops>,
}

/// Loads the store if the configuration asks for it and there is no store yet. Otherwise continues with the spool of an
/// earlier load, if there is one. Returns `None` if a signal has ended the load.
async fn prepare(config: &Config, ports: Ports, shown: &Shown) -> Result<Option<Prepared>, Failed> {
    let stream = receive_config(config, &provider::hangups()?);
    if !store::awaits_load(config.opening())? {
        let spooling = creation::resume(config, stream, shown)?;
        return Ok(Some(Prepared { ports, spooling, stops: None }));
    }
    let (ports, http) = ports.listen_http()?;
    let mut stops = Stops::take_over()?;
    let spooling = creation::load(config, stream, shown, http, stops.next()).await?;
    Ok(spooling.map(|spooling| Prepared { ports, spooling: Some(spooling), stops: Some(stops) }))
}

/// Opens the store, and logs its state, the division of the memory, and cautions. Returns its checkpoint as well.
fn open_store(config: &Config) -> Result<(Arc<Measured>, ChainCheckpoint), Failed> {
    systemd::status(&format!("opening and recovering the store in {}", config.store.dir.display()));
    let engine = store::open(config.opening())?;
    let label = engine.label();
    let engine = Arc::new(Measured::new(engine, Latency::new(label), "ingest"));
    let checkpoint = ChainCheckpoint::read(&engine.checkpoint()?)?;
    store::refuse_part(&checkpoint, config.store.heals())?;
    info!(engine = label, dir = %config.store.dir.display(), seq = checkpoint.seq, slot = checkpoint.slot, "store is open");
    if checkpoint.slot.is_none() && checkpoint.seq > 0 {
        warn!(
            "the store was loaded without a slot: the stream is followed from its newest slot on, and changes between the \
             load and that slot are missing: load it with --slot, or from a snapshot archive"
        );
    }
    let division = config.engine.division();
    info!(
        memory_limit_bytes = division.limit.bytes,
        limit_from =
            division.limit.cgroup_file.as_ref().map_or("machine".to_owned(), |file| file.display().to_string()),
        engine_cache_bytes = division.cache_bytes,
        cache_by = if division.configured { "configured" } else { "default" },
        rest_bytes = division.rest_bytes,
        "memory is divided"
    );
    for note in engines::notes(&config.store.dir, &config.engine)? {
        if note.is_warning { warn!("{}", note.text) } else { info!("{}", note.text) }
    }
    for caution in config.stream.selection().cautions(label) {
        warn!("{caution}");
    }
    Ok((engine, checkpoint))
}

/// Closes the store after everything else has ended, and names the threads that have not.
fn close(engine: Arc<Measured>, outcome: Result<()>, joined: [Result<(), Stuck>; 5]) -> Result<(), Failed> {
    match Arc::try_unwrap(engine) {
        Ok(engine) => Box::new(engine).close()?,
        // Every commit is durable already; a close would only make the next open quicker.
        Err(_) => error!("the store is still in use: not closed"),
    }
    outcome?;
    let stuck: Vec<String> = joined.into_iter().filter_map(Result::err).flat_map(|Stuck(names)| names).collect();
    if !stuck.is_empty() {
        return Err(anyhow!("{} limit={JOIN_LIMIT:?}; everything committed is safe", Stuck(stuck)).into());
    }
    info!("stopped");
    Ok(())
}

/// The listening ports, the access rules, and the signals that stop the service.
struct Front {
    ports: Ports,
    access: Arc<Access>,
    stops: Stops,
}

/// Parts of which the ingest thread is made.
struct ApplyParts {
    engine: Arc<Measured>,
    state: ingest::State,
    pulses: Pulses,
    writer: Option<FeedWriter>,
    doorbell: Option<Doorbell>,
    begin: Begin,
    healer: Option<Healer>,
}

/// The tasks that end once the service stops.
struct Tasks {
    receiver: JoinHandle<()>,
    rpc: JoinHandle<Result<()>>,
    http: JoinHandle<()>,
    admin: JoinHandle<()>,
}

/// The outcome of ingest-apply; an error if it ended without one.
type Applied = Result<engine_api::Result<()>, oneshot::error::RecvError>;

async fn serve(
    config: &Config,
    front: Front,
    apply: ApplyParts,
    lookups: Lookups,
    feed: FeedService,
    http_state: HttpState,
    admin: Admin,
) -> Result<()> {
    let ApplyParts { engine, state, pulses, writer, doorbell, begin, healer } = apply;
    let Handles { status, feed: log, net, .. } = http_state.handles.clone();
    let Front { ports, access, mut stops } = front;
    let (tcp, http) = ports.listen()?;
    let uds = config.grpc.uds.as_deref().map(|path| UdsListener::bind(path, &config.grpc.uds_access()?)).transpose()?;
    access.reload_at_hangup()?;
    let hangups = provider::hangups()?;
    info!(
        listen = %tcp.local_addr()?, metrics = %http.local_addr()?,
        uds = config.grpc.uds.as_ref().map(|path| path.display().to_string()),
        shm = config.shm.shm.as_ref().map(|path| path.display().to_string()), tls = access.tls_name(),
        bearer_tokens = access.tokens.as_ref().map_or(0, Tokens::len), "listening"
    );
    let (stop, stopped) = watch::channel(false);
    let (messages, received) = mpsc::channel(queue_batches());
    let door = Door { tcp, uds, access, limits: config.connections };
    let sleepers = Sleepers { apply: messages.downgrade(), shm: doorbell };
    let overlay = Arc::clone(&state.overlay);
    let services = rpc::Services { lookups: lookups.clone(), status: status.clone(), overlay, feed, net };
    let upstream = Slots { begin, healer, stream: receive_config(config, &hangups), stopped: stopped.clone() };
    // A store between two slots answers no lookup.
    let answers = !state.published.is_healing();
    let tasks = Tasks {
        rpc: tokio::spawn(rpc::serve(door, services, until(stopped.clone()))),
        http: tokio::spawn(http::serve(http, http_state, until(stopped.clone()))),
        admin: tokio::spawn(admin::serve(config.store.dir.clone(), admin, until(stopped.clone()))),
        receiver: tokio::spawn(upstream.feed(messages, state.clone())),
    };
    let followed = state.providers.followed();
    processed::start(receive_config(config, &hangups), &state.overlay, &state.published, followed, stopped.clone())
        .context("cannot start the overlay thread")?;
    let apply = Apply::new(engine, state, writer, apply_config(config), pulses.add("ingest-apply"), stopped)?;
    let (ended, mut apply_ended) = oneshot::channel();
    std::thread::Builder::new()
        .name("ingest-apply".to_owned())
        .spawn(move || ended.send(apply.run(received)))
        .context("cannot start the ingest thread")?;
    if answers {
        let probed = lookups.probe().await;
        probed.map_err(|failed| anyhow!("the store is open, but no lookup is answered: {failed:?}"))?;
    }
    systemd::ready();
    let watch = tokio::spawn(systemd::watch(status, pulses, sleepers));
    let early = tokio::select! {
        signal = stops.next() => {
            info!(signal, "stopping");
            None
        }
        outcome = &mut apply_ended => Some(outcome),
    };
    watch.abort();
    systemd::stopping();
    stop.send_replace(true);
    if let Some(log) = log {
        log.close();
    }
    let limit = config.process.shutdown_timeout;
    match tokio::time::timeout(limit, tasks.end(early, apply_ended)).await {
        Ok(outcome) => outcome,
        Err(_) => bail!("not stopped within shutdown_timeout={limit:?}; everything committed is safe"),
    }
}

impl Tasks {
    /// Waits for the tasks and for ingest-apply, unless that has ended `early`.
    async fn end(self, early: Option<Applied>, apply_ended: oneshot::Receiver<engine_api::Result<()>>) -> Result<()> {
        self.receiver.await.ok();
        let outcome = match early {
            Some(outcome) => outcome,
            None => apply_ended.await,
        };
        self.rpc.await??;
        self.http.await?;
        self.admin.await?;
        match outcome {
            Ok(applied) => applied.map_err(engine_failed),
            Err(_) => Err(anyhow!("the ingest thread ended without a reason: this is a bug")),
        }
    }
}

/// Adds the remedy to the engine's error. An update that meets damage ends the service, because the value that it
/// replaces is unknown.
fn engine_failed(error: engine_api::Error) -> anyhow::Error {
    let context = match error.kind() {
        ErrorKind::DataDamaged => {
            "the ingest found damage in the store; restore a snapshot, or see what `bootstrap repair --dir DIR` can keep \
             (RUNBOOK.md, Damaged store)"
        }
        _ => "the engine failed: see its error for the way out",
    };
    anyhow::Error::from(error).context(context)
}

fn receive_config(config: &Config, hangups: &watch::Receiver<u64>) -> ReceiveConfig {
    ReceiveConfig {
        providers: config.stream.providers().into_iter().map(|of| Provider::new(of, hangups.clone())).collect(),
        selection: config.stream.selection(),
        commitment: config.stream.commitment,
        first: 0,
        settings: config.receive,
        // The random keys of the standard hasher are random enough for jitter.
        jitter_seed: RandomState::new().hash_one(0),
    }
}

fn open_feed(config: &Config, checkpoint: &ChainCheckpoint) -> Result<Option<(FeedWriter, Arc<Feed>)>> {
    if !config.feed.feed {
        return Ok(None);
    }
    let (dir, durability) = (config.store.dir.join(FEED_DIR), config.engine_use.durability.into());
    let opened = FeedWriter::open(&dir, checkpoint, durability, config.feed.retention())?;
    Ok(Some(opened))
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

fn apply_config(config: &Config) -> ApplyConfig {
    ApplyConfig {
        batch: batch::Limits::within(
            probe::memory_limit().bytes,
            config.engine.engine,
            config.commit.commit_every.map(|changes| changes as usize),
        ),
        commit_interval: config.commit.commit_interval,
        gap_timeout: config.receive.gap_timeout,
        full_retry: FULL_RETRY,
        depth: config.commit.ingest_depth as usize,
        reads_in_turn: config.engine.engine.descriptor().get_many_waits_in_turn,
        durability: config.engine_use.durability.into(),
    }
}

async fn until(mut stopped: watch::Receiver<bool>) {
    // An error means that the sender is gone, which means stop as well.
    let _ = stopped.wait_for(|stopped| *stopped).await;
}

/// The signals that stop the service. After [`Stops::take_over`] they no longer end the process by themselves.
struct Stops {
    terminate: Signal,
    interrupt: Signal,
}

impl Stops {
    fn take_over() -> Result<Self> {
        let terminate = signal(SignalKind::terminate()).context("cannot take over SIGTERM")?;
        let interrupt = signal(SignalKind::interrupt()).context("cannot take over SIGINT")?;
        Ok(Self { terminate, interrupt })
    }

    async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}
