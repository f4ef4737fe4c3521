//! The state that receiver and ingest-apply share with each other and with those that read it.
//!
//! Owns: the ingest's figures, and the slot and the connections that ingest-apply shows the receiver. Must not: block;
//! every write and read is wait-free. Figures are statistics, so their accesses are relaxed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::{ArcSwap, ArcSwapOption};
use engine_api::Stats;
use solana::ChainCheckpoint;

use super::assemble::{Assembler, DEFAULT_SLOTS_MAX};
use super::healing;
use super::progress::{Age, CHAIN_BEGAN_UNIX_MS, Progress};
use super::providers::Providers;
use super::settings::ReadinessSettings;
use crate::base::figure::count;
use crate::base::plausible;
use crate::base::published::Published;
use crate::overlay::Overlay;

/// State that the ingest writes. Clones share it.
#[derive(Clone, Debug)]
pub struct State {
    /// The newest commit, written by ingest-apply.
    pub published: Arc<Published>,
    /// The data with which lookups read at other commitments than the store's. Writers: ingest-apply; the receiver for
    /// the finalized slots that the stream names.
    pub overlay: Arc<Overlay>,
    /// How far the ingest has come, from which readiness is computed.
    pub progress: Arc<Progress>,
    pub figures: Arc<IngestFigures>,
    /// Figures of healing from snapshot archives. Writers: the task that heals, and ingest-apply.
    pub healing: Arc<healing::HealFigures>,
    /// The providers of the stream. Writers: the receiver, and ingest-apply for distrust.
    pub providers: Arc<Providers>,
    pub(super) resume: Arc<Resume>,
    pub(crate) limits: ReadinessSettings,
    /// Whether archives heal the store; `None` where another ingest has the store.
    heals: Option<bool>,
}

impl State {
    /// Returns the state at start: no known slot, not ready, and one provider without a name. The overlay decides the
    /// commitments that the service follows.
    pub fn new(checkpoint: ChainCheckpoint, overlay: Overlay, limits: ReadinessSettings) -> Self {
        Self {
            published: Arc::new(Published::new(checkpoint)),
            overlay: Arc::new(overlay),
            progress: Arc::default(),
            figures: Arc::default(),
            healing: Arc::default(),
            providers: Arc::new(Providers::new([])),
            resume: Arc::new(Resume::new(checkpoint.slot)),
            limits,
            heals: None,
        }
    }

    /// Sets the names of the providers, in the order of preference.
    pub fn with_providers(self, names: impl IntoIterator<Item = String>) -> Self {
        Self { providers: Arc::new(Providers::new(names)), ..self }
    }

    /// Sets whether a gap that no server closes is healed from archives.
    pub fn with_heals(self, heals: bool) -> Self {
        Self { heals: Some(heals), ..self }
    }

    /// Returns the state of another taker of the same stream at `checkpoint`, such as a spool before its replay. Figures and
    /// providers are shared: one receiver follows the stream at a time.
    pub fn at_checkpoint(&self, checkpoint: ChainCheckpoint, overlay: Overlay) -> Self {
        let (figures, healing, providers) =
            (Arc::clone(&self.figures), Arc::clone(&self.healing), Arc::clone(&self.providers));
        Self { figures, healing, providers, ..Self::new(checkpoint, overlay, self.limits) }
    }

    /// The newest known slot: that of a followed provider's newest connection, or a later one that any trusted provider has
    /// and the store has not. `None` if there is neither.
    ///
    /// A slot of a connection counts once its parent was announced by number and blockhash. One that the age of the store
    /// does not allow counts only for a followed provider.
    pub fn newest_slot(&self) -> Option<u64> {
        let applied = self.published.slot();
        let within = applied.map_or(0, |applied| applied.saturating_add(self.reach()));
        let of_any = self.providers.newest_within(within).filter(|newest| Some(*newest) > applied);
        self.providers.newest_followed().max(of_any)
    }

    /// Returns the largest number of slots that can have passed since the newest applied one, by its age.
    pub(crate) fn reach(&self) -> u64 {
        plausible::reach(self.progress.applied_age())
    }

    /// Returns the age at `now_unix_ms` of a slot whose block meta was created at `created_unix_ms`, by another
    /// machine's clock. The age is absurd if the creation is before the chain's first slot, or so far in the future
    /// that it would hide a lag over the limit.
    pub(crate) fn age(&self, created_unix_ms: u64, now_unix_ms: u64) -> Age {
        let limit_ms = self.limits.max_lag.as_millis();
        match now_unix_ms.checked_sub(created_unix_ms) {
            _ if created_unix_ms < CHAIN_BEGAN_UNIX_MS => Age::Absurd(created_unix_ms),
            None if u128::from(created_unix_ms - now_unix_ms) >= limit_ms => Age::Absurd(created_unix_ms),
            age_ms => Age::Known(Duration::from_millis(age_ms.unwrap_or(0))),
        }
    }

    /// The remedy of a gap that no server closes, or of a contradiction that no provider decides, in words; empty where there
    /// is none to name.
    pub(crate) fn remedy(&self, contradicts: bool) -> &'static str {
        match (self.heals, contradicts) {
            (None, _) => "",
            (Some(true), false) => {
                "if no server sends the missing slots, the service heals the store from the archives of heal_from"
            }
            (Some(false), false) => "if no server sends the missing slots, set heal_from or load a newer snapshot",
            (Some(true), true) => {
                "if no provider decides it, the service heals the store from a full archive of heal_from"
            }
            (Some(false), true) => {
                "if no provider decides it, set heal_from, or find out which block is right and load a snapshot of its chain"
            }
        }
    }

    /// Counts a subscription as open until the result is dropped.
    pub(super) fn open(&self) -> Open<'_> {
        count(&self.figures.subscriptions, 1);
        // ORDERING: Relaxed: see `Open`.
        self.resume.is_open.store(true, Ordering::Relaxed);
        Open(self)
    }

    /// Whether the ingest is subscribed to the provider with this index and gets slots from it.
    pub(crate) fn is_served_by(&self, index: usize) -> bool {
        self.figures.is_connected() && !self.providers.is_failing(index)
    }

    /// Returns a provider by which the ingest is served: the one with the index `first`, or else the one of the other lane.
    pub(crate) fn served_by(&self, first: usize) -> Option<usize> {
        let of_lanes = self.providers.indexes().filter(|index| self.providers.is_followed(*index));
        std::iter::once(first).chain(of_lanes).find(|index| self.is_served_by(*index))
    }

    /// Shows the receiver how far its newest connection has come: the `connection`-th one, to the provider with this
    /// index. Writer: the thread of the assembler.
    pub(super) fn show_handed_out(&self, provider: Option<usize>, connection: u64, assembler: &Assembler) {
        // ORDERING: Relaxed: see `Resume::slots_of`.
        self.resume.handed_out.store(packed(connection, assembler.handed_out()), Ordering::Relaxed);
        let newest = assembler.newest().unwrap_or(0);
        let last = assembler.last().map_or(newest, |last| last.slot);
        let joins = newest <= last.saturating_add(DEFAULT_SLOTS_MAX as u64);
        provider.into_iter().for_each(|index| self.providers.set_newest_sent(index, newest, joins));
    }

    /// Returns the state of one of several subscriptions that are kept at once. Its place to resume is its own, all else is
    /// shared.
    pub(super) fn of_lane(&self) -> Self {
        Self { resume: Arc::new(Resume::of_lane(&self.resume)), ..self.clone() }
    }
}

#[cfg(test)]
impl State {
    /// Returns the state at the start of a service that does not follow processed slots.
    pub(crate) fn at(checkpoint: ChainCheckpoint) -> Self {
        Self::new(checkpoint, Overlay::new(&checkpoint, false, false), ReadinessSettings::default())
    }
}

/// Figures of the ingest since the start. Counters only grow.
#[derive(Debug, Default)]
pub struct IngestFigures {
    /// Engine statistics, refreshed about once a second. Writer: ingest-apply, as of all the following until
    /// `connected`.
    pub stats: ArcSwap<Stats>,
    /// Time since which ingest-apply has worked on its current message, in ms since the Unix epoch; 0 while it waits
    /// for one.
    pub busy_since_unix_ms: AtomicU64,
    pub events_applied: AtomicU64,
    pub events_written: AtomicU64,
    pub events_deleted: AtomicU64,
    pub slots_applied: AtomicU64,
    pub slots_dead: AtomicU64,
    pub slots_duplicate: AtomicU64,
    pub updates_duplicate: AtomicU64,
    pub commits: AtomicU64,
    pub commits_without_space: AtomicU64,
    /// Number of subscriptions to the stream that are open at this moment. Writer: the receivers, as of all the
    /// following.
    pub subscriptions: AtomicU64,
    /// Time at which the newest updates of the stream were passed on, in ms since the Unix epoch; 0 before the first.
    pub last_update_unix_ms: AtomicU64,
    /// Number of batches in the queue between the receiver and ingest-apply.
    pub queue_batches: AtomicU64,
    pub connects: AtomicU64,
    pub updates_received: AtomicU64,
    pub updates_malformed: AtomicU64,
}

impl IngestFigures {
    /// Whether the stream is connected at this moment.
    pub fn is_connected(&self) -> bool {
        // ORDERING: Relaxed: a statistic.
        self.subscriptions.load(Ordering::Relaxed) > 0
    }
}

/// Mark of an open subscription.
pub(super) struct Open<'a>(&'a State);

impl Drop for Open<'_> {
    fn drop(&mut self) {
        // ORDERING: Relaxed: a statistic; and the receivers and their merging belong to one task.
        self.0.figures.subscriptions.fetch_sub(1, Ordering::Relaxed);
        self.0.resume.is_open.store(false, Ordering::Relaxed);
    }
}

/// The value of an atomic slot that holds none; no chain ever reaches it.
const NO_SLOT: u64 = u64::MAX;

/// The place at which a new connection begins, and the connections that are given up. ingest-apply shows both to the
/// receiver.
#[derive(Debug)]
pub(super) struct Resume {
    /// The slot of [`Resume::slot`]; [`NO_SLOT`] before the first.
    slot: AtomicU64,
    /// Number of connections to the stream that ingest-apply has given up, counted from the first.
    given_up: AtomicU64,
    /// Number of connections that were announced to ingest-apply. Writer: the task that sends it messages.
    announced: AtomicU64,
    /// Whether the receiver has a subscription. Writer: the receiver.
    is_open: AtomicBool,
    /// Number of a connection, and of its slots that were handed out, as [`packed`].
    handed_out: AtomicU64,
    /// Number of ticks that were sent to the assembler's thread, and of those that it has taken in.
    ticks_sent: AtomicU64,
    ticks_taken: AtomicU64,
    /// The first slot that was not whole at the newest tick, with its missing part.
    incomplete: ArcSwapOption<(u64, &'static str)>,
    /// The progress of ingest-apply, which all lanes read, if this belongs to one of them.
    ingest: Option<Arc<Resume>>,
}

/// Number of bits for the slots of a connection.
const HANDED_OUT_BITS: u32 = 32;

/// Returns the number of a connection and a number of slots as one number, so that both are read at once.
fn packed(connection: u64, slots: u64) -> u64 {
    connection << HANDED_OUT_BITS | slots.min((1 << HANDED_OUT_BITS) - 1)
}

impl Resume {
    fn new(slot: Option<u64>) -> Self {
        Self {
            slot: AtomicU64::new(slot.unwrap_or(NO_SLOT)),
            given_up: AtomicU64::new(0),
            announced: AtomicU64::new(0),
            is_open: AtomicBool::new(false),
            handed_out: AtomicU64::new(0),
            ticks_sent: AtomicU64::new(0),
            ticks_taken: AtomicU64::new(0),
            incomplete: ArcSwapOption::empty(),
            ingest: None,
        }
    }

    /// Returns the progress of a lane of the ingest, whose own progress is `ingest`.
    fn of_lane(ingest: &Arc<Self>) -> Self {
        Self { ingest: Some(Arc::clone(ingest)), ..Self::new(ingest.slot()) }
    }

    /// Returns the newest slot that ingest-apply has taken over from the assembler, committed or not: a new connection
    /// replays the stream from it. After a restart it is the checkpoint's slot. `None` means to begin with new slots. A
    /// lane that lags begins there too, because a server may no longer have the lane's own slot.
    pub(super) fn slot(&self) -> Option<u64> {
        // ORDERING: Relaxed: an older slot only makes the replay longer.
        let own = Some(self.slot.load(Ordering::Relaxed)).filter(|slot| *slot != NO_SLOT);
        own.max(self.ingest.as_ref().and_then(|ingest| ingest.slot()))
    }

    /// Sets the slot of [`Resume::slot`].
    pub(super) fn set_slot(&self, slot: u64) {
        // ORDERING: Relaxed: see the read.
        self.slot.store(slot, Ordering::Relaxed);
    }

    /// Counts a connection that is announced to ingest-apply, and returns its number, from 1. The replay of a spool
    /// counts as one.
    pub(super) fn announce(&self) -> u64 {
        // ORDERING: Relaxed: one task at a time announces.
        self.announced.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Number of connections that were announced.
    pub(super) fn announced(&self) -> u64 {
        // ORDERING: Relaxed: see `announce`.
        self.announced.load(Ordering::Relaxed)
    }

    /// Number of slots of the `connection`-th connection that were handed out, as far as the assembler's thread has come.
    pub(super) fn slots_of(&self, connection: u64) -> u64 {
        // ORDERING: Relaxed: a later value is seen at the next look.
        let handed_out = self.handed_out.load(Ordering::Relaxed);
        if handed_out >> HANDED_OUT_BITS == connection { handed_out & ((1 << HANDED_OUT_BITS) - 1) } else { 0 }
    }

    /// Counts a tick that was sent to the assembler's thread.
    pub(super) fn tick_sent(&self) {
        // ORDERING: Relaxed: only the receiver writes and reads it.
        self.ticks_sent.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a tick that the assembler's thread has taken in, and shows the slot that is incomplete then.
    pub(super) fn tick_taken(&self, assembler: &Assembler) {
        let incomplete = assembler.incomplete();
        if self.incomplete.load().as_deref() != incomplete.as_ref() {
            self.incomplete.store(incomplete.map(Arc::new));
        }
        // ORDERING: Release: who sees the tick sees what the messages before it have led to.
        self.ticks_taken.fetch_add(1, Ordering::Release);
    }

    /// Whether the assembler's thread has taken in all messages up to the newest tick.
    pub(super) fn is_taken_in(&self) -> bool {
        // ORDERING: Acquire: see `tick_taken`. Relaxed: see `tick_sent`.
        self.ticks_taken.load(Ordering::Acquire) >= self.ticks_sent.load(Ordering::Relaxed)
    }

    /// Returns the first slot that was not whole at the newest tick, with the name of its missing part.
    pub(super) fn incomplete(&self) -> Option<(u64, &'static str)> {
        self.incomplete.load().as_deref().copied()
    }

    /// Whether the receiver has a subscription.
    pub(super) fn is_open(&self) -> bool {
        // ORDERING: Relaxed: see `Open`.
        self.is_open.load(Ordering::Relaxed)
    }

    /// Gives up the `connection`-th connection that the receiver has announced, and all earlier ones, because it does
    /// not send the missing slots and a new one may.
    pub(super) fn give_up(&self, connection: u64) {
        // ORDERING: Release: who sees it sees the phase that says why.
        self.given_up.fetch_max(connection, Ordering::Release);
    }

    /// Whether the `connection`-th connection was given up.
    pub(super) fn is_given_up(&self, connection: u64) -> bool {
        // ORDERING: Acquire: see the write.
        connection <= self.given_up.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::chain::{Base, BlockMeta, Phase};
    use crate::ingest::assemble::{HeldLimits, Input};

    #[test]
    fn a_receiver_is_told_of_its_own_connection_and_of_all_that_it_has_sent() {
        let state = State::at(ChainCheckpoint { slot: Some(10), ..ChainCheckpoint::default() });
        let base = Base { slot: 10, blockhash: [10; 32] };
        let mut assembler = Assembler::new(Some(base), HeldLimits::default());
        let slot = 11;
        let of = Base { slot, blockhash: [11; 32] };
        let meta = Input::BlockMeta(BlockMeta { base: of, parent: base, created_unix_ms: 0 });
        assert!(state.resume.is_taken_in());
        state.resume.tick_sent();
        assert!(!state.resume.is_taken_in(), "the messages before the tick may have a slot");
        assembler.push(meta).unwrap();
        state.resume.tick_taken(&assembler);
        assert_eq!((state.resume.is_taken_in(), state.resume.incomplete()), (true, Some((11, "no confirmation"))));
        assembler.push(Input::Status { slot, confirmed: true, dead: false }).unwrap();
        assert!(assembler.next().is_some());
        state.show_handed_out(Some(0), 3, &assembler);
        assert_eq!([2, 3, 4].map(|connection| state.resume.slots_of(connection)), [0, 1, 0]);
        assert_eq!((state.newest_slot(), state.providers.newest_slot(0)), (Some(11), Some(11)));
    }

    #[test]
    fn a_spool_shows_its_receiver_and_keeps_its_own_place_on_the_chain() {
        let shown = State::at(ChainCheckpoint::default());
        let at = ChainCheckpoint { slot: Some(9), ..ChainCheckpoint::default() };
        let spool = shown.at_checkpoint(at, Overlay::new(&at, false, false));
        let open = spool.open();
        assert!(shown.figures.is_connected());
        drop(open);
        spool.providers.set_trouble(0, "cannot connect");
        spool.progress.set_phase(Phase::Live);
        assert_eq!(shown.providers.trouble().as_deref().map(String::as_str), Some("cannot connect"));
        assert_eq!((shown.figures.is_connected(), shown.progress.phase()), (false, Phase::Starting));
        assert_eq!((shown.resume.slot(), spool.resume.slot(), spool.published.slot()), (None, Some(9), Some(9)));
    }
}
