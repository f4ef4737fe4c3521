//! `loadgen provider`: a Yellowstone server that misbehaves by a script, and the judge of a service that follows it.
//!
//! Owns: the log of both sides, and the rules of judgement. Must not: trust the service's own statements, because the
//! verdict follows from the messages sent and their times. Threads: `provider` (every socket of the server); the main
//! thread asks and judges.
//!
//! A provider that passes on another server's messages is one of several that a service follows. Nothing is judged then,
//! because the others keep the service ready.
//!
//! The service is right if all of this holds. It is not ready while the newest slot that it can know of is older than
//! `--max-lag`. It is ready while that slot is younger. All of its channels say the same. Its reported lag is that
//! slot's age.

mod act;
mod messages;
mod script;
mod server;
mod subscription;
mod witness;
mod world;

use std::fs::File;
use std::io::Write as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

pub use act::Act;
use program::say;
pub use script::Script;
pub use server::Provider;
pub use witness::{Said, Witness};
pub use world::Figures;

use crate::commands::stop_flag;

/// Returns the text after the options in `loadgen provider --help`.
pub fn help() -> String {
    format!("{HEAD}\n\nActs:\n{}\n{EXAMPLES}", act::list())
}

const HEAD: &str = "\
Prints `listening=HOST:PORT` once it serves. Then, once a second, asks the service on every channel whether it is ready, \
and compares the answers with the messages that were sent. Exits with 1 if the service was wrong at any second.

With --of it passes on the messages of another server, such as `loadgen stream`, and changes them by the script. So a \
service can follow several providers of one story, of which some misbehave. Then nothing is asked and compared.

The script is a list of acts, each with its seconds. It starts over until the time is up.";

const EXAMPLES: &str = "\
Examples:
  solkv-loadgen provider --seconds 1200 --log readiness.jsonl
  solkv-loadgen provider --seconds 60 --acts pings=20,serves=10,down=20,serves=10 --unit solkv
  solkv-loadgen provider --of http://127.0.0.1:10000 --listen 127.0.0.1:10001 --acts serves=20,lies=1000";

/// The default script. Each act is long enough to show: silence is longer than the service's idle timeout, a lost slot
/// longer than its gap timeout.
const ACTS: &str = "serves=15,pings=45,serves=15,lags=30,serves=15,small=20,loses=100,serves=15,restarts=20,down=25,\
                    serves=25,refuses=20,serves=50";

/// Time allowed between sending a message and the service's committing and reporting it.
const TOLERANCE_MS: u64 = 2000;

/// Age above which the reported lag is compared. Below it, the lag is that of a slot on its way.
const LAG_COMPARED_MS: u64 = 4000;

#[derive(clap::Args, Clone, Debug)]
pub struct ProviderArgs {
    /// Address to serve on; port 0 picks a free one
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:10000")]
    pub listen: String,
    /// URL of a server whose messages are passed on, instead of those of a chain of its own
    #[arg(
        long,
        value_name = "URL",
        conflicts_with_all = ["start_slot", "slot_time", "http", "grpc", "unit", "max_lag", "log"]
    )]
    pub of: Option<String>,
    /// Slot with which the chain begins
    #[arg(long, value_name = "SLOT", default_value_t = 1000)]
    pub start_slot: u64,
    /// Time from one slot to the next
    #[arg(long, value_name = "DURATION", value_parser = slot_time, default_value = "400ms")]
    pub slot_time: Duration,
    /// Address of the service's HTTP pages
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:7401")]
    pub http: String,
    /// Address of the service's gRPC server
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:7400")]
    pub grpc: String,
    /// The service's systemd unit, whose status line is then compared as well
    #[arg(long, value_name = "NAME")]
    pub unit: Option<String>,
    /// The max_lag that the service is configured with
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration, default_value = "10s")]
    pub max_lag: Duration,
    /// Length of the run in seconds
    #[arg(long, value_name = "N", default_value_t = 1200)]
    pub seconds: u64,
    /// The script: acts and the seconds that each lasts
    #[arg(long, value_name = "ACT=SECONDS,...", default_value = ACTS)]
    pub acts: Script,
    /// Write a JSON line a second: the server's act, the service's answers, and whether they were right
    #[arg(long, value_name = "FILE")]
    pub log: Option<PathBuf>,
}

/// Parses the time between two slots, which the chain counts in milliseconds.
fn slot_time(text: &str) -> Result<Duration> {
    let time = humantime::parse_duration(text)?;
    ensure!(time.as_millis() > 0, "a slot takes 1ms at least");
    Ok(time)
}

/// Judges the service's answers, one second after the other.
#[derive(Debug, Default)]
struct Judge {
    max_lag_ms: u64,
    /// Number of seconds in a row in which the newest slot sent was young.
    young_for: u64,
}

impl Judge {
    /// Returns the service's mistake, if it made one. It was asked between `before` and `after`, because a replay can
    /// make the newest slot sent a minute younger within that time.
    fn judge(&mut self, before: &Figures, after: &Figures, said: &Said) -> Option<String> {
        let (youngest_ms, oldest_ms) = {
            let ages = [before.sent_age_ms, after.sent_age_ms];
            (ages[0].min(ages[1]), ages[0].max(ages[1]))
        };
        let young = before.subscriptions > 0 && oldest_ms + TOLERANCE_MS < self.max_lag_ms;
        self.young_for = if young { self.young_for + 1 } else { 0 };
        let Some(ready) = said.ready() else { return Some("the channels do not agree".to_owned()) };
        if ready && youngest_ms > self.max_lag_ms + TOLERANCE_MS {
            return Some(format!("ready, and the newest slot sent is age_ms={youngest_ms}"));
        }
        // A service that has noticed a lost slot may be not ready at once.
        if !ready && self.young_for > 3 && !before.lost {
            return Some(format!("not ready, and the newest slot sent is age_ms={oldest_ms}: {}", said.reason));
        }
        let lag_ms = said.lag_s.map(|lag_s| (lag_s * 1000.0) as u64)?;
        let right = youngest_ms.saturating_sub(TOLERANCE_MS)..=oldest_ms + TOLERANCE_MS;
        (youngest_ms > LAG_COMPARED_MS && !right.contains(&lag_ms))
            .then(|| format!("lag_ms={lag_ms}, and the newest slot sent is age_ms={youngest_ms} to {oldest_ms}"))
    }
}

/// Runs `loadgen provider`.
///
/// # Errors
/// A service that was wrong at any second or never subscribed; an address in use; a log that cannot be written.
pub fn run(args: &ProviderArgs) -> Result<()> {
    let stop = stop_flag()?;
    let play = Play { args, stop: &stop, started: Instant::now() };
    if let Some(of) = &args.of {
        let provider = Provider::start_of(&args.listen, of)?;
        say!("listening={}", provider.address());
        (0..args.seconds).all(|second| play.second(&provider, second));
        return provider.stop();
    }
    let provider = Provider::start(&args.listen, args.start_slot, args.slot_time.as_millis() as u64)?;
    say!("listening={}", provider.address());
    play.judged(&provider)?;
    provider.stop()
}

/// A run of the script.
struct Play<'a> {
    args: &'a ProviderArgs,
    stop: &'a AtomicBool,
    started: Instant,
}

impl Play<'_> {
    /// Plays one second of the script. Returns false after a signal.
    fn second(&self, provider: &Provider, second: u64) -> bool {
        let (act, begins) = self.args.acts.at(second);
        if begins {
            provider.set(act);
            say!("second={second} act={act:?}");
        }
        let end = self.started + Duration::from_secs(second + 1);
        std::thread::sleep(end.saturating_duration_since(Instant::now()));
        // ORDERING: Relaxed: the flag carries no other data.
        !self.stop.load(Ordering::Relaxed)
    }

    /// Plays the script, and asks and judges the service after each second.
    fn judged(&self, provider: &Provider) -> Result<()> {
        let args = self.args;
        let mut log = args.log.as_ref().map(File::create).transpose().context("cannot make the log")?;
        let mut witness = Witness::new(&args.http, &args.grpc, args.unit.clone())?;
        let mut judge = Judge { max_lag_ms: args.max_lag.as_millis() as u64, ..Judge::default() };
        let (mut wrong, mut judged) = (0, 0);
        for second in (0..args.seconds).take_while(|second| self.second(provider, *second)) {
            let mut asked = || (provider.figures(), witness.ask(), provider.figures());
            let (mut did, mut said, mut after) = asked();
            if said.ready().is_none() {
                // The answers are some milliseconds apart, and readiness may have changed in between.
                std::thread::sleep(Duration::from_millis(500));
                (did, said, after) = asked();
            }
            // There is nothing to judge before the service has made its first connection.
            let verdict = if did.subscriptions == 0 { None } else { judge.judge(&did, &after, &said) };
            judged += u64::from(did.subscriptions > 0);
            if let Some(log) = &mut log {
                let line = serde_json::json!({ "second": second, "did": did, "said": said, "wrong": verdict });
                writeln!(log, "{line}").context("cannot write the log")?;
            }
            if let Some(why) = verdict {
                wrong += 1;
                say!("second={second} act={:?} WRONG: {why} {said:?}", did.act);
            }
        }
        say!("judged={judged} wrong={wrong}");
        ensure!(judged > 0, "the service never subscribed: url=http://{}", args.listen);
        ensure!(wrong == 0, "the service was wrong about its readiness: seconds={wrong} of={judged}");
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn did(sent_age_ms: u64, lost: bool) -> Figures {
        Figures { act: Act::Serves, tip: 9, sent: 8, sent_age_ms, lost, subscriptions: 1 }
    }

    fn said(ready: bool, lag_s: f64) -> Said {
        let one = Some(ready);
        let (readyz, health, status, status_json, dashboard, metric) = (one, one, one, one, one, one);
        Said { readyz, health, status, status_json, dashboard, metric, lag_s: Some(lag_s), ..Said::default() }
    }

    #[test]
    fn a_slot_takes_a_time() {
        assert_eq!(slot_time("400ms").unwrap(), Duration::from_millis(400));
        assert!(slot_time("400").is_err() && slot_time("999us").is_err());
    }

    #[test]
    fn the_judge_finds_each_wrong() {
        let judge = || Judge { max_lag_ms: 10_000, young_for: 9 };
        let one = |did: Figures, said: &Said| judge().judge(&did, &did, said);
        assert_eq!(one(did(300, false), &said(true, 0.02)), None);
        assert_eq!(one(did(60_000, false), &said(false, 60.0)), None);
        assert!(one(did(60_000, false), &said(true, 60.0)).is_some(), "ready and late");
        assert!(one(did(300, false), &said(false, 0.02)).is_some(), "not ready and live");
        assert_eq!(one(did(300, true), &said(false, 0.02)), None, "a lost slot");
        assert!(one(did(60_000, false), &said(false, 0.02)).is_some(), "the lag stands still");
        let differs = Said { health: Some(true), ..said(false, 60.0) };
        assert!(one(did(60_000, false), &differs).is_some(), "one channel differs");
        let unit = Said { unit: Some(true), ..said(false, 60.0) };
        assert!(one(did(60_000, false), &unit).is_some(), "systemd is told something else");
        let replayed = |lag_s| judge().judge(&did(85_000, false), &did(30_000, false), &said(false, lag_s));
        assert_eq!([replayed(84.0), replayed(31.0)], [None, None], "a replay between two questions");
        assert!(replayed(20.0).is_some() && replayed(95.0).is_some());
    }
}
