//! The scripted Yellowstone server: the messages of each connection, faults included.
//!
//! Owns: the messages that each fault leads to. Each fault is something that a stock server, a load balancer in front of
//! several, or a network does. Must not: lose an update of a slot without losing the slot's block meta or its
//! confirmation, because no client could notice that.

use std::collections::{HashSet, VecDeque};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use futures::Stream;
use futures::channel::mpsc;
use loadgen::stream::filter::Filter;
use tokio::time::Instant;
use tonic::Status;
use workload::Rng;
use yellowstone_grpc_client::GeyserGrpcClientError;
use yellowstone_grpc_proto::geyser::subscribe_update::UpdateOneof;
use yellowstone_grpc_proto::geyser::{SlotStatus, SubscribeRequest, SubscribeUpdate};

use super::chain::{Block, Chain, Slot};
use super::fault::{Fault, Nature};
use super::messages::{self, Item};
use super::script::{End, Pings, Script, play};
use super::units::{self, Subscription};
use crate::ingest::follow::Selection;
use crate::ingest::receive::ReceiveConfig;
use crate::ingest::subscribe::Commitment;
use crate::ingest::upstream::{Client, Upstream};

/// Time from one slot to the next.
const SLOT_TIME: Duration = Duration::from_millis(400);

impl Lost {
    /// Whether the client still listens to the connection that withholds the slot.
    pub(super) fn is_of_open(&self, server: &Server) -> bool {
        server.is_open(self.connection)
    }
}

/// The simulated server, with its memory of earlier connections.
#[derive(Clone)]
pub(super) struct Server {
    world: Arc<Mutex<World>>,
}

struct World {
    chain: Arc<Chain>,
    /// Whether the store knows the base's blockhash from the start.
    base_known: bool,
    selection: Selection,
    commitment: Commitment,
    /// When the base was confirmed.
    started: Instant,
    rng: Rng,
    nature: Nature,
    /// Whether the server is free of faults from now on, unless they are its nature.
    healthy: bool,
    /// Number of connections of this life that contradict the applied chain.
    lies: u64,
    /// Number of these on which the client got enough messages to see that.
    lies_shown: u64,
    /// Number of connections at the time at which the service was first seen to distrust the server in this life.
    distrusted_after: Option<u64>,
    /// Slots whose failed bank was sent already; it is not sent twice.
    failed_told: HashSet<u64>,
    /// Number of connections made so far.
    connections: u64,
    /// Connections that the client still listens to.
    open: HashSet<u64>,
    lost: Option<Lost>,
    /// The slot that the newest subscription asked for.
    asked: u64,
    /// The oldest slot that the server still has.
    oldest: u64,
    /// First available slots that the server has announced. The client may ask for one although it was never applied.
    begins_at: HashSet<u64>,
}

/// A slot that the open connection withholds, and the time from which on the client can notice that.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lost {
    pub(super) slot: u64,
    pub(super) since: Instant,
    connection: u64,
}

impl Server {
    pub(super) fn new(chain: Arc<Chain>, base_known: bool, receive: &ReceiveConfig, nature: Nature, rng: Rng) -> Self {
        let asked = chain.base.slot;
        let world = World {
            chain,
            base_known,
            selection: receive.selection,
            commitment: receive.commitment,
            started: Instant::now(),
            rng,
            nature,
            healthy: false,
            lies: 0,
            lies_shown: 0,
            distrusted_after: None,
            failed_told: HashSet::new(),
            connections: 0,
            open: HashSet::new(),
            lost: None,
            asked,
            oldest: 0,
            begins_at: HashSet::new(),
        };
        Self { world: Arc::new(Mutex::new(world)) }
    }

    /// Stops all faults from now on.
    pub(super) fn heal(&self) {
        self.world().healthy = true;
    }

    /// Begins a new life of the service, which knows nothing of the lies of earlier ones.
    pub(super) fn begin_life(&self) {
        let mut world = self.world();
        (world.lies, world.lies_shown, world.distrusted_after) = (0, 0, None);
    }

    /// Drops all slots before this one.
    pub(super) fn keep_from(&self, slot: u64) {
        self.world().oldest = slot;
    }

    /// Forgets the connections of another receiver: from now on only those of the next one count.
    pub(super) fn forget(&self) {
        self.begin_life();
        self.world().lost = None;
    }

    /// Notes that the service distrusts the server. Returns the number of connections made since that was first noted.
    pub(super) fn asked_since_distrust(&self) -> u64 {
        let mut world = self.world();
        let connections = world.connections;
        connections - *world.distrusted_after.get_or_insert(connections)
    }

    /// Number of connections of this life on which the server contradicts the applied chain.
    pub(super) fn lies(&self) -> u64 {
        self.world().lies
    }

    /// Number of these on which the client got enough messages to see that.
    pub(super) fn lies_shown(&self) -> u64 {
        self.world().lies_shown
    }

    pub(super) fn nature(&self) -> Nature {
        self.world().nature
    }

    /// Returns the newest confirmed slot of the chain.
    pub(super) fn newest_of_chain(&self) -> u64 {
        self.world().newest(Instant::now())
    }

    /// Returns when the last slot of the chain is confirmed.
    pub(super) fn complete_at(&self) -> Instant {
        let world = self.world();
        world.started + SLOT_TIME * world.chain.slots.len() as u32
    }

    /// Returns the slot that the newest connection withholds, if any.
    pub(super) fn lost(&self) -> Option<Lost> {
        let world = self.world();
        world.lost.filter(|lost| lost.connection == world.connections)
    }

    /// Number of the newest connection, open or not.
    pub(super) fn newest_connection(&self) -> u64 {
        self.world().connections
    }

    /// Whether the client still listens to that connection.
    pub(super) fn is_open(&self, connection: u64) -> bool {
        self.world().open.contains(&connection)
    }

    fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().expect("nobody panics while holding it")
    }
}

impl Upstream for Server {
    type Client = Connection;

    async fn connect(&self) -> Result<Connection, String> {
        let (fault, connection) = {
            let mut world = self.world();
            world.connections += 1;
            (world.fault(), world.connections)
        };
        tracing::info!(connection, ?fault, "connecting");
        if fault == Fault::Unreachable {
            return Err("nobody is there".to_owned());
        }
        Ok(Connection { server: self.clone(), fault, connection })
    }

    async fn newest_slot(&self, _: Commitment) -> Result<u64, String> {
        let mut world = self.world();
        if world.nature == Nature::Refuses || !world.healthy && world.rng.chance(0.2) {
            return Err("nobody is there".to_owned());
        }
        Ok(world.newest_of_own())
    }
}

/// Mark of a connection that the client listens to, removed when dropped.
pub(super) struct Open {
    server: Server,
    connection: u64,
}

impl Open {
    /// Notes that the client has to see the contradiction once it gets the next message.
    pub(super) fn shows_lie(&self) {
        self.server.world().lies_shown += 1;
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.server.world().open.remove(&self.connection);
    }
}

/// One connection before its subscription.
pub(super) struct Connection {
    server: Server,
    fault: Fault,
    connection: u64,
}

impl Client for Connection {
    type Requests = mpsc::Sender<SubscribeRequest>;
    type Updates = Pin<Box<dyn Stream<Item = Item> + Send>>;

    async fn first_available(&mut self) -> Result<Option<u64>, GeyserGrpcClientError> {
        let mut world = self.server.world();
        let newest = world.newest(Instant::now());
        match self.fault {
            Fault::TooOldByInfo => {
                // The result may be the slot after the one that the store stands at.
                let first = newest + 1 + world.rng.below(9);
                world.begins_at.insert(first);
                Ok(Some(first))
            }
            Fault::WrongToken => Err(Status::unauthenticated("No valid auth token").into()),
            Fault::JustStarted => Ok(Some(u64::MAX)),
            _ => match world.rng.below(5) {
                0 => Err(Status::unimplemented("unknown method").into()),
                1 => Err(Status::permission_denied("not in your plan").into()),
                2 => Ok(None),
                3 => {
                    let (asked, base) = (world.asked, world.chain.base.slot);
                    Ok(Some(world.begin_after(asked).unwrap_or(base)))
                }
                _ => Ok(Some(world.chain.base.slot)),
            },
        }
    }

    async fn subscribe(
        &mut self,
        request: SubscribeRequest,
    ) -> Result<(Self::Requests, Self::Updates), GeyserGrpcClientError> {
        let asked = request.from_slot;
        let fault = match self.fault {
            // Such a client takes any chain for its own. The server contradicts it once it asks to continue.
            Fault::OtherChain | Fault::OtherParents if asked.is_none() => Fault::Breaks,
            // Every slot is new to such a client.
            Fault::TooOldByStatus | Fault::JustStarted if asked.is_none() => Fault::None,
            fault => fault,
        };
        match fault {
            Fault::SilentAtSubscribe => return std::future::pending().await,
            Fault::WrongToken => return Err(Status::unauthenticated("No valid auth token").into()),
            Fault::JustStarted => panic!("nobody subscribes where nothing can be sent yet"),
            Fault::Refused => return Err(Status::invalid_argument("failed to create filter: too many").into()),
            Fault::TooOldByStatus => {
                let from_slot = asked.unwrap_or_default();
                let mut world = self.server.world();
                let next = if world.rng.chance(0.5) { world.begin_after(from_slot) } else { None };
                let first = next.unwrap_or(from_slot + 3);
                let text = format!("broadcast from {from_slot} is not available, last available: {first}");
                return Err(Status::out_of_range(text).into());
            }
            _ => {}
        }
        let filter = Filter::compile(&request).expect("a subscription that a server takes");
        let mut world = self.server.world();
        let from_slot = match asked {
            Some(from_slot) => world.replayed_from(from_slot)?,
            None => world.newest_of_own().max(world.oldest),
        };
        let script = world.script(fault, self.connection, from_slot, &filter)?;
        world.open.insert(self.connection);
        drop(world);
        let open = Open { server: self.server.clone(), connection: self.connection };
        let (requests, received) = mpsc::channel(64);
        Ok((requests, play(script, Pings::new(open, received))))
    }
}

impl World {
    fn fault(&mut self) -> Fault {
        self.nature.fault(self.healthy, &mut self.rng)
    }

    /// Returns the slot after `slot` as the server's first available one. `None` where the store would not know `slot`
    /// by its blockhash.
    fn begin_after(&mut self, slot: u64) -> Option<u64> {
        let next = (self.base_known || slot > self.chain.base.slot).then_some(slot + 1);
        self.begins_at.extend(next);
        next
    }

    /// Returns the newest confirmed slot.
    fn newest(&self, now: Instant) -> u64 {
        let slots = (now - self.started).as_millis() / SLOT_TIME.as_millis();
        self.chain.base.slot + slots.min(self.chain.slots.len() as u128 - 1) as u64
    }

    /// Returns the newest slot that the server has.
    fn newest_of_own(&self) -> u64 {
        let lag = SLOT_TIME * self.nature.lag_slots() as u32;
        self.newest(Instant::now().checked_sub(lag).unwrap_or(self.started).max(self.started))
    }

    /// Returns the slot to begin with where a client asks for `from_slot`.
    ///
    /// # Errors
    /// The server no longer has the slot.
    fn replayed_from(&mut self, from_slot: u64) -> Result<u64, Status> {
        let asked_of_chain = self.chain.blocks().any(|block| block.slot == from_slot);
        let told = self.begins_at.contains(&from_slot);
        assert!(asked_of_chain || told, "from_slot={from_slot} is no block that was ever applied");
        self.asked = from_slot;
        let oldest = self.oldest;
        if from_slot >= oldest {
            return Ok(from_slot);
        }
        self.begins_at.insert(oldest);
        Err(Status::out_of_range(format!("broadcast from {from_slot} is not available, last available: {oldest}")))
    }

    fn script(&mut self, fault: Fault, connection: u64, from_slot: u64, filter: &Filter) -> Result<Script, Status> {
        let lag = match (fault, self.nature.lag_slots()) {
            (Fault::Lags, 0) => SLOT_TIME * (1 + self.rng.below(12) as u32),
            (_, slots) => SLOT_TIME * slots as u32,
        };
        let now = Instant::now();
        // The server has nothing of that slot yet.
        if from_slot > self.newest(now.checked_sub(lag).unwrap_or(self.started).max(self.started)) {
            return Err(Status::internal("failed to get replay response"));
        }
        // A client that begins at an announced slot has applied the slot before it.
        let applied = from_slot - u64::from(self.begins_at.contains(&from_slot));
        let knows = self.base_known || applied > self.chain.base.slot;
        let has_wrong = self.chain.wrong.as_ref().is_some_and(|wrong| wrong.slot >= from_slot);
        let lies = match fault {
            Fault::OtherChain => knows,
            Fault::OtherParents => knows && applied < self.chain.tip().slot,
            Fault::WrongBlock => has_wrong,
            _ => false,
        };
        self.lies += u64::from(lies);
        let chain = match fault {
            // A store that knows no blockhash yet takes the first chain for its own. So does a store that resumes after
            // the slot where the fork begins: it cannot tell the fork from the chain.
            Fault::OtherParents if knows => Arc::new(self.chain.with_other_parents(applied, &mut self.rng)),
            Fault::OtherChain if knows => {
                let below = applied - self.chain.base.slot;
                let from = applied - self.rng.below(below + 1);
                Arc::new(self.chain.fork(from, &mut self.rng))
            }
            Fault::WrongBlock => Arc::new(self.chain.with_error()),
            _ => Arc::clone(&self.chain),
        };
        // Slots out of order are whole one by one, or a child would confirm a parent whose accounts come after its meta.
        // Numbers of their own: a seed's messages stay the same.
        let reorders = Rng::new(from_slot ^ connection << 32).chance(0.7);
        let lost = (fault == Fault::Loses).then(|| self.lose(from_slot)).flatten();
        let subscription = Subscription { filter, selection: self.selection, commitment: self.commitment };
        let mut units: Vec<(u64, Vec<Item>)> = Vec::new();
        for slot in chain.slots.iter().filter(|slot| slot.number >= from_slot) {
            let live = self.confirmed_at(slot.number) > now && lag.is_zero();
            units.push((slot.number, self.unit(subscription, slot, live, lost, !reorders)));
        }
        let mut reordered = units.clone();
        units::reorder(&mut reordered, &self.chain, &mut self.rng);
        let units = if reorders { reordered } else { units };
        let (mut at, mut items) = (now, VecDeque::new());
        for (number, unit) in units {
            at = at.max(self.confirmed_at(number) + lag);
            items.extend(unit.into_iter().map(|item| (at, item)));
        }
        self.lost = lost.and_then(|(slot, _)| {
            let child = chain.blocks().find(|block| block.parent.slot == slot)?.slot;
            // Reordering may delay the time at which the client can notice the loss by that much.
            let since = now.max(self.confirmed_at(child)) + lag;
            Some(Lost { slot, since, connection })
        });
        // A wrong block shows as such with the next one.
        let lies_from =
            self.chain.wrong.as_ref().filter(|_| fault == Fault::WrongBlock).map_or(from_slot, |wrong| wrong.slot);
        let left_after_lie = lies.then(|| self.left_after_lie(&chain, lies_from, &items)).flatten();
        let end = self.end(fault, from_slot, &mut items);
        Ok(Script { items, left_after_lie, end })
    }

    /// Returns the number of items that are left once a client has to see that `chain` contradicts the applied one: once
    /// the first two blocks from `from_slot` on are whole, because it has applied the first of them or the one before. A client that gives
    /// the connection up earlier, because no slot became whole in time, cannot know.
    fn left_after_lie(&self, chain: &Chain, from_slot: u64, items: &VecDeque<(Instant, Item)>) -> Option<usize> {
        let mut blocks = chain.blocks().filter(|block| block.slot >= from_slot);
        let first = [blocks.next()?, blocks.next()?];
        let confirmation = messages::confirmation(self.commitment);
        let parts = |block: &Block| [messages::meta(block), messages::status(block.slot, confirmation)];
        let mut awaited: Vec<SubscribeUpdate> = first.into_iter().flat_map(parts).collect();
        let shown = items.iter().position(|(_, item)| {
            awaited.retain(|awaited| item.as_ref().ok() != Some(awaited));
            awaited.is_empty()
        });
        shown.map(|at| items.len() - at - 1)
    }

    fn confirmed_at(&self, slot: u64) -> Instant {
        self.started + SLOT_TIME * (slot - self.chain.base.slot) as u32
    }

    /// Picks a slot that the connection withholds, and a part of it: 0 is everything, 1 the block meta, 2 the
    /// confirmation.
    fn lose(&mut self, from_slot: u64) -> Option<(u64, u64)> {
        let behind: Vec<u64> = self.chain.blocks().map(|block| block.slot).filter(|slot| *slot > from_slot).collect();
        let last = behind.len().checked_sub(1)?;
        let slot = *behind[..last].get(self.rng.below(last.max(1) as u64) as usize)?;
        Some((slot, self.rng.below(3)))
    }

    /// Returns the messages of one slot.
    fn unit(
        &mut self,
        subscription: Subscription<'_>,
        slot: &Slot,
        live: bool,
        lost: Option<(u64, u64)>,
        early: bool,
    ) -> Vec<Item> {
        let mut out = Vec::new();
        if let Some((block, dead)) = &slot.failed
            && live
            && self.failed_told.insert(slot.number)
        {
            let mut bank = units::of_block(subscription, block, None, early, &mut self.rng);
            // Neither a dead nor an abandoned bank was confirmed.
            bank.retain(|update| !matches!(update.update_oneof, Some(UpdateOneof::Slot(_))));
            out.append(&mut bank);
            if *dead {
                out.push(messages::status(slot.number, SlotStatus::SlotDead));
            }
        }
        if let Some(block) = &slot.block {
            let part = lost.filter(|(number, _)| *number == slot.number).map(|(_, part)| part);
            if part != Some(0) {
                out.append(&mut units::of_block(subscription, block, part, early, &mut self.rng));
            }
        }
        out.into_iter().map(Ok).collect()
    }

    /// Returns how the connection ends, and truncates its messages to that point.
    fn end(&mut self, fault: Fault, from_slot: u64, items: &mut VecDeque<(Instant, Item)>) -> End {
        let end = match fault {
            Fault::Breaks => match self.rng.below(4) {
                0 => End::Closed,
                1 => End::Status(Status::internal("lagged to send an update")),
                2 => End::Status(Status::unavailable("server is shutting down try again later")),
                _ => End::Status(Status::internal("lagged to receive geyser messages")),
            },
            Fault::Silent => End::Silent,
            Fault::PingsOnly => End::Open,
            Fault::TooLarge => {
                End::Status(Status::out_of_range("decoded message length too large: found 99, limit 67"))
            }
            Fault::Malformed => {
                let block = self.chain.blocks().find(|block| block.slot > from_slot).cloned();
                let Some(block) = block else { return End::Open };
                let malformed = messages::malformed(self.selection, &block, &mut self.rng);
                let at = self.rng.below(items.len() as u64 + 1) as usize;
                let when = items.get(at).map_or(Instant::now(), |(when, _)| *when);
                items.insert(at, (when, Ok(malformed)));
                return End::Open;
            }
            _ => return End::Open,
        };
        items.truncate(self.rng.below(items.len() as u64 + 1) as usize);
        end
    }
}
