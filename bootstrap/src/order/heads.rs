//! Finds which of several sorted runs has the record that comes next.
//!
//! Owns: the order of comparisons in a merge. Must not: read runs. Runs on the thread that merges.
//!
//! The runs play a knockout tournament: each node of a tree remembers the run that lost there, and the winner moves to
//! the next node. When the winner's record was taken, the run's next record plays only against the losers on its way to
//! the top, one on each level. Records are not moved: the tree holds the numbers of runs.

/// Placeholder in a node where no run has lost yet.
const NOBODY: u32 = u32::MAX;
/// Rank of a run that has ended. A record can have it too; the caller tells them apart.
pub(super) const ENDED: u64 = u64::MAX;

/// The rank of each run's next record, and the tournament between the runs.
pub(super) struct Heads {
    /// Rank of each run's next record, by the run's number.
    ranks: Vec<u64>,
    /// The run that lost, by node. The top node is 1, and the children of node `n` are `2n` and `2n + 1`. Entry 0 is
    /// the run that won all its games.
    losers: Vec<u32>,
}

impl Heads {
    /// Plays the tournament. `precedes` decides between two runs of equal rank: it returns whether the first one's
    /// record comes before the second one's. A run that has ended comes last.
    pub(super) fn new(ranks: Vec<u64>, precedes: impl Fn(usize, usize) -> bool) -> Self {
        let losers = vec![NOBODY; ranks.len().max(1)];
        let mut heads = Self { ranks, losers };
        for run in 0..heads.ranks.len() {
            heads.enter(run as u32, &precedes);
        }
        heads
    }

    /// Lets a run play until it reaches a node that no run has reached before, and wait there.
    fn enter(&mut self, run: u32, precedes: impl Fn(usize, usize) -> bool) {
        let (mut winner, mut node) = (run, self.leaf(run) / 2);
        while node > 0 {
            let other = self.losers[node];
            if other == NOBODY {
                self.losers[node] = winner;
                return;
            }
            winner = self.play(winner, node, &precedes);
            node /= 2;
        }
        self.losers[0] = winner;
    }

    /// Returns the run whose record comes first. `None` if there are no runs. The run may have ended: then all have.
    pub(super) fn first(&self) -> Option<usize> {
        let run = self.losers[0];
        (run != NOBODY).then_some(run as usize)
    }

    /// Gives the run that comes first the rank of its next record.
    #[inline]
    pub(super) fn replace_first(&mut self, rank: u64, precedes: impl Fn(usize, usize) -> bool) {
        let Some(run) = self.first() else { return };
        self.ranks[run] = rank;
        let (mut winner, mut node) = (run as u32, self.leaf(run as u32) / 2);
        while node > 0 {
            winner = self.play(winner, node, &precedes);
            node /= 2;
        }
        self.losers[0] = winner;
    }

    /// Returns the node below the tree where a run enters.
    fn leaf(&self, run: u32) -> usize {
        self.ranks.len() + run as usize
    }

    /// Plays a game at a node. The loser stays there, and the winner is returned.
    #[inline]
    fn play(&mut self, run: u32, node: usize, precedes: impl Fn(usize, usize) -> bool) -> u32 {
        let other = self.losers[node];
        let (ours, theirs) = (self.ranks[run as usize], self.ranks[other as usize]);
        let wins = if ours == theirs { precedes(run as usize, other as usize) } else { ours < theirs };
        // Both outcomes are equally likely, so select without a branch: it would be mispredicted half of the time.
        self.losers[node] = if wins { other } else { run };
        if wins { run } else { other }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn numbers_of_any_runs_come_in_order(
            // There are few ranks, so that ties occur. The greatest is also that of a run that has ended.
            mut runs in prop::collection::vec(prop::collection::vec((0u64..3, 0u8..4), 0..12), 0..19),
        ) {
            let mut all = runs.concat();
            all.sort_unstable_by(|a, b| b.cmp(a));
            // A larger number has a smaller rank, and each run's next number is its last one.
            runs.iter_mut().for_each(|run| run.sort_unstable());
            let rank = |run: &Vec<(u64, u8)>| run.last().map_or(ENDED, |(number, _)| u64::MAX - number);
            let precedes = |runs: &[Vec<(u64, u8)>], a: usize, b: usize| runs[a].last() > runs[b].last();
            let mut heads = Heads::new(runs.iter().map(rank).collect(), |a, b| precedes(&runs, a, b));
            let mut found = Vec::new();
            while let Some(number) = heads.first().and_then(|run| runs[run].pop()) {
                found.push(number);
                let next = heads.first().map_or(ENDED, |run| rank(&runs[run]));
                heads.replace_first(next, |a, b| precedes(&runs, a, b));
            }
            prop_assert!(runs.iter().all(Vec::is_empty));
            prop_assert_eq!(found, all);
        }
    }
}
