//! What stands before every operation of the file system: counts, faults, the trap, and the end of power.
//!
//! Owns: which operation fails, waits, or stops the world. Must not: know what an operation does. Used on the file
//! system's threads, which it may hold, and by the supervisor, which lets them go.

use std::collections::BTreeMap;
use std::sync::mpsc::Sender;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use super::tree::Errno;
use crate::rng::Rng;

/// What a disk does wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FaultKind {
    /// Reads end in `EIO`.
    ReadError,
    /// Writes, and changes of names and sizes, end in `EIO` and do nothing.
    WriteError,
    /// Flushes end in `EIO`; what they were to flush is not tried again.
    SyncError,
    /// The disk is full, and says so.
    Full,
    /// Nothing more can be written, though the disk says that there is space: a quota, or someone who is faster.
    FullUnseen,
    /// Everything that changes the disk ends in `EROFS`, as after a remount for errors.
    ReadOnly,
    /// Every operation takes milliseconds.
    Slow,
}

impl FaultKind {
    /// All of them.
    pub const ALL: [Self; 7] =
        [Self::ReadError, Self::WriteError, Self::SyncError, Self::Full, Self::FullUnseen, Self::ReadOnly, Self::Slow];

    /// The name in tables and on the command line.
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

/// A fault that comes with the operation number `from` among those it concerns, and stays for `count` of them.
#[derive(Clone, Copy, Debug)]
pub struct Fault {
    /// What goes wrong.
    pub kind: FaultKind,
    /// Operations of its kind that pass before it.
    pub from: u64,
    /// Operations that it hits.
    pub count: u64,
}

/// An operation as the gate sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    Read,
    /// Takes space.
    Write,
    /// Changes names or sizes, or gives back space.
    Change,
    Sync,
    /// Asks for the free space.
    Space,
    /// Everything else.
    Look,
}

/// What the supervisor is told.
#[derive(Debug, PartialEq, Eq)]
pub enum Notice {
    /// A line of the agent.
    Line(String),
    /// The agent says no more.
    Silence,
    /// The trap has sprung: the world stands still until it is let go.
    Trapped,
}

/// How an operation goes on that the gate has let through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Passed {
    Sound,
    /// A flush that fails: pages that reach the device all the same, in a hundred.
    SyncFails(u64),
}

#[derive(Default)]
struct State {
    dead: bool,
    held: bool,
    /// Operations that change something, until the trap springs.
    trap: Option<u64>,
    notices: Option<Sender<Notice>>,
    faults: Vec<Fault>,
    hits: BTreeMap<FaultKind, u64>,
    rng: Option<Rng>,
}

/// The gate of one file system.
#[derive(Default)]
pub(crate) struct Gate {
    state: Mutex<State>,
    moved: Condvar,
}

impl Gate {
    /// Holds or refuses the operation, or lets it through.
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
                FaultKind::Full | FaultKind::FullUnseen if op == Op::Write => passed = Err(libc::ENOSPC),
                FaultKind::Full | FaultKind::FullUnseen => {}
            }
        }
        drop(state);
        if let Some(delay) = delay {
            std::thread::sleep(delay);
        }
        passed
    }

    /// Whether the disk says that it is full.
    pub(crate) fn says_full(&self) -> bool {
        let state = self.state.lock();
        state.faults.iter().any(|fault| fault.kind == FaultKind::Full && fault.from == 0 && fault.count > 0)
    }

    /// New faults in place of those there are.
    pub(crate) fn set_faults(&self, faults: Vec<Fault>, seed: u64) {
        let mut state = self.state.lock();
        state.faults = faults;
        state.rng = Some(Rng::new(seed));
    }

    /// How often each kind of fault has hit since this was asked last.
    pub(crate) fn take_hits(&self) -> BTreeMap<FaultKind, u64> {
        std::mem::take(&mut self.state.lock().hits)
    }

    /// Where notices go.
    pub(crate) fn notify(&self, notices: Sender<Notice>) {
        self.state.lock().notices = Some(notices);
    }

    /// Stops the world at the operation that comes after `operations` that change something.
    pub(crate) fn set_trap(&self, operations: Option<u64>) {
        self.state.lock().trap = operations;
    }

    /// Every operation fails from now on, also those that are held: there is no power.
    pub(crate) fn cut_power(&self) {
        self.state.lock().dead = true;
        self.moved.notify_all();
    }

    /// Lets operations that are held go on.
    pub(crate) fn release(&self) {
        let mut state = self.state.lock();
        state.held = false;
        state.trap = None;
        self.moved.notify_all();
    }

    /// As new, with power.
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
                    // A supervisor that is gone lets nothing go; the connection ends with it.
                    notices.send(Notice::Trapped).ok();
                }
            }
            Some(left) => self.trap = Some(left - 1),
            None => {}
        }
    }

    /// The faults that hit this operation.
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
