//! Makes the store of a snapshot archive while the stream is kept on disk: the phase before the store is opened.
//!
//! Owns: the order of stream, load and signals in this phase, and the pages that show it. Must not: apply slots; the
//! replay does so once the store is open. Threads: `load` loads; the stream's receiver and HTTP
//! run on the network threads; `spool` writes.
//!
//! The stream comes first: the archive's slot is asked for before a byte of the archive is read, because a server keeps
//! its slots for a minute. Everything that is done is on disk: a start after a crash continues with the load and with
//! the spool.

use std::path::Path;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow};
use bootstrap::create::{self, NewStore};
use bootstrap::{Numbers, Seen, Stop};
use bytesize::ByteSize;
use engine_latency::Latency;
use engines::EngineOptions;
use solana::ChainCheckpoint;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::{Interval, MissedTickBehavior, interval};
use tracing::{info, warn};

use crate::base::blocking;
use crate::base::chain::{Base, Gap, Phase};
use crate::base::failed::Failed;
use crate::base::stop::SHUTDOWN_TIMEOUT;
use crate::config::Config;
use crate::ingest::State;
use crate::ingest::extract::Extract;
use crate::ingest::provider;
use crate::ingest::receive::ReceiveConfig;
use crate::ingest::spooling::{SpoolConfig, Spooling};
use crate::overlay::Overlay;
use crate::pages::dashboard::Sampler;
use crate::pages::handles::Handles;
use crate::pages::http::{self, HttpState};
use crate::spool;
use crate::store::{self, StoreSettings};
use crate::systemd;

/// How often the progress is shown, and the stream is asked whether it has the archive's slot.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Time for the sampling thread to end.
const JOIN_LIMIT: Duration = Duration::from_secs(5);

/// State of this phase, which the pages of the later one show as well.
#[derive(Clone, Debug)]
pub(crate) struct Shown {
    /// The load of the store from an archive.
    pub load: Seen,
    /// The spool of the stream's slots.
    pub spool: Arc<spool::SpoolFigures>,
    /// The ingest before there is a store. Its figures and providers are those of the later one.
    pub ingest: State,
}

/// Checks the directory of a store that is still to be loaded, its archives and the room on its disk, as far as that can be
/// done without the archives' server.
///
/// # Errors
/// A directory that holds something else; an archive that is missing, cannot be read, or does not belong in its place by
/// its name; a disk that is too small.
pub(crate) fn check(config: &Config) -> Result<(), Failed> {
    if !store::awaits_load(config.opening())? {
        return Ok(());
    }
    create::check(&new_store(&config.store, &config.engine.options(), config.stream.extract)?)
        .map_err(Failed::by_remedy)
}

/// Continues with a spool that an earlier start has left. `None` if there is none.
///
/// # Errors
/// Errors of opening the spool, or of removing its empty directory.
pub(crate) fn resume(config: &Config, stream: ReceiveConfig, shown: &Shown) -> Result<Option<Spooling>, Failed> {
    let dir = spool::dir_of(&config.store.dir);
    let Some(found) = spool::look(&dir)? else {
        spool::remove_empty(&dir)?;
        return Ok(None);
    };
    Ok(Some(follow(config, Some(found.origin.base), stream, shown)?))
}

/// Loads the store, and returns the spool that was filled meanwhile; `None` if `asked` has ended the load.
///
/// # Errors
/// Errors of the archives, the load and the spool; the stream no longer has the slots after the archive, and nothing is set
/// that heals such a gap.
pub(crate) async fn load(
    config: &Config,
    stream: ReceiveConfig,
    shown: &Shown,
    http: TcpListener,
    asked: impl Future<Output = &'static str>,
) -> Result<Option<Spooling>, Failed> {
    let pages = Pages::open(config, shown, http)?;
    let loaded = load_shown(config, stream, shown, &pages, asked).await;
    pages.close().await;
    loaded
}

/// Loads as [`load`] does, and shows the progress on these pages.
async fn load_shown(
    config: &Config,
    stream: ReceiveConfig,
    shown: &Shown,
    pages: &Pages,
    asked: impl Future<Output = &'static str>,
) -> Result<Option<Spooling>, Failed> {
    let (stop, mut asked, mut looks) = (Stop::without_handlers(), pin!(asked), interval(LOOK_EVERY));
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // The load takes the directory again. Until then others learn that it is taken.
    let held = engines::hold(&config.store.dir)?;
    let mut opening = pin!(archive_slot(config, shown.load.clone()));
    let opened = loop {
        tokio::select! {
            slot = &mut opening => break Some(slot),
            signal = &mut asked => {
                info!(signal, "stopping the opening of the archive");
                stop.ask();
                // Its end is near, because it looks at the stop while it waits for a server.
                opening.await.ok();
                break None;
            }
            _ = looks.tick() => pages.show(&waiting(shown).unwrap_or_else(|| "opening the archive".to_owned())),
        }
    };
    drop(held);
    let Some(slot) = opened.transpose()? else { return Ok(None) };
    make_way(&spool::dir_of(&config.store.dir), slot)?;
    let base = Base { slot, blockhash: [0; 32] };
    let spooling = follow(config, Some(base), stream.clone(), shown)?;
    let loading = start_load(config, shown.load.clone(), stop.clone())?;
    Load { config, slot, stream, shown, pages }.watch(spooling, loading, stop, asked, looks).await
}

/// A load that is under way.
struct Load<'a> {
    config: &'a Config,
    /// The slot of the archive.
    slot: u64,
    stream: ReceiveConfig,
    shown: &'a Shown,
    pages: &'a Pages,
}

impl Load<'_> {
    /// Waits for the load's end, and returns the spool; `None` if `asked` has ended the load.
    async fn watch(
        self,
        mut spooling: Spooling,
        mut loading: oneshot::Receiver<Result<bool>>,
        stop: Stop,
        mut asked: Pin<&mut impl Future<Output = &'static str>>,
        mut looks: Interval,
    ) -> Result<Option<Spooling>, Failed> {
        let Self { config, slot, shown, pages, .. } = &self;
        let (begun, mut lacking, mut deadline) = (Instant::now(), None::<Gap>, None);
        let loaded = loop {
            tokio::select! {
                loaded = &mut loading => break loaded.context("the load has panicked: this is a bug")?,
                signal = &mut asked, if deadline.is_none() => {
                    info!(signal, "stopping the load; the next start goes on with it");
                    stop.ask();
                    deadline = Some(Instant::now() + SHUTDOWN_TIMEOUT);
                }
                _ = looks.tick() => {
                    pages.show(&progress((*slot, begun), shown, &spooling, lacking.as_ref()));
                    if let Some(gap) = spooling.lacks().filter(|_| lacking.is_none() && deadline.is_none()) {
                        if !config.store.heals() {
                            stop.ask();
                            deadline = Some(Instant::now() + SHUTDOWN_TIMEOUT);
                        } else {
                            spooling = self.begin_anew(spooling, &gap).await?;
                        }
                        lacking = Some(gap);
                    }
                    // A load that opens an archive on a server does not see the stop. The end of the process ends it.
                    if deadline.is_some_and(|deadline| deadline <= Instant::now()) {
                        break Ok(false);
                    }
                }
            }
        };
        match lacking {
            // A store that is whole is before a gap as any other store may be.
            Some(gap) if !config.store.heals() && !matches!(loaded, Ok(true)) => Err(self.lacks(&gap)),
            _ => Ok(loaded.map_err(Failed::by_remedy)?.then_some(spooling)),
        }
    }

    /// Keeps the stream from its next slot on, because it no longer has those after the archive. The store is healed from a
    /// newer archive once it is loaded.
    async fn begin_anew(&self, spooling: Spooling, gap: &Gap) -> Result<Spooling> {
        warn!(
            archive_slot = self.slot,
            missing_first_slot = gap.first_slot,
            missing_last_slot = gap.last_slot,
            "the stream does not have the slots after the archive: the load goes on, and heal_from brings them after it"
        );
        spooling.discard().await;
        follow(self.config, None, self.stream.clone(), self.shown)
    }

    /// Describes a stream that no archive of `heal_from` can make up for. Each start would end with it, because the
    /// archive becomes no newer.
    fn lacks(&self, gap: &Gap) -> Failed {
        let (slot, dir) = (self.slot, self.config.store.dir.display());
        Failed::wrong(anyhow!(
            "the stream does not have the slots after the archive: archive_slot={slot} missing_first_slot={} \
             missing_last_slot={}: {}: set heal_from, so that this load goes on and a newer archive brings these slots; or \
             remove dir={dir} and give a newer archive; or name a server that keeps more slots",
            gap.first_slot,
            gap.last_slot,
            gap.detail
        ))
    }
}

/// Returns the slot of the archives. Their names tell it, so that the stream can be opened before they are read.
async fn archive_slot(config: &Config, seen: Seen) -> Result<u64, Failed> {
    let (full, incremental, extract) =
        (archive(&config.store)?.to_owned(), config.store.incremental.clone(), config.stream.extract);
    blocking(move || create::slot(&full, incremental.as_deref(), extract, &seen)).await.map_err(Failed::by_remedy)
}

fn archive(settings: &StoreSettings) -> Result<&Path> {
    settings.snapshot.as_deref().context("no archive: give --snapshot ARCHIVE")
}

/// Removes a spool that cannot follow an archive of this slot: it begins later, or ends before.
fn make_way(dir: &Path, slot: u64) -> Result<()> {
    let Some(found) = spool::look(dir)? else { return Ok(()) };
    let (first, last) = (found.origin.base.slot, found.last.slot);
    if (first..=last).contains(&slot) {
        return Ok(());
    }
    info!(
        archive_slot = slot,
        spool_base_slot = first,
        spool_last_slot = last,
        "a spool of another archive is removed"
    );
    spool::remove(dir)
}

/// Follows the stream into the spool, which begins after `base`, or with the stream's next slot.
pub(crate) fn follow(config: &Config, base: Option<Base>, stream: ReceiveConfig, shown: &Shown) -> Result<Spooling> {
    let (dir, bytes_max) = (spool::dir_of(&config.store.dir), config.store.spool_max_bytes.as_u64());
    Spooling::start(SpoolConfig { dir, bytes_max }, base, stream, Arc::clone(&shown.spool), &shown.ingest)
}

/// Starts the thread `load`. It is no task of the runtime, because a runtime's end waits for such tasks.
fn start_load(config: &Config, seen: Seen, stop: Stop) -> Result<oneshot::Receiver<Result<bool>>> {
    let (settings, engine, extract) = (config.store.clone(), config.engine.options(), config.stream.extract);
    let load = move || create::load(&new_store(&settings, &engine, extract)?, &seen, &stop);
    let (ended, has_ended) = oneshot::channel();
    thread::Builder::new()
        .name("load".to_owned())
        .spawn(move || ended.send(load()).ok())
        .context("cannot start the thread of the load")?;
    Ok(has_ended)
}

/// Returns the store that is to be made from the archives of the settings.
fn new_store<'a>(settings: &'a StoreSettings, engine: &'a EngineOptions, extract: Extract) -> Result<NewStore<'a>> {
    Ok(NewStore {
        dir: &settings.dir,
        engine,
        archive: archive(settings)?,
        incremental: settings.incremental.as_deref(),
        extract,
        cluster: settings.cluster.as_deref(),
        beside_bytes: settings.spool_max_bytes.as_u64(),
    })
}

/// Describes the wait for an archive's server; `None` while it answers.
fn waiting(shown: &Shown) -> Option<String> {
    Some(shown.load.now().waiting?.to_string())
}

/// Describes how far load and spool are, and why archive or stream send nothing if they do not.
fn progress((slot, begun): (u64, Instant), shown: &Shown, spooling: &Spooling, lacking: Option<&Gap>) -> String {
    let Shown { load, spool, .. } = shown;
    let (read, now) = (shown.read(begun), load.now());
    let mut text =
        format!("archive of slot={slot}: read {read}, versions={} pairs={}; {}", now.versions, now.pairs, shown.kept());
    if let Some(waiting) = waiting(shown) {
        text.push_str(&format!("; {waiting}"));
    }
    if let Some(gap) = lacking {
        let Gap { first_slot, last_slot, .. } = gap;
        text.push_str(&format!(
            "; the stream lacks the slots from {first_slot} to {last_slot}, which heal_from brings later"
        ));
    }
    let trouble = spool.stopped().or_else(|| spooling.state().verdict().not_ready);
    if let Some(trouble) = trouble {
        text.push_str(&format!("; stream: {trouble}"));
    }
    text
}

impl Shown {
    /// Returns the state at the start of a service: nothing is loaded, kept or followed.
    pub(crate) fn at_start(config: &Config) -> Self {
        let checkpoint = ChainCheckpoint::default();
        let names = config.stream.providers().into_iter().map(|provider| provider::shown(&provider.url));
        let ingest = State::new(checkpoint, Overlay::new(&checkpoint, false, false), config.readiness);
        Self { load: Seen::default(), spool: Arc::default(), ingest: ingest.with_providers(names) }
    }

    /// Describes how much of the archive is read since `begun`, at which rate, and the time that is left.
    pub(crate) fn read(&self, begun: Instant) -> String {
        let (Numbers { read_bytes, archive_bytes, .. }, size) = (self.load.now(), ByteSize::b);
        match archive_bytes {
            Some(all) => format!("{} of {}{}", size(read_bytes), size(all), pace(read_bytes, all, begun)),
            None => size(read_bytes).to_string(),
        }
    }

    /// Describes the slots that are kept on disk.
    pub(crate) fn kept(&self) -> String {
        // ORDERING: Relaxed: statistics.
        let (slots, last) = (self.spool.slots.load(Ordering::Relaxed), self.spool.last_slot.load(Ordering::Relaxed));
        format!("spool: slots={slots} last_slot={last} bytes={}", self.spool.flushed_bytes())
    }
}

/// Describes the rate of the reading and the time that is left of it; empty before there is a rate, and at the end.
fn pace(read_bytes: u64, all_bytes: u64, begun: Instant) -> String {
    let a_second = (read_bytes as f64 / begun.elapsed().as_secs_f64()) as u64;
    if a_second == 0 || read_bytes >= all_bytes {
        return String::new();
    }
    let left = Duration::from_secs((all_bytes - read_bytes).div_ceil(a_second));
    format!(", {}/s, {left:?} left", ByteSize::b(a_second))
}

/// The pages of HTTP during the load.
struct Pages {
    state: State,
    sampler: Sampler,
    close: oneshot::Sender<()>,
    served: JoinHandle<()>,
}

impl Pages {
    /// Opens the pages on this socket.
    fn open(config: &Config, shown: &Shown, listener: TcpListener) -> Result<Self> {
        let state = shown.ingest.clone();
        state.progress.set_phase(Phase::Loading("beginning".to_owned()));
        let label = config.engine.options().label();
        let handles = Handles::new(label, &state).with(&shown.load, &shown.spool);
        let (pages, sampler) = HttpState::start(config, Latency::new(label), handles)?;
        let (close, closed) = oneshot::channel();
        let served = tokio::spawn(http::serve(listener, pages, async move { closed.await.unwrap_or_default() }));
        Ok(Self { state, sampler, close, served })
    }

    fn show(&self, progress: &str) {
        self.state.progress.set_phase(Phase::Loading(progress.to_owned()));
        systemd::loading(&format!("not ready: loading: {progress}"));
    }

    async fn close(self) {
        self.close.send(()).ok();
        self.served.await.ok();
        // A thread that hangs is the later phase's to report.
        let _stuck = self.sampler.join(Instant::now() + JOIN_LIMIT);
    }
}
