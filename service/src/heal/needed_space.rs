//! The room that the differences of a heal need: on the disk, and in the feed's log.
//!
//! Owns: both estimates, and the messages about them. Must not: apply a difference. Runs on the task of the
//! heal.

use anyhow::{Result, ensure};
use bytesize::ByteSize;
use tracing::info;

use crate::config::Config;
use crate::feed::{FOLLOWERS_BYTES_MAX, RECORD_BYTES};
use crate::ingest::healing::Differences;

/// Upper bound of the disk that a difference takes in derived stores: two entries of `values`, and one of `history`.
const DERIVED_CHANGE_BYTES: u64 = 200;

/// Consequences of the number of differences, known before the first one is applied.
#[derive(Clone, Copy, Debug)]
pub(super) struct NeededSpace {
    /// Whether the feed's log takes the differences: it can keep them, or a derived store needs them.
    pub(super) fits_feed: bool,
    has_feed: bool,
    /// Upper bound of the disk that the view before the differences keeps until their end, in bytes.
    view_bytes: u64,
}

impl NeededSpace {
    /// Checks that the disk has room for the differences: for the pages of the view before them that lookups read until
    /// the end, which is at most the store once more, and for the feed's log if it keeps them.
    ///
    /// # Errors
    /// The disk lacks the room, with the bytes that are needed; an I/O error of asking for it.
    pub(super) fn check(config: &Config, differences: &Differences) -> Result<Self> {
        let (dir, count) = (&config.store.dir, differences.left());
        let change_bytes = RECORD_BYTES as u64;
        let log_bytes = count.saturating_mul(change_bytes);
        let retention_bytes = config.feed.feed_retention_bytes.as_u64();
        // A derived store takes them from the feed, and takes care that they stay there for it.
        let fits_feed = log_bytes <= retention_bytes || config.has_derived();
        let page_bytes = config.engine.engine.descriptor().page_bytes.max(change_bytes);
        let view_bytes = count.saturating_mul(page_bytes).min(probe::disk_bytes(dir));
        let derived_bytes = if config.has_derived() {
            count.saturating_mul(DERIVED_CHANGE_BYTES).saturating_add(FOLLOWERS_BYTES_MAX)
        } else {
            0
        };
        let needed_bytes =
            view_bytes + derived_bytes + if config.feed.feed && fits_feed { log_bytes.min(retention_bytes) } else { 0 };
        let free_bytes = probe::space(dir)?.free_bytes;
        info!(differences = count, needed_bytes, free_bytes, "disk for the differences (an estimate)");
        ensure!(
            free_bytes >= needed_bytes,
            "not enough disk for the differences: dir={} differences={count} needed_bytes={needed_bytes} (an estimate) \
             free_bytes={free_bytes}: free space",
            dir.display()
        );
        Ok(Self { fits_feed, has_feed: config.feed.feed, view_bytes })
    }

    /// Describes the answers to lookups and the messages to subscribers of the feed until the differences are applied, and after.
    pub(super) fn words(&self) -> String {
        let for_subscribers = match (self.has_feed, self.fits_feed) {
            (false, _) => "",
            (true, true) => "; subscribers get each of them as a change",
            (true, false) => {
                "; they exceed feed_retention_bytes, so that the feed leaves them out: every subscriber has to begin with a \
                 dump after them"
            }
        };
        let view_size = ByteSize::b(self.view_bytes);
        format!("; lookups read the view before them, which keeps at most {view_size} of disk{for_subscribers}")
    }
}
