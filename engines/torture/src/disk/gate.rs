//! The gate before every operation of the file system: counters, faults, the trap, and the end of power.
//!
//! Owns: the decision which operation fails, waits, or is held by the trap. Must not: know the meaning of an operation.
//! Used on the file system's threads, which it may hold, and by the supervisor, which releases them.

use std::collections::BTreeMap;
use std::sync::mpsc::Sender;
use std::time::Duration;

use engine_kit::Rng;
use parking_lot::{Condvar, Mutex};

use super::tree::Errno;

/// Kind of misbehaviour of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FaultKind {
    /// Reads fail with `EIO` and return no bytes.
    ReadError,
    /// Writes, and changes of names and sizes, fail with `EIO` and do nothing.
    WriteError,
    /// Flushes fail with `EIO`, and later flushes do not repeat the lost writes.
    SyncError,
    /// The disk is full, and reports no free space.
    Full,
    /// Nothing more can be written, although the disk reports free space: a quota, or another program that was faster.
    FullUnseen,
    /// Every operation that changes the disk fails with `EROFS`, as after a remount because of errors.
    ReadOnly,
    /// Every operation takes 0.1 to 5 milliseconds longer.
    Slow,
}

impl FaultKind {
    pub const ALL: [Self; 7] =
        [Self::ReadError, Self::WriteError, Self::SyncError, Self::Full, Self::FullUnseen, Self::ReadOnly, Self::Slow];

    /// Returns the name in tables.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ReadError => "read-eio",
            Self::WriteError => "write-eio",
            Self::SyncError => "fsync-eio",
            Self::Full => "full",
            Self::FullUnseen => "full-unseen",
            Self::ReadOnly => "read-only",
            Self::Slow => "slow",
        }
    }
}

/// A fault that skips `from` operations of the kind that it concerns, and then hits `count` of them.
#[derive(Clone, Copy, Debug)]
pub struct Fault {
    pub kind: FaultKind,
    /// Number of operations concerned that pass before the fault.
    pub from: u64,
    /// Number of operations that the fault hits.
    pub count: u64,
}

/// Kind of an operation, which decides the faults that hit it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    Read,
    /// An operation that takes space.
    Write,
    /// An operation that changes names or sizes, or frees space.
    Change,
    Sync,
    /// A query of the free space.
    Space,
    /// Every other operation, for example a lookup of a name.
    Look,
}

/// Message to the supervisor from the agent or from the disk.
#[derive(Debug, PartialEq, Eq)]
pub enum Notice {
    /// A line of the agent's output.
    Line(String),
    /// The agent's output has ended.
    Silence,
    /// The trap has held an operation: every operation waits until the supervisor releases them.
    Trapped,
}

/// Result for an operation that the gate lets through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Passed {
    Sound,
    /// This flush fails. The number is the percentage of pages that reach the device all the same.
    SyncFails(u64),
}

#[derive(Default)]
struct State {
    dead: bool,
    held: bool,
    /// Number of changing operations that still pass before the trap holds.
    trap: Option<u64>,
    notices: Option<Sender<Notice>>,
    faults: Vec<Fault>,
    hits: BTreeMap<FaultKind, u64>,
    rng: Option<Rng>,
}

/// The gate, with its faults and its trap.
#[derive(Default)]
pub struct Gate {
    state: Mutex<State>,
    moved: Condvar,
}

impl Gate {
    /// Counts the operation, and then holds it, refuses it, or lets it through.
    pub(crate) fn pass(&self, op: Op) -> Result<Passed, Errno> {
        let mut state = self.state.lock();
        if matches!(op, Op::Write | Op::Change | Op::Sync) {
            state.count_down();
        }
        while state.held && !state.dead {
            self.moved.wait(&mut state);
        }
        if state.dead {
            return Err(libc::EIO);
        }
        let mut passed = Ok(Passed::Sound);
        let mut delay = None;
        for kind in state.due(op) {
            *state.hits.entry(kind).or_default() += 1;
            let rng = state.rng.get_or_insert_with(|| Rng::new(1));
            match kind {
                FaultKind::Slow => delay = Some(Duration::from_micros(100 + rng.below(5_000))),
                FaultKind::SyncError => passed = Ok(Passed::SyncFails(rng.pick(&[0, 50]))),
                FaultKind::ReadError | FaultKind::WriteError => passed = Err(libc::EIO),
                FaultKind::ReadOnly => passed = Err(libc::EROFS),
                FaultKind::Full if op == Op::Write => passed = Err(libc::ENOSPC),
                // A user's quota is such a limit that the free space does not show.
                FaultKind::FullUnseen if op == Op::Write => passed = Err(rng.pick(&[libc::ENOSPC, libc::EDQUOT])),
                FaultKind::Full | FaultKind::FullUnseen => {}
            }
        }
        drop(state);
        if let Some(delay) = delay {
            std::thread::sleep(delay);
        }
        passed
    }

    /// Whether the disk reports that it is full.
    pub(crate) fn says_full(&self) -> bool {
        let state = self.state.lock();
        state.faults.iter().any(|fault| fault.kind == FaultKind::Full && fault.from == 0 && fault.count > 0)
    }

    /// Replaces all faults; an empty list heals the disk. `seed` decides their delays and partial flushes.
    pub fn set_faults(&self, faults: Vec<Fault>, seed: u64) {
        let mut state = self.state.lock();
        state.faults = faults;
        state.rng = Some(Rng::new(seed));
    }

    /// Returns the number of hits of each kind of fault since the last call.
    pub fn take_hits(&self) -> BTreeMap<FaultKind, u64> {
        std::mem::take(&mut self.state.lock().hits)
    }

    /// Sets the receiver of [`Notice::Trapped`].
    pub fn notify(&self, notices: Sender<Notice>) {
        self.state.lock().notices = Some(notices);
    }

    /// Holds every operation from the one that comes after `operations` changing ones.
    pub fn set_trap(&self, operations: Option<u64>) {
        self.state.lock().trap = operations;
    }

    /// Makes every operation fail from now on, the held ones included, because there is no power.
    pub fn cut_power(&self) {
        self.state.lock().dead = true;
        self.moved.notify_all();
    }

    /// Releases the operations that are held.
    pub fn release(&self) {
        let mut state = self.state.lock();
        state.held = false;
        state.trap = None;
        self.moved.notify_all();
    }

    /// Resets the gate to its initial state, with power.
    pub(crate) fn reset(&self) {
        *self.state.lock() = State::default();
    }
}

impl State {
    fn count_down(&mut self) {
        match self.trap {
            Some(0) => {
                self.trap = None;
                self.held = true;
                if let Some(notices) = &self.notices {
                    // If the supervisor is gone, nobody releases the operations, but the connection ends with it.
                    notices.send(Notice::Trapped).ok();
                }
            }
            Some(left) => self.trap = Some(left - 1),
            None => {}
        }
    }

    /// Returns the faults that hit this operation, and counts it for those that it concerns.
    fn due(&mut self, op: Op) -> Vec<FaultKind> {
        let mut due = Vec::new();
        for fault in &mut self.faults {
            let concerned = match fault.kind {
                FaultKind::ReadError => op == Op::Read,
                FaultKind::WriteError => matches!(op, Op::Write | Op::Change),
                FaultKind::SyncError => op == Op::Sync,
                FaultKind::Full => matches!(op, Op::Write | Op::Space),
                FaultKind::FullUnseen => op == Op::Write,
                FaultKind::ReadOnly => matches!(op, Op::Write | Op::Change | Op::Sync),
                FaultKind::Slow => true,
            };
            if concerned && fault.from > 0 {
                fault.from -= 1;
            } else if concerned && fault.count > 0 {
                fault.count -= 1;
                due.push(fault.kind);
            }
        }
        due
    }
}
