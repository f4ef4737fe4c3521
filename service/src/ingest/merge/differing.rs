//! The lines about blocks of which two providers send different accounts.
//!
//! Owns: when a line is due, and its words. Must not: count for the metrics, or judge which is right. Runs on the receivers'
//! task.

use std::time::Duration;

use tokio::time::Instant;
use tracing::error;

use crate::ingest::providers::Providers;

/// Time between two lines. A provider that always differs would fill the log otherwise.
const LINE_EVERY: Duration = Duration::from_secs(60);

/// A block of which a provider sends other accounts than the one that was first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Difference {
    pub(super) slot: u64,
    /// Index of the provider that was second, and the number of its events.
    pub(super) provider: usize,
    pub(super) accounts: usize,
    /// Index of the provider that was first, and the number of its events.
    pub(super) first: usize,
    pub(super) accounts_first: usize,
}

/// The differences since the newest line.
#[derive(Debug, Default)]
pub(super) struct Differing {
    /// Time of the newest line.
    logged_at: Option<Instant>,
    first_slot: u64,
    slots: u64,
    newest: Option<Difference>,
}

impl Differing {
    /// Notes a difference, which the next line counts.
    pub(super) fn note(&mut self, newest: Difference) {
        if self.newest.is_none() {
            (self.first_slot, self.slots) = (newest.slot, 0);
        }
        self.slots += 1;
        self.newest = Some(newest);
    }

    /// Writes the line that is due.
    pub(super) fn log(&mut self, providers: &Providers) {
        if let Some(Difference { slot, provider, accounts, first, accounts_first }) = self.due() {
            error!(
                slot,
                provider = providers.name(provider),
                accounts,
                applied_of = providers.name(first),
                applied_accounts = accounts_first,
                first_slot = self.first_slot,
                slots = self.slots,
                "two providers send different accounts of one block: the first one's are applied; see with `service audit` \
                 which of them is right"
            );
        }
    }

    /// Takes the newest difference if a line is due. The first one after a silence is due at once.
    fn due(&mut self) -> Option<Difference> {
        let is_due = self.logged_at.is_none_or(|at| at.elapsed() >= LINE_EVERY);
        let newest = self.newest.take_if(|_| is_due)?;
        self.logged_at = Some(Instant::now());
        Some(newest)
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn providers_that_always_differ_get_a_line_at_once_and_then_one_a_minute() {
        let mut differing = Differing::default();
        let newest = |slot| Difference { slot, provider: 1, accounts: 3, first: 0, accounts_first: 5 };
        let due = |differing: &mut Differing| {
            let newest = differing.due()?;
            Some((differing.first_slot, newest.slot, differing.slots))
        };
        let mut lines = Vec::new();
        for slot in 1..=300 {
            differing.note(newest(slot));
            lines.extend(due(&mut differing));
            advance(Duration::from_millis(500)).await;
        }
        assert_eq!(lines, [(1, 1, 1), (2, 121, 120), (122, 241, 120)]);
        advance(LINE_EVERY).await;
        assert_eq!(due(&mut differing), Some((242, 300, 59)), "the last ones are not kept back");
        advance(LINE_EVERY).await;
        assert_eq!(due(&mut differing), None);
        differing.note(newest(900));
        assert_eq!(due(&mut differing), Some((900, 900, 1)));
    }
}
