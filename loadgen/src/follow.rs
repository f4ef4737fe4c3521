//! `loadgen follow`: follows a service's change feed as another program would, over any transport.
//!
//! Owns: the arguments and the printed lines. Must not: repeat the client's checks, because a hole in the feed is
//! already the client's error. Runs on the main thread.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use client::{Change, Event, Filter, SlotEnd, Start};
use engines::Digest;
use program::{say, tell};

use crate::access::Access;

/// Text after the options in `loadgen follow --help`.
pub const EXAMPLES: &str = "\
Prints its progress at intervals, and a summary at the end. With --print it also prints every change: seq, slot, key, old \
value, new value, in base58, `-` for none; and the end of every slot: seq of its last change, slot, the word end, \
blockhash, parent slot. If the service stops or is killed and comes back, it continues from the same position. \
Ctrl-C ends it.

Examples:
  solkv-loadgen follow --address unix:///run/solkv/kv.sock
  solkv-loadgen follow --address shm:///run/solkv/shm.sock --print
  solkv-loadgen follow --address http://127.0.0.1:7400 --from dump
  solkv-loadgen follow --address https://kv.example:7400 --tls-ca ca.pem --bearer-token-file token
  solkv-loadgen follow --address http://127.0.0.1:7400 --from 2000001 --feed-id 1f0c5d7a9b3e2468
  solkv-loadgen follow --address http://127.0.0.1:7400 --digest 2000000:5b0e1f0c5d7a9b3e24680c5d7a9b3e24";

/// Time to wait for a change before signals are checked.
const WAIT: Duration = Duration::from_millis(200);
/// Time in which a feed has to begin if `--time` bounds the run. It is longer than a busy service takes to let a
/// follower in, and ends a script if the service is gone.
const BEGIN: Duration = Duration::from_secs(30);

#[derive(clap::Args, Clone, Debug)]
pub struct FollowArgs {
    /// Address of the service: shm:///PATH, unix:///PATH, HOST:PORT, http://HOST:PORT or https://HOST:PORT
    #[arg(long, value_name = "URL")]
    address: String,
    /// Token and certificates, if the service demands them.
    #[command(flatten)]
    access: Access,
    /// Where to begin: now, dump, or the seq of a change
    #[arg(long, value_name = "now|dump|SEQ", default_value = "now")]
    from: String,
    /// Id of the feed that the seq belongs to, as an earlier run printed it
    #[arg(long, value_name = "HEX", requires = "from")]
    feed_id: Option<String>,
    /// Digest of the map at the beginning, as `bootstrap info --digest` or an archive's writer prints it; the summary
    /// has the digest of the map after the changes
    #[arg(long, value_name = "PAIRS:HEX")]
    digest: Option<Digest>,
    /// Print every change, and where slots end
    #[arg(long)]
    print: bool,
    /// Time between two lines of progress
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration, default_value = "10s")]
    every: Duration,
    /// Stop this long after the feed has begun
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    time: Option<Duration>,
}

/// Counts of the events so far.
#[derive(Default)]
struct Seen {
    /// Time at which the service first announced its feed. `None` until then.
    begun: Option<Instant>,
    pairs: u64,
    changes: u64,
    slot: Option<u64>,
    /// Digest of the map, if it is known where the feed began.
    digest: Option<Digest>,
}

/// Runs `loadgen follow`.
///
/// # Errors
/// No service at the address; a feed that has not begun after 30 s if `--time` is given; the client's errors about
/// the feed.
pub fn run(args: &FollowArgs) -> Result<()> {
    let stop = crate::commands::stop_flag()?;
    let client = args.access.builder(&args.address)?.connect_blocking()?;
    let mut feed = client.subscribe(start(args)?, Filter::default())?;
    let mut seen = Seen { digest: args.digest, ..Seen::default() };
    let (started, mut told) = (Instant::now(), Instant::now());
    let mut told_changes = 0;
    let is_over = |seen: &Seen| args.time.is_some_and(|time| seen.begun.is_some_and(|at| at.elapsed() >= time));
    // ORDERING: Relaxed: the flag carries no other data.
    while !stop.load(Ordering::Relaxed) && !is_over(&seen) && !program::is_output_lost() {
        if let Some(event) = feed.next_event_within(WAIT)? {
            seen.take(args, event)?;
        }
        let late = args.time.is_some() && seen.begun.is_none() && started.elapsed() >= BEGIN;
        ensure!(!late, "{}: no feed has begun within {BEGIN:?}: see the service's log", args.address);
        if told.elapsed() >= args.every {
            let rate = (seen.changes - told_changes) as f64 / told.elapsed().as_secs_f64();
            let (seq, slot) = (known(feed.last_seq()), known(seen.slot));
            tell!("seq={seq} slot={slot} changes={} rate={rate:.0}/s", seen.changes);
            (told, told_changes) = (Instant::now(), seen.changes);
        }
    }
    let (seq, feed_id) = (feed.last_seq().unwrap_or_default(), feed.feed_id().unwrap_or_default());
    let digest = seen.digest.map(|digest| format!(" digest={digest}")).unwrap_or_default();
    say!("seq={seq} feed_id={feed_id:016x} pairs={} changes={}{digest}", seen.pairs, seen.changes);
    Ok(())
}

impl FollowArgs {
    /// Refuses arguments that can never work.
    ///
    /// # Errors
    /// An address of no known form, or an invalid start. The error names the option.
    pub fn check(&self) -> Result<()> {
        self.access.builder(&self.address)?;
        ensure!(self.digest.is_none() || self.from != "dump", "a dump begins with no map: leave out --digest");
        start(self).map(drop)
    }
}

fn start(args: &FollowArgs) -> Result<Start> {
    let feed_id = args.feed_id.as_deref().map(|id| u64::from_str_radix(id, 16)).transpose();
    let Ok(feed_id) = feed_id else { bail!("not a feed's id: feed-id={:?}; give its 16 hex digits", args.feed_id) };
    match (args.from.as_str(), feed_id) {
        ("now", None) => Ok(Start::Now),
        ("dump", None) => Ok(Start::Dump),
        ("now" | "dump", Some(_)) => bail!("a feed's id goes with the seq of a change: from={:?}", args.from),
        (seq, feed_id) => {
            let Ok(seq) = seq.parse() else { bail!("from={seq:?}: give now, dump, or the seq of a change") };
            ensure!(feed_id.is_some(), "from={seq}: name the feed that it belongs to with --feed-id");
            Ok(Start::From { seq, feed_id: feed_id.unwrap_or_default() })
        }
    }
}

impl Seen {
    fn take(&mut self, args: &FollowArgs, event: Event) -> Result<()> {
        match event {
            Event::Started { feed_id, next_seq, oldest_seq, slot } => {
                tell!("feed_id={feed_id:016x} next_seq={next_seq} oldest_seq={oldest_seq} slot={}", known(slot));
                (self.pairs, self.slot) = (0, slot);
                self.begun.get_or_insert_with(Instant::now);
            }
            Event::Pairs(pairs) => self.pairs += pairs.len() as u64,
            Event::DumpEnd { seq, slot, pairs } => {
                tell!("dump: seq={seq} slot={} pairs={pairs}", known(slot));
                self.slot = slot;
            }
            Event::Changes { changes, slot_end } => {
                self.changes += changes.len() as u64;
                self.slot = slot_end.map(|end| end.slot).or(self.slot);
                changes.iter().try_for_each(|change| self.apply(change))?;
                if args.print {
                    changes.iter().for_each(|change| say!("{}", line(change)));
                    slot_end.iter().for_each(|end| say!("{}", end_line(end)));
                }
            }
            Event::Heartbeat { slot, .. } => self.slot = slot,
        }
        Ok(())
    }

    /// Applies a change to the digest.
    fn apply(&mut self, change: &Change) -> Result<()> {
        let Change { seq, key, old, new, .. } = change;
        let Some(digest) = &mut self.digest else { return Ok(()) };
        if let Some(old) = old {
            ensure!(digest.pairs() > 0, "the change seq={seq} replaces a pair that the map of --digest does not have");
            digest.remove(key, old);
        }
        new.iter().for_each(|new| digest.add(key, new));
        Ok(())
    }
}

/// Formats a number that may not be known yet.
fn known(number: Option<u64>) -> String {
    number.map_or_else(|| "none".to_owned(), |number| number.to_string())
}

fn end_line(end: &SlotEnd) -> String {
    let SlotEnd { seq, slot, blockhash, parent_slot } = end;
    format!("{seq} {slot} end {} {parent_slot}", bs58::encode(blockhash).into_string())
}

fn line(change: &Change) -> String {
    let Change { seq, key, old, new, slot } = change;
    let base58 = |bytes: &[u8; 32]| bs58::encode(bytes).into_string();
    let or_none = |bytes: &Option<[u8; 32]>| bytes.as_ref().map_or_else(|| "-".to_owned(), base58);
    format!("{seq} {slot} {} {} {}", base58(key), or_none(old), or_none(new))
}
