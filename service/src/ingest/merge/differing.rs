//! The lines about blocks of which two providers tell different accounts.
//!
//! Owns: when a line is due, and its words. Must not: count for the metrics, or judge who is right. Runs on the receivers'
//! task.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;
use tracing::error;

use crate::ingest::providers::Providers;

/// Time between two lines about one provider. A provider that always differs would fill the log otherwise.
const LINE_EVERY: Duration = Duration::from_secs(60);

/// A block of which a provider tells other accounts than the one that was first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Difference {
    pub(super) slot: u64,
    /// Number of the provider's events.
    pub(super) accounts: usize,
    /// Index of the provider that was first, and the number of its events.
    pub(super) first: usize,
    pub(super) accounts_first: usize,
}

/// The lines about all providers, by the index of the one that came second.
#[derive(Debug, Default)]
pub(super) struct Differing(BTreeMap<usize, Lines>);

/// The lines about one provider.
#[derive(Debug, Default)]
struct Lines {
    /// Time of the newest line.
    at: Option<Instant>,
    unsaid: Option<Unsaid>,
}

/// The differences since the newest line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Unsaid {
    first_slot: u64,
    newest: Difference,
    slots: u64,
}

impl Differing {
    /// Notes a difference of this provider.
    pub(super) fn note(&mut self, provider: usize, newest: Difference) {
        let unsaid = &mut self.0.entry(provider).or_default().unsaid;
        let (first_slot, slots) = unsaid.map_or((newest.slot, 0), |unsaid| (unsaid.first_slot, unsaid.slots));
        *unsaid = Some(Unsaid { first_slot, newest, slots: slots + 1 });
    }

    /// Writes the lines that are due.
    pub(super) fn tell(&mut self, providers: &Providers) {
        for (provider, Unsaid { first_slot, newest, slots }) in self.due() {
            let Difference { slot, accounts, first, accounts_first } = newest;
            error!(
                slot,
                provider = providers.name(provider),
                accounts,
                applied_of = providers.name(first),
                applied_accounts = accounts_first,
                first_slot,
                slots,
                "two providers tell different accounts of one block: the first one's are applied; see with `service audit` \
                 which of them is right"
            );
        }
    }

    /// Takes the differences whose lines are due. The first one after a silence is due at once.
    fn due(&mut self) -> Vec<(usize, Unsaid)> {
        let due = self.0.iter_mut().filter_map(|(provider, lines)| {
            let is_due = lines.at.is_none_or(|at| at.elapsed() >= LINE_EVERY);
            let unsaid = lines.unsaid.take_if(|_| is_due)?;
            lines.at = Some(Instant::now());
            Some((*provider, unsaid))
        });
        due.collect()
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_provider_that_always_differs_gets_a_line_at_once_and_then_one_a_minute() {
        let mut differing = Differing::default();
        let newest = |slot| Difference { slot, accounts: 3, first: 0, accounts_first: 5 };
        let mut lines = Vec::new();
        for slot in 1..=300 {
            differing.note(1, newest(slot));
            lines.extend(differing.due());
            advance(Duration::from_millis(500)).await;
        }
        let line = |first_slot, slot, slots| (1, Unsaid { first_slot, newest: newest(slot), slots });
        assert_eq!(lines, [line(1, 1, 1), line(2, 121, 120), line(122, 241, 120)]);
        differing.note(0, Difference { first: 1, ..newest(300) });
        assert_eq!(differing.due().len(), 1, "the other one has lines of its own");
        advance(LINE_EVERY).await;
        assert_eq!(differing.due(), [line(242, 300, 59)], "the last ones are not kept back");
        advance(LINE_EVERY).await;
        assert!(differing.due().is_empty());
        differing.note(1, newest(900));
        assert_eq!(differing.due(), [line(900, 900, 1)]);
    }
}
