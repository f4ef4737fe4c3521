//! Atomics and cells: the standard library's, or loom's while loom runs threads through every possible order.
//!
//! Owns: nothing. Must not: be bypassed by lock-free code that a loom model runs (memtables, pages in memory, sets of
//! the record cache, removal of files), because loom can only replace the atomics and cells named here. Any thread.

#[cfg(all(test, loom))]
pub(crate) use loom::cell::UnsafeCell;
#[cfg(all(test, loom))]
pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering, fence};
#[cfg(not(all(test, loom)))]
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering, fence};

/// The standard cell with the interface of loom's cell, which has to know when the use of a pointer begins and ends.
#[cfg(not(all(test, loom)))]
pub(crate) struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

#[cfg(not(all(test, loom)))]
impl<T> UnsafeCell<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(std::cell::UnsafeCell::new(value))
    }

    /// Calls `read` with a pointer to the value for reading.
    #[inline(always)]
    pub(crate) fn with<R>(&self, read: impl FnOnce(*const T) -> R) -> R {
        read(self.0.get())
    }

    /// Calls `write` with a pointer to the value for writing.
    #[inline(always)]
    pub(crate) fn with_mut<R>(&self, write: impl FnOnce(*mut T) -> R) -> R {
        write(self.0.get())
    }
}
