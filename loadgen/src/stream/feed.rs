//! One subscriber: its filter, its place in the log, and the bytes sent to it.
//!
//! Owns: the contents and the end of a subscription's response stream. Must not: buffer more than one chunk. HTTP/2
//! flow control holds a subscriber that does not read, and it lags in the log. Runs on the connection's task.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use bytes::{Bytes, BytesMut};
use prost::Message;
use prost_types::Timestamp;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::Interval;
use tonic::{Status, Streaming};
use workload::Key;
use yellowstone_grpc_proto::geyser::subscribe_update::UpdateOneof;
use yellowstone_grpc_proto::geyser::{SlotStatus, SubscribeRequest, SubscribeUpdatePing, SubscribeUpdatePong};

use crate::stream::account::Account;
use crate::stream::chain::{Block, Kind, Update, Write};
use crate::stream::filter::{Commitment, Filter};
use crate::stream::log::{Entry, Event, Replayed};
use crate::stream::shared::Shared;
use crate::stream::wire;

/// Bytes handed to HTTP/2 at a time: so many that its cost for each chunk vanishes.
const CHUNK_BYTES: usize = 64 * 1024;
/// Time between two pings to the subscriber. The first is sent at once, as the public server does.
const PING_PERIOD: Duration = Duration::from_secs(10);
/// Added to the version of an account's earlier write in a slot, so that its value differs from the final one.
const EARLIER_VERSIONS: u32 = 1 << 30;
/// Number of slots by which a replay starts too early under `--duplicates`.
const DUPLICATE_SLOTS: u64 = 3;

/// The response stream of one subscriber.
pub(crate) struct Feed {
    shared: Arc<Shared>,
    requests: Option<Streaming<SubscribeRequest>>,
    filter: Filter,
    place: Option<Place>,
    replay: std::vec::IntoIter<Replayed>,
    sending: Option<Sending>,
    head: watch::Receiver<u64>,
    pings: Interval,
    control: BytesMut,
    kill: Arc<AtomicBool>,
    cut: bool,
    _permit: Option<OwnedSemaphorePermit>,
}

struct Place {
    id: u64,
    cursor: u64,
}

/// A slot that is being sent.
struct Sending {
    block: Arc<Block>,
    next: usize,
    signature: [u8; 64],
    times: Times,
    content_at_bytes: Vec<u8>,
    statuses: &'static [SlotStatus],
    /// Whether the block is sent as it happens, with every write.
    live: bool,
    /// Whether the last write comes after the block meta.
    late: bool,
}

/// The times that the messages of a block have.
#[derive(Clone, Copy)]
struct Times {
    /// Time of its content: when it was executed.
    content_at: Timestamp,
    /// Time of its statuses: when they were sent.
    statuses_at: Timestamp,
}

/// The way in which a response stream ends.
pub(crate) enum End {
    /// With a status in the trailers.
    Status(Status),
    /// Abruptly, together with the connection.
    Cut,
}

impl Feed {
    /// Starts a feed that answers `requests`. Setting `kill` makes the connection's socket fail. Fails if there is no place
    /// for it.
    pub(crate) fn new(
        shared: Arc<Shared>,
        requests: Streaming<SubscribeRequest>,
        kill: Arc<AtomicBool>,
    ) -> Result<Self, Status> {
        let permit = shared.places.clone().map(Semaphore::try_acquire_owned).transpose();
        let permit = permit.map_err(|_| Status::resource_exhausted("max subscription limit exceeded"))?;
        let head = shared.log.watch();
        let mut pings = tokio::time::interval(PING_PERIOD);
        pings.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        Ok(Self {
            shared,
            requests: Some(requests),
            filter: Filter::default(),
            place: None,
            replay: Vec::new().into_iter(),
            sending: None,
            head,
            pings,
            control: BytesMut::new(),
            kill,
            cut: false,
            _permit: permit,
        })
    }

    /// Waits for the next bytes to send, and returns them.
    pub(crate) async fn next_chunk(&mut self) -> Result<Bytes, End> {
        loop {
            self.poll_control().await.map_err(End::Status)?;
            let mut out = std::mem::take(&mut self.control);
            self.cut = self.cut || self.fill(&mut out).map_err(End::Status)?;
            if self.cut && out.is_empty() {
                self.kill.store(true, Ordering::Release);
                return Err(End::Cut);
            }
            if !out.is_empty() {
                return Ok(out.freeze());
            }
            self.wait().await.map_err(End::Status)?;
        }
    }

    /// Handles the requests and pings that are ready, so that a busy feed still answers them.
    async fn poll_control(&mut self) -> Result<(), Status> {
        tokio::select! {
            biased;
            request = next_request(&mut self.requests) => self.take_request(request)?,
            _ = self.pings.tick() => self.ping(),
            () = std::future::ready(()) => {}
        }
        Ok(())
    }

    async fn wait(&mut self) -> Result<(), Status> {
        // The log may have moved since it was last checked. The watch remembers that.
        tokio::select! {
            request = next_request(&mut self.requests) => self.take_request(request)?,
            _ = self.pings.tick() => self.ping(),
            _ = self.head.changed() => {}
        }
        Ok(())
    }

    fn ping(&mut self) {
        let body = UpdateOneof::Ping(SubscribeUpdatePing {});
        wire::update(&mut self.control, Vec::new(), body, Timestamp::from(SystemTime::now()));
    }

    fn take_request(&mut self, request: Result<Option<SubscribeRequest>, Status>) -> Result<(), Status> {
        let Some(request) = request? else {
            // A client may close its half and keep listening.
            self.requests = None;
            return Ok(());
        };
        if let Some(ping) = request.ping {
            let body = UpdateOneof::Pong(SubscribeUpdatePong { id: ping.id });
            wire::update(&mut self.control, Vec::new(), body, Timestamp::from(SystemTime::now()));
            return Ok(());
        }
        let filter = Filter::compile_within(self.shared.delivery.filter_limits, &request)
            .map_err(|error| Status::invalid_argument(format!("failed to create filter: {error}")))?;
        self.filter = filter;
        if self.filter.is_empty() {
            return Ok(());
        }
        let earlier = if self.shared.delivery.duplicates { DUPLICATE_SLOTS } else { 0 };
        if self.place.is_none() || request.from_slot.is_some() {
            let commitment = self.filter.commitment();
            let (id, cursor, replay) = self.shared.log.subscribe(request.from_slot, commitment, earlier)?;
            tracing::info!(subscriber = id, from_slot = request.from_slot, replayed_slots = replay.len(), "subscribed");
            if let Some(old) = self.place.replace(Place { id, cursor }) {
                self.shared.log.unsubscribe(old.id);
            }
            if self.shared.delivery.like.replays_statuses_first() {
                let mut out = std::mem::take(&mut self.control);
                let now = Timestamp::from(SystemTime::now());
                for replayed in &replay {
                    replayed.statuses().iter().for_each(|status| self.status(&replayed.block, *status, now, &mut out));
                }
                self.control = out;
            }
            self.replay = replay.into_iter();
            self.sending = None;
        }
        Ok(())
    }

    /// Fills a chunk; returns `true` when the connection is to be cut here.
    fn fill(&mut self, out: &mut BytesMut) -> Result<bool, Status> {
        if self.place.is_none() {
            return Ok(false);
        }
        out.reserve(CHUNK_BYTES);
        while out.len() < CHUNK_BYTES - 1024 {
            let Some(mut sending) = self.sending.take() else {
                if !self.advance(out)? {
                    break;
                }
                continue;
            };
            if self.fill_block(&mut sending, out) {
                self.sending = Some(sending);
                return Ok(true);
            }
            if sending.next < sending.before_meta() {
                self.sending = Some(sending);
            } else {
                self.end_block(&sending, out);
            }
        }
        Ok(false)
    }

    /// Moves on to the next slot or status; returns `false` when there is none yet.
    fn advance(&mut self, out: &mut BytesMut) -> Result<bool, Status> {
        if let Some(replayed) = self.replay.next() {
            let statuses = if self.shared.delivery.like.replays_statuses_first() { &[] } else { replayed.statuses() };
            let times = Times { content_at: replayed.content_at, statuses_at: Timestamp::from(SystemTime::now()) };
            self.begin_content(replayed.block, times, statuses, out);
            return Ok(true);
        }
        let Some(place) = &mut self.place else { return Ok(false) };
        self.head.mark_unchanged();
        let Some(entry) = self.shared.log.entry(place.id, place.cursor)? else { return Ok(false) };
        place.cursor += 1;
        self.take_entry(entry, out);
        Ok(true)
    }

    /// Handles an entry of the log. Statuses are sent for every commitment as they happen. A block's content is sent
    /// before its status at the subscription's own commitment.
    fn take_entry(&mut self, Entry { event, created_at, content_at }: Entry, out: &mut BytesMut) {
        let own = self.filter.commitment();
        let times = Times { content_at, statuses_at: created_at };
        match event {
            Event::Processed(block) => {
                self.status(&block, SlotStatus::SlotFirstShredReceived, created_at, out);
                self.status(&block, SlotStatus::SlotCreatedBank, created_at, out);
                if own == Commitment::Processed {
                    let statuses = processed_statuses(&block);
                    self.begin_content(block, times, statuses, out);
                    if let Some(sending) = self.sending.as_mut().filter(|_| self.shared.delivery.confirm_after > 0) {
                        (sending.live, sending.late) = (true, sending.is_complete());
                    }
                    return;
                }
                if matches!(block.kind, Kind::Sealed | Kind::Abandoned) {
                    self.status(&block, SlotStatus::SlotCompleted, created_at, out);
                    self.status(&block, SlotStatus::SlotProcessed, created_at, out);
                }
            }
            // A stock server sends only the death of a dead block at these commitments. This one is harsher, and sends
            // its updates too.
            Event::Block(block) if block.kind == Kind::Dead && own != Commitment::Processed => {
                self.begin_content(block, times, &[SlotStatus::SlotDead], out);
            }
            Event::Block(block) if own == Commitment::Confirmed => {
                let late = self.shared.delivery.like.has_late_update(block.slot);
                self.begin_content(block, times, &[SlotStatus::SlotConfirmed], out);
                self.sending.as_mut().into_iter().for_each(|sending| sending.late = late);
            }
            Event::Block(block) if block.kind == Kind::Sealed => {
                self.status(&block, SlotStatus::SlotConfirmed, created_at, out);
            }
            Event::Block(_) => {}
            Event::Finalized(block) if own == Commitment::Finalized => {
                self.begin_content(block, times, &[SlotStatus::SlotFinalized], out);
            }
            Event::Finalized(block) => self.status(&block, SlotStatus::SlotFinalized, created_at, out),
        }
    }

    /// Begins the content of a block. Its statuses follow the content, or come first if the server is of that kind.
    fn begin_content(
        &mut self,
        block: Arc<Block>,
        times: Times,
        mut statuses: &'static [SlotStatus],
        out: &mut BytesMut,
    ) {
        if self.shared.delivery.like.confirms_first() && self.filter.commitment() != Commitment::Processed {
            statuses.iter().for_each(|status| self.status(&block, *status, times.statuses_at, out));
            statuses = &[];
        }
        let mut signature = [0; 64];
        signature[..32].copy_from_slice(&block.hash);
        signature[32..].copy_from_slice(&block.parent_hash);
        let content_at_bytes = times.content_at.encode_to_vec();
        let (live, late) = (false, false);
        self.sending = Some(Sending { block, next: 0, signature, times, content_at_bytes, statuses, live, late });
    }

    /// Ends a block in the real order: content, block meta, statuses. At processed, a late write comes before the
    /// statuses.
    fn end_block(&self, sending: &Sending, out: &mut BytesMut) {
        let block = &*sending.block;
        if sending.is_complete() {
            if sending.statuses == [SlotStatus::SlotProcessed] {
                self.status(block, SlotStatus::SlotCompleted, sending.times.statuses_at, out);
            }
            if !self.filter.blocks_meta().is_empty() {
                wire::block_meta(
                    out,
                    self.filter.blocks_meta(),
                    block,
                    (self.shared.told_hash(block), self.shared.told_bank(block)),
                    sending.times.content_at,
                );
            }
        }
        let mut names = Vec::new();
        let late = sending.before_meta()..block.updates.len();
        let late = late.map(|index| self.write(sending, index, &mut names, out)).sum();
        // ORDERING: Relaxed: a statistic, paired with nothing.
        self.shared.sent_events.fetch_add(late, Ordering::Relaxed);
        for &status in sending.statuses {
            self.status(block, status, sending.times.statuses_at, out);
        }
    }

    fn status(&self, block: &Block, status: SlotStatus, created_at: Timestamp, out: &mut BytesMut) {
        let own = match self.filter.commitment() {
            Commitment::Processed => SlotStatus::SlotProcessed,
            Commitment::Confirmed => SlotStatus::SlotConfirmed,
            Commitment::Finalized => SlotStatus::SlotFinalized,
        };
        let banked = [SlotStatus::SlotProcessed, SlotStatus::SlotConfirmed, SlotStatus::SlotFinalized];
        let names = self.filter.matching_slots(!banked.contains(&status), status == own);
        if !names.is_empty() {
            wire::slot_status(out, names, (block, self.shared.told_bank(block)), status, created_at);
        }
    }

    /// Appends updates of the block until the chunk is full; returns `true` when the connection is to be cut here.
    fn fill_block(&self, sending: &mut Sending, out: &mut BytesMut) -> bool {
        let sealed = sending.block.kind == Kind::Sealed;
        let mut names = Vec::with_capacity(4);
        let mut sent = 0;
        let mut cut = false;
        while sending.next < sending.before_meta() && out.len() < CHUNK_BYTES - 1024 {
            let event = sending.block.first_event + sending.next as u64;
            if self.shared.delivery.disconnect_every != 0 && sealed && self.cut_at(event) {
                cut = true;
                break;
            }
            sent += self.write(sending, sending.next, &mut names, out);
            sending.next += 1;
        }
        // ORDERING: Relaxed: a statistic, paired with nothing.
        self.shared.sent_events.fetch_add(sent, Ordering::Relaxed);
        cut
    }

    /// Appends an update of the block, and returns how many messages that took. In a live slot some accounts are
    /// written twice, and for some of these the earlier write arrives later.
    fn write<'a>(&'a self, sending: &Sending, index: usize, names: &mut Vec<&'a str>, out: &mut BytesMut) -> u64 {
        let update = &sending.block.updates[index];
        let event = sending.block.first_event + index as u64;
        let key = self.shared.keys.key(update.id);
        let twice = if sending.live { key[29] & 3 } else { 0 };
        let version = update.version.wrapping_add(EARLIER_VERSIONS);
        let earlier = Update { version, write: Write::Open, ..*update };
        let mut sent = 0;
        if twice == 1 {
            sent += self.account(sending, &key, &earlier, event, names, out);
        }
        sent += self.account(sending, &key, update, event + 1, names, out);
        if twice == 2 {
            sent += self.account(sending, &key, &earlier, event, names, out);
        }
        sent
    }

    /// Appends an account as `update` left it, if the filter wants it, and returns 1 or 0. `names` is kept between
    /// calls for its allocation.
    fn account<'a>(
        &'a self,
        sending: &Sending,
        key: &Key,
        update: &Update,
        write_version: u64,
        names: &mut Vec<&'a str>,
        out: &mut BytesMut,
    ) -> u64 {
        let account = match update.write {
            Write::Closed => Account::closed(),
            Write::Left(draw) => Account::left(draw),
            Write::Open => {
                let value = self.shared.keys.value(update.id, update.version);
                Account::open(self.shared.extract, key, &value, write_version.saturating_sub(1))
            }
        };
        // One write in 64 comes from outside a transaction, as rent and rewards do.
        let signed = key[30] & 63 != 0;
        names.clear();
        self.filter.matching_accounts(key, &account, signed, |name| names.push(name));
        if names.is_empty() {
            return 0;
        }
        let signature = if signed { &sending.signature[..] } else { &[] };
        let (slot, bank) = (sending.block.slot, self.shared.told_bank(&sending.block));
        let meta = wire::AccountMeta { key, slot, bank, write_version, signature };
        wire::account(out, names, &meta, &account, self.filter.slices(), &sending.content_at_bytes);
        1
    }

    /// Whether the connection is to be cut before `event`. Each mark cuts one connection.
    fn cut_at(&self, event: u64) -> bool {
        let every = self.shared.delivery.disconnect_every;
        // ORDERING: Relaxed: only the exchange decides who is cut, and no other memory depends on it.
        let mark = self.shared.next_cut.load(Ordering::Relaxed);
        let next = (event / every + 1) * every;
        event >= mark && self.shared.next_cut.compare_exchange(mark, next, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }
}

impl Sending {
    /// Returns the number of updates that are sent before the block meta: all, or all but one.
    fn before_meta(&self) -> usize {
        self.block.updates.len().saturating_sub(usize::from(self.late))
    }

    /// Whether the block gets a block meta.
    fn is_complete(&self) -> bool {
        matches!(self.block.kind, Kind::Sealed | Kind::Abandoned)
    }
}

/// Returns the statuses of a block after its execution.
fn processed_statuses(block: &Block) -> &'static [SlotStatus] {
    match block.kind {
        Kind::Sealed | Kind::Abandoned => &[SlotStatus::SlotProcessed],
        Kind::Dead => &[SlotStatus::SlotDead],
        Kind::GivenUp => &[],
    }
}

impl Drop for Feed {
    fn drop(&mut self) {
        if let Some(place) = &self.place {
            self.shared.log.unsubscribe(place.id);
            tracing::info!(subscriber = place.id, "unsubscribed");
        }
    }
}

async fn next_request(requests: &mut Option<Streaming<SubscribeRequest>>) -> Result<Option<SubscribeRequest>, Status> {
    match requests {
        Some(requests) => requests.message().await,
        None => std::future::pending().await,
    }
}
