//! The receiver's record of each provider, and the choice of the one to follow.
//!
//! Owns: the order of preference, the waits of each provider, and the rule for leaving one that lags. Must not:
//! connect, or publish anything. Runs on the receiver's task.
//!
//! A provider is followed until it fails. After a failure the next one is, of the providers that do not wait, the most
//! preferred of those that have failed least often since a slot could last be applied. So the first one is only
//! returned to when the present one fails, because a takeover costs a replay; and two that fail in turn do not hide a
//! third. A stream that breaks after it sent slots is asked for once more first, because a restarted server or a load
//! balancer ends streams too. One that was silent before its end is not.
//!
//! A followed provider that lags by more than `TAKEOVER_LAG_SLOTS` is left after `LAGS_FOR`, if it does not catch up
//! and ingest-apply keeps up with it. As after any reconnect, the next one is asked from the applied slot, so its first
//! message is compared with that slot's blockhash.

use std::time::Duration;

use tokio::time::Instant;

use super::backoff::Waits;
use super::ended::Ended;
use super::providers::Providers;

/// How long a provider has to lag without catching up before another one takes over.
const LAGS_FOR: Duration = Duration::from_secs(5);

/// Minimum time between two takeovers because of lag. A provider may claim slots that it does not send, and a
/// takeover costs a replay.
const LAG_AGAIN: Duration = Duration::from_secs(300);

/// The receiver's record of one provider, kept from one connection to the next.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) waits: Waits,
    /// The slot of the store when the newest connection was made.
    applied: Option<u64>,
    /// Whether the newest connection sent a slot that can be applied.
    pub(super) progressed: bool,
    /// Whether the newest connection ended because it sent no slot that can be applied.
    pub(super) idle: bool,
    /// The slot at which the server's slots begin, right after the applied one, if the server has said so.
    pub(super) begins_at: Option<u64>,
    /// Number of connections that have failed since any provider last sent a slot that can be applied.
    failures: u32,
    /// End of the wait after the newest connection.
    retry_at: Instant,
}

impl Link {
    fn new(seed: u64) -> Self {
        Self {
            waits: Waits::new(seed),
            applied: None,
            progressed: false,
            idle: false,
            begins_at: None,
            failures: 0,
            retry_at: Instant::now(),
        }
    }

    /// Begins a connection to a store at `applied`.
    fn begin(&mut self, applied: Option<u64>) {
        if applied != self.applied {
            self.applied = applied;
            self.waits.gap.reset();
        }
    }

    /// Remembers the slot at which the server says that its slots begin. A server that repeats this after being asked
    /// for that very slot is retried later.
    pub(super) fn begin_at(&mut self, ended: Ended) -> Ended {
        match ended {
            Ended::BeginsAt(slot) if self.begins_at == Some(slot) => {
                self.begins_at = None;
                Ended::Retry(format!(
                    "the server does not send slot={slot}, although it says that its slots begin there"
                ))
            }
            Ended::BeginsAt(slot) => {
                self.begins_at = Some(slot);
                Ended::BeginsAt(slot)
            }
            ended => {
                self.begins_at = None;
                ended
            }
        }
    }
}

/// All providers of one receiver, in the order of preference.
#[derive(Debug)]
pub(super) struct ProviderChoice {
    /// Number of this receiver among those that follow a provider each; it leaves the others' providers alone.
    lane: usize,
    links: Vec<Link>,
    /// Index of the provider that is followed, or was followed last.
    at: usize,
    /// When a provider was last left because of its lag.
    left_for_lag: Option<Instant>,
}

impl ProviderChoice {
    /// Creates the records of `len` providers, at least one, for the receiver with the number `lane`. Lane 0 begins with
    /// the provider `first`, and lane 1 with the one after it. The jitter of the waits depends on `seed`.
    pub(super) fn new(len: usize, first: usize, lane: usize, seed: u64) -> Self {
        let len = len.max(1);
        let links = (0..len).map(|index| Link::new(seed.wrapping_add((lane * len + index) as u64))).collect();
        Self { lane, links, at: (first + lane) % len, left_for_lag: None }
    }

    /// Index of the provider that is followed, or was followed last.
    pub(super) fn at(&self) -> usize {
        self.at
    }

    /// Begins a connection to a store at `applied`. Returns the index of the provider to connect to; `None` where none
    /// is left for this receiver.
    pub(super) fn begin(&mut self, applied: Option<u64>, providers: &Providers) -> Option<usize> {
        // ingest-apply may have seen the contradiction after the end of the connection.
        if !self.may_turn_to(self.at, providers) {
            self.at = self.choose(Instant::now(), providers);
        }
        let at = Some(self.at).filter(|at| self.may_turn_to(*at, providers));
        providers.turn(self.lane, at);
        self.link().begin(applied);
        at
    }

    /// The record of that provider.
    pub(super) fn link(&mut self) -> &mut Link {
        &mut self.links[self.at]
    }

    /// Notes the end of the newest connection, chooses the provider to follow next, and returns the time to connect to
    /// it. `wait` is the wait of the provider that was followed.
    pub(super) fn ended(&mut self, ended: &Ended, wait: Duration, providers: &Providers) -> Instant {
        let now = Instant::now();
        if matches!(ended, Ended::Lags(_)) {
            self.left_for_lag = Some(now);
        }
        let broke_at_work = matches!(ended, Ended::Retry(_)) && self.link().progressed;
        let stays = broke_at_work || matches!(ended, Ended::BeginsAt(_) | Ended::Renewed);
        if std::mem::take(&mut self.link().progressed) {
            self.links.iter_mut().for_each(|link| link.failures = 0);
        }
        self.link().failures += u32::from(!stays);
        self.link().retry_at = now + wait;
        if !stays || providers.is_distrusted(self.at) {
            self.at = self.choose(now, providers);
        }
        self.link().retry_at
    }

    /// Returns the providers that wait and may be asked earlier, because their secrets are renewed.
    pub(super) fn waiting(&self, providers: &Providers) -> Vec<usize> {
        let now = Instant::now();
        let waits = |at: &usize| self.links[*at].retry_at > now && self.may_turn_to(*at, providers);
        (0..self.links.len()).filter(waits).collect()
    }

    /// Follows this provider next, although another one was chosen.
    pub(super) fn turn_to(&mut self, index: usize) {
        self.at = index;
    }

    /// Returns the newest slot that another provider could take over at. `None` where none could now.
    pub(super) fn newest_of_others(&self, providers: &Providers) -> Option<u64> {
        let now = Instant::now();
        if self.left_for_lag.is_some_and(|left| now.duration_since(left) < LAG_AGAIN) {
            return None;
        }
        self.others(providers).filter_map(|at| providers.newest_slot(at)).max()
    }

    /// Whether another provider could take over now, as far as is known.
    pub(super) fn has_others(&self, providers: &Providers) -> bool {
        self.others(providers).next().is_some()
    }

    /// Returns the providers that could take over now, as far as is known.
    fn others<'a>(&'a self, providers: &'a Providers) -> impl Iterator<Item = usize> + 'a {
        let now = Instant::now();
        let others = (0..self.links.len()).filter(move |at| *at != self.at && self.links[*at].retry_at <= now);
        others.filter(|at| self.may_turn_to(*at, providers) && !providers.is_failing(*at))
    }

    /// Whether the provider is trusted, and no other receiver has turned to it.
    fn may_turn_to(&self, at: usize, providers: &Providers) -> bool {
        !providers.is_distrusted(at) && !providers.is_of_another(at, self.lane)
    }

    /// Returns the provider to turn to that has failed least often among those whose wait is over, the most preferred of
    /// several; else the one whose wait ends first.
    fn choose(&self, now: Instant, providers: &Providers) -> usize {
        let free = || (0..self.links.len()).filter(|at| self.may_turn_to(*at, providers));
        let ready = free().filter(|at| self.links[*at].retry_at <= now).min_by_key(|at| self.links[*at].failures);
        ready.or_else(|| free().min_by_key(|at| self.links[*at].retry_at)).unwrap_or(self.at)
    }
}

/// The lag of one connection against the newest slot of another provider. A replay lags as well, but catches up.
#[derive(Debug, Default)]
pub(super) struct Lag {
    /// When the lag was last over the limit and less than ever, and that lag.
    least: Option<(Instant, u64)>,
}

impl Lag {
    /// Notes the lag at this moment; `None` where it is unknown or not the provider's. Returns whether it has been over
    /// `limit_slots` for [`LAGS_FOR`] without becoming less.
    pub(super) fn lasts(&mut self, lag_slots: Option<u64>, limit_slots: u64) -> bool {
        let now = Instant::now();
        let Some(lag) = lag_slots.filter(|lag| *lag > limit_slots) else {
            self.least = None;
            return false;
        };
        match self.least {
            Some((since, least)) if lag >= least => now.duration_since(since) >= LAGS_FOR,
            _ => {
                self.least = Some((now, lag));
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn three() -> (ProviderChoice, Providers) {
        (ProviderChoice::new(3, 0, 0, 1), Providers::new(["a", "b", "c"].map(str::to_owned)))
    }

    fn silent() -> Ended {
        Ended::Idle { why: "silent".to_owned(), sends_slots: false }
    }

    #[tokio::test(start_paused = true)]
    async fn the_most_preferred_one_that_does_not_wait_takes_over() {
        let (mut choice, providers) = three();
        choice.ended(&silent(), SECOND * 10, &providers);
        assert_eq!(choice.at(), 1);
        advance(SECOND * 60).await;
        assert_eq!(choice.at(), 1, "the first is not returned to while this one works");
        choice.link().progressed = true;
        choice.ended(&Ended::Refused("no".to_owned()), SECOND * 30, &providers);
        assert_eq!(choice.at(), 0);
        choice.ended(&silent(), SECOND * 20, &providers);
        assert_eq!(choice.at(), 2);
        let at = choice.ended(&silent(), SECOND * 25, &providers);
        assert_eq!((choice.at(), at), (0, Instant::now() + SECOND * 20), "all wait, and its wait ends first");
    }

    #[tokio::test(start_paused = true)]
    async fn two_that_fail_in_turn_do_not_hide_a_third() {
        let (mut choice, providers) = three();
        let mut followed = Vec::new();
        for _ in 0..6 {
            followed.push(choice.at());
            // The silence that ends a connection lasts longer than any wait.
            advance(SECOND * 30).await;
            choice.ended(&silent(), SECOND, &providers);
        }
        assert_eq!(followed, [0, 1, 2, 0, 1, 2]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_that_breaks_at_work_is_asked_for_once_more() {
        let (mut choice, providers) = three();
        let broke = Ended::Retry("broke".to_owned());
        choice.link().progressed = true;
        choice.ended(&broke, SECOND / 10, &providers);
        assert_eq!(choice.at(), 0);
        choice.ended(&broke, SECOND / 5, &providers);
        assert_eq!(choice.at(), 1);
        choice.ended(&Ended::BeginsAt(7), Duration::ZERO, &providers);
        assert_eq!(choice.at(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_that_ends_after_silence_is_not_asked_for_once_more() {
        let (mut choice, providers) = three();
        assert!(choice.has_others(&providers));
        choice.link().progressed = true;
        let at = choice.ended(&Ended::Silent("no keep-alive".to_owned()), SECOND / 10, &providers);
        assert_eq!((choice.at(), at <= Instant::now()), (1, true), "the next one is asked at once");
        providers.failed(2, "refused");
        assert!(!choice.has_others(&providers), "one waits, and one has failed");
    }

    #[tokio::test(start_paused = true)]
    async fn a_distrusted_one_is_not_chosen() {
        let (mut choice, providers) = three();
        choice.link().progressed = true;
        assert!(providers.distrust(0, 0));
        choice.ended(&Ended::Retry("broke".to_owned()), Duration::ZERO, &providers);
        assert_eq!(choice.at(), 1);
        choice.ended(&silent(), SECOND, &providers);
        choice.ended(&silent(), SECOND * 2, &providers);
        assert_eq!((choice.at(), choice.waiting(&providers)), (1, vec![1, 2]));
    }

    #[tokio::test(start_paused = true)]
    async fn only_a_lag_that_lasts_is_a_reason_and_a_replay_is_none() {
        let mut lag = Lag::default();
        for step in 0..100 {
            assert!(!lag.lasts(Some(500 - step), 50), "it catches up");
            advance(SECOND).await;
        }
        for _ in 0..4 {
            assert!(!lag.lasts(Some(402), 50));
            advance(SECOND).await;
        }
        assert!(lag.lasts(Some(402), 50));
        assert!(!lag.lasts(Some(50), 50) && !lag.lasts(Some(402), 50), "it was over for a moment");
        let (mut choice, providers) = three();
        providers.set_newest_slot(1, 9);
        assert_eq!(choice.newest_of_others(&providers), Some(9));
        choice.ended(&Ended::Lags("late".to_owned()), SECOND, &providers);
        advance(SECOND * 2).await;
        providers.set_newest_slot(0, 1 << 30);
        assert_eq!((choice.at(), choice.newest_of_others(&providers)), (1, None), "not again so soon");
    }
}
