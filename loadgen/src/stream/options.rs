//! Options of `loadgen stream`, and the checks that turn arguments into a run.
//!
//! Owns: the command line of the stream. Must not: open sockets or generate anything.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use workload::Skew;

use crate::stream::account::Extract;
use crate::stream::compress::Compression;
use crate::stream::filter::Limits;
use crate::stream::like::Like;

/// Largest number of events in a slot: over a thousand times mainnet's.
const SLOT_EVENTS_MAX: u32 = 10_000_000;

/// The workload: a pure function of these and nothing else, so that two runs deliver the same slots.
#[derive(clap::Args, Clone, Debug, serde::Serialize)]
pub struct Workload {
    /// Number of known keys: those of the pairs that `solkv-bootstrap --pairs N --seed S` loads
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = workload::count::<u64>)]
    pub pairs: u64,
    /// Seed of the keys, the values and every other random choice
    #[arg(long, value_name = "S", default_value_t = 1)]
    pub seed: u64,
    /// Known keys from a file of base58 pubkeys, one a line, instead of the seed's; values still come from the seed
    #[arg(long, value_name = "FILE", conflicts_with = "pairs")]
    pub keys: Option<PathBuf>,
    /// Start without the known keys in the map: the first event on a key creates it
    #[arg(long)]
    pub base_empty: bool,
    /// Account updates in total, from where the follower is; the last slot is made whole
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = workload::count::<u64>)]
    pub events: u64,
    /// Account updates per slot (mainnet: about 7000 before they are deduplicated)
    #[arg(long, value_name = "N", default_value_t = 2000, value_parser = workload::count::<u32>)]
    pub events_per_slot: u32,
    /// Number of the first slot
    #[arg(long, value_name = "SLOT", default_value_t = 1000)]
    pub start_slot: u64,
    /// Where an extractor finds the value in an account
    #[arg(long, value_enum, default_value = "account-owner")]
    pub extract: Extract,
    /// Share of events on keys not seen before, which create them (negative reads)
    #[arg(long, value_name = "SHARE", default_value_t = 0.02)]
    pub unknown_share: f64,
    /// Share of events on known keys that change the value; the others repeat it, as nearly all do on mainnet
    #[arg(long, value_name = "SHARE", default_value_t = 0.05)]
    pub change_share: f64,
    /// Share of events on known keys that close the account; a later event on the key creates it again
    #[arg(long, value_name = "SHARE", default_value_t = 0.005)]
    pub close_share: f64,
    /// Share of events on known keys by which a token account leaves the token programs with its lamports, or becomes a
    /// mint, a multisig or uninitialised; a later event on the key makes it a token account again
    #[arg(long, value_name = "SHARE", default_value_t = 0.0)]
    pub leave_share: f64,
    /// How events spread over the known keys: uniform or zipfian:EXPONENT
    #[arg(long, value_name = "SKEW", default_value = "uniform")]
    pub skew: SkewArg,
    /// Fault: every K-th slot is dead: its updates are sent, it is never sealed, and then it is reported DEAD
    #[arg(long, value_name = "K", default_value_t = 0, value_parser = workload::count::<u64>)]
    pub dead_every: u64,
    /// Every K-th slot number is skipped: its child names an older parent, which is normal
    #[arg(long, value_name = "K", default_value_t = 0, value_parser = workload::count::<u64>)]
    pub skip_every: u64,
    /// Fault: every K-th slot arrives whole, but after the three slots that follow it
    #[arg(long, value_name = "K", default_value_t = 0, value_parser = workload::count::<u64>)]
    pub out_of_order_every: u64,
    /// Every K-th slot is on a fork of one or two blocks that is abandoned without notice: its child names an older
    /// parent. Only seen at processed, with --confirm-after
    #[arg(long, value_name = "K", default_value_t = 0, value_parser = workload::count::<u64>)]
    pub fork_every: u64,
    /// Every K-th slot has a first bank that is given up half way. Only seen at processed, with --confirm-after
    #[arg(long, value_name = "K", default_value_t = 0, value_parser = workload::count::<u64>)]
    pub banks_every: u64,
    /// Fault: this slot is never sent, not even by replay: its child names a parent that never comes
    #[arg(long, value_name = "SLOT")]
    pub gap_at: Option<u64>,
}

/// The delivery of the slots. It decides when and how often a slot is sent, and never changes the slot's content.
#[derive(clap::Args, Clone, Debug, serde::Serialize)]
pub struct Delivery {
    /// Events per second, or max: as fast as the slowest subscriber takes them
    #[arg(long, value_name = "R|max", default_value = "max")]
    pub rate: Rate,
    /// Number of sealed slots kept for from_slot; an older one is refused, as by a real server
    #[arg(long, value_name = "N", default_value_t = 150, value_parser = workload::count::<usize>)]
    pub replay_slots: usize,
    /// A slot is confirmed once N later ones are processed, and at processed updates come as they happen: several of an
    /// account, in any order, some after the block meta. With 0 a slot is whole and confirmed at once, at every
    /// commitment
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = workload::count::<usize>)]
    pub confirm_after: usize,
    /// Send slots without waiting for a subscriber; with --rate max all of them at once. Until that slot is confirmed, the server behaves like one
    /// that has just started: it has no slot to replay, and SubscribeReplayInfo answers 2^64-1
    #[arg(long)]
    pub no_wait: bool,
    /// Require this token in x-token metadata: the file's first line
    #[arg(long, value_name = "FILE")]
    pub x_token_file: Option<PathBuf>,
    /// Kind of server whose orders and words the stream has
    #[arg(long, value_enum, value_name = "SERVER", default_value = "yellowstone")]
    pub like: Like,
    /// Encoding of the messages, each compressed by itself
    #[arg(long, value_enum, value_name = "ENCODING", default_value = "stock")]
    pub compression: Compression,
    /// Limits of a subscription's filters
    #[arg(long, value_enum, value_name = "LIMITS", default_value = "stock")]
    pub filter_limits: Limits,
    /// Number of subscriptions at once; one more is refused with RESOURCE_EXHAUSTED [default: no limit]
    #[arg(long, value_name = "N")]
    pub subscriptions_max: Option<usize>,
    /// Refuse the calls that answer once, SubscribeReplayInfo among them, as a server whose operator has disabled them
    #[arg(long)]
    pub unary_disabled: bool,
    /// Send no bank ids, as servers before Agave 4.3
    #[arg(long)]
    pub no_bank_ids: bool,
    /// Fault: cut the connection abruptly every N events
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = workload::count::<u64>)]
    pub disconnect_every: u64,
    /// Fault: a from_slot replay starts up to three slots earlier than asked, and its newest slots come again after it
    #[arg(long)]
    pub duplicates: bool,
    /// Fault: the block meta of this slot has a blockhash that is not the chain's, in a replay as well; the next slot
    /// names the right one for its parent
    #[arg(long, value_name = "SLOT")]
    pub lies_at: Option<u64>,
}

/// The options of `loadgen stream`, for callers that start a stream themselves.
#[derive(clap::Parser)]
struct Line {
    #[command(flatten)]
    workload: Workload,
    #[command(flatten)]
    delivery: Delivery,
}

/// Parses a workload and its delivery from the options of `loadgen stream`, written as on a command line.
///
/// # Errors
/// Options that the command would refuse.
pub fn options(line: &str) -> Result<(Workload, Delivery)> {
    let Line { workload, delivery } =
        clap::Parser::try_parse_from(std::iter::once("stream").chain(line.split_whitespace()))?;
    Ok((workload, delivery))
}

impl Workload {
    /// Refuses options that do not make a stream, naming the option.
    pub fn check(&self) -> Result<()> {
        ensure!(self.pairs > 0, "no known keys: pairs=0; give --pairs 1 or more");
        ensure!(self.pairs < 1 << 40, "too many known keys: pairs={} max=2^40", self.pairs);
        ensure!(self.events_per_slot > 0, "no events in a slot: events-per-slot=0; give 1 or more");
        ensure!(
            self.events_per_slot <= SLOT_EVENTS_MAX,
            "too many events in a slot: events-per-slot={} max={SLOT_EVENTS_MAX}",
            self.events_per_slot
        );
        ensure!(self.start_slot > 0, "start-slot=0 has no parent; give 1 or more");
        for (name, share) in [
            ("unknown-share", self.unknown_share),
            ("change-share", self.change_share),
            ("close-share", self.close_share),
            ("leave-share", self.leave_share),
        ] {
            ensure!((0.0..=1.0).contains(&share), "not a share: {name}={share}; give 0 to 1");
        }
        ensure!(
            self.change_share + self.close_share + self.leave_share <= 1.0,
            "shares exceed 1: change-share={} close-share={} leave-share={}",
            self.change_share,
            self.close_share,
            self.leave_share
        );
        ensure!(
            self.leave_share == 0.0 || self.extract != Extract::AccountOwner,
            "leave-share is for token accounts: give --extract token-owner or token-mint, or leave it out"
        );
        ensure!(self.skip_every != 1, "skip-every=1 skips every slot; give 2 or more, or 0 for none");
        ensure!(self.dead_every != 1, "dead-every=1 leaves no live slot; give 2 or more, or 0 for none");
        ensure!(self.fork_every != 1, "fork-every=1 leaves no slot on the chain; give 2 or more, or 0 for none");
        if let Some(gap) = self.gap_at {
            ensure!(gap >= self.start_slot, "gap-at={gap} lies before start-slot={}", self.start_slot);
        }
        Ok(())
    }
}

impl Delivery {
    /// Refuses options that cannot be delivered, naming the option.
    pub fn check(&self) -> Result<()> {
        if let Rate::PerSecond(rate) = self.rate {
            ensure!(rate > 0.0, "rate={rate}: give more than 0, or max");
        }
        Ok(())
    }

    /// Returns the token that clients must send, if any. The file is read once, and its content is never logged.
    pub fn x_token(&self) -> Result<Option<String>> {
        let Some(path) = &self.x_token_file else { return Ok(None) };
        let text = std::fs::read_to_string(path)
            .map_err(|error| anyhow::anyhow!("cannot read token: file={} error={error}", path.display()))?;
        let token = text.lines().next().unwrap_or("").trim().to_owned();
        if token.is_empty() {
            bail!("token file is empty: file={}", path.display());
        }
        Ok(Some(token))
    }
}

/// Pace at which slots are due.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Rate {
    /// As fast as the slowest subscriber takes the slots.
    Max,
    /// Open loop: a slot is due every events-per-slot / rate seconds, whether or not it can be taken.
    PerSecond(f64),
}

impl Rate {
    /// Returns the time between two slots of `events` updates; zero for max.
    pub fn slot_period(self, events: u32) -> Duration {
        match self {
            Self::Max => Duration::ZERO,
            Self::PerSecond(rate) => Duration::from_secs_f64(f64::from(events) / rate),
        }
    }
}

impl FromStr for Rate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "max" {
            return Ok(Self::Max);
        }
        let wrong = || format!("not a rate: value={text:?}: give a number such as 500, 20k or 0.5, or max");
        let rate =
            workload::count::<u64>(text).map(|rate| rate as f64).or_else(|_| text.parse().map_err(|_| wrong()))?;
        if !rate.is_finite() || rate <= 0.0 {
            return Err(format!("not a rate: value={text:?}; give more than 0, or max"));
        }
        Ok(Self::PerSecond(rate))
    }
}

/// Distribution of keys, written as `uniform` or `zipfian:EXPONENT`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SkewArg(pub Skew);

impl FromStr for SkewArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "uniform" {
            return Ok(Self(Skew::Uniform));
        }
        let bad = || format!("not a skew: value={text:?} expected=uniform|zipfian:EXPONENT, for example zipfian:0.99");
        let exponent = match text.split_once(':') {
            None if text == "zipfian" => 0.99,
            Some(("zipfian", exponent)) => exponent.parse().map_err(|_| bad())?,
            _ => return Err(bad()),
        };
        if !(exponent > 0.0 && exponent != 1.0 && exponent < 10.0) {
            return Err(bad());
        }
        Ok(Self(Skew::Zipfian { exponent }))
    }
}

impl serde::Serialize for SkewArg {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            Skew::Uniform => serializer.serialize_str("uniform"),
            Skew::Zipfian { exponent } => serializer.collect_str(&format_args!("zipfian:{exponent}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_and_skews_parse_or_say_what_was_expected() {
        assert_eq!("max".parse(), Ok(Rate::Max));
        assert_eq!("2000".parse(), Ok(Rate::PerSecond(2000.0)));
        assert_eq!(["20k", "0.5"].map(str::parse), [Ok(Rate::PerSecond(20_000.0)), Ok(Rate::PerSecond(0.5))]);
        assert_eq!(Rate::PerSecond(2000.0).slot_period(1000), Duration::from_millis(500));
        let (workload, delivery) = options("--pairs 1M --events 2.5k --events-per-slot 1k --rate 1k").unwrap();
        assert_eq!((workload.pairs, workload.events, workload.events_per_slot), (1_000_000, 2500, 1000));
        assert_eq!(delivery.rate, Rate::PerSecond(1000.0));
        assert!("0".parse::<Rate>().is_err() && "fast".parse::<Rate>().is_err());
        assert_eq!("zipfian:0.99".parse(), Ok(SkewArg(Skew::Zipfian { exponent: 0.99 })));
        assert!("zipfian:1".parse::<SkewArg>().is_err() && "normal".parse::<SkewArg>().is_err());
    }
}
