//! The options of a life, drawn from its seed, with half of all options switched off at random.
//!
//! Owns: the choice. Must not: carry it out. Options are switched off because a fault in every run would hide the
//! errors that only occur without it.

use engine_kit::Rng;

use crate::column::Column;
use crate::disk::{Fault, FaultKind};
use crate::reading;

/// Events that may occur in a life.
#[derive(Clone, Debug)]
pub struct Swarm {
    /// Whether the store is on the disk that can lose power. Otherwise it is on a real file system, and processes are
    /// only killed.
    pub fuse: bool,
    /// Whether there are sorted chunks among the batches.
    pub chunks: bool,
    /// Largest number of changes in most batches.
    pub changes: u64,
    /// Number of keys in the largest space.
    pub large: u64,
    /// Percentage of commits that are synced.
    pub synced: u64,
    /// Actions of an agent in addition to writing, one bit each.
    pub habits: u64,
    /// Largest number of batches that an agent acknowledges before it is ended, give or take.
    pub acks: u64,
    /// Ways in which agents end. One is chosen for each agent.
    pub ends: Vec<EndKind>,
    /// Kinds of faults. One turn in `faults_every` has one of them.
    pub faults: Vec<FaultKind>,
    /// Average number of turns per turn with a fault; 0 for no faults.
    pub faults_every: u64,
    /// Limit of the operations of a fault's kind that pass before it.
    pub faults_within: u64,
    /// Number of agents, one after the other.
    pub turns: u64,
}

/// Way in which an agent ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum EndKind {
    /// The agent closes the store.
    Close,
    /// SIGKILL at a random moment.
    Kill,
    /// SIGKILL between the writes and the commit of a batch.
    KillWritten,
    /// SIGKILL at a random operation of the disk.
    KillAt,
    /// The power is lost at a random moment.
    Power,
    /// The power is lost at a random operation of the disk.
    PowerAt,
}

impl EndKind {
    /// Whether unflushed writes are lost.
    pub fn is_power(self) -> bool {
        matches!(self, Self::Power | Self::PowerAt)
    }
}

/// The end of one agent, with its numbers.
#[derive(Clone, Debug)]
pub(crate) struct End {
    pub(crate) kind: EndKind,
    /// Number of batches that the agent acknowledges first.
    pub(crate) acks: u64,
    /// Time in microseconds that the agent lives after that.
    pub(crate) micros: u64,
    /// Number of operations that change the disk, counted from the agent's start.
    pub(crate) operations: u64,
}

impl Swarm {
    /// Draws the options of a seed. Without `fuse` there are only kills.
    pub fn of(column: Column, seed: u64, fuse: bool) -> Self {
        use EndKind::{Close, Kill, KillAt, KillWritten, Power, PowerAt};
        let mut rng = Rng::of(seed, 2);
        let is_small = column == Column::StrataSmall;
        let fuse = fuse && !rng.once_in(if is_small { 2 } else { 8 });
        let mut ends: Vec<EndKind> = [Close, Kill, KillWritten].into_iter().filter(|_| rng.once_in(2)).collect();
        if fuse {
            ends.extend([KillAt, Power, PowerAt].into_iter().filter(|_| rng.once_in(2)));
        }
        if ends.is_empty() {
            ends = if fuse { vec![Power, Kill] } else { vec![Kill] };
        }
        let mut faults: Vec<FaultKind> = FaultKind::ALL.into_iter().filter(|_| rng.once_in(2)).collect();
        if !fuse {
            faults.clear();
        }
        Self {
            fuse,
            chunks: rng.once_in(2),
            changes: rng.pick(if is_small { &[100, 300, 3_000, 10_000] } else { &[20, 100, 400, 1_500] }),
            large: match (is_small, fuse) {
                (true, false) => rng.pick(&[2_000_000, 2_000_000, 200_000]),
                (true, true) => rng.pick(&[200_000, 30_000]),
                _ => 40_000,
            },
            synced: rng.pick(&[0, 10, 50, 100, 100]),
            habits: rng.next() & rng.pick(&[reading::ALL, reading::ALL, reading::GET | reading::SCAN]),
            acks: if is_small { rng.pick(&[60, 350]) } else { 60 },
            ends,
            faults_every: if faults.is_empty() { 0 } else { rng.pick(&[0, 1, 2, 4]) },
            faults,
            faults_within: rng.pick(&[20, 200, 1000]),
            turns: rng.pick(&[4, 8, 16]),
        }
    }

    pub(crate) fn end(&self, rng: &mut Rng) -> End {
        let early = rng.once_in(3);
        // A longer time meets slow actions in proportion to theirs.
        let longest = rng.pick(&[20_000, 20_000, 300_000]);
        End {
            kind: rng.pick(&self.ends),
            acks: if early { 0 } else { rng.pick(&[1, 10, self.acks]) + rng.below(40) },
            micros: rng.below(if early { 150_000 } else { longest }),
            operations: if early { rng.below(60) } else { rng.below(1500) },
        }
    }

    pub(crate) fn faults(&self, rng: &mut Rng) -> Vec<Fault> {
        if self.faults_every == 0 || !rng.once_in(self.faults_every) {
            return Vec::new();
        }
        let kind = rng.pick(&self.faults);
        // Few reads reach a disk, except while a store is opened.
        let most = if kind == FaultKind::ReadError { self.faults_within.min(60) } else { self.faults_within };
        let count = match kind {
            FaultKind::Slow => rng.pick(&[20, 200]),
            _ => rng.pick(&[1, 1, 2, 5, 40]),
        };
        vec![Fault { kind, from: rng.below(most), count }]
    }
}
