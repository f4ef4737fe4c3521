//! Measures how soon after the service's publishing a follower receives a change.
//!
//! Owns: the stream that makes changes, the followers' threads, the table. Must not: link the service. Threads: one for
//! each follower, in addition to the stream's own.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use client::{Builder, Event, Filter, Start};
use engine_latency::table::{aligned, grouped, micros};
use rustix::time::{ClockId, clock_gettime};

use super::{Own, POLL_PERIOD, START_BOUND, STOP_BOUND, TransportsArgs, serve};
use crate::stream::{self, Stream};

/// Options of the stream: slots of 20 events, 200 slots a second. Each slot is a commit, and the followers follow
/// commits.
const STREAM: &str =
    "--base-empty --pairs 100000 --rate 4000 --events-per-slot 20 --change-share 0.9 --unknown-share 0";
const EVENTS_PER_SECOND: u64 = 4000;

/// Time without an event after which a feed has delivered everything.
const QUIET: Duration = Duration::from_millis(300);

/// One arrival: the `seq` of its last change, and the times of its arrival and publication, in ns of CLOCK_MONOTONIC.
struct Arrival {
    seq: u64,
    at_ns: u64,
    published_ns: Option<u64>,
}

/// Follows a stream over shared memory while spinning, then over shared memory and gRPC while sleeping between changes.
/// Returns the table of the latencies.
pub(super) fn run(args: &TransportsArgs) -> Result<String> {
    let header = ["follower", "commits", "avg", "p50", "p90", "p99", "max"];
    let mut rows = vec![header.map(str::to_owned).to_vec()];
    let [spinning] = &follow(args, [("shm-spinning", 0, Duration::from_secs(1))])?;
    rows.push(row("shm-spinning", &ages(spinning, spinning))?);
    let [ring, grpc] = &follow(args, [("shm-blocking", 0, Duration::ZERO), ("grpc-uds", 1, Duration::ZERO)])?;
    rows.push(row("shm-blocking", &ages(ring, ring))?);
    rows.push(row("grpc-uds", &ages(grpc, ring))?);
    Ok(format!("change feed, us from publishing to the follower, 200 commits a second\n{}", aligned(&rows)))
}

/// Runs one stream with its followers, each given as `(name, index of the address, spin)`.
fn follow<const N: usize>(
    args: &TransportsArgs,
    followers: [(&'static str, usize, Duration); N],
) -> Result<[Vec<Arrival>; N]> {
    let (mut workload, delivery) = stream::options(STREAM)?;
    workload.events = EVENTS_PER_SECOND * args.time.as_secs().max(1) * u64::from(args.repeats);
    let stream = Stream::start(workload, &delivery, "127.0.0.1:0")?;
    let (mut own, addresses) = serve(args, None, &format!("http://{}", stream.address()))?;
    let over = Arc::new(AtomicBool::new(false));
    let threads = followers.map(|(name, address, spin)| follower(name, addresses[address].clone(), spin, &over));
    let outcome = wait(&stream, &mut own);
    // ORDERING: Relaxed: a flag that is polled, and that carries no other data.
    over.store(true, Ordering::Relaxed);
    let arrivals = threads.map(|thread| match thread {
        Ok(thread) => thread.join().unwrap_or_else(|_| Err(anyhow::anyhow!("a follower panicked"))),
        Err(error) => Err(error),
    });
    own.stop(STOP_BOUND)?;
    stream.stop()?;
    outcome?;
    let mut all = Vec::new();
    for arrivals in arrivals {
        all.push(arrivals?);
    }
    all.try_into().map_err(|_| anyhow::anyhow!("a follower is missing"))
}

fn wait(stream: &Stream, own: &mut Own) -> Result<()> {
    while stream.outcome()?.is_none() {
        own.service.check_running()?;
        std::thread::sleep(POLL_PERIOD);
    }
    Ok(())
}

fn follower(
    name: &'static str,
    address: String,
    spin: Duration,
    over: &Arc<AtomicBool>,
) -> Result<JoinHandle<Result<Vec<Arrival>>>> {
    let over = Arc::clone(over);
    let run = move || {
        let builder = Builder::new(&address)?.spin(spin);
        let started = Instant::now();
        let client = loop {
            match builder.clone().connect_blocking() {
                Ok(client) => break client,
                Err(error) if started.elapsed() > START_BOUND => return Err(error.into()),
                Err(_) => std::thread::sleep(POLL_PERIOD),
            }
        };
        let mut feed = client.subscribe(Start::Now, Filter::default())?;
        let mut arrivals = Vec::new();
        loop {
            match feed.next_event_within(QUIET).with_context(|| format!("follower={name}"))? {
                Some(Event::Changes { changes, .. }) => {
                    let at_ns = monotonic_ns();
                    let seq = changes.last().map_or(0, |change| change.seq);
                    arrivals.push(Arrival { seq, at_ns, published_ns: feed.published_ns() });
                }
                Some(Event::Started { .. } | Event::Heartbeat { .. }) => {}
                Some(other) => anyhow::bail!("unexpected from a feed that began now: {other:?}"),
                None => {}
            }
            // ORDERING: Relaxed: a flag that is polled, and that carries no other data.
            if over.load(Ordering::Relaxed)
                && arrivals.last().is_none_or(|last| monotonic_ns() - last.at_ns > QUIET.as_nanos() as u64)
            {
                return Ok(arrivals);
            }
        }
    };
    Ok(std::thread::Builder::new().name(name.to_owned()).spawn(run)?)
}

/// Returns the times from publishing to arrival in ns, ascending, for the arrivals whose time of publishing `clock`
/// has.
fn ages(arrivals: &[Arrival], clock: &[Arrival]) -> Vec<u64> {
    let published: HashMap<u64, u64> =
        clock.iter().filter_map(|arrival| Some((arrival.seq, arrival.published_ns?))).collect();
    let age = |arrival: &Arrival| Some(arrival.at_ns.saturating_sub(*published.get(&arrival.seq)?));
    let mut ages: Vec<u64> = arrivals.iter().filter_map(age).collect();
    ages.sort_unstable();
    ages
}

fn row(name: &str, ages: &[u64]) -> Result<Vec<String>> {
    ensure!(!ages.is_empty(), "nothing was followed: follower={name}");
    let at = |quantile: f64| micros(ages[((ages.len() - 1) as f64 * quantile) as usize] as f64);
    let mean = ages.iter().sum::<u64>() as f64 / ages.len() as f64;
    Ok(vec![name.to_owned(), grouped(ages.len() as u64), micros(mean), at(0.5), at(0.9), at(0.99), at(1.0)])
}

fn monotonic_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
