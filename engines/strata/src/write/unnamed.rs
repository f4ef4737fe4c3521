//! Segments that were written and that no manifest names yet.
//!
//! Owns: their removal, unless they are about to be named. Must not: write one. Runs on the threads that write segments.

use std::sync::Arc;

use engine_api::Result;

use crate::file::sync_dir;
use crate::read::segment::Segment;
use crate::storage::Storage;

/// Segments that no manifest names yet. Their files are removed if this is dropped.
#[derive(Default)]
pub(crate) struct Unnamed(pub(crate) Vec<Arc<Segment>>);

impl Unnamed {
    /// Makes the names durable, before a segment is completed that shows to a rebuild of the manifest that these are there.
    pub(crate) fn make_names_durable(&self, storage: &dyn Storage) -> Result<()> {
        if self.0.is_empty() { Ok(()) } else { sync_dir(storage) }
    }

    /// Returns the segments for a manifest. The caller removes them if that manifest is not written.
    pub(crate) fn keep(mut self) -> Vec<Arc<Segment>> {
        std::mem::take(&mut self.0)
    }
}

impl Drop for Unnamed {
    fn drop(&mut self) {
        self.0.iter().for_each(|segment| segment.retire());
    }
}
