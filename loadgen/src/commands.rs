//! `loadgen stream` as a command: starts the stream, prints its address and the digest of the final map, and stops on a
//! signal.
//!
//! Owns: the lines on stdout that other programs read (`listening=`, `gap `, `final `). Runs on the main thread.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use program::say;

use crate::result::check_folder;
use crate::stream::{Delivery, Final, Stream, Workload};

/// Time between two checks for a signal and for the end of the run.
const POLL_PERIOD: Duration = Duration::from_millis(50);

/// Text after the options in `loadgen stream --help`.
pub const STREAM_EXAMPLES: &str = "\
Prints `listening=HOST:PORT` once it serves, and at the end \
`final slot=… events=… slots=… digest=PAIRS:HEX`. `solkv-bootstrap info --digest` must give the same digest for a \
follower's directory.

Examples:
  solkv-loadgen stream --listen 127.0.0.1:10000 --pairs 2000000 --seed 1 --events 1000000
  solkv-loadgen stream --listen 127.0.0.1:0 --rate 20000 --extract token-owner --skew zipfian:0.99
  solkv-loadgen stream --listen 127.0.0.1:0 --disconnect-every 50000 --dead-every 7 --duplicates --out-of-order-every 11";

#[derive(clap::Args, Clone, Debug)]
pub struct StreamArgs {
    /// Address to serve on; port 0 picks a free one
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:10000")]
    pub listen: String,
    /// Content of the slots, which a seed determines.
    #[command(flatten)]
    pub workload: Workload,
    /// Pace and faults of the slots' delivery.
    #[command(flatten)]
    pub delivery: Delivery,
    /// Time to keep serving after the last slot [default: until SIGTERM or Ctrl-C]
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    pub linger: Option<Duration>,
    /// Write a summary of the run as JSON: options, last slot, digest
    #[arg(long, value_name = "FILE")]
    pub summary: Option<PathBuf>,
}

impl StreamArgs {
    /// Refuses options that do not make a stream, and a summary that could not be written.
    ///
    /// # Errors
    /// The option.
    pub fn check(&self) -> Result<()> {
        check_folder("summary", self.summary.as_deref())?;
        self.workload.check()?;
        self.delivery.check()
    }
}

/// Runs `loadgen stream` until its end or a signal.
pub fn stream(args: StreamArgs) -> Result<()> {
    let stop = stop_flag()?;
    let stream = Stream::start(args.workload.clone(), &args.delivery, &args.listen)?;
    say!("listening={}", stream.address());
    let started = Instant::now();
    // ORDERING: Relaxed: the flag carries no other data.
    while stream.outcome()?.is_none() && !stop.load(Ordering::Relaxed) {
        std::thread::sleep(POLL_PERIOD);
    }
    if let Some(end) = stream.outcome()? {
        let seconds = started.elapsed().as_secs_f64();
        tracing::info!(seconds, events = end.events, "every slot is generated");
        if let Some(gap) = &end.gap {
            say!("gap slot={} parent={} digest={}", gap.slot, gap.parent_slot, gap.digest);
        }
        say!("final slot={} events={} slots={} digest={}", end.slot, end.events, end.slots, end.digest);
        if let Some(path) = &args.summary {
            write_summary(path, &args, end)?;
        }
        let deadline = args.linger.map(|linger| Instant::now() + linger);
        while !stop.load(Ordering::Relaxed) && deadline.is_none_or(|deadline| Instant::now() < deadline) {
            std::thread::sleep(POLL_PERIOD);
        }
    }
    stream.stop()
}

/// Returns a flag that SIGINT and SIGTERM set.
pub(crate) fn stop_flag() -> Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        // A second signal ends the process at once, in case stopping hangs.
        signal_hook::flag::register_conditional_shutdown(signal, 1, Arc::clone(&stop))?;
        signal_hook::flag::register(signal, Arc::clone(&stop))?;
    }
    Ok(stop)
}

fn write_summary(path: &PathBuf, args: &StreamArgs, end: &Final) -> Result<()> {
    let summary = serde_json::json!({
        "version": env!("CARGO_PKG_VERSION"), "workload": args.workload, "delivery": args.delivery, "final": end,
    });
    let text = serde_json::to_string_pretty(&summary)?;
    std::fs::write(path, text).with_context(|| format!("cannot write summary: file={}", path.display()))
}
