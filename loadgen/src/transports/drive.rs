//! One client in a closed loop over one transport, with each answer checked.
//!
//! Owns: the loop and its clock. Must not: print. Runs on the caller's thread.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use client::blocking;
use client::{Key, Value};
use engine_latency::{Latency, Op, Snapshot};
use workload::{Pairs, Rng};

use super::redis::Redis;
use crate::access::Access;

/// Unrecorded time at the start of each run, in which connections, caches and the service's threads come up to speed.
const WARM_UP: Duration = Duration::from_millis(200);

/// Longest time that a spinning client polls for its answer, longer than any read from memory takes. On a machine whose
/// cores are busy the client sleeps all the same, if that is quicker.
const SPIN: Duration = Duration::from_millis(1);

/// A transport to the service, with the options to reach it.
#[derive(Clone, Debug)]
pub(super) struct Transport {
    pub(super) name: &'static str,
    address: String,
    access: Access,
    spin: Duration,
}

/// A connection by any transport.
pub(super) enum Client {
    /// Over shared memory or gRPC.
    Solkv(Box<blocking::Client>),
    Redis(Redis),
}

/// Size and keys of the requests of one run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Load {
    pub(super) pairs: u64,
    pub(super) seed: u64,
    pub(super) batch: usize,
    pub(super) time: Duration,
    pub(super) repeat: u32,
}

/// Figures of one transport's run.
#[derive(Debug)]
pub(super) struct Driven {
    pub(super) keys: u64,
    pub(super) elapsed: Duration,
    pub(super) total: Snapshot,
    /// CPU time of the service during the run in seconds. `None` if the service is not ours.
    pub(super) service_cpu_s: Option<f64>,
}

impl Transport {
    /// Returns the transports of an address. Shared memory counts as two: for a client that spins and for one that
    /// sleeps.
    pub(super) fn of(address: &str, access: &Access) -> Vec<Self> {
        let way = |name, spin| Self { name, address: address.to_owned(), access: access.clone(), spin };
        match address.split_once("://").map(|(scheme, _)| scheme) {
            Some("shm") => vec![way("shm-spinning", SPIN), way("shm-blocking", Duration::ZERO)],
            Some("unix") => vec![way("grpc-uds", SPIN)],
            Some("https") => vec![way("grpc-tls", SPIN)],
            Some("redis") => vec![way("redis-tcp", SPIN)],
            Some("redis+unix") => vec![way("redis-uds", SPIN)],
            _ => vec![way("grpc-tcp", SPIN)],
        }
    }

    pub(super) fn connect(&self) -> Result<Client> {
        if Redis::target(&self.address).is_some() {
            return Redis::connect(&self.address).map(Client::Redis);
        }
        let builder = self.access.fitting(&self.address)?.builder(&self.address)?;
        Ok(Client::Solkv(Box::new(builder.spin(self.spin).connect_blocking()?)))
    }

    /// Returns the transport to a redis-server.
    pub(super) fn of_redis_server(address: &str) -> Self {
        Self { name: "redis-server", address: address.to_owned(), access: Access::default(), spin: SPIN }
    }
}

impl Driven {
    pub(super) fn mean_ns(&self) -> f64 {
        self.total.series.first().map_or(0.0, engine_latency::Series::mean_ns)
    }

    /// Returns a quantile of the latencies in ns.
    pub(super) fn at(&self, quantile: f64) -> f64 {
        self.total.series.first().map_or(0.0, |series| series.histogram.value_at_quantile(quantile) as f64)
    }
}

/// Sends requests for `load.time` and checks every answer.
pub(super) fn drive(transport: &Transport, load: &Load) -> Result<Driven> {
    let mut client = transport.connect()?;
    let pairs = Pairs::new(load.seed);
    // Repeats ask for different keys, and all transports of a repeat for the same ones.
    let mut rng = Rng::new(load.seed ^ (u64::from(load.repeat) << 32) ^ 0x7472_616e);
    let latency = Latency::new("transports");
    let mut recorder = latency.recorder("client");
    let op = if load.batch == 1 { Op::ReadPositive } else { Op::GetMany };
    let (mut keys, mut expected) = (Vec::with_capacity(load.batch), Vec::with_capacity(load.batch));
    let warm = Instant::now() + WARM_UP;
    let mut measured: Option<Instant> = None;
    let mut asked = 0;
    loop {
        keys.clear();
        expected.clear();
        for _ in 0..load.batch {
            let index = rng.below(load.pairs);
            keys.push(pairs.key(index));
            expected.push(Some(pairs.value(index, 0)));
        }
        let start = recorder.start();
        let found = client.ask(&keys)?;
        let nanos = recorder.elapsed_ns(start);
        if let Some(at) = (0..keys.len()).find(|at| found.get(*at) != expected.get(*at)) {
            let shown = |value: Option<&Option<Value>>| {
                value
                    .and_then(Option::as_ref)
                    .map_or_else(|| "absent".to_owned(), |value| bs58::encode(value).into_string())
            };
            let (found, expected) = (shown(found.get(at)), shown(expected.get(at)));
            bail!("wrong answer: key={} found={found} expected={expected}", bs58::encode(keys[at]).into_string());
        }
        match measured {
            Some(started) => {
                recorder.record(op, nanos);
                asked += load.batch as u64;
                if started.elapsed() >= load.time {
                    drop(recorder);
                    let (elapsed, total) = (started.elapsed(), latency.snapshot());
                    return Ok(Driven { keys: asked, elapsed, total, service_cpu_s: None });
                }
            }
            None if Instant::now() > warm => measured = Some(Instant::now()),
            None => {}
        }
    }
}

impl Client {
    /// Returns the label of the server's engine.
    pub(super) fn engine(&mut self) -> Result<String> {
        match self {
            Self::Solkv(client) => Ok(client.status()?.engine),
            Self::Redis(redis) => redis.engine(),
        }
    }

    fn ask(&mut self, keys: &[Key]) -> Result<Vec<Option<Value>>> {
        Ok(match (self, keys) {
            (Self::Solkv(client), [key]) => vec![client.get(key)?.value],
            (Self::Solkv(client), keys) => client.get_many(keys)?.value,
            (Self::Redis(redis), [key]) => vec![redis.get(key)?],
            (Self::Redis(redis), keys) => redis.get_many(keys)?,
        })
    }
}
