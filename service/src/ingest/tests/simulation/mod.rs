//! Simulates the ingest against a scripted Yellowstone server, in virtual time, from a seed.
//!
//! Owns: the lives of one simulated service. Everything between the server's messages and
//! the subscriber of the feed is the service's own code: receiver, assembler, the spool and its replay, ingest-apply
//! with the differences of a heal, an engine, the feed's log.
//! Not simulated: the network under the messages, the reader of archives, and the loop that waits for messages on a
//! thread of its own.

mod chain;
mod derived;
mod fault;
mod healing;
mod messages;
mod oracle;
mod script;
mod seeds;
mod server;
mod sources;
mod spooled;
mod store;
mod takeover;
mod units;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use engine_api::{Durability, Engine as _};
use engine_latency::Measured;
use solana::ChainCheckpoint;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, timeout_at};
use tracing::info;
use workload::Rng;

use self::chain::Chain;
use self::derived::Followers;
use self::fault::Nature;
use self::healing::Heals;
use self::oracle::Oracle;
use self::seeds::{SEEDS, try_seeds};
use self::server::Server;
use self::sources::{Begin, Start};
use self::spooled::Spool;
use self::store::{Fault, KILLED, Opened, Store};
use crate::base::chain::{Base, BlockMeta, Phase};
use crate::base::pulse::Pulse;
use crate::base::setting::Given;
use crate::feed::{FRAME_CHANGES_MAX, Feed};
use crate::ingest::State;
use crate::ingest::apply::Apply;
use crate::ingest::assemble::Input;
use crate::ingest::batch::BatchLimits;
use crate::ingest::extract::Extract;
use crate::ingest::follow::{Follow, Selection};
use crate::ingest::map_writer::MapConfig;
use crate::ingest::receive::{Message, ReceiveConfig};
use crate::ingest::settings::{CommitGiven, ReadinessSettings, ReceiveGiven};
use crate::ingest::subscribe::Commitment;
use crate::readiness::Verdict;

/// Maximum time for which the receiver keeps a connection that has shown a gap. The receiver checks after each message,
/// and twice a second where none arrives.
const GIVEN_UP_WITHIN: Duration = Duration::from_secs(2);

#[test]
fn simulation() {
    try_seeds(SEEDS, "simulation::simulation", simulate);
}

/// Returns the settings in effect where none is given.
fn defaults<G: Given + Default>() -> G::InEffect {
    G::default().in_effect().expect("the defaults are within their bounds")
}

/// Returns the defaults of ingest-apply, except that a commit that has to wait is retried at once.
fn apply_defaults(durability: Durability) -> MapConfig {
    let commit = defaults::<CommitGiven>();
    let config = MapConfig::new(&commit, engines::default_engine(), durability);
    MapConfig { full_retry: Duration::ZERO, sample_seed: 0, ..config }
}

/// While a commit is under way, each lookup has to read the engine's checkpoint. A failed commit must therefore count
/// as over.
#[test]
fn a_commit_that_failed_and_changed_nothing_is_over() {
    let mut rng = Rng::new(7);
    let chain = Chain::new(&mut rng);
    let store = Store::create(&chain, true, Durability::Buffered, &mut rng);
    let Opened { engine, writer, feed: _, plan } = store.open();
    let state = State::at(ChainCheckpoint::read(&engine.checkpoint().expect("a checkpoint")).expect("a chain's"));
    let config = apply_defaults(Durability::Buffered);
    let (_stop, stopped) = watch::channel(false);
    let mut apply =
        Apply::new(Arc::clone(&engine), state.clone(), Some(writer), config, Duration::MAX, Pulse::default(), stopped)
            .expect("begun");
    let map = &mut apply.map;
    for fault in [Fault::FullAtCommit(1), Fault::WantAtCommit(1)] {
        *plan.lock().expect("a plan") = Some((0, fault));
        map.commit(map.up_to(chain.base.slot)).expect_err("the plan says so");
        assert!(!state.published.is_committing(), "{fault:?}");
    }
    let checkpoint = map.commit(map.up_to(chain.base.slot)).expect("no fault is left");
    assert!(state.published.is_committing(), "a reader may see it, and it is not published");
    state.published.publish(checkpoint);
    assert!(!state.published.is_committing());
}

/// A server that sends the same batch after each connection would hold the store before these slots for ever.
#[test]
fn whole_slots_before_a_gap_in_the_same_batch_are_applied() {
    let mut rng = Rng::new(7);
    let chain = Chain::new(&mut rng);
    let store = Store::create(&chain, true, Durability::Buffered, &mut rng);
    let Opened { engine, writer, feed: _, plan: _ } = store.open();
    let checkpoint = ChainCheckpoint::read(&engine.checkpoint().expect("a checkpoint")).expect("a chain's");
    let base = checkpoint.slot.expect("a store at a slot");
    let state = State::at(checkpoint);
    let (_stop, stopped) = watch::channel(false);
    let config = apply_defaults(Durability::Buffered);
    let mut apply = Apply::new(engine, state.clone(), Some(writer), config, Duration::MAX, Pulse::default(), stopped)
        .expect("begun");
    let meta = |slot, parent| {
        let base = Base { slot, blockhash: [slot as u8; 32] };
        Input::BlockMeta(BlockMeta { base, parent, created_unix_ms: 0 })
    };
    let confirmed = |slot| Input::Status { slot, confirmed: true, dead: false };
    let whole = [meta(base + 1, Base { slot: base, blockhash: checkpoint.blockhash }), confirmed(base + 1)];
    let wrong = meta(base + 2, Base { slot: base + 2, blockhash: [0; 32] });
    apply.begin();
    apply.take(Message::Reconnected { provider: 0, stream: 0 }, false).expect("no fault");
    apply.take(Message::Batch([&whole[..], &[wrong]].concat()), true).expect("no fault");
    assert!(state.progress.gap().is_some(), "a slot is its own parent");
    assert_eq!(state.published.slot(), Some(base + 1));
}

/// Runs one chain and one store through as many lives as the chain takes.
fn simulate(seed: u64) {
    in_virtual_time(Simulation::new(seed).run());
}

/// Runs `lives` on this thread, with a clock that stops while there is work.
fn in_virtual_time<T>(lives: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime without sockets");
    runtime.block_on(lives)
}

struct Simulation {
    rng: Rng,
    chain: Arc<Chain>,
    /// The providers in the order of preference.
    servers: Vec<Server>,
    store: Store,
    oracle: Oracle,
    receive: ReceiveConfig,
    apply: MapConfig,
    /// Whether the last life ended between the feed's append and the end of a commit.
    cut: bool,
    /// Longest time without an applied slot in the last life, from its first slot to its last.
    longest_pause: Duration,
    /// The spool that each life begins with; `None` where it begins with the stream.
    spool: Option<Spool>,
    /// The heals of a service with archives; `None` where a gap stays one.
    heals: Option<Heals>,
    /// The derived stores of the map; `None` where it has none.
    followers: Option<Followers>,
}

/// When a gap was first seen, and the followed server with its newest connection at that time; `None` without a gap.
type GapShown = Option<(Instant, usize, u64)>;

/// How a life ends, unless a fault of the plan ends it earlier.
#[derive(Clone, Copy, Debug)]
enum Until {
    /// The service is asked to stop at that time.
    Stopped(Instant),
    /// The process is killed after that many messages.
    Killed(u64),
    /// The process is killed at that time.
    KilledAt(Instant),
    /// The store reaches the chain's tip, with a server that has no faults from the first time on. The second time is
    /// the deadline.
    AtTip(Instant, Instant),
}

impl Until {
    /// Returns the time at which the life ends at the latest.
    fn deadline(self) -> Instant {
        match self {
            Self::Stopped(at) | Self::KilledAt(at) | Self::AtTip(_, at) => at,
            Self::Killed(_) => Instant::now() + Duration::from_secs(120),
        }
    }
}

impl Simulation {
    fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let natures = if rng.chance(0.5) {
            vec![Nature::Alone]
        } else {
            let mut all: Vec<_> = (0..1 + rng.below(3)).map(|_| Nature::bad(&mut rng)).collect();
            all.insert(rng.below(all.len() as u64 + 1) as usize, Nature::Honest);
            all
        };
        Self::of(rng, seed, &natures)
    }

    /// Creates the simulation of a service that follows servers of these natures.
    fn of(mut rng: Rng, seed: u64, natures: &[Nature]) -> Self {
        let chain = Chain::new(&mut rng);
        Self::over(chain, rng, seed, natures)
    }

    /// Creates the simulation of a service that follows this chain.
    fn over(chain: Chain, mut rng: Rng, seed: u64, natures: &[Nature]) -> Self {
        // Numbers of their own: a seed's chain and faults stay the same.
        let errs = natures.contains(&Nature::Errs);
        let chain = Arc::new(if errs { chain.with_wrong_block(&mut Rng::new(seed ^ 0xE445)) } else { chain });
        let extract = [Extract::TokenOwner, Extract::TokenMint, Extract::AccountOwner][rng.below(3) as usize];
        let follow = match extract {
            Extract::AccountOwner => Follow::Exact,
            _ => [Follow::Exact, Follow::Exact, Follow::Wallets, Follow::Closed][rng.below(4) as usize],
        };
        let selection = Selection { extract, follow };
        let commitment = if rng.chance(0.25) { Commitment::Finalized } else { Commitment::Confirmed };
        let durability = if rng.chance(0.15) { Durability::Buffered } else { Durability::Synced };
        let base_known = rng.chance(0.7);
        let mut store = Store::create(&chain, base_known, durability, &mut rng);
        let of = |all: &[u64], rng: &mut Rng| all[rng.below(all.len() as u64) as usize];
        let mut receive = ReceiveConfig {
            providers: Vec::new(),
            selection,
            commitment,
            first: 0,
            settings: defaults::<ReceiveGiven>(),
            idle_timeout: Duration::from_secs(of(&[5, 30], &mut rng)),
            takeover_lag_slots: of(&[3, 10], &mut rng),
            jitter_seed: seed,
        };
        // Numbers of their own, as above.
        let mut reads = Rng::new(seed ^ 0x5EAD);
        let slow = reads.chance(0.02);
        if slow {
            store.slow_down();
        }
        let apply = MapConfig {
            batch: BatchLimits { due: of(&[1, 2, 3, 7, 50, 1000], &mut rng) as usize, most: FRAME_CHANGES_MAX },
            commit_interval: Duration::from_millis(of(&[0, 100, 1000], &mut rng)),
            depth: of(&[1, 2, 64, 1000], &mut reads) as usize,
            reads_in_turn: slow,
            sample_seed: seed,
            ..apply_defaults(durability)
        };
        receive.settings.gap_timeout = Duration::from_secs(of(&[2, 20], &mut rng));
        // Numbers of their own, as above.
        if natures.len() > 1 && Rng::new(seed ^ 0x7A0).chance(0.4) {
            receive.settings.geyser_at_once = 2;
        }
        let server =
            |nature: &Nature| Server::new(Arc::clone(&chain), base_known, &receive, *nature, Rng::new(rng.next_u64()));
        let servers = natures.iter().map(server).collect();
        let oracle = Oracle::new(Arc::clone(&chain), base_known, durability);
        let followers = Followers::of(seed, store.options());
        Self {
            rng,
            chain,
            servers,
            followers,
            store,
            oracle,
            receive,
            apply,
            cut: false,
            longest_pause: Duration::ZERO,
            spool: None,
            heals: None,
        }
    }

    async fn run(mut self) {
        let faulty_until = self.servers[0].complete_at() + Duration::from_secs(self.rng.below(40));
        while Instant::now() < faulty_until {
            // Long enough for a gap to show, or short enough for many restarts.
            let longest_ms = [2000, 5000, 20_000, 60_000][self.rng.below(4) as usize];
            let until = match self.rng.below(3) {
                0 => Until::Killed(self.rng.below(200)),
                _ => Until::Stopped(Instant::now() + Duration::from_millis(self.rng.below(longest_ms))),
            };
            self.life(until).await;
            // The service is down for this time.
            tokio::time::advance(Duration::from_millis(self.rng.below(2000))).await;
        }
        // The server heals during the last life: missing slots must arrive without a restart.
        let deadline = Instant::now() + Duration::from_secs(300);
        let heals_at = Instant::now() + Duration::from_millis(self.rng.below(60_000));
        let (verdict, heard) = self.life(Until::AtTip(heals_at, deadline)).await;
        let at_tip = self.oracle.slot() == self.chain.tip().slot && heard;
        assert!(at_tip, "stuck at slot={} of {:?}: {verdict:?}", self.oracle.slot(), self.chain.tip());
        self.check_followers();
    }

    /// Runs one life, from opening the store to the end of the process. Returns the last verdict, and whether any
    /// message arrived.
    async fn life(&mut self, until: Until) -> (Verdict, bool) {
        let opened = self.store.open();
        self.oracle.opened(&opened, std::mem::take(&mut self.cut));
        let Opened { engine, writer, feed, plan } = opened;
        if !matches!(until, Until::AtTip(..)) && self.rng.chance(0.4) {
            *plan.lock().expect("a plan") = Some((self.rng.below(20) as u32, self.fault()));
        }
        let started_at = self.oracle.slot();
        info!(?until, started_at, plan = ?*plan.lock().expect("a plan"), "a life begins");
        let checkpoint = ChainCheckpoint::read(&engine.checkpoint().expect("a checkpoint")).expect("a chain's");
        let state = State::at(checkpoint).with_providers(self.names());
        self.servers.iter().for_each(Server::begin_life);
        let derived = self.follow(&engine, &feed, &state, false);
        let Start { begin, healer, spool, written } = self.start(&checkpoint, &engine, &state).await;
        self.longest_pause = Duration::ZERO;
        let (stop, stopped) = watch::channel(false);
        let (messages, mut received) = mpsc::channel([1, 2, 4, 256][self.rng.below(4) as usize]);
        let follows = Arc::new(AtomicBool::new(matches!(begin, Begin::Follow(None))));
        let sources = self.sources(messages, &state, stopped.clone(), Arc::clone(&follows));
        let receiver = tokio::spawn(sources.feed(begin, healer));
        let mut apply = self.applier(&engine, &state, writer, stopped);
        apply.begin();
        let (deadline, mut taken) = (until.deadline(), 0);
        let (mut newest, mut moved_at, mut gap_shown) = (self.oracle.newest(), None, None);
        let killed = loop {
            let Ok(message) = timeout_at(deadline, received.recv()).await else {
                break matches!(until, Until::KilledAt(_));
            };
            let message = message.expect("the receiver goes on until it is stopped");
            taken += 1;
            if matches!(until, Until::Killed(after) if taken > after) {
                break true;
            }
            self.note_heal(&message, &state);
            if let Err(failed) = apply.take(message, received.is_empty()) {
                assert_eq!(failed.to_string(), KILLED);
                self.cut = true;
                break true;
            }
            self.oracle.check(&*engine, &feed, Some(&state));
            self.note_pause(&mut newest, &mut moved_at);
            // ORDERING: Relaxed: one thread.
            if follows.load(Ordering::Relaxed) {
                self.check_state(&state, started_at, moved_at, &mut gap_shown);
            }
            if let Until::AtTip(heals_at, _) = until {
                if Instant::now() >= heals_at {
                    self.servers.iter().for_each(Server::heal);
                }
                if self.oracle.slot() == self.chain.tip().slot {
                    break false;
                }
            }
        };
        let flushed_bytes = spool.flushed_bytes();
        stop.send_replace(true);
        receiver.abort();
        receiver.await.ok();
        drop(received);
        spooled::gone(written).await;
        if killed {
            self.tear_spool(flushed_bytes);
        }
        self.end(apply, killed, &engine, &feed, &state);
        if let Some(derived) = derived {
            derived.kill();
        }
        let verdict = state.verdict();
        info!(killed, slot = self.oracle.slot(), ?verdict, "a life ends");
        (verdict, taken > 0)
    }

    /// The ingest-apply of a life, which is not begun.
    fn applier(
        &self,
        engine: &Arc<Measured>,
        state: &State,
        writer: crate::feed::FeedWriter,
        stopped: watch::Receiver<bool>,
    ) -> Apply {
        let gap_timeout = self.receive.settings.gap_timeout;
        let (engine, writer) = (Arc::clone(engine), Some(writer));
        Apply::new(engine, state.clone(), writer, self.apply, gap_timeout, Pulse::default(), stopped)
            .expect("the engine has a checkpoint")
            .with_memory(self.store.dir())
    }

    /// Ends ingest-apply and checks the store that it leaves.
    fn end(&mut self, apply: Apply, killed: bool, engine: &Measured, feed: &Feed, state: &State) {
        if killed {
            self.oracle.follow(feed);
            drop(apply);
        } else if let Err(failed) = apply.end() {
            assert_eq!(failed.to_string(), KILLED);
            self.cut = true;
            self.oracle.follow(feed);
        } else {
            self.oracle.check(engine, feed, Some(state));
        }
    }

    /// Tells the oracle of a heal that begins. A store with whole slots to commit has continued since it was compared.
    fn note_heal(&mut self, message: &Message, state: &State) {
        if let Message::Heal(heal) = message
            && state.resume.slot() == heal.from.slot
            && **state.published.checkpoint() == heal.from
        {
            self.oracle.heal(heal.to, heal.fits_feed);
        }
    }

    /// Updates the longest time between two applied blocks of this life. `newest` is the block that was applied last, at
    /// `moved_at`.
    fn note_pause(&mut self, newest: &mut Base, moved_at: &mut Option<Instant>) {
        if self.oracle.newest() != *newest {
            let pause = moved_at.map_or(Duration::ZERO, |at| at.elapsed());
            self.longest_pause = self.longest_pause.max(pause);
            (*newest, *moved_at) = (self.oracle.newest(), Some(Instant::now()));
        }
    }

    fn fault(&mut self) -> Fault {
        match self.rng.below(7) {
            0 => Fault::KillBefore,
            1 => Fault::KillAfter,
            2 => Fault::KillInWrites,
            3 => Fault::FullAtCommit(1 + self.rng.below(3) as u8),
            4 => Fault::WantAtCommit(1 + self.rng.below(3) as u8),
            5 => Fault::WantAtRead(self.rng.below(20) as u8),
            _ => Fault::FullAtWrite(1 + self.rng.below(3) as u8),
        }
    }

    /// Checks trust, readiness and the end of useless connections of a service that follows the stream.
    fn check_state(&self, state: &State, started_at: u64, moved_at: Option<Instant>, gap_shown: &mut GapShown) {
        self.check_trust(state);
        self.check_readiness(state, started_at, moved_at);
        self.check_given_up(state, gap_shown);
    }

    /// Asserts that the verdict is true. `moved_at` is the time at which this life last applied a slot.
    fn check_readiness(&self, state: &State, started_at: u64, moved_at: Option<Instant>) {
        let verdict = state.verdict();
        let slot = self.oracle.slot();
        if verdict.is_ready() {
            assert!(slot > started_at, "ready at slot={slot}, and nothing was applied since the start");
            let since = moved_at.expect("ready without a slot").elapsed();
            assert!(since < ReadinessSettings::default().max_lag, "ready, and nothing was applied for {since:?}");
        }
        let several = self.servers.len() > 1;
        let lost =
            self.servers.iter().find_map(|server| server.lost().filter(|lost| !several || lost.is_of_open(server)));
        let Some(lost) = lost.filter(|lost| slot < lost.slot) else { return };
        // Ticks come twice a second. Slots out of order may hide the loss for a few slots.
        if Instant::now() > lost.since + self.receive.settings.gap_timeout + Duration::from_secs(5) {
            let Some(gap) = &verdict.gap else {
                panic!("slot={} is missing and nobody says so: {verdict:?}", lost.slot);
            };
            assert!(gap.first_slot <= lost.slot, "{gap:?} is not {lost:?}");
        }
    }

    /// Asserts that a connection that has shown a gap is given up in time. `shown` holds the time at which the gap was
    /// first seen, and the followed server with its newest connection at that time.
    fn check_given_up(&self, state: &State, shown: &mut GapShown) {
        // Of two connections at once, the other one may have shown it.
        if !matches!(state.progress.phase(), Phase::Gap(_)) || self.receive.settings.geyser_at_once > 1 {
            *shown = None;
            return;
        }
        let (since, at, connection) = *shown.get_or_insert_with(|| {
            let at = *state.providers.followed().borrow();
            (Instant::now(), at, self.servers[at].newest_connection())
        });
        let kept = self.servers[at].is_open(connection) && since.elapsed() > GIVEN_UP_WITHIN;
        assert!(!kept, "connection={connection} has shown a gap and is kept");
    }

    /// Asserts that a server is left once it has contradicted the applied chain, unless every other one was left before it, that
    /// a distrusted server is not asked again, and that no honest server is distrusted. A server that errs has others
    /// distrusted until a heal.
    fn check_trust(&self, state: &State) {
        let errs = self.chain.wrong.is_some() && self.oracle.slot() < self.chain.tip().slot;
        let is_left = |index: usize| state.providers.is_distrusted(index);
        for (index, server) in self.servers.iter().enumerate() {
            let (nature, lies) = (server.nature(), server.lies());
            let shown = server.lies_shown();
            let is_last = (0..self.servers.len()).all(|other| other == index || is_left(other));
            assert!(shown <= 1 || is_last, "server={index} {nature:?} is followed again: shown={shown}");
            assert!(errs || lies > 0 || !is_left(index), "server={index} {nature:?} is distrusted");
            let asked = if is_left(index) { server.asked_since_distrust() } else { 0 };
            assert_eq!(asked, 0, "server={index} {nature:?} is distrusted, and asked again");
        }
    }
}
