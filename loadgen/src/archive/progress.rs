//! Progress of an archive on standard error: a bar on a terminal, or a line every few seconds elsewhere.
//!
//! Owns: drawing. Must not: decide anything. Runs on the main thread; the bar redraws itself.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use engine_latency::table::grouped;
use indicatif::{HumanDuration, ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};
use program::tell;

use super::story::At;

/// Time between two lines where standard error is not a terminal.
const LINE_EVERY: Duration = Duration::from_secs(10);

/// The progress of one archive after the other.
pub(super) struct Progress {
    /// The bar of the archive that is being written. `None` between two archives.
    bar: Option<ProgressBar>,
    /// Time of the last line; `None` on a terminal.
    line_at: Option<Instant>,
}

impl Progress {
    pub(super) fn new() -> Self {
        Self { bar: None, line_at: (!std::io::stderr().is_terminal()).then(Instant::now) }
    }

    /// Shows how far the archive is.
    pub(super) fn show(&mut self, at: At) {
        let terminal = self.line_at.is_none();
        let bar = self.bar.get_or_insert_with(|| bar(at, terminal));
        bar.set_position(at.done);
        if self.line_at.is_some_and(|line_at| line_at.elapsed() >= LINE_EVERY) {
            self.line_at = Some(Instant::now());
            tell!(
                "archive of slot {}: {} of {} accounts, {} accounts/s, {} left",
                at.slot,
                grouped(at.done),
                grouped(at.total),
                grouped(bar.per_sec() as u64),
                HumanDuration(bar.eta())
            );
        }
    }

    /// Removes the bar of an archive that is whole.
    pub(super) fn clear(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}

fn bar(at: At, terminal: bool) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(at.total), ProgressDrawTarget::stderr_with_hz(4));
    let template = "{msg} {wide_bar} {human_pos}/{human_len} accounts {rate}/s eta {eta}";
    // A formatting error is the bar's own; the bar is not drawn then.
    let rate = |state: &ProgressState, out: &mut dyn std::fmt::Write| {
        write!(out, "{}", grouped(state.per_sec() as u64)).ok();
    };
    let style = ProgressStyle::with_template(template).expect("the template is a constant");
    bar.set_style(style.with_key("rate", rate));
    bar.set_message(format!("archive of slot {}", at.slot));
    if terminal {
        bar.enable_steady_tick(Duration::from_millis(500));
    }
    bar
}
