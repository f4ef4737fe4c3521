//! The requests: due at their time, sent on shared connections, with verified answers.
//!
//! Owns: pacing and verification. Must not: print. Threads: `pace` announces when a request is due, because a runtime's
//! timer is too coarse and its millisecond would count as latency. One tokio worker, `query`, sends and receives.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use client::{Builder, Client, Key, Value};
use engine_latency::{Latency, Recorder, Snapshot};
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use tokio::runtime::Runtime;
use tokio::sync::mpsc;
use workload::{Pairs, Picker, Rng};

use super::{QueryArgs, op_of};
use crate::bench::pace::Pace;
use crate::result::Series;

/// Source label of everything recorded here: latencies as a client sees them.
pub(super) const SOURCE: &str = "client";

/// Capacity of a connection's queue of requests that are due and not sent yet: a second at 65,536/s. When it is full,
/// the pacing thread waits. The requests that it announces later are late by its own clock, which is counted.
const DUE_QUEUE: usize = 65_536;

/// Time after which a request without an answer fails the run.
pub(super) const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// Address of the service, with the options to reach it.
#[derive(Clone, Debug)]
pub(super) struct Target {
    /// Name of the transport in reports.
    pub(super) transport: &'static str,
    pub(super) builder: Builder,
}

/// Requests of one kind that are due at one rate.
#[derive(Clone, Debug)]
pub(super) struct Load {
    pub(super) args: Arc<QueryArgs>,
    /// Requests a second over all connections. `None`: closed loop.
    pub(super) rate: Option<f64>,
}

/// Figures measured at one rate.
#[derive(Debug)]
pub(super) struct Driven {
    pub(super) requests: u64,
    /// Requests of an open loop that were due and not sent at the end.
    pub(super) overdue: u64,
    pub(super) elapsed: Duration,
    pub(super) total: Snapshot,
    pub(super) series: Vec<Series>,
}

impl Target {
    /// Opens a client with a connection of its own.
    async fn connect(&self) -> Result<Client> {
        Ok(self.builder.clone().connect().await?)
    }
}

/// Asks the service for its engine's label.
pub(super) async fn engine(target: &Target) -> Result<String> {
    let status = target.connect().await?.status().await;
    Ok(status.context("the service does not answer Status")?.engine)
}

/// Sends requests for `load.args.time` and waits for the last answers.
pub(super) fn drive(runtime: &Runtime, target: &Target, load: &Load, latency: &Arc<Latency>) -> Result<Driven> {
    let stop = Arc::new(AtomicBool::new(false));
    let mut tasks = Vec::new();
    let mut due = Vec::new();
    for n in 0..load.args.connections {
        let client = runtime.block_on(target.connect())?;
        let connection = Connection::new(client, load.clone(), n, latency.recorder(SOURCE));
        if load.rate.is_some() {
            let (sender, receiver) = mpsc::channel(DUE_QUEUE);
            due.push(sender);
            tasks.push(runtime.spawn(connection.open_loop(receiver)));
        } else {
            tasks.push(runtime.spawn(connection.closed_loop(Arc::clone(&stop))));
        }
    }
    let started = Instant::now();
    let pacer = load.rate.map(|rate| spawn_pacer(rate, due, Arc::clone(&stop))).transpose()?;
    let (mut recorder, mut overdue) = (latency.recorder(SOURCE), 0);
    let series = crate::bench::pace::sample(latency, started, load.args.time, &stop);
    // ORDERING: Relaxed: the flag carries no other data.
    stop.store(true, Ordering::Relaxed);
    let end = Instant::now();
    if let Some(pacer) = pacer {
        let pace = pacer.join().map_err(|_| anyhow!("the pacing thread panicked"))?;
        let mut rng = Rng::new(load.args.seed);
        for due in pace.overdue(end) {
            let op = op_of(load.args.batch, rng.chance(load.args.negative_share));
            recorder.record(op, (end - due).as_nanos() as u64);
            overdue += 1;
        }
    }
    let mut requests = 0;
    for task in tasks {
        requests += runtime.block_on(task).map_err(|_| anyhow!("a connection's task panicked"))??;
    }
    Ok(Driven { requests, overdue, elapsed: started.elapsed(), total: latency.snapshot(), series })
}

fn spawn_pacer(
    rate: f64,
    due: Vec<mpsc::Sender<Instant>>,
    stop: Arc<AtomicBool>,
) -> Result<std::thread::JoinHandle<Pace>> {
    let run = move || {
        let mut pace = Pace::new(Some(rate));
        let mut turn = 0;
        // ORDERING: Relaxed: the flag carries no other data.
        while !stop.load(Ordering::Relaxed) {
            let at = pace.next();
            // The channel is closed if its connection has failed, which the task reports.
            if due[turn].blocking_send(at).is_err() {
                break;
            }
            turn = (turn + 1) % due.len();
        }
        pace
    };
    std::thread::Builder::new().name("pace".to_owned()).spawn(run).context("cannot start the pacing thread")
}

/// A connection with its own sequence of keys.
struct Connection {
    client: Client,
    load: Load,
    rng: Rng,
    picker: Picker,
    recorder: Recorder,
}

/// Keys of a request, and their expected values.
struct Request {
    keys: Vec<Key>,
    expected: Vec<Option<Value>>,
    negative: bool,
    due: Instant,
}

impl Connection {
    fn new(client: Client, load: Load, n: u32, recorder: Recorder) -> Self {
        let rng = Rng::new(load.args.seed ^ (u64::from(n) << 32) ^ 0x71_7565_7279);
        let picker = Picker::new(load.args.pairs, load.args.skew.0);
        Self { client, load, rng, picker, recorder }
    }

    /// Sends requests as they are due, with at most `in_flight` of them unanswered.
    async fn open_loop(mut self, mut due: mpsc::Receiver<Instant>) -> Result<u64> {
        let (mut under_way, mut requests, mut ended) = (FuturesUnordered::new(), 0, false);
        while !ended || !under_way.is_empty() {
            tokio::select! {
                at = due.recv(), if !ended && under_way.len() < self.load.args.in_flight as usize => match at {
                    Some(at) => {
                        let request = self.request(at);
                        under_way.push(answer(self.client.clone(), request, self.load.args.changed));
                        requests += 1;
                    }
                    None => ended = true,
                },
                Some(answered) = under_way.next() => self.record(answered?),
            }
        }
        Ok(requests)
    }

    /// Keeps `in_flight` requests unanswered at any time.
    async fn closed_loop(mut self, stop: Arc<AtomicBool>) -> Result<u64> {
        let (mut under_way, mut requests) = (FuturesUnordered::new(), 0);
        loop {
            // ORDERING: Relaxed: the flag carries no other data.
            while under_way.len() < self.load.args.in_flight as usize && !stop.load(Ordering::Relaxed) {
                let request = self.request(Instant::now());
                under_way.push(answer(self.client.clone(), request, self.load.args.changed));
                requests += 1;
            }
            match under_way.next().await {
                Some(answered) => self.record(answered?),
                None => return Ok(requests),
            }
        }
    }

    fn request(&mut self, due: Instant) -> Request {
        let negative = self.rng.chance(self.load.args.negative_share);
        let pairs = Pairs::new(self.load.args.seed);
        let (mut keys, mut expected) = (Vec::new(), Vec::new());
        for _ in 0..self.load.args.batch {
            if negative {
                keys.push(pairs.absent_key(self.rng.next_u64() >> 1));
                expected.push(None);
            } else {
                let index = self.picker.pick(&mut self.rng);
                keys.push(pairs.key(index));
                expected.push(Some(pairs.value(index, 0)));
            }
        }
        Request { keys, expected, negative, due }
    }

    fn record(&mut self, (negative, latency): (bool, Duration)) {
        self.recorder.record(op_of(self.load.args.batch, negative), latency.as_nanos() as u64);
    }
}

/// Sends one request and verifies its answer. Returns whether it was negative, and its latency from when it was due.
async fn answer(client: Client, request: Request, changed: bool) -> Result<(bool, Duration)> {
    let Request { keys, expected, negative, due } = request;
    let answered = match keys.as_slice() {
        [key] => client.get(key).await.map(|found| vec![found.value]),
        keys => client.get_many(keys).await.map(|found| found.value),
    };
    let values = answered.context("a request failed")?;
    let latency = due.elapsed();
    ensure!(values.len() == expected.len(), "answers={} keys={}", values.len(), expected.len());
    for ((key, value), expected) in keys.iter().zip(&values).zip(&expected) {
        let right = match (value, expected) {
            (None, None) => true,
            (Some(value), Some(expected)) => changed || value == expected,
            // A stream may have closed a loaded account. It never creates an absent key.
            (None, Some(_)) => changed,
            (Some(_), None) => false,
        };
        ensure!(
            right,
            "wrong answer: key={} value={} expected={}: the pairs are those of --seed and --pairs, which must be the load's; if \
             the store follows a stream, give --changed",
            shown(Some(key)),
            shown(value.as_ref()),
            shown(expected.as_ref())
        );
    }
    Ok((negative, latency))
}

/// Formats a value for an error message.
fn shown(value: Option<&Value>) -> String {
    value.map_or_else(|| "absent".to_owned(), |value| bs58::encode(value).into_string())
}
