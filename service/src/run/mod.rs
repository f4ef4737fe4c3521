//! Runs the service: connects the map, the servers, the receiver and ingest-apply, from the start to a clean stop.
//!
//! Owns: the order in which everything starts and stops, and these threads: `net` (tokio: sockets only), `ingest-apply`
//! (the map's only writer), `overlay` (processed slots, if followed). The threads that read the map are its own. Must not:
//! read or write a store.

mod doors;
mod map;
mod slots;

use std::hash::{BuildHasher as _, RandomState};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use engine_api::{Code, ErrorKind};
use signal_hook::flag::register_conditional_default;
use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tracing::{info, warn};

use crate::admin;
use crate::ask::Ask;
use crate::base::failed::Failed;
use crate::base::stop::{SHUTDOWN_TIMEOUT, Stuck};
use crate::config::{Config, Moment};
use crate::creation::{self, Shown};
use crate::heal::Healer;
use crate::ingest::provider::{self, Provider};
use crate::ingest::receive::{ReceiveConfig, queue_batches};
use crate::ingest::settings::TAKEOVER_LAG_SLOTS;
use crate::ingest::spooling::Spooling;
use crate::net::limit;
use crate::net::{Access, Addresses, Ports};
use crate::pages::handles::Handles;
use crate::pages::http;
use crate::processed;
use crate::redis;
use crate::rpc;
use crate::store;
use crate::systemd::{self, Sleepers};
use crate::web;
use doors::Doors;
use map::{Map, Store};
use slots::{Begin, Slots};

/// Threads of the network edge, so that one can answer while the other reads the stream.
const NET_THREADS: usize = 2;

/// How long a stop waits for threads after the last request was served. Each thread ends within milliseconds, unless
/// its device does not answer.
const JOIN_LIMIT: Duration = Duration::from_secs(5);

/// The resources that the configuration names, read and checked.
pub(crate) struct Checked {
    /// Certificates, and the tokens of clients.
    pub access: Arc<Access>,
    /// Addresses of the gRPC and HTTP listeners.
    pub addresses: Addresses,
    /// Settings of the stream's servers. Their secrets were read once as a check, and are not kept.
    pub providers: Vec<provider::Settings>,
}

impl Checked {
    /// Reads and checks these resources, the sockets and the store's marker. Changes nothing.
    ///
    /// # Errors
    /// The first resource that cannot be used. The error's exit code says whether starting again could help.
    pub(crate) fn of(config: &Config, at: Moment) -> Result<Self, Failed> {
        let access = Access::open(&config.access).map_err(Failed::wrong)?;
        let addresses = Addresses::of(config.net(), &access)?;
        config.check_sockets(at).context(Code::Address).map_err(Failed::wrong_unless_read_only)?;
        if at == Moment::Start {
            // Limits belong to the process: they may differ from those of a process that checks the configuration
            // ahead.
            limit::open_files(config.connections.max_connections).map_err(Failed::wrong)?;
        }
        let providers = config.stream.providers();
        providers.iter().try_for_each(provider::Settings::check).map_err(Failed::wrong)?;
        store::check(config.opening())?;
        config.derived.check().map_err(Failed::wrong)?;
        if !config.feed.feed && config.has_derived() {
            return Err(Failed::wrong(anyhow!(
                "a derived store follows the feed: dir={}: set feed = true, or remove the derived store with bootstrap derive --dir \
                 DIR --drop, and history_slots and history_bytes from the configuration",
                config.store.dir.display()
            )));
        }
        creation::check(config)?;
        Ok(Self { access: Arc::new(access), addresses, providers })
    }
}

/// Runs the service until SIGTERM or SIGINT, or until the engine fails.
pub(crate) fn run(config: &Config) -> Result<(), Failed> {
    let at_once = end_at_signals().context("cannot take over signals")?;
    probe::limit_arenas(probe::memory_limit().bytes);
    // The load of a store and the comparison of a heal have lines of their own.
    bootstrap::log_with(|line| info!(target: "solkv_bootstrap", "{line}"));
    // All refusals come before the store is touched.
    let Checked { access, addresses, providers } = Checked::of(config, Moment::Start)?;
    for caution in providers.iter().flat_map(provider::Settings::cautions) {
        warn!("{caution}");
    }
    addresses.warn(config.net(), &access);
    for (key, access) in [("uds_group", config.grpc.uds_access()?), ("shm_group", config.shm.access()?)] {
        access.group.iter().try_for_each(|group| group.check_may_give(key)).map_err(Failed::wrong)?;
    }
    let ports = addresses.bind()?;
    let runtime = network_threads().context("cannot start the network threads")?;
    let shown = Shown::at_start(config);
    let mut stops = runtime.block_on(async { Stops::take_over(at_once) })?;
    let Some((ports, spooling)) = runtime.block_on(prepare(config, ports, &mut stops, &shown))? else {
        info!("stopped");
        return Ok(());
    };
    let store = Store::open(config)?;
    let begin = runtime.block_on(Begin::of(config, spooling, &store.checkpoint))?;
    // Before serving, so that a client that got an answer may stop the service in good order.
    stops.keep();
    let mut map = Map::start(config, store, &shown)?;
    let healer = Healer::new(config, &map.engine, &shown);
    let outcome = runtime.block_on(serve(config, ports, access, stops, &mut map, begin, healer));
    let deadline = Instant::now() + JOIN_LIMIT;
    runtime.shutdown_timeout(Duration::from_secs(1));
    let stuck = map.close(deadline)?;
    outcome?;
    if !stuck.is_empty() {
        return Err(anyhow!("{} limit={JOIN_LIMIT:?}; everything committed is safe", Stuck(stuck)).into());
    }
    info!("stopped");
    Ok(())
}

fn network_threads() -> io::Result<Runtime> {
    tokio::runtime::Builder::new_multi_thread().worker_threads(NET_THREADS).thread_name("net").enable_all().build()
}

/// Loads the store if the configuration asks for it and there is no store yet. Otherwise continues with the spool of an
/// earlier load, if there is one. Returns the ports, and the spool with the slots that the store lacks; `None` if a signal
/// has ended the load.
async fn prepare(
    config: &Config,
    ports: Ports,
    stops: &mut Stops,
    shown: &Shown,
) -> Result<Option<(Ports, Option<Spooling>)>, Failed> {
    let stream = receive_config(config, &provider::hangups()?);
    if !store::awaits_load(config.opening())? {
        return Ok(Some((ports, creation::resume(config, stream, shown)?)));
    }
    let http = ports.listen_http()?;
    stops.keep();
    let spooling = creation::load(config, stream, shown, http, stops.next()).await?;
    stops.end_at_once();
    Ok(spooling.map(|spooling| (ports, Some(spooling))))
}

/// The tasks that end once the service stops.
struct Tasks {
    receiver: JoinHandle<()>,
    rpc: JoinHandle<Result<()>>,
    redis: JoinHandle<Result<()>>,
    web: JoinHandle<Result<()>>,
    pages: JoinHandle<()>,
    admin: JoinHandle<()>,
}

/// The outcome of ingest-apply; an error if it ended without one.
type Applied = Result<engine_api::Result<()>, oneshot::error::RecvError>;

/// Serves until a signal of `stops`, or until the engine fails. `begin` and `healer` are the sources of the first slots and of
/// those that the stream lacks.
async fn serve(
    config: &Config,
    ports: Ports,
    access: Arc<Access>,
    mut stops: Stops,
    map: &mut Map,
    begin: Begin,
    healer: Option<Healer>,
) -> Result<()> {
    let Handles { status, feed: log, net, .. } = map.handles.clone();
    let Doors { rpc: door, redis: redis_door, web: web_door, pages } = Doors::open(config, ports, &access, &net)?;
    access.reload_at_hangup()?;
    let hangups = provider::hangups()?;
    let (stop, stopped) = watch::channel(false);
    let (messages, received) = mpsc::channel(queue_batches());
    let sleepers = Sleepers { apply: messages.downgrade(), shm: map.doorbell() };
    let (state, lookups) = (map.state.clone(), map.lookups.clone());
    let ask = Ask::new(lookups.clone(), Arc::clone(&state.overlay), net).with_derived(map.handles.derived.clone());
    let services = rpc::Services { ask: ask.clone(), status: status.clone(), feed: map.feed_service(config) };
    let upstream = Slots { begin, healer, stream: receive_config(config, &hangups), stopped: stopped.clone() };
    // A store between two slots answers no lookup.
    let answers = !state.published.is_healing();
    let tasks = Tasks {
        rpc: tokio::spawn(rpc::serve(door, services, until(stopped.clone()))),
        redis: tokio::spawn(redis::serve(redis_door, ask.clone(), status.clone(), until(stopped.clone()))),
        web: tokio::spawn(web::serve(web_door, config.web.http.clone(), ask, until(stopped.clone()))),
        pages: tokio::spawn(http::serve(pages, map.pages.clone(), until(stopped.clone()))),
        admin: tokio::spawn(admin::serve(config.store.dir.clone(), map.admin.clone(), until(stopped.clone()))),
        receiver: tokio::spawn(upstream.feed(messages, state.clone())),
    };
    processed::start(receive_config(config, &hangups), &state, stopped.clone())
        .context("cannot start the overlay thread")?;
    let apply = map.apply(config, stopped)?;
    let (ended, mut apply_ended) = oneshot::channel();
    std::thread::Builder::new()
        .name("ingest-apply".to_owned())
        .spawn(move || ended.send(apply.run(received)))
        .context("cannot start the ingest thread")?;
    if answers {
        lookups.probe().await.map_err(|failed| anyhow!("the store is open, but no lookup is answered: {failed:?}"))?;
    }
    systemd::ready();
    let watch = tokio::spawn(systemd::watch(status, map.pulses.clone(), sleepers));
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
    map.end_warm_up();
    if let Some(log) = log {
        log.close();
    }
    match tokio::time::timeout(SHUTDOWN_TIMEOUT, tasks.end(early, apply_ended)).await {
        Ok(outcome) => outcome,
        Err(_) => bail!("not stopped within limit={SHUTDOWN_TIMEOUT:?}; everything committed is safe"),
    }
}

impl Tasks {
    /// Waits for the tasks and for ingest-apply, unless that has ended `early`.
    async fn end(self, early: Option<Applied>, apply_ended: oneshot::Receiver<engine_api::Result<()>>) -> Result<()> {
        self.receiver.await?;
        let outcome = match early {
            Some(outcome) => outcome,
            None => apply_ended.await,
        };
        self.rpc.await??;
        self.redis.await??;
        self.web.await??;
        self.pages.await?;
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
        idle_timeout: config.receive.idle_timeout(),
        takeover_lag_slots: TAKEOVER_LAG_SLOTS,
        // The random keys of the standard hasher are random enough for jitter.
        jitter_seed: RandomState::new().hash_one(0),
    }
}

async fn until(mut stopped: watch::Receiver<bool>) {
    // An error means that the sender is gone, which means stop as well.
    let _ = stopped.wait_for(|stopped| *stopped).await;
}

/// The signals that stop the service. They end the process at once, as a crash would, until somebody will wait for them: an
/// opening may take minutes, cannot be cut, and survives a crash.
struct Stops {
    terminate: Signal,
    interrupt: Signal,
    at_once: Arc<AtomicBool>,
}

/// Has the signals that stop the service end the process at once, even if it was started with SIGINT ignored, as a shell
/// starts programs in the background. Returns the flag that says so.
fn end_at_signals() -> io::Result<Arc<AtomicBool>> {
    let at_once = Arc::new(AtomicBool::new(true));
    for kind in [SignalKind::terminate(), SignalKind::interrupt()] {
        register_conditional_default(kind.as_raw_value(), Arc::clone(&at_once))?;
    }
    Ok(at_once)
}

impl Stops {
    /// `at_once` is the flag of [`end_at_signals`].
    fn take_over(at_once: Arc<AtomicBool>) -> Result<Self> {
        let terminate = signal(SignalKind::terminate()).context("cannot take over SIGTERM")?;
        let interrupt = signal(SignalKind::interrupt()).context("cannot take over SIGINT")?;
        Ok(Self { terminate, interrupt, at_once })
    }

    /// Has signals end the process at once again.
    fn end_at_once(&self) {
        // ORDERING: Relaxed: the flag guards no memory.
        self.at_once.store(true, Ordering::Relaxed);
    }

    /// Has a signal from now on kept for [`Stops::next`].
    fn keep(&self) {
        // ORDERING: Relaxed: as above.
        self.at_once.store(false, Ordering::Relaxed);
    }

    async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}
