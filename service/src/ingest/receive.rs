//! Receives the stream: connects, subscribes, answers pings, and passes compact inputs to their assembler in batches.
//!
//! Owns: when to connect again, and from which slot; `provider_choice` says to which provider. Must not: block the runtime, keep
//! updates beyond one batch, or log the token. Runs on a task of the tokio runtime. The thread of the assembler has the
//! receiving end of the channel: ingest-apply, `spool`, or the merging of several receivers.
//!
//! Back pressure: while the channel is full the socket stays unread, so the server's own queue fills instead.

use std::pin::pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use futures::future::select_all;
use tokio::sync::mpsc::error::SendError;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tracing::info;
use yellowstone_grpc_proto::geyser::SubscribeUpdate;

use super::State;
use super::assemble::Input;
use super::connect::{Connection, Next};
use super::convert::Converted;
use super::ended::Ended;
use super::follow::Selection;
use super::healing::Heal;
use super::message_check::MessageCheck;
use super::provider::Provider;
use super::provider_choice::{Lag, ProviderChoice};
use super::settings::ReceiveSettings;
use super::subscribe::{Commitment, request};
use super::upstream::Upstream;
use crate::base::chain::{Gap, WholeSlot};
use crate::base::figure::{count, unix_ms};

/// Maximum number of batches in the channel between the receiver and ingest-apply. With [`BATCH_INPUTS`] this is about
/// 260 thousand updates or 40 MiB, a few seconds at full rate. A commit of that length does not stop the reading of the
/// socket; more batches would only add lag.
pub const QUEUE_BATCHES_MAX: usize = 256;

/// The channel may fill 1/`QUEUE_SHARE` of the memory limit. In a small cgroup, 40 MiB in addition to an engine's
/// memory would get the process killed while it catches up.
const QUEUE_SHARE: u64 = 16;

/// Minimum number of batches in the channel. With fewer, the receiver and ingest-apply would wait for each other.
const QUEUE_BATCHES_MIN: usize = 8;

/// Maximum number of inputs in one batch: enough to make the channel's cost per update negligible.
pub const BATCH_INPUTS: usize = 1024;

/// Returns the capacity of this process's channel, in batches: [`QUEUE_BATCHES_MAX`], or less under a small memory
/// limit. Computed once.
pub fn queue_batches() -> usize {
    static BATCHES: LazyLock<usize> = LazyLock::new(|| batches_within(probe::memory_limit().bytes));
    *BATCHES
}

fn batches_within(limit_bytes: u64) -> usize {
    let batch_bytes = (BATCH_INPUTS * size_of::<Input>()) as u64;
    let batches = usize::try_from(limit_bytes / QUEUE_SHARE / batch_bytes).unwrap_or(usize::MAX);
    batches.clamp(QUEUE_BATCHES_MIN, QUEUE_BATCHES_MAX)
}

/// Interval at which a receiver without a provider checks whether there is one again.
const NOBODY_LEFT: Duration = Duration::from_secs(1);

/// Maximum time until a server has accepted the subscription, where another provider could take over.
const OPENING_MAX: Duration = Duration::from_secs(5);

/// Settings of the receivers: the servers, the subscription and its timeouts.
#[derive(Clone, Debug)]
pub struct ReceiveConfig {
    /// The Yellowstone servers, in the order of preference.
    pub providers: Vec<Provider>,
    /// Index of the one to begin with.
    pub first: usize,
    /// The accounts to subscribe to, and the value to take from them.
    pub selection: Selection,
    /// Commitment at which a slot is taken in.
    pub commitment: Commitment,
    /// How long a slot waits for its parent, and how many providers are followed at once.
    pub settings: ReceiveSettings,
    /// How long a connection may bring no slot that can be applied.
    pub idle_timeout: Duration,
    /// Lag in slots from which on another provider takes over.
    pub takeover_lag_slots: u64,
    /// Seed of the jitter in the waits between attempts, so that it differs from that of other clients.
    pub jitter_seed: u64,
}

/// A message to ingest-apply, to the thread `spool`, or to the merging of several receivers.
#[derive(Debug)]
pub enum Message {
    /// Inputs of a receiver, in the order they arrived; never empty.
    Batch(Vec<Input>),
    /// The next slot of the chain, assembled already.
    Slot(Whole),
    /// The batches after this message come from a new connection to the provider with this index, of the stream with this
    /// number.
    Reconnected { provider: usize, stream: u64 },
    /// Half a second has passed on an open connection: check how long a slot has been waiting for its parent.
    Tick,
    /// The server cannot send these slots, or its stream lacks them.
    Gap(Gap),
    /// The whole slots after this message are of the provider with this index, and have come in the stream with this number.
    From { provider: usize, stream: u64 },
    /// The store is brought to the slot of an archive. No connection is open meanwhile.
    Heal(Box<Heal>),
    /// A sign of life is wanted: whoever sends this checks that ingest-apply reads its queue.
    Beat,
}

/// A whole slot in a queue.
#[derive(Debug)]
pub struct Whole {
    /// The slot, with the last write of each key.
    pub slot: Box<WholeSlot>,
    _room: OwnedSemaphorePermit,
}

/// The sending end of a queue for whole slots, which may hold as many updates as one for batches.
#[derive(Clone, Debug)]
pub(super) struct Wholes {
    to: mpsc::Sender<Message>,
    /// One permit for each batch that the queue may hold.
    room: Arc<Semaphore>,
}

impl Wholes {
    pub(super) fn new(to: mpsc::Sender<Message>) -> Self {
        Self { to, room: Arc::new(Semaphore::new(queue_batches())) }
    }

    /// The queue itself, for other messages.
    pub(super) fn queue(&self) -> &mpsc::Sender<Message> {
        &self.to
    }

    /// Sends the slot once the queue has room for it. An error means that the receiving end is gone.
    pub(super) async fn send(&self, slot: WholeSlot) -> Result<(), SendError<()>> {
        let batches = slot.events.len().div_ceil(BATCH_INPUTS).clamp(1, queue_batches());
        let permits = u32::try_from(batches).unwrap_or(u32::MAX);
        // A receiving end that goes drops the slots in the queue, and gives their room back.
        let room = Arc::clone(&self.room).acquire_many_owned(permits).await.map_err(|_| SendError(()))?;
        let whole = Whole { slot: Box::new(slot), _room: room };
        self.to.send(Message::Slot(whole)).await.map_err(|_| SendError(()))
    }
}

/// One of the receivers that follow a provider each.
pub(super) struct Receiver<'a, U> {
    /// Number of this receiver, from 0.
    pub(super) lane: usize,
    /// In the order of preference.
    pub(super) upstreams: &'a [U],
    pub(super) config: &'a ReceiveConfig,
    pub(super) tx: mpsc::Sender<Message>,
    pub(super) state: State,
}

impl<U: Upstream> Receiver<'_, U> {
    /// Receives until the channel's receiving end is dropped. Each connection starts over from the newest slot that was
    /// taken over.
    pub(super) async fn run(&self) {
        let mut choice =
            ProviderChoice::new(self.upstreams.len(), self.config.first, self.lane, self.config.jitter_seed);
        let mut hangups = self.hangups();
        // A gap is one of the chain only once no other provider can be asked.
        let mut held_gap = None;
        loop {
            let applied = self.state.resume.slot();
            let Some(at) = choice.begin(applied, &self.state.providers) else {
                sleep(NOBODY_LEFT).await;
                self.trust_again(&mut hangups);
                continue;
            };
            let before = self.state.resume.announced();
            let Err(ended) = self.follow(applied, &mut choice, &mut hangups).await;
            let connection = self.state.resume.announced();
            let link = choice.link();
            link.progressed |= connection > before && self.state.resume.slots_of(connection) > 0;
            if link.progressed {
                link.waits.broken.reset();
                held_gap = None;
            }
            let ended = link.begin_at(ended).masked(|words| self.upstreams[at].masked(words));
            link.idle = matches!(ended, Ended::Idle { .. });
            self.show_trouble(at, &ended);
            let wait = ended.log_and_wait(self.state.providers.name(at), &mut link.waits);
            let Some(wait) = wait else { return };
            self.trust_again(&mut hangups);
            let retry_at = choice.ended(&ended, wait, &self.state.providers);
            if let Ended::Gap(gap) = ended {
                held_gap = Some(gap);
            }
            if retry_at > Instant::now()
                && let Some(gap) = held_gap.take()
                && self.tx.send(Message::Gap(gap)).await.is_err()
            {
                return;
            }
            tokio::select! {
                biased;
                () = sleep_until(retry_at) => {}
                index = self.renewed(&choice) => choice.turn_to(index),
                () = self.tx.closed() => return,
            }
        }
    }

    /// Publishes the reason for the end of a connection to the provider at `at`.
    fn show_trouble(&self, at: usize, ended: &Ended) {
        let providers = &self.state.providers;
        match ended.trouble() {
            Some(why) => providers.set_trouble(self.lane, why),
            // The earlier trouble is not the reason for this end.
            None => providers.clear_trouble(self.lane),
        }
        let error = match ended {
            Ended::Gap(gap) => Some(gap.detail.as_str()),
            // ingest-apply has noted the error of a distrusted provider.
            Ended::GivenUp if !providers.is_distrusted(at) => Some("its stream lacks slots or contradicts itself"),
            ended => ended.trouble(),
        };
        if let Some(error) = error {
            providers.failed(at, error);
        }
    }

    /// Waits until a provider that waits has other secrets than at its newest connection. Returns its index.
    async fn renewed(&self, choice: &ProviderChoice) -> usize {
        let waiting = choice.waiting(&self.state.providers).into_iter();
        let renewed = waiting.map(|index| {
            Box::pin(async move {
                self.upstreams[index].renewed().await;
                index
            })
        });
        let renewed: Vec<_> = renewed.collect();
        if renewed.is_empty() {
            return std::future::pending().await;
        }
        select_all(renewed).await.0
    }

    fn hangups(&self) -> u64 {
        self.upstreams.first().map_or(0, Upstream::hangups)
    }

    /// Trusts every provider again, if a SIGHUP has come since the last call.
    fn trust_again(&self, hangups: &mut u64) {
        let before = std::mem::replace(hangups, self.hangups());
        if before != *hangups && self.state.providers.trust_all() {
            info!("SIGHUP: every provider is trusted again");
        }
    }

    /// Runs one connection, from connecting to its end.
    async fn follow(
        &self,
        applied: Option<u64>,
        choice: &mut ProviderChoice,
        hangups: &mut u64,
    ) -> Result<std::convert::Infallible, Ended> {
        let (at, from_slot) = (choice.at(), choice.link().begins_at.or(applied));
        let upstream = &self.upstreams[at];
        let subscription = request(self.config.selection, self.config.commitment, from_slot);
        let idle_timeout = self.config.idle_timeout;
        let opening = Connection::open(upstream, idle_timeout, subscription, applied);
        let mut connection = if choice.has_others(&self.state.providers) {
            let unanswered = |_| Err(Ended::Retry(format!("the server does not answer within {OPENING_MAX:?}")));
            timeout(OPENING_MAX, opening).await.unwrap_or_else(unanswered)
        } else {
            opening.await
        }?;
        self.send(Message::Reconnected { provider: at, stream: self.state.providers.stream() }).await?;
        let mut check = MessageCheck::new(self.config.selection, self.config.commitment, at, &self.state);
        let number = self.state.resume.announce();
        let _open = self.state.open();
        count(&self.state.figures.connects, 1);
        self.state.providers.follow(self.lane, at);
        info!(url = self.state.providers.name(at), from_slot, "subscribed");
        if !choice.link().idle {
            self.state.providers.clear_trouble(self.lane);
        }
        let (mut slots, mut lag) = (0, Lag::default());
        let mut batch = Vec::with_capacity(BATCH_INPUTS);
        let mut renewed = pin!(upstream.renewed());
        loop {
            let next = tokio::select! {
                biased;
                next = connection.next() => next?,
                () = &mut renewed => return Err(Ended::Renewed),
            };
            let is_tick = matches!(next, Next::Tick);
            if let Next::Update(update) = next {
                if !self.take(update, &mut check, &mut batch).await? {
                    continue;
                }
                connection.sent_a_slot();
            }
            let before = std::mem::replace(&mut slots, self.state.resume.slots_of(number));
            if slots > before {
                choice.link().progressed = true;
                connection.progressed();
                self.state.providers.clear_trouble(self.lane);
                self.state.providers.works(at);
            }
            if self.state.resume.is_given_up(number) {
                return Err(Ended::GivenUp);
            }
            if is_tick {
                if !self.is_taken_in() {
                    connection.waits();
                }
                connection.check_idle().map_err(|ended| self.is_gap(ended))?;
                self.check_lag(choice, applied, &mut lag)?;
                self.send(Message::Tick).await?;
                self.state.resume.tick_sent();
                self.trust_again(hangups);
            }
        }
    }

    /// Takes in one update. Returns whether the update is a boundary of a slot.
    async fn take(
        &self,
        update: SubscribeUpdate,
        check: &mut MessageCheck<'_>,
        batch: &mut Vec<Input>,
    ) -> Result<bool, Ended> {
        count(&self.state.figures.updates_received, 1);
        let (input, is_boundary) = match check.take(update).map_err(Ended::Gap)? {
            Converted::Nothing => return Ok(false),
            Converted::Account(input) => (input, false),
            Converted::Boundary(input) => (input, true),
        };
        batch.push(input);
        if is_boundary || batch.len() == BATCH_INPUTS {
            // ORDERING: Relaxed: a statistic.
            self.state.figures.last_update_unix_ms.store(unix_ms(), Ordering::Relaxed);
            self.send(Message::Batch(std::mem::replace(batch, Vec::with_capacity(BATCH_INPUTS)))).await?;
        }
        Ok(is_boundary)
    }

    /// Ends the connection where the provider lags too long after another one that could take over. `applied` is the slot
    /// at which the connection began.
    fn check_lag(&self, choice: &ProviderChoice, applied: Option<u64>, lag: &mut Lag) -> Result<(), Ended> {
        let limit_slots = self.config.takeover_lag_slots;
        let own = self.state.providers.newest_slot(choice.at()).or(applied);
        // If the newest tick is not taken in yet, the lag is that of ingest-apply, and another provider would not help.
        let is_known = self.state.resume.is_taken_in();
        let newest = choice.newest_of_others(&self.state.providers).zip(own).filter(|_| is_known);
        let lag_slots = newest.map(|(other, own)| other.saturating_sub(own));
        if !lag.lasts(lag_slots, limit_slots) {
            return Ok(());
        }
        Err(Ended::Lags(format!(
            "the server lags: newest_slot={} lag_slots={} limit_slots={limit_slots}",
            own.unwrap_or(0),
            lag_slots.unwrap_or(0)
        )))
    }

    /// Whether the assembler's thread has taken in all messages that were sent.
    fn is_taken_in(&self) -> bool {
        self.tx.capacity() == self.tx.max_capacity() && self.state.resume.is_taken_in()
    }

    /// Turns the end of an idle connection into a gap where it sent parts of slots and none whole: it lacks the
    /// first of them.
    fn is_gap(&self, ended: Ended) -> Ended {
        let (Ended::Idle { why, .. }, Some((slot, lacks))) = (&ended, self.state.resume.incomplete()) else {
            return ended;
        };
        let first_slot = self.state.resume.slot().map_or(slot, |applied| applied.saturating_add(1)).min(slot);
        let detail = format!("{why}: slot={slot} has {lacks}");
        Ended::Gap(Gap { first_slot, last_slot: slot, detail, contradicts: false })
    }

    async fn send(&self, message: Message) -> Result<(), Ended> {
        self.tx.send(message).await.map_err(|_| Ended::Closed)?;
        let queued = self.tx.max_capacity() - self.tx.capacity();
        // ORDERING: Relaxed: a statistic.
        self.state.figures.queue_batches.store(queued as u64, Ordering::Relaxed);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_memory_limit_makes_the_queue_smaller() {
        assert_eq!(batches_within(u64::MAX), QUEUE_BATCHES_MAX);
        assert_eq!(batches_within(0), QUEUE_BATCHES_MIN);
        let bytes = batches_within(128 << 20) * BATCH_INPUTS * size_of::<Input>();
        assert!((7 << 20..=8 << 20).contains(&bytes), "{bytes}");
    }
}
