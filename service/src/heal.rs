//! Brings the store to the slot of a snapshot archive by the differences alone, because slots are missing that no
//! server has, or because its providers contradict the store's block.
//!
//! Owns: when a store has to be healed, the choice of an archive, and the order of spool, comparison, differences and
//! replay. Must not: write to the engine; ingest-apply does. Threads: a task of the runtime waits; `heal` sorts the
//! archive and compares it with the store, together with bootstrap's threads; the spool has its own.
//!
//! The stream comes first, as in a load: its slots are kept from the newest one on, so that an archive of that slot or
//! a later one joins them without a hole. Nobody writes to the store while it is compared. All of an archive is read
//! before the first difference is known, and all differences are known before the first is applied, so that an archive
//! that cannot be used changes nothing.
//!
//! # Steps
//!
//! 1. A gap has lasted longer than a takeover takes, or a contradiction has lasted (`need`). The usual receiver ends,
//!    and a spool begins with the stream's next whole slot.
//! 2. The sources are searched: directories first, then servers side by side. Only an archive whose slot is in the
//!    spool is taken, because only the stream's slots show that it is of this chain. Of several, the one of which less
//!    is read.
//! 3. `heal` sorts the archive and merges it with a scan of the store. An incremental archive whose base is
//!    older than the store's newest slot needs no scan: only its accounts have changed (`newest`).
//! 4. ingest-apply applies the file of differences in ordinary commits. All checkpoints but the last have the phase
//!    healing and the slot before the gap. The last one is at the archive's slot, and only with it the feed's slot
//!    ends.
//! 5. The spool is replayed as after a load, and the usual receiver begins.
//!
//! A snapshot between two of these commits would show a part of the differences. So lookups keep the snapshot from
//! before, and new snapshots, dumps and copies are refused. A start that finds the phase healing heals again, first
//! with the archive of the same slot, so that the feed's slot gets its end. Without `--heal-from` it refuses the store.

mod archive_choice;
mod archives;
mod comparison;
mod needed_space;
mod newest_changes;
mod reason;
mod search;
mod unjoinable;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result};
use bootstrap::Stop;
use bootstrap::audit::OtherChain;
use engine_latency::Measured;
use solana::ChainCheckpoint;
use solana::archive::is_url;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::block_in_place;
use tokio::time::{sleep, timeout};
use tracing::{error, info, warn};

use crate::base::chain::{Base, Phase};
use crate::base::figure::count;
use crate::config::Config;
use crate::creation::{self, Shown};
use crate::feed::FEED_DIR;
use crate::ingest::State;
use crate::ingest::healing::{Differences, Heal};
use crate::ingest::receive::{Message, ReceiveConfig};
use crate::ingest::spooling::{Replay, Spooling};
use crate::spool;
use archive_choice::{RefusedArchives, Wanted};
use archives::{Archives, Found, Search, Sources};
use comparison::{Comparison, both_named, joined, progress};
use needed_space::NeededSpace;
pub(crate) use newest_changes::NewestChanges;
#[cfg(test)]
pub(crate) use reason::PATIENCE;
pub(crate) use reason::needed;
use search::Failing;
use unjoinable::{SpoolWatch, far_before};

/// Name of the directory within the store's in which archives are sorted.
const HEAL_DIR: &str = "heal";

/// How often the phase and the progress are looked at.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// How often the sources are asked for new archives.
const SEARCH_EVERY: Duration = Duration::from_secs(2);

/// How long a stop waits for the comparison to end.
const STOP_GRACE: Duration = Duration::from_secs(3);

/// Error of a heal that ends because the service stops.
#[derive(Debug)]
pub(crate) struct Stopped;

/// Heals the store of a service.
pub(crate) struct Healer {
    config: Config,
    engine: Arc<Measured>,
    shown: Shown,
    refusals: RefusedArchives,
    /// Sources of archives; `None` while the blocking pool searches them.
    sources: Option<Sources>,
    failing: Failing,
    /// The newest slot of a store at this checkpoint, or the reason why its changes are not known.
    newest: Option<(ChainCheckpoint, Result<Arc<NewestChanges>, String>)>,
    /// Index of the provider to begin with.
    provider: usize,
}

/// Outcome of one search for an archive, and of the comparison with it.
enum Step {
    /// No archive can be used now.
    Waits,
    Compared(Box<Compared>),
    /// No archive will ever join the kept slots, for this reason: the newest slots of the provider with this index are kept
    /// instead.
    Drops(&'static str, usize),
}

/// Differences that were found, the state of the store before them, and its state after them.
struct Compared {
    from: ChainCheckpoint,
    to: Base,
    differences: Differences,
    room: NeededSpace,
}

impl Healer {
    /// Creates the healer of the store that `engine` has open. `None` if the configuration names no archives.
    pub(crate) fn new(config: &Config, engine: &Arc<Measured>, shown: &Shown) -> Option<Self> {
        let (config, engine, shown) = (config.clone(), Arc::clone(engine), shown.clone());
        let (refusals, failing) = Default::default();
        config.store.heals().then(|| Self {
            config,
            engine,
            shown,
            refusals,
            sources: None,
            failing,
            newest: None,
            provider: 0,
        })
    }

    /// Heals the store: waits for an archive that joins the spool, applies the differences, and returns the slots to
    /// apply next. Goes on with `spooling`, or begins a spool. `None` if the stream has to be asked for the next slots.
    ///
    /// # Errors
    /// The service stops.
    pub(crate) async fn heal(
        &mut self,
        mut spooling: Option<Spooling>,
        stream: &ReceiveConfig,
        messages: &mpsc::Sender<Message>,
        state: &State,
        mut stopped: watch::Receiver<bool>,
    ) -> Result<Option<Replay>, Stopped> {
        let show = |text: String| state.progress.set_phase(Phase::Healing(text));
        let mut watch = SpoolWatch::begin();
        let contradiction = state.progress.contradiction();
        info!(
            slot = state.published.slot(),
            contradiction = contradiction.as_ref().map(|of| of.gap.detail.as_str()),
            "healing begins: the store goes to the slot of a snapshot archive"
        );
        loop {
            let begun = spooling.take().map_or_else(|| self.begin_spool(stream), Ok);
            match begun {
                Ok(spool) => match self.step(&spool, &mut watch, state, &show, &mut stopped).await? {
                    Step::Compared(heal) => {
                        if self.apply(heal, messages, state, &show).await? {
                            self.provider = followed(&spool);
                            return Ok(self.replay(spool, state).await);
                        }
                        spooling = Some(spool);
                    }
                    Step::Drops(why, provider) => {
                        self.provider = provider;
                        let provider = state.providers.name(provider);
                        warn!(provider, "{why}: they are dropped, and the provider's newest slots are kept");
                        watch = SpoolWatch::begin();
                        spool.discard().await;
                    }
                    Step::Waits => spooling = Some(spool),
                },
                Err(failed) => {
                    error!(error = format!("{failed:#}"), "the stream cannot be kept on disk");
                    show(format!("the stream cannot be kept on disk: {failed:#}"));
                }
            }
            pause(SEARCH_EVERY, &mut stopped).await?;
        }
    }

    /// Index of the provider to begin with after a heal: the one whose slots were kept.
    pub(crate) fn provider(&self) -> usize {
        self.provider
    }

    /// Keeps the stream from its next slot on. Removes an earlier spool, because the store could not be brought to its
    /// slots.
    fn begin_spool(&self, stream: &ReceiveConfig) -> Result<Spooling> {
        let dir = spool::dir_of(&self.config.store.dir);
        if spool::look(&dir)?.is_some() {
            spool::remove(&dir)?;
        }
        let stream = ReceiveConfig { first: self.provider, ..stream.clone() };
        creation::follow(&self.config, None, stream, &self.shown)
    }

    /// Looks for an archive, and compares it with the store.
    async fn step(
        &mut self,
        spooling: &Spooling,
        watch: &mut SpoolWatch,
        state: &State,
        show: &impl Fn(String),
        stopped: &mut watch::Receiver<bool>,
    ) -> Result<Step, Stopped> {
        if let Some(why) = watch.has_ended(spooling.state().progress.gap().is_some(), &self.shown.spool) {
            return Ok(Step::Drops(why, self.provider));
        }
        let spool = Arc::clone(&self.shown.spool);
        let show = &|text: String| {
            let kept = spool.stopped().map(|why| format!("; the stream is no longer kept: {why}"));
            let trouble = state.providers.trouble().map(|why| format!("; stream: {why}"));
            let contradiction = state.progress.contradiction();
            let contradiction =
                contradiction.map(|of| format!("; the store's chain is contradicted: {}", of.gap.detail));
            show([text].into_iter().chain([kept, trouble, contradiction].into_iter().flatten()).collect());
        };
        let first = match spooling.base() {
            Ok(Some(base)) => base.slot,
            none => {
                let waits = |_| "waiting for the next slot of the stream".to_owned();
                show(none.map_or_else(|failed| format!("{failed:#}"), waits));
                return Ok(Step::Waits);
            }
        };
        let is_contradicted = state.progress.contradiction().is_some();
        let base_max = match is_contradicted {
            true => Err("a provider has contradicted the store's chain".to_owned()),
            false => self.newest(state).map(|newest| newest.base_max),
        };
        let wanted = self.refusals.wanted(first, &state.published.checkpoint(), base_max);
        let search = self.search(&wanted, show, stopped).await?;
        self.failing.note(&search, state.published.slot().unwrap_or(0), &state.healing);
        let (found, to) = match self.choose(&wanted, &search, spooling, state) {
            Ok(chosen) => chosen,
            Err(Some(slot)) if spool.stopped().is_some() => {
                info!(slot, "the newest archive is newer than the kept slots, which have ended");
                return Ok(Step::Drops("the kept slots end before every archive", self.provider));
            }
            Err(Some(slot)) => {
                let needed_slot = wanted.slot;
                show(format!("waiting for the stream to reach the archive's slot={slot} needed_slot={needed_slot}"));
                return Ok(Step::Waits);
            }
            Err(None) => {
                show(self.refusals.lack(&wanted, &search));
                let store_slot = state.published.slot().unwrap_or(0);
                let others = (0..).take(self.config.stream.geyser.len()).filter(|at| *at != followed(spooling));
                let newest_slots = others.filter_map(|at| Some((at, state.providers.newest_slot(at)?)));
                let why = "the kept slots are far ahead of another provider's newest one, and no archive reaches them";
                let other = far_before(first, store_slot, newest_slots);
                return Ok(other.map_or(Step::Waits, |other| Step::Drops(why, other)));
            }
        };
        self.compared((found, to), is_contradicted, spooling, state, show, stopped).await
    }

    /// Compares the store with an archive whose slot is among the kept ones. `is_contradicted`: whether the store was
    /// contradicted when the archive was chosen.
    async fn compared(
        &mut self,
        (found, to): (Found, Base),
        is_contradicted: bool,
        spooling: &Spooling,
        state: &State,
        show: &impl Fn(String),
        stopped: &mut watch::Receiver<bool>,
    ) -> Result<Step, Stopped> {
        let from = **state.published.checkpoint();
        let compared = match self.taken_back(&found, state) {
            Ok(newest) => self.compare(&found, to, newest, show, stopped).await?,
            Err(why) => Err(anyhow::Error::msg(why)),
        };
        let compared = compared.and_then(|(differences, blockhash)| {
            if is_contradicted {
                both_named(to, blockhash)?;
            }
            Ok((joined(to, blockhash)?, NeededSpace::check(&self.config, &differences)?, differences))
        });
        Ok(match compared {
            // An incremental archive alone is not enough for a store that is contradicted meanwhile.
            Ok(_) if !is_contradicted && state.progress.contradiction().is_some() => Step::Waits,
            Ok((to, room, differences)) => Step::Compared(Box::new(Compared { from, to, differences, room })),
            Err(failed) => {
                let (failed, is_other_chain) = match failed.downcast::<OtherChain>() {
                    Ok(other_chain) => (other_chain.into(), true),
                    Err(failed) => (failed, false),
                };
                self.refuse(&found, &failed, state);
                let providers = self.config.stream.geyser.len();
                if providers < 2 || !is_other_chain {
                    return Ok(Step::Waits);
                }
                let why = "the archive and the kept slots are of two chains";
                Step::Drops(why, (followed(spooling) + 1) % providers)
            }
        })
    }

    /// Chooses the best archive whose slot is among the kept ones, and returns it with the stream's block of that slot.
    /// The error is the lowest slot of the archives that are ahead of the stream, if there are any.
    fn choose(
        &mut self,
        wanted: &Wanted,
        search: &Search,
        spooling: &Spooling,
        state: &State,
    ) -> Result<(Found, Base), Option<u64>> {
        let mut ahead = None;
        for found in wanted.candidates(search) {
            match block_in_place(|| spooling.find(found.slot)) {
                Ok(Some(base)) => return Ok((found, base)),
                Ok(None) => ahead = Some(found.slot),
                Err(failed) => self.refuse(&found, &failed, state),
            }
        }
        Err(ahead)
    }

    /// Notes that an archive cannot be used.
    fn refuse(&mut self, found: &Found, failed: &anyhow::Error, state: &State) {
        let why = self.refusals.add(found, failed);
        count(&state.healing.failed, 1);
        error!(
            slot = found.slot,
            error = format!("{failed:#}"),
            "the archive cannot be used: nothing was changed, and a newer one is waited for"
        );
        state.progress.set_phase(Phase::Healing(why));
    }

    /// Returns the changes of the store that these archives take back; `None` if they have every account.
    fn taken_back(&mut self, found: &Found, state: &State) -> Result<Option<Arc<NewestChanges>>, String> {
        match found.archives {
            Archives::Full(_) | Archives::Both { .. } => Ok(None),
            Archives::Incremental { .. } => self.newest(state).map(Some),
        }
    }

    /// Returns the changes of the store's newest slot, or the reason why they are not known. Reads the feed's log once, as
    /// long as the store does not change.
    fn newest(&mut self, state: &State) -> Result<Arc<NewestChanges>, String> {
        let store = **state.published.checkpoint();
        if let Some((_, newest)) = self.newest.as_ref().filter(|(of, _)| *of == store) {
            return newest.clone();
        }
        let dir = &self.config.store.dir;
        let newest = block_in_place(|| {
            // If the marker cannot be read, only the log counts.
            let loaded_slot = engines::inspect(dir).ok().flatten().and_then(|known| known.loaded_slot());
            NewestChanges::read(&dir.join(FEED_DIR), &store, loaded_slot)
        });
        let newest = newest.map(Arc::new).map_err(|failed| format!("{failed:#}"));
        if let Err(why) = &newest {
            info!(
                reason = why,
                "no incremental archive alone can heal the store, because the changes of its newest slot are not known"
            );
        }
        self.newest.insert((store, newest)).1.clone()
    }

    /// Compares the store with the archive on the thread `heal`.
    async fn compare(
        &self,
        found: &Found,
        to: Base,
        newest: Option<Arc<NewestChanges>>,
        show: &impl Fn(String),
        stopped: &mut watch::Receiver<bool>,
    ) -> Result<Result<(Differences, [u8; 32])>, Stopped> {
        info!(slot = found.slot, archive = shown(found.newest()), "the store is compared with a snapshot archive");
        let (stop, begun) = (Stop::without_handlers(), std::time::Instant::now());
        let work = Comparison {
            engine: Arc::clone(&self.engine),
            config: self.config.clone(),
            found: found.clone(),
            to,
            newest,
            seen: self.shown.load.clone(),
            stop: stop.clone(),
        };
        let (ended, mut has_ended) = oneshot::channel();
        let started = thread::Builder::new().name("heal".to_owned()).spawn(move || ended.send(work.run()).ok());
        if let Err(error) = started {
            return Ok(Err(anyhow::Error::from(error).context("cannot start the thread of a heal")));
        }
        loop {
            tokio::select! {
                compared = &mut has_ended => {
                    return Ok(compared.context("the comparison has panicked: this is a bug").flatten());
                }
                () = until(stopped) => {
                    stop.ask();
                    // A comparison that is waiting for bytes of the archive cannot stop in time: it ends with the
                    // process.
                    timeout(STOP_GRACE, has_ended).await.ok();
                    return Err(Stopped);
                }
                () = sleep(LOOK_EVERY) => show(progress(found.slot, &self.shown, begun)),
            }
        }
    }

    /// Has ingest-apply apply the differences. Returns false if the store has gone on since it was compared.
    async fn apply(
        &self,
        compared: Box<Compared>,
        messages: &mpsc::Sender<Message>,
        state: &State,
        show: &impl Fn(String),
    ) -> Result<bool, Stopped> {
        let Compared { from, to, differences, room } = *compared;
        let (left, words) = (differences.left(), room.words());
        info!(slot = to.slot, differences = left, "the differences are applied{words}");
        // ORDERING: Relaxed: statistics.
        state.healing.differences.store(left, Ordering::Relaxed);
        state.healing.applied.store(0, Ordering::Relaxed);
        show(format!("applying differences={left} to reach slot={}{words}", to.slot));
        let (done, mut is_done) = oneshot::channel();
        let heal = Message::Heal(Box::new(Heal { differences, from, to, fits_feed: room.fits_feed, done }));
        messages.send(heal).await.map_err(|_| Stopped)?;
        loop {
            tokio::select! {
                applied = &mut is_done => match applied {
                    Ok(()) => break,
                    Err(_) if messages.is_closed() => return Err(Stopped),
                    Err(_) => return Ok(false),
                },
                () = sleep(LOOK_EVERY) => {
                    let applied = state.healing.applied.load(Ordering::Relaxed);
                    show(format!("applied={applied} of differences={left} to reach slot={}{words}", to.slot));
                }
            }
        }
        // No other message is under way that could have published a later phase.
        state.progress.set_phase(Phase::CatchingUp);
        count(&state.healing.healed, 1);
        info!(slot = to.slot, differences = left, "the store is healed: the slots after the archive's are next");
        remove(&heal_dir(&self.config.store.dir));
        Ok(true)
    }

    /// Returns the kept slots after the healed store's.
    async fn replay(&self, spooling: Spooling, state: &State) -> Option<Replay> {
        let checkpoint = **state.published.checkpoint();
        match Replay::of(spooling, &checkpoint).await {
            Ok(replay) => replay,
            Err(failed) => {
                error!(error = format!("{failed:#}"), "the kept slots cannot be applied; the stream is asked for them");
                None
            }
        }
    }
}

/// Describes the directories of the configuration that cannot be listed. A service waits for them.
pub(crate) fn unlisted(config: &Config) -> Vec<String> {
    let local = config.store.heal_from.iter().filter(|source| !is_url(source));
    local
        .filter_map(|source| archives::in_directory(Path::new(source)).err())
        .map(|error| format!("{error:#}"))
        .collect()
}

/// Index of the provider whose slots the spool keeps.
fn followed(spooling: &Spooling) -> usize {
    *spooling.state().providers.followed().borrow()
}

/// Returns a location without the secrets of a URL.
fn shown(location: &str) -> &str {
    let plain = location.split(['?', '#']).next().unwrap_or_default();
    plain.rsplit('/').next().unwrap_or_default()
}

fn heal_dir(store: &Path) -> PathBuf {
    store.join(HEAL_DIR)
}

fn remove(dir: &Path) {
    if let Err(error) = fs::remove_dir_all(dir) {
        warn!(%error, dir = %dir.display(), "cannot remove the directory of a heal");
    }
}

async fn pause(time: Duration, stopped: &mut watch::Receiver<bool>) -> Result<(), Stopped> {
    tokio::select! {
        () = sleep(time) => Ok(()),
        () = until(stopped) => Err(Stopped),
    }
}

async fn until(stopped: &mut watch::Receiver<bool>) {
    // An error means that the sender is gone, which means stop as well.
    let _ = stopped.wait_for(|stopped| *stopped).await;
}
