//! The settings of derived stores.
//!
//! Owns: how much of the past is kept. Must not: know where it lies. Runs on `main`.

use bytesize::ByteSize;

use crate::base::setting::settings;

/// Maximum number of slots: more than the chain will have for ten years.
const HISTORY_SLOTS_MAX: u64 = 1 << 30;

/// Maximum size: that of the largest file system that Linux makes.
const HISTORY_BYTES_MAX: ByteSize = ByteSize::eib(1);

settings! {
    /// The past that is kept beside the map.
    #[derive(Copy)]
    pub struct DerivedSettings from DerivedGiven {
        /// Keep the values of at least this many past slots, for an operator whose clients ask who owned an account (GetAt, Changes):
        /// 216000 are a day; 0 for no limit but history_bytes, or for no past at all [default: 0]
        #[arg(value_name = "SLOTS")]
        history_slots: u64 = 0, within 0..=HISTORY_SLOTS_MAX;
        /// Disk space for past values, about 90 bytes a change; for an operator whose disk is the limit. The oldest slots go first; 0 for
        /// no limit but history_slots [default: 0]
        #[arg(value_name = "BYTES", value_parser = engines::size)]
        #[serde(deserialize_with = "crate::base::setting::size")]
        history_bytes: ByteSize = ByteSize::b(0), within ByteSize::b(0)..=HISTORY_BYTES_MAX;
    }
}

/// Least disk space of a past: with less, each second would have a store of its own.
const HISTORY_BYTES_MIN: ByteSize = ByteSize::mib(64);

impl DerivedSettings {
    /// Checks the disk space of the past.
    ///
    /// # Errors
    /// It is too little.
    pub(crate) fn check(&self) -> anyhow::Result<()> {
        let (bytes, min) = (self.history_bytes, HISTORY_BYTES_MIN);
        let is_enough = bytes.as_u64() == 0 || bytes >= min;
        anyhow::ensure!(
            is_enough,
            "too little for a past: history_bytes={bytes}: give {min} or more, or 0 for no limit"
        );
        Ok(())
    }

    /// Whether the past is kept.
    pub(crate) fn keeps_history(&self) -> bool {
        self.history_slots > 0 || self.history_bytes.as_u64() > 0
    }
}
