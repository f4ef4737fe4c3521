//! Messages to systemd: a status line, readiness, and signs of life for the watchdog.
//!
//! Owns: these messages. Must not: report life while a thread that works on the store or on lookups is stalled. Runs as
//! one task on the tokio runtime of the network edge, so that a stalled runtime is silent as well. Without systemd (no
//! NOTIFY_SOCKET in the environment) nothing runs.
//!
//! READY=1 is sent once a lookup thread has opened the newest state of the store, whether or not the stream can be
//! reached: lookups continue without it, and `/readyz` shows the difference. Four times in a period of the watchdog the
//! task compares all pulses with their earlier values, and wakes sleeping threads so that an idle one beats. If a pulse
//! has not moved, the log names its thread and nothing is sent. After the fourth time systemd ends the process.

use std::time::Duration;

use sd_notify::NotifyState;
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior, interval};
use tracing::{error, warn};

use crate::base::blocking;
use crate::base::chain::Phase;
use crate::base::pulse::{Pulses, Seen};
use crate::ingest::receive::Message;
use crate::readiness::Verdict;
use crate::shm::Doorbell;
use crate::status::Status;

/// Interval at which the service's state is checked.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// The numbers in a line change with each slot. A line that differs only in numbers waits this long.
const SAME_EVERY: Duration = Duration::from_secs(5);

/// How long systemd waits for the next status line of a start that takes long.
const LOADING_LIMIT: Duration = Duration::from_secs(120);

/// Checks within one period of the watchdog: three may find a thread stalled before the fourth would be overdue.
const LOOKS_A_PERIOD: u32 = 4;

/// Sets the status line that systemd shows.
pub(crate) fn status(text: &str) {
    notify(&[NotifyState::Status(text)]);
}

/// Sets the status line of a start that takes long, and has systemd wait for it for another `LOADING_LIMIT`.
pub(crate) fn loading(text: &str) {
    notify(&[NotifyState::Status(text), NotifyState::ExtendTimeoutUsec(LOADING_LIMIT.as_micros() as u32)]);
}

/// Reports that lookups are answered.
pub(crate) fn ready() {
    notify(&[NotifyState::Ready]);
}

/// Reports that the service is about to end.
pub(crate) fn stopping() {
    notify(&[NotifyState::Stopping, NotifyState::Status("stopping")]);
}

fn notify(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        warn!(%error, "cannot tell systemd");
    }
}

/// Threads that sleep until they have work. The watchdog wakes them, so that they can show that they react.
pub(crate) struct Sleepers {
    /// Leads to ingest-apply. Weak, because that thread ends when the receiver drops its own sender.
    pub apply: mpsc::WeakSender<Message>,
    /// Leads to shm-lookup; `None` without shared memory.
    pub shm: Option<Doorbell>,
}

impl Sleepers {
    fn wake(&self) {
        if let Some(apply) = self.apply.upgrade() {
            // If the queue is full, the thread is awake anyway.
            let _full = apply.try_send(Message::Beat);
        }
        if let Some(shm) = &self.shm {
            shm.ring();
        }
    }
}

/// Keeps the status line up to date and, if the unit has a watchdog, feeds it as long as every thread makes progress.
/// Returns only without systemd; otherwise abort the task.
pub(crate) async fn watch(of: Status, pulses: Pulses, sleepers: Sleepers) {
    if std::env::var_os("NOTIFY_SOCKET").is_none() {
        return;
    }
    let mut looks = interval(LOOK_EVERY);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut line = Line::default();
    let mut watchdog = sd_notify::watchdog_enabled().map(|period| Watchdog::new(period / LOOKS_A_PERIOD));
    loop {
        looks.tick().await;
        if let Some(text) = line.due(&of, Instant::now()) {
            status(text);
        }
        if let Some(watchdog) = &mut watchdog
            && watchdog.due(Instant::now())
        {
            let still = watchdog.look(&pulses).await;
            if still.is_empty() {
                notify(&[NotifyState::Watchdog]);
            } else {
                error!(threads = still.join(" "), since = ?watchdog.every, "threads have stalled: the watchdog is not fed");
            }
            sleepers.wake();
        }
    }
}

/// Timer of the watchdog's checks, and the pulses that the last one saw.
struct Watchdog {
    every: Duration,
    at: Option<Instant>,
    seen: Vec<Seen>,
}

impl Watchdog {
    fn new(every: Duration) -> Self {
        Self { every, at: None, seen: Vec::new() }
    }

    fn due(&mut self, now: Instant) -> bool {
        let due = self.at.is_none_or(|at| now.duration_since(at) >= self.every);
        if due {
            self.at = Some(now);
        }
        due
    }

    /// Returns the names of the threads that have made no progress. Does not return if the device of a store does not
    /// answer.
    async fn look(&mut self, pulses: &Pulses) -> Vec<String> {
        let (pulses, mut seen) = (pulses.clone(), std::mem::take(&mut self.seen));
        let (still, seen) = blocking(move || (pulses.still(&mut seen), seen)).await;
        self.seen = seen;
        still
    }
}

/// The status line that was sent last, and when.
#[derive(Default)]
struct Line {
    text: String,
    at: Option<Instant>,
}

impl Line {
    /// Returns the line to send now, or `None` if it would say nothing new.
    fn due(&mut self, of: &Status, now: Instant) -> Option<&str> {
        let text = describe(of);
        let fresh = self.at.is_some_and(|at| now.duration_since(at) < SAME_EVERY);
        if text == self.text || fresh && without_digits(&text).eq(without_digits(&self.text)) {
            return None;
        }
        self.text = text;
        self.at = Some(now);
        Some(&self.text)
    }
}

fn without_digits(text: &str) -> impl Iterator<Item = char> + '_ {
    text.chars().filter(|c| !c.is_ascii_digit())
}

/// Describes the state of the service in one line, and each provider where there are several.
fn describe(of: &Status) -> String {
    let reports = of.ingest.providers.reports();
    let several = if reports.len() > 1 { reports.as_slice() } else { &[] };
    let providers = several.iter().map(|report| {
        let lag = report.lag_slots.map_or_else(String::new, |lag| format!(" lag {lag} slots"));
        format!("; {} {}{lag} errors {}", report.name, report.condition.name(), report.errors)
    });
    providers.fold(describe_service(of), |line, provider| line + &provider)
}

fn describe_service(of: &Status) -> String {
    // ORDERING: Relaxed: a statistic.
    let connected = of.ingest.figures.is_connected();
    let (newest, slot) = (of.ingest.newest_slot().unwrap_or(0), of.ingest.published.slot());
    let at = slot.map_or_else(|| "no slot yet".to_owned(), |slot| format!("slot {slot}"));
    let Verdict { not_ready, gap, lag_ms } = of.ingest.verdict();
    match (gap, not_ready) {
        (Some(gap), _) => {
            format!("not ready: gap: slots {} to {} are missing, at {at}", gap.first_slot, gap.last_slot)
        }
        (None, Some(why)) if matches!(of.ingest.progress.phase(), Phase::Healing(_)) => {
            format!("not ready: {why}: at {at}")
        }
        (None, Some(why)) if connected && newest > slot.unwrap_or(0) => {
            format!("not ready: {why}: replaying, {at} of {newest}")
        }
        (None, Some(why)) if connected => format!("not ready: {why}: lookups continue, at {at}"),
        (None, Some(why)) => format!("not ready, not connected to the stream: {why}: lookups continue, at {at}"),
        (None, None) if connected => format!("live at {at}, lag {} ms", lag_ms.unwrap_or(0)),
        (None, None) => format!("live at {at}, not connected to the stream, lag {} ms", lag_ms.unwrap_or(0)),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use solana::ChainCheckpoint;

    use super::*;
    use crate::base::chain::Gap;
    use crate::ingest;
    use crate::ingest::progress::Age;

    #[test]
    fn every_state_has_its_line() {
        let checkpoint = ChainCheckpoint { slot: Some(7), ..ChainCheckpoint::default() };
        let of = Status { engine: "redb", ingest: ingest::State::at(checkpoint) };
        let set = |phase| of.ingest.progress.set_phase(phase);
        assert_eq!(describe(&of), "not ready, not connected to the stream: starting: lookups continue, at slot 7");
        of.ingest.figures.subscriptions.store(1, Ordering::Relaxed);
        of.ingest.providers.set_newest_slot(0, 9);
        set(Phase::CatchingUp);
        assert_eq!(describe(&of), "not ready: catching up with the stream: replaying, slot 7 of 9");
        of.ingest.progress.slot_applied(Age::Known(Duration::from_millis(20)));
        set(Phase::Live);
        assert_eq!(describe(&of), "live at slot 7, lag 20 ms");
        of.ingest.figures.subscriptions.store(0, Ordering::Relaxed);
        assert_eq!(describe(&of), "live at slot 7, not connected to the stream, lag 20 ms");
        set(Phase::Gap(Gap { first_slot: 8, last_slot: 9, detail: String::new(), contradicts: false }));
        assert_eq!(describe(&of), "not ready: gap: slots 8 to 9 are missing, at slot 7");
    }

    #[test]
    fn each_of_several_providers_is_named() {
        let checkpoint = ChainCheckpoint { slot: Some(7), ..ChainCheckpoint::default() };
        let ingest = ingest::State::at(checkpoint).with_providers(["http://a:1", "http://b:2"].map(str::to_owned));
        let line = describe(&Status { engine: "redb", ingest });
        assert!(line.ends_with("; http://a:1 followed errors 0; http://b:2 standby errors 0"), "{line}");
    }

    #[test]
    fn a_line_with_other_numbers_waits_and_one_in_other_words_does_not() {
        let checkpoint = ChainCheckpoint { slot: Some(7), ..ChainCheckpoint::default() };
        let of = Status { engine: "redb", ingest: ingest::State::at(checkpoint) };
        let (mut line, start) = (Line::default(), Instant::now());
        assert!(line.due(&of, start).is_some());
        of.ingest.published.publish(ChainCheckpoint { slot: Some(18), ..ChainCheckpoint::default() });
        assert_eq!(line.due(&of, start + LOOK_EVERY), None);
        assert!(line.due(&of, start + SAME_EVERY).is_some_and(|text| text.ends_with("slot 18")));
        of.ingest.figures.subscriptions.store(1, Ordering::Relaxed);
        of.ingest.progress.set_phase(Phase::CatchingUp);
        assert!(line.due(&of, start + SAME_EVERY).is_some_and(|text| text.contains("catching up")));
    }
}
