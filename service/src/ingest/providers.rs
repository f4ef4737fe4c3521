//! The stream's providers as everybody sees them: which one is followed, and the condition of each.
//!
//! Owns: their names, conditions and figures, and the rule that the last trusted provider stays trusted. Must not:
//! choose the one to follow, which `provider_choice` does. Writers: the task of the one receiver that runs, which may be a
//! spool's; the thread of its assembler; and ingest-apply for distrust. Readers: any thread. Figures are statistics, so their accesses are relaxed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use arc_swap::ArcSwapOption;
use tokio::sync::watch;

use crate::base::figure::count;
use crate::base::label::labels;
use crate::base::plausible::SLACK_SLOTS;
use crate::spool::source_of;

/// Maximum length of the kept text of an error, in bytes. A server may send an error of any length.
const ERROR_BYTES_MAX: usize = 300;

/// Maximum number of providers that are followed at once. A second one hides the failure of the first, and a third
/// would cost as much again for the rare failure of both.
pub const LANES_MAX: usize = 2;

/// Upper bound on the length of a server's message in a reason, in bytes, because probes and status lines show it.
pub(crate) const TROUBLE_BYTES_MAX: usize = 400;

/// The value of an atomic index that names no provider.
const NOBODY: usize = usize::MAX;

/// Number of slots that a provider's blocks may leave out for each block without coming nearer to the bound. A leader has
/// four slots in a row.
const REGAINED_SLOTS: u64 = 4;

/// All providers in the order of preference. Without names there is one, which has none.
#[derive(Debug)]
pub struct Providers {
    all: Vec<Provider>,
    /// One that is no longer configured, of which a spool may have slots.
    unknown: Provider,
    lanes: [Lane; LANES_MAX],
    /// Index of the provider of the first lane's newest subscription.
    followed: watch::Sender<usize>,
    /// Number of receivers that have begun. Slots of an earlier one may still be queued for another taker, and may
    /// contradict only that one's chain.
    stream: AtomicU64,
    /// Number of times that another provider took over the stream.
    takeovers: AtomicU64,
}

/// One of the subscriptions that are kept at once. All lanes belong to one task.
#[derive(Debug)]
struct Lane {
    /// Index of the provider that the lane turns to, or [`NOBODY`]. Another lane leaves this one alone.
    at: AtomicUsize,
    /// Index of the provider of the lane's newest subscription, or [`NOBODY`].
    followed: AtomicUsize,
    /// The reason why the lane's stream sends nothing at the moment.
    trouble: ArcSwapOption<String>,
}

#[derive(Debug, Default)]
struct Provider {
    name: String,
    distrusted: AtomicBool,
    failing: AtomicBool,
    /// The newest slot that the provider is known to have; 0 for none.
    newest_slot: AtomicU64,
    /// Whether its newest connection's slots are near enough to those that were handed out to be of the same chain.
    joins: AtomicBool,
    /// The newest slot that it has claimed in its last message or answer about one, plausible or not.
    claimed_slot: AtomicU64,
    /// Slots that its blocks have left out, less [`REGAINED_SLOTS`] for each block.
    skipped_slots: AtomicU64,
    /// The newest slot of a block that is counted there.
    reached_slot: AtomicU64,
    slots_first: AtomicU64,
    slots_differing: AtomicU64,
    errors: AtomicU64,
    last_error: ArcSwapOption<String>,
}

labels! {
    /// How a provider does, in one word, as labels and pages show it.
    pub enum Condition {
        /// The newest subscription is with it, or one of two at once, and works.
        Followed = "followed",
        /// It answers, and is not followed.
        StandsBy = "standby",
        /// Its last answer was an error, or it has not answered.
        Fails = "fails",
        /// It contradicted the applied chain, and is not asked again.
        Distrusted = "distrusted",
    }
}

/// One provider at one moment, for reports.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Report {
    /// Scheme, host and port of the URL. A number follows where an earlier provider has the same.
    pub name: String,
    #[serde(serialize_with = "by_name")]
    pub condition: Condition,
    /// Number of slots from its newest one to the newest one of all trusted providers; `None` while it is unknown, and of a
    /// distrusted one, which is not asked.
    pub lag_slots: Option<u64>,
    /// Slots that it sent whole before the other provider that is followed at once.
    pub slots_first: u64,
    /// Slots for which it sent other accounts than the other provider, which was first.
    pub slots_differing: u64,
    /// Ends of its stream and unanswered questions since the start.
    pub errors: u64,
    /// Text of the newest of these errors.
    pub last_error: Option<String>,
}

fn by_name<S: serde::Serializer>(condition: &Condition, out: S) -> Result<S::Ok, S::Error> {
    out.serialize_str(condition.name())
}

impl Providers {
    /// Returns the state at start. `names` are in the order of preference.
    pub fn new(names: impl IntoIterator<Item = String>) -> Self {
        let mut seen = BTreeMap::new();
        let mut all: Vec<Provider> = names.into_iter().map(|name| numbered(name, &mut seen)).collect();
        if all.is_empty() {
            all.push(Provider::default());
        }
        let lane =
            |at| Lane { at: AtomicUsize::new(at), followed: AtomicUsize::new(at), trouble: ArcSwapOption::empty() };
        Self {
            all,
            unknown: Provider::default(),
            lanes: [lane(0), lane(NOBODY)],
            followed: watch::channel(0).0,
            stream: AtomicU64::new(0),
            takeovers: AtomicU64::new(0),
        }
    }

    /// Returns the name of the provider with this index.
    pub fn name(&self, index: usize) -> &str {
        &self.of(index).name
    }

    fn of(&self, index: usize) -> &Provider {
        self.all.get(index).unwrap_or(&self.unknown)
    }

    /// Returns the indexes of all of them.
    pub(super) fn indexes(&self) -> std::ops::Range<usize> {
        0..self.all.len()
    }

    /// Returns the index of an accused provider, whose name an earlier process has noted; `None` for an empty name. One that
    /// is no longer configured has the number of providers as its index, so that each of them is another one.
    pub(super) fn accused(&self, name: &str) -> Option<usize> {
        let at = self.all.iter().position(|provider| provider.name == name);
        (!name.is_empty()).then(|| at.unwrap_or(self.all.len()))
    }

    /// Returns the index of the provider whose slots a spool has under the number `source`. If there is no such
    /// provider, the index is the number of providers. No provider has that index, so none is distrusted for those
    /// slots.
    pub(super) fn of_source(&self, source: u32) -> usize {
        self.all.iter().position(|provider| source_of(&provider.name) == source).unwrap_or(self.all.len())
    }

    /// Returns the index of the provider of the first lane's newest subscription, with a notice of each change.
    pub fn followed(&self) -> watch::Receiver<usize> {
        self.followed.subscribe()
    }

    /// How often another provider took over since the start.
    pub fn takeovers(&self) -> u64 {
        self.takeovers.load(Ordering::Relaxed)
    }

    /// Whether the provider has contradicted the applied chain.
    pub fn is_distrusted(&self, index: usize) -> bool {
        // ORDERING: Relaxed: an older value costs one more attempt.
        self.of(index).distrusted.load(Ordering::Relaxed)
    }

    /// Notes that another receiver begins, whose slots another one takes. No lane has turned to a provider, and all are
    /// trusted: those that contradict the new taker's chain too are found again.
    pub(super) fn begin_stream(&self) {
        for (lane, of) in self.lanes.iter().enumerate() {
            if lane > 0 {
                self.turn(lane, None);
            }
            of.trouble.store(None);
        }
        for provider in &self.all {
            provider.skipped_slots.store(0, Ordering::Relaxed);
            provider.reached_slot.store(0, Ordering::Relaxed);
        }
        // ORDERING: Relaxed: whoever asks has received a message of the receiver, or waits for its first one.
        self.stream.fetch_add(1, Ordering::Relaxed);
        self.trust_all();
    }

    /// Returns the number of the receiver that began last, from 1; 0 before the first.
    pub(super) fn stream(&self) -> u64 {
        self.stream.load(Ordering::Relaxed)
    }

    /// Sets the reason why the lane's stream sends nothing at the moment.
    pub fn set_trouble(&self, lane: usize, why: &str) {
        let end = why.floor_char_boundary(TROUBLE_BYTES_MAX);
        self.lanes[lane].trouble.store(Some(why[..end].to_owned().into()));
    }

    /// Clears the trouble, because the stream sends slots.
    pub(super) fn clear_trouble(&self, lane: usize) {
        let trouble = &self.lanes[lane].trouble;
        if trouble.load().is_some() {
            trouble.store(None);
        }
    }

    /// Returns the reason why the stream sends nothing at the moment; `None` while any lane is without trouble. A lane that
    /// has no trusted provider sends nothing, and has no trouble of its own.
    pub fn trouble(&self) -> Option<Arc<String>> {
        let troubles = || self.lanes.iter().map(|lane| (lane, lane.trouble.load_full()));
        let sends_nothing = |(lane, trouble): (&Lane, Option<Arc<String>>)| {
            let at = lane.at.load(Ordering::Relaxed);
            trouble.is_some() || at == NOBODY || self.is_distrusted(at)
        };
        troubles().all(sends_nothing).then(|| troubles().find_map(|(_, trouble)| trouble)).flatten()
    }

    /// Returns the newest slot of the trusted providers that are followed. Slots that join nothing count only if no other
    /// ones are known.
    pub(super) fn newest_followed(&self) -> Option<u64> {
        let lanes = self.lanes.iter().map(|lane| lane.followed.load(Ordering::Relaxed));
        let newest = lanes
            .filter(|index| !self.is_distrusted(*index))
            .filter_map(|index| Some((self.of(index).joins.load(Ordering::Relaxed), self.newest_slot(index)?)));
        newest.max().map(|(_, newest)| newest)
    }

    /// Returns the newest slot, up to `slot_max`, of the trusted providers.
    pub(super) fn newest_within(&self, slot_max: u64) -> Option<u64> {
        let trusted = self.indexes().filter(|index| !self.is_distrusted(*index));
        trusted.filter_map(|index| self.newest_slot(index)).filter(|newest| *newest <= slot_max).max()
    }

    /// Returns a report of each provider, in the order of preference.
    pub fn reports(&self) -> Vec<Report> {
        let tip = self.all.iter().enumerate().filter(|(index, _)| !self.is_distrusted(*index));
        let tip = tip.filter_map(|(index, _)| self.newest_slot(index)).max();
        let report = |(index, provider): (usize, &Provider)| Report {
            name: provider.name.clone(),
            condition: self.condition(index),
            lag_slots: self
                .newest_slot(index)
                .filter(|_| !self.is_distrusted(index))
                .map(|slot| tip.unwrap_or(slot).saturating_sub(slot)),
            slots_first: provider.slots_first.load(Ordering::Relaxed),
            slots_differing: provider.slots_differing.load(Ordering::Relaxed),
            errors: provider.errors.load(Ordering::Relaxed),
            last_error: provider.last_error.load().as_deref().cloned(),
        };
        self.all.iter().enumerate().map(report).collect()
    }

    pub(crate) fn newest_slot(&self, index: usize) -> Option<u64> {
        let slot = self.of(index).newest_slot.load(Ordering::Relaxed);
        Some(slot).filter(|slot| *slot > 0)
    }

    /// Sets the newest slot that the provider is known to have; 0 for none.
    pub(crate) fn set_newest_slot(&self, index: usize, slot: u64) {
        self.store_newest(index, slot);
        self.claim(index, slot);
    }

    /// Forgets the provider's newest slot: a new connection may be of another chain, or the provider does not answer.
    pub(super) fn forget_newest(&self, index: usize) {
        self.store_newest(index, 0);
    }

    fn store_newest(&self, index: usize, slot: u64) {
        self.of(index).newest_slot.store(slot, Ordering::Relaxed);
    }

    /// Sets the newest slot of the provider's newest connection. `joins`: whether it is near those that were handed out.
    pub(super) fn set_newest_sent(&self, index: usize, slot: u64, joins: bool) {
        self.of(index).joins.store(joins, Ordering::Relaxed);
        self.set_newest_slot(index, slot);
    }

    /// Notes a slot that the provider claims to have, and that may be implausible.
    pub(super) fn claim(&self, index: usize, slot: u64) {
        self.of(index).claimed_slot.store(slot, Ordering::Relaxed);
    }

    /// Notes a block of the provider, which leaves out `skipped` slots before it. Returns false, and notes nothing, if its
    /// blocks would leave out `reach` slots or more. So many small leaps lead no further than a large one.
    pub(super) fn note_block(&self, index: usize, slot: u64, skipped: u64, reach: u64) -> bool {
        let provider = self.of(index);
        // ORDERING: Relaxed: only the connection to the provider asks.
        if slot <= provider.reached_slot.load(Ordering::Relaxed) {
            // A fork, or a block that comes again.
            return skipped < reach;
        }
        let all = provider.skipped_slots.load(Ordering::Relaxed).saturating_add(skipped);
        if all < reach {
            provider.skipped_slots.store(all.saturating_sub(REGAINED_SLOTS), Ordering::Relaxed);
            provider.reached_slot.store(slot, Ordering::Relaxed);
        }
        all < reach
    }

    /// Whether another trusted provider than this one claims to have `slot`, or is just before it.
    pub(super) fn is_claimed_by_another(&self, slot: u64, index: usize) -> bool {
        let others = self.all.iter().enumerate().filter(|(other, _)| *other != index && !self.is_distrusted(*other));
        let claimed = others.map(|(_, other)| other.claimed_slot.load(Ordering::Relaxed)).max();
        claimed.is_some_and(|claimed| slot <= claimed.saturating_add(SLACK_SLOTS))
    }

    /// Notes that a lane turns to this provider, or to none, so that no other lane does.
    pub(super) fn turn(&self, lane: usize, to: Option<usize>) {
        // ORDERING: Relaxed: all lanes belong to one task.
        self.lanes[lane].at.store(to.unwrap_or(NOBODY), Ordering::Relaxed);
        if to.is_none() {
            self.lanes[lane].followed.store(NOBODY, Ordering::Relaxed);
        }
    }

    /// Whether a lane other than this one has turned to the provider.
    pub(super) fn is_of_another(&self, index: usize, lane: usize) -> bool {
        let others = self.lanes.iter().enumerate().filter(|(other, _)| *other != lane);
        // ORDERING: Relaxed: see `turn`.
        others.into_iter().any(|(_, other)| other.at.load(Ordering::Relaxed) == index)
    }

    /// Whether the lane has no provider that could send slots.
    pub(super) fn cannot_bring(&self, lane: usize) -> bool {
        // ORDERING: Relaxed: see `turn`.
        let at = self.lanes[lane].at.load(Ordering::Relaxed);
        at == NOBODY || self.is_failing(at) || self.is_distrusted(at)
    }

    /// Notes a subscription of a lane to this provider.
    pub(super) fn follow(&self, lane: usize, index: usize) {
        // ORDERING: Relaxed: see `turn`.
        let before = self.lanes[lane].followed.swap(index, Ordering::Relaxed);
        if before != index && before != NOBODY {
            count(&self.takeovers, 1);
        }
        if lane == 0 {
            self.followed.send_if_modified(|followed| std::mem::replace(followed, index) != index);
        }
    }

    /// Whether the newest subscription of a lane is with this provider.
    pub(super) fn is_followed(&self, index: usize) -> bool {
        self.lanes.iter().any(|lane| lane.followed.load(Ordering::Relaxed) == index)
    }

    /// Counts a slot that this provider sent whole before the others.
    pub(super) fn was_first(&self, index: usize) {
        count(&self.of(index).slots_first, 1);
    }

    /// Counts a slot for which this provider sent other accounts than the one that was first.
    pub(super) fn differs(&self, index: usize) {
        count(&self.of(index).slots_differing, 1);
    }

    /// Notes an error of the provider. Returns whether the provider had answered before it.
    pub(super) fn failed(&self, index: usize, why: &str) -> bool {
        self.complained(index, why);
        !self.of(index).failing.swap(true, Ordering::Relaxed)
    }

    /// Notes an error of the provider in something that the ingest does not need, such as processed slots.
    pub(crate) fn complained(&self, index: usize, why: &str) {
        count(&self.of(index).errors, 1);
        self.remark(index, &why[..why.floor_char_boundary(ERROR_BYTES_MAX)]);
    }

    /// Notes a remark about the provider for the operator, in the place of its newest error.
    pub(super) fn remark(&self, index: usize, text: &str) {
        self.of(index).last_error.store(Some(Arc::new(text.to_owned())));
    }

    /// Notes that the provider does its work.
    pub(super) fn works(&self, index: usize) {
        self.of(index).failing.store(false, Ordering::Relaxed);
    }

    /// Whether the provider's last answer was an error.
    pub(super) fn is_failing(&self, index: usize) -> bool {
        self.of(index).failing.load(Ordering::Relaxed)
    }

    /// Distrusts a provider whose slots, of the stream with this number, have contradicted the applied chain. Returns false
    /// and trusts it still where another stream has begun since, or no other provider is trusted: none would be left to
    /// ask, and a block that contradicts the chain is never applied.
    pub(super) fn distrust(&self, index: usize, stream: u64) -> bool {
        let others = (0..self.all.len()).any(|other| other != index && !self.is_distrusted(other));
        let others = others && stream == self.stream();
        if let Some(provider) = self.all.get(index).filter(|_| others) {
            // ORDERING: Relaxed: see the read. Only ingest-apply sets it.
            provider.distrusted.store(true, Ordering::Relaxed);
        }
        others
    }

    /// Trusts every provider again, at the request of the operator or after a heal. Returns whether any was distrusted.
    pub(super) fn trust_all(&self) -> bool {
        // ORDERING: Relaxed: see `is_distrusted`.
        self.all.iter().filter(|provider| provider.distrusted.swap(false, Ordering::Relaxed)).count() > 0
    }

    fn condition(&self, index: usize) -> Condition {
        match () {
            () if self.is_distrusted(index) => Condition::Distrusted,
            () if self.is_failing(index) => Condition::Fails,
            () if self.is_followed(index) => Condition::Followed,
            () => Condition::StandsBy,
        }
    }
}

/// Returns a provider with this name. Two URLs may differ only in the parts that are not shown.
fn numbered(name: String, seen: &mut BTreeMap<String, u64>) -> Provider {
    let times = seen.entry(name.clone()).or_default();
    *times += 1;
    let name = if *times == 1 { name } else { format!("{name} ({times})") };
    Provider { name, ..Provider::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn three() -> Providers {
        Providers::new(["http://a", "http://b", "http://b"].map(str::to_owned))
    }

    #[test]
    fn reports_name_each_provider_with_its_condition_lag_and_errors() {
        let providers = three();
        providers.follow(0, 1);
        providers.set_newest_slot(0, 90);
        providers.set_newest_slot(1, 100);
        assert!(providers.failed(0, "refused") && !providers.failed(0, &"x".repeat(1000)));
        let reports = providers.reports();
        let of = |index: usize| (reports[index].name.as_str(), reports[index].condition, reports[index].lag_slots);
        assert_eq!(of(0), ("http://a", Condition::Fails, Some(10)));
        assert_eq!(of(1), ("http://b", Condition::Followed, Some(0)));
        assert_eq!(of(2), ("http://b (2)", Condition::StandsBy, None));
        assert_eq!((reports[0].errors, reports[0].last_error.as_ref().map(String::len)), (2, Some(ERROR_BYTES_MAX)));
        providers.works(0);
        assert_eq!((providers.reports()[0].condition, providers.takeovers()), (Condition::StandsBy, 1));
    }

    #[test]
    fn the_stream_has_trouble_once_no_lane_of_it_sends_anything() {
        let (providers, trouble) = (three(), |providers: &Providers| providers.trouble().map(|why| why.to_string()));
        providers.set_trouble(0, "cannot connect");
        assert_eq!(trouble(&providers).as_deref(), Some("cannot connect"), "there is one lane");
        providers.turn(1, Some(1));
        assert_eq!(trouble(&providers), None);
        providers.distrust(1, 0);
        assert_eq!(trouble(&providers).as_deref(), Some("cannot connect"));
        providers.clear_trouble(0);
        assert_eq!(trouble(&providers), None);
        providers.set_trouble(0, &"ä".repeat(100_000));
        assert!(trouble(&providers).is_some_and(|why| why.len() <= TROUBLE_BYTES_MAX));
        providers.begin_stream();
        assert_eq!((trouble(&providers), providers.is_distrusted(1)), (None, false), "of an earlier receiver");
        assert!(!providers.distrust(1, 0) && !providers.is_distrusted(1), "a message of the earlier stream");
        assert!(providers.distrust(1, 1));
    }

    #[test]
    fn the_last_trusted_provider_stays_trusted() {
        let providers = three();
        assert!(providers.distrust(1, 0) && providers.distrust(0, 0));
        assert!(!providers.distrust(2, 0) && !providers.is_distrusted(2));
        providers.set_newest_slot(0, 1 << 39);
        providers.set_newest_slot(2, 7);
        assert_eq!(providers.reports()[2].lag_slots, Some(0), "the slot of a distrusted provider does not count");
        assert!(providers.trust_all() && !providers.is_distrusted(0) && !providers.trust_all());
        assert!(!Providers::new([]).distrust(0, 0), "the only one");
    }
}
