//! The bounds of an assembler.
//!
//! Owns: their defaults, and how they follow from the memory. Must not: hold a slot. Any thread.

/// Maximum number of whole slots that wait for a parent: one minute at five slots a second. The real server drops a
/// slot's confirmation now and then. It then sends the slot only once a descendant is rooted, 32 slots later at best
/// and later under load. A parent that does not come within this many slots is more likely to come on another
/// connection.
pub const DEFAULT_SLOTS_MAX: usize = 300;

/// Maximum memory for slots that are not handed out yet, in bytes. It holds some three million updates, far more than a
/// replay window of ordinary slots.
pub const DEFAULT_BYTES_MAX: usize = 256 << 20;

/// Bounds on the slots and bytes that the assembler may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldLimits {
    /// Maximum number of whole slots that wait for a parent.
    pub slots_max: usize,
    /// Maximum bytes of all held slots and updates.
    pub bytes_max: usize,
}

impl HeldLimits {
    /// Returns the default limits, with the bytes reduced to a quarter of `limit_bytes` where that is less.
    /// `limit_bytes` is the memory that the process may use.
    pub fn within(limit_bytes: u64) -> Self {
        let quarter = usize::try_from(limit_bytes / 4).unwrap_or(usize::MAX);
        Self { bytes_max: DEFAULT_BYTES_MAX.min(quarter), ..Self::default() }
    }
}

impl Default for HeldLimits {
    fn default() -> Self {
        Self { slots_max: DEFAULT_SLOTS_MAX, bytes_max: DEFAULT_BYTES_MAX }
    }
}
