//! Shows the progress of a load: a bar on a terminal, or a line every few seconds where standard error is a file or a
//! journal.
//!
//! Owns: drawing on standard error. Must not: decide anything. Runs on the main thread; the bar redraws itself.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use engine_latency::table::grouped;
use indicatif::{HumanDuration, ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};

use crate::out::tell;

/// Time between two lines where standard error is not a terminal.
const LINE_EVERY: Duration = Duration::from_secs(10);

/// Progress of a load, counted in pairs.
pub(crate) struct Progress {
    bar: ProgressBar,
    /// Time of the last line; `None` on a terminal.
    line_at: Option<Instant>,
}

impl Progress {
    pub(crate) fn new(total: Option<u64>, message: &'static str) -> Self {
        let bar = ProgressBar::with_draw_target(total, ProgressDrawTarget::stderr_with_hz(4));
        let template = match total {
            Some(_) => "{msg} {wide_bar} {human_pos}/{human_len} pairs {rate}/s eta {eta}",
            None => "{msg} {spinner} {human_pos} pairs {rate}/s {elapsed}",
        };
        // A formatting error is the bar's own; the bar is not drawn then.
        let rate = |state: &ProgressState, out: &mut dyn std::fmt::Write| {
            write!(out, "{}", grouped(state.per_sec() as u64)).ok();
        };
        let style = ProgressStyle::with_template(template).expect("the template is a constant");
        bar.set_style(style.with_key("rate", rate));
        bar.set_message(message);
        let terminal = std::io::stderr().is_terminal();
        if terminal {
            bar.enable_steady_tick(Duration::from_millis(500));
        }
        Self { bar, line_at: (!terminal).then(Instant::now) }
    }

    /// Starts counting at the pairs of an earlier run, so that rate and ETA are those of this run.
    pub(crate) fn start_at(&self, pairs: u64) {
        self.bar.set_position(pairs);
        self.bar.reset_eta();
    }

    pub(crate) fn set(&mut self, pairs: u64) {
        self.bar.set_position(pairs);
        if self.line_at.is_some_and(|at| at.elapsed() >= LINE_EVERY) {
            self.line_at = Some(Instant::now());
            let (message, rate) = (self.bar.message(), grouped(self.bar.per_sec() as u64));
            match self.bar.length() {
                Some(total) => tell!(
                    "{message}: {} of {} pairs, {rate} pairs/s, {} left",
                    grouped(pairs),
                    grouped(total),
                    HumanDuration(self.bar.eta())
                ),
                None => tell!("{message}: {} pairs, {rate} pairs/s", grouped(pairs)),
            }
        }
    }

    pub(crate) fn message(&self, message: &'static str) {
        self.bar.set_message(message);
        if self.line_at.is_some() {
            tell!("{message}");
        }
    }

    pub(crate) fn clear(&self) {
        self.bar.finish_and_clear();
    }
}
