//! Shows the progress of a load: a bar on a terminal, or a line every few seconds where standard error is a file or a
//! journal, or where a program has a log for the lines.
//!
//! Owns: drawing on standard error. Must not: decide anything. Runs on the main thread; the bar redraws itself.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use anyhow::Result;
use bytesize::ByteSize;
use engine_latency::table::grouped;
use indicatif::{HumanDuration, ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};

use crate::out::{has_log, tell};
use crate::seen::Seen;
use crate::source::Source;

/// Time between two lines where standard error is not a terminal.
const LINE_EVERY: Duration = Duration::from_secs(10);
/// Time between two drawings of a bar.
const TICK_EVERY: Duration = Duration::from_millis(500);

/// Progress of a load, counted in pairs or, while an archive is read, in bytes.
pub(crate) struct Progress {
    bar: ProgressBar,
    in_bytes: bool,
    /// Time of the last line; `None` while a bar is drawn.
    line_at: Option<Instant>,
    seen: Seen,
}

impl Progress {
    /// Progress in pairs, of which there are `total` if that is known.
    pub(crate) fn new(total: Option<u64>, message: &'static str) -> Self {
        Self::in_unit(total, message, false)
    }

    /// Progress of reading a source: in bytes for archives, because the number of their accounts is not known.
    ///
    /// # Errors
    /// Those of [`Source::count_hint`].
    pub(crate) fn of_source(source: &Source, message: &'static str) -> Result<Self> {
        Ok(match source {
            Source::Archives(archives) => Self::in_unit(archives.progress_bytes().0, message, true),
            _ => Self::new(source.count_hint()?, message),
        })
    }

    /// Shows how far the reading of a source is, after so many records.
    pub(crate) fn set_read(&mut self, source: &Source, records: u64) {
        match source {
            Source::Archives(archives) => {
                self.seen.change(|numbers| numbers.versions = records);
                self.set(archives.progress_bytes().1);
            }
            _ => self.set(records),
        }
    }

    fn in_unit(total: Option<u64>, message: &'static str, in_bytes: bool) -> Self {
        let terminal = std::io::stderr().is_terminal() && !has_log();
        let target = if terminal { ProgressDrawTarget::stderr_with_hz(4) } else { ProgressDrawTarget::hidden() };
        let bar = ProgressBar::with_draw_target(total, target);
        let template = match (total, in_bytes) {
            (Some(_), false) => "{msg} {wide_bar} {human_pos}/{human_len} pairs {rate}/s eta {eta}",
            (None, false) => "{msg} {spinner} {human_pos} pairs {rate}/s {elapsed}",
            (Some(_), true) => "{msg} {wide_bar} {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec} eta {eta}",
            (None, true) => "{msg} {spinner} {binary_bytes} {binary_bytes_per_sec} {elapsed}",
        };
        // A formatting error is the bar's own; the bar is not drawn then.
        let rate = |state: &ProgressState, out: &mut dyn std::fmt::Write| {
            write!(out, "{}", grouped(state.per_sec() as u64)).ok();
        };
        let style = ProgressStyle::with_template(template).expect("the template is a constant");
        bar.set_style(style.with_key("rate", rate));
        bar.set_message(message);
        let new = Self { bar, in_bytes, line_at: (!terminal).then(Instant::now), seen: Seen::default() };
        new.tick();
        new
    }

    /// Also tells `seen` how far the work is.
    pub(crate) fn seen_by(self, seen: &Seen) -> Self {
        Self { seen: seen.clone(), ..self }
    }

    /// Starts counting at the pairs of an earlier run, so that rate and ETA are those of this run.
    pub(crate) fn start_at(&self, pairs: u64) {
        // A bar that ticks by itself takes the first position for progress.
        self.bar.disable_steady_tick();
        self.bar.set_position(pairs);
        self.bar.reset_eta();
        self.tick();
    }

    /// Has a bar draw itself.
    fn tick(&self) {
        if self.line_at.is_none() {
            self.bar.enable_steady_tick(TICK_EVERY);
        }
    }

    /// Sets the number of pairs to count to.
    pub(crate) fn expect(&self, total: u64) {
        self.bar.set_length(total);
    }

    pub(crate) fn set(&mut self, done: u64) {
        self.bar.set_position(done);
        if self.in_bytes {
            let archive_bytes = self.bar.length().filter(|bytes| *bytes > 0);
            self.seen.change(|numbers| (numbers.read_bytes, numbers.archive_bytes) = (done, archive_bytes));
        } else {
            self.seen.change(|numbers| numbers.pairs = done);
        }
        if self.line_at.is_none_or(|at| at.elapsed() < LINE_EVERY) {
            return;
        }
        self.line_at = Some(Instant::now());
        let shown = |count: u64| match self.in_bytes {
            true => ByteSize::b(count).to_string(),
            false => format!("{} pairs", grouped(count)),
        };
        let (message, done, rate) = (self.bar.message(), shown(done), shown(self.bar.per_sec() as u64));
        match self.bar.length() {
            Some(total) => {
                tell!("{message}: {done} of {}, {rate}/s, {} left", shown(total), HumanDuration(self.bar.eta()));
            }
            None => tell!("{message}: {done}, {rate}/s"),
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
