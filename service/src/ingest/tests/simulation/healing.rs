//! Gaps that no server can close, and archives of the chain that close them, with kills at any commit and any frame.
//!
//! Owns: which archives there are, the choice of one, and its comparison with the store. Must not: apply a difference, or
//! decide when a gap has to be healed. The reader of archives is not simulated: a full archive is the chain's map at its
//! slot, an incremental one the keys that were written after its base.

use std::collections::{BTreeMap, HashSet};
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use engine_api::{Engine as _, Key, Value};
use engine_latency::Measured;
use solana::{ChainCheckpoint, MapPhase};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, advance, sleep};
use workload::Rng;

use super::chain::{Block, Chain};
use super::fault::Nature;
use super::seeds::try_seeds;
use super::server::Server;
use super::sources::{Begin, Start};
use super::spooled::{Keeper, tear};
use super::{Simulation, Until, in_virtual_time};
use crate::base::chain::{Base, Phase};
use crate::heal::{NewestChanges, PATIENCE};
use crate::ingest::State;
use crate::ingest::healing::{DifferenceWriter, Differences, Heal};
use crate::ingest::receive::Message;
use crate::ingest::spooling::{Replay, Spooling};
use crate::spool::{self, SpoolFigures};

/// Number of chains that `make test` tries.
const SEEDS: u64 = 200;

/// Room for the largest slot in a spool. In a smaller one no archive ever joins a slot.
const SLOT_BYTES_MAX: u64 = 2500;

/// How often a new archive is looked for.
const SEARCH_EVERY: Duration = Duration::from_millis(500);

/// The directories of the heals of one simulated service over all of its lives.
pub(super) struct Heals {
    temp: tempfile::TempDir,
    spool_bytes_max: u64,
}

impl Heals {
    fn spool_dir(&self) -> PathBuf {
        self.temp.path().join("spool")
    }
}

/// Heals the store of one life.
pub(super) struct Healer {
    chain: Arc<Chain>,
    server: Server,
    engine: Arc<Measured>,
    keeper: Keeper,
    spool_dir: PathBuf,
    /// The file that each comparison writes again.
    differences: PathBuf,
    feed_dir: PathBuf,
    /// Whether incremental archives alone are taken where they are enough.
    takes_incremental: bool,
    figures: Arc<SpoolFigures>,
    written: Arc<()>,
    /// Whether the feed's log can keep the differences of this life's heals.
    fits_feed: bool,
    /// Slots of the archives of this life, in ascending order. The last one is the chain's.
    archives: Vec<u64>,
}

impl Simulation {
    /// Begins a life of a store at `checkpoint` that may heal. `None` if no archives are configured.
    pub(super) async fn heal_for(
        &mut self,
        checkpoint: &ChainCheckpoint,
        engine: &Arc<Measured>,
        state: &State,
    ) -> Option<Start> {
        let heals = self.heals.as_ref()?;
        let spool_dir = heals.spool_dir();
        let keeper = self.keeper(spool_dir.clone(), heals.spool_bytes_max);
        let (figures, written) = (Arc::<SpoolFigures>::default(), Arc::<()>::default());
        let found = spool::look(&spool_dir).expect("the spool's file can be read");
        let spooling =
            found.map(|found| (found.origin.base, keeper.keep(Some(found.origin.base), &figures, &written, state)));
        let begin = match spooling {
            Some((base, spooling)) if checkpoint.slot >= Some(base.slot) && checkpoint.phase == MapPhase::Ready => {
                Begin::Follow(Replay::of(spooling, checkpoint).await.expect("the store is on the spool's chain"))
            }
            Some((_, spooling)) => Begin::Heal(Some(spooling)),
            None if checkpoint.phase == MapPhase::Ready => Begin::Follow(None),
            None => Begin::Heal(None),
        };
        let share = [0.1, 0.5, 1.0][self.rng.below(3) as usize];
        let tip = self.chain.tip().slot;
        let slots = self.chain.blocks().map(|block| block.slot);
        let archives = slots.filter(|slot| *slot == tip || self.rng.chance(share)).collect();
        let healer = Healer {
            chain: Arc::clone(&self.chain),
            server: self.servers[0].clone(),
            engine: Arc::clone(engine),
            keeper,
            spool_dir,
            differences: heals.temp.path().join("differences"),
            feed_dir: self.store.feed_dir(),
            takes_incremental: self.rng.chance(0.5),
            figures: Arc::clone(&figures),
            written: Arc::clone(&written),
            // The service leaves nothing out while derived stores follow.
            fits_feed: self.rng.chance(0.7) || self.followers.is_some(),
            archives,
        };
        Some(Start { begin, healer: Some(healer), spool: figures, written })
    }

    /// Keeps the service away until no server has its next slots, nor those of its spool.
    async fn outage(&self, rng: &mut Rng) {
        advance(Duration::from_millis(2000 + rng.below(8000))).await;
        let kept = self.servers[0].newest_of_chain() - rng.below(4);
        self.servers.iter().for_each(|server| server.keep_from(kept));
    }

    /// Leaves the spool as a kill does that came after these bytes were flushed.
    pub(super) fn tear_spool(&mut self, flushed_bytes: u64) {
        let Some(heals) = self.heals.as_ref().filter(|heals| heals.spool_dir().join(spool::FILE).exists()) else {
            return;
        };
        tear(&heals.spool_dir(), flushed_bytes, &mut self.rng);
    }
}

impl Healer {
    /// Brings the store to the slot of an archive, and returns the slots to apply next. `None` if ingest-apply has
    /// ended.
    pub(super) async fn heal(
        &self,
        spooling: Option<Spooling>,
        messages: &mpsc::Sender<Message>,
        state: &State,
    ) -> Option<Option<Replay>> {
        let mut spooling = spooling.unwrap_or_else(|| self.begin_spool(state));
        let mut broken_since: Option<Instant> = None;
        loop {
            // A spool that lacks slots itself is started over.
            let is_broken = spooling.state().progress.gap().is_some();
            broken_since = is_broken.then(|| broken_since.unwrap_or_else(Instant::now));
            if broken_since.take_if(|since| since.elapsed() >= PATIENCE).is_some() {
                spooling.discard().await;
                spooling = self.begin_spool(state);
            }
            if self.is_spent(&spooling, state) {
                spooling.discard().await;
                spooling = self.begin_spool(state);
            }
            if let Some(to) = self.choose(&spooling, state) {
                let (done, is_done) = oneshot::channel();
                let from = **state.published.checkpoint();
                let (differences, fits_feed) = (self.compare(to.slot, state), self.fits_feed);
                let heal = Heal { differences, from, to, fits_feed, done };
                messages.send(Message::Heal(Box::new(heal))).await.ok()?;
                if is_done.await.is_ok() {
                    break;
                }
            }
            sleep(SEARCH_EVERY).await;
        }
        state.progress.set_phase(Phase::CatchingUp);
        let checkpoint = **state.published.checkpoint();
        Some(Replay::of(spooling, &checkpoint).await.expect("the archive is of a slot of the spool"))
    }

    /// Keeps the stream from its next slot on.
    fn begin_spool(&self, state: &State) -> Spooling {
        if spool::look(&self.spool_dir).expect("the spool's file can be read").is_some() {
            spool::remove(&self.spool_dir).expect("the spool can be removed");
        }
        self.keeper.keep(None, &self.figures, &self.written, state)
    }

    /// Chooses an archive that joins the spool and is not older than the store, and returns its block.
    fn choose(&self, spooling: &Spooling, state: &State) -> Option<Base> {
        let first = spooling.base().expect("the spool can be read")?.slot;
        let checkpoint = **state.published.checkpoint();
        let begun = match checkpoint.phase {
            MapPhase::Healing { to_slot, .. } => to_slot,
            MapPhase::Ready | MapPhase::Loading => 0,
        };
        let needed = first.max(begun).max(checkpoint.slot.expect("the store began at a slot"));
        let newest = self.server.newest_of_chain();
        let usable = || self.archives.iter().copied().filter(|slot| (needed..=newest).contains(slot));
        // The rest of an interrupted heal belongs to the same slot as its beginning, if the archive is still there.
        let slot = usable().find(|slot| *slot == begun).or_else(|| usable().max())?;
        let block = self.chain.blocks().find(|block| block.slot == slot).expect("an archive is of a block").base();
        let found = spooling.find(slot).expect("the spool is of the chain")?;
        let is_same = [block.blockhash, [0; 32]].contains(&found.blockhash);
        // The service refuses an archive of another block than the spool's, and waits for one of a later slot.
        let wrong = self.chain.wrong.as_ref().map(Block::base);
        assert!(is_same || wrong == Some(found), "{found:?} is not {block:?}");
        is_same.then_some(block)
    }

    /// Whether the spool has stopped without the slot of an archive, so that no later one joins it.
    fn is_spent(&self, spooling: &Spooling, state: &State) -> bool {
        self.figures.stopped().is_some() && self.choose(spooling, state).is_none()
    }

    /// Compares the store with the archive of `slot`.
    fn compare(&self, slot: u64, state: &State) -> Differences {
        let mut pairs: BTreeMap<Key, (Option<Value>, Option<Value>)> = BTreeMap::new();
        let mut add = |key: &Key, value: &Value| {
            pairs.entry(*key).or_default().0 = Some(*value);
            ControlFlow::Continue(())
        };
        self.engine.reader().expect("a reader").scan(&mut add).expect("a scan");
        for (key, value) in self.chain.map_at(slot) {
            pairs.entry(key).or_default().1 = Some(value);
        }
        if let Some((newest, written)) = self.incremental(slot, state) {
            // The archive says nothing about the other keys.
            let others = pairs.iter_mut().filter(|(key, _)| !written.contains(*key));
            others.for_each(|(_, (old, new))| *new = *old);
            for (key, before) in newest.undo.old_values().filter(|(key, _)| !written.contains(*key)) {
                pairs.entry(*key).or_default().1 = before.copied();
            }
        }
        let mut writer = DifferenceWriter::create(&self.differences).expect("a file can be made");
        for (key, (old, new)) in pairs.iter().filter(|(_, (old, new))| old != new) {
            writer.push(key, old.as_ref(), new.as_ref());
        }
        writer.finish().expect("a file can be written")
    }

    /// Returns the keys in the incremental archive of `slot` with the newest base that is old enough, and the changes that it
    /// takes back. `None` if only a full archive helps.
    fn incremental(&self, slot: u64, state: &State) -> Option<(NewestChanges, HashSet<Key>)> {
        if !self.takes_incremental || state.progress.contradiction().is_some() {
            return None;
        }
        let store = state.published.checkpoint();
        let newest = NewestChanges::read(&self.feed_dir, &store, Some(self.chain.base.slot)).ok()?;
        let base = self.chain.blocks().map(|block| block.slot).take_while(|base| *base <= newest.base_max).last()?;
        let after = self.chain.blocks().filter(|block| block.slot > base && block.slot <= slot);
        Some((newest, after.flat_map(|block| &block.writes).map(|write| write.key).collect()))
    }
}

/// Lets a service follow the stream, be away until no server has its next slot, heal, die and heal on, and reach the
/// tip.
fn heal_a_gap(seed: u64) {
    in_virtual_time(async {
        let mut rng = Rng::new(seed ^ 0x4EA1);
        let natures = match rng.below(3) {
            0 => vec![Nature::Alone],
            1 => vec![Nature::bad(&mut rng), Nature::Honest],
            _ => vec![Nature::bad(&mut rng), Nature::bad(&mut rng), Nature::Honest],
        };
        let mut chain_rng = Rng::new(seed);
        let chain = Chain::long(&mut chain_rng);
        let mut simulation = Simulation::over(chain, chain_rng, seed, &natures);
        if rng.chance(0.8) {
            // A heal takes several commits, so that it can end between two of them.
            simulation.apply.batch.due = 1 + rng.below(7) as usize;
        }
        simulation.life(Until::Stopped(Instant::now() + Duration::from_millis(rng.below(5000)))).await;
        let spool_bytes_max = if rng.chance(0.2) { SLOT_BYTES_MAX + rng.below(4000) } else { 1 << 30 };
        let temp = tempfile::tempdir().expect("a directory for the heals can be made");
        simulation.heals = Some(Heals { temp, spool_bytes_max });
        simulation.outage(&mut rng).await;
        for _ in 0..rng.below(6) {
            let later = Instant::now() + Duration::from_millis(4000 + rng.below(8000));
            let until = match rng.below(4) {
                0 => Until::Killed(rng.below(60)),
                1 => Until::KilledAt(later),
                _ => Until::Stopped(later),
            };
            simulation.life(until).await;
            advance(Duration::from_millis(rng.below(1000))).await;
            if rng.chance(0.3) {
                simulation.outage(&mut rng).await;
            }
        }
        simulation.servers.iter().for_each(Server::heal);
        let now = Instant::now();
        let (verdict, _) = simulation.life(Until::AtTip(now, now + Duration::from_secs(300))).await;
        let tip = simulation.chain.tip().slot;
        assert_eq!(simulation.oracle.slot(), tip, "{natures:?}: {verdict:?}");
        assert!(simulation.oracle.heals() > 0, "{natures:?}: nothing was healed");
        simulation.check_followers();
    });
}

/// Lets a service follow a server that sends a wrong block, die and heal, and reach the tip. A kill may come between that
/// block and the ones that contradict it.
fn heal_a_contradiction(seed: u64) {
    in_virtual_time(async {
        let mut rng = Rng::new(seed ^ 0xC0DE);
        let natures = match rng.below(3) {
            0 => vec![Nature::Errs, Nature::Honest],
            1 => vec![Nature::Honest, Nature::Errs],
            _ => vec![Nature::Errs],
        };
        let mut chain_rng = Rng::new(seed);
        let chain = Chain::long(&mut chain_rng);
        let mut simulation = Simulation::over(chain, chain_rng, seed, &natures);
        let temp = tempfile::tempdir().expect("a directory for the heals can be made");
        simulation.heals = Some(Heals { temp, spool_bytes_max: 1 << 30 });
        for _ in 0..rng.below(6) {
            let until = match rng.below(3) {
                0 => Until::Killed(rng.below(2000)),
                _ => Until::KilledAt(Instant::now() + Duration::from_millis(rng.below(20_000))),
            };
            simulation.life(until).await;
            if rng.chance(0.3) {
                simulation.outage(&mut rng).await;
            }
        }
        let now = Instant::now();
        // A server that is trusted and lacks the store's slots is waited for.
        let (verdict, _) = simulation.life(Until::AtTip(now, now + Duration::from_secs(1500))).await;
        let tip = simulation.chain.tip().slot;
        assert_eq!(simulation.oracle.slot(), tip, "{natures:?}: {verdict:?}");
        let must_heal = natures.len() == 1 && simulation.chain.wrong.is_some();
        assert!(!must_heal || simulation.oracle.heals() > 0, "{natures:?}: nobody else has the right block");
        simulation.check_followers();
    });
}

#[test]
fn a_gap_that_no_server_can_close_is_healed() {
    try_seeds(SEEDS, "simulation::healing::a_gap", heal_a_gap);
}

#[test]
fn a_contradiction_that_no_server_decides_is_healed() {
    try_seeds(SEEDS, "simulation::healing::a_contradiction", heal_a_contradiction);
}
