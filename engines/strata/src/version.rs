//! A version: the runs of one moment, newest first, and how a key is looked up in them.
//!
//! Owns: the order of runs. Must not: change; a new moment is a new version.

use std::sync::Arc;

use engine_api::{Key, Result, Value};

use crate::file::PageBuffer;
use crate::segment::Segment;

/// Segments with disjoint ranges, in ascending order.
#[derive(Clone, Default)]
pub(crate) struct Run {
    pub(crate) segments: Vec<Arc<Segment>>,
}

/// The runs. Deltas may hold tombstones, the base never does.
#[derive(Clone, Default)]
pub(crate) struct Version {
    /// Newest first.
    pub(crate) deltas: Vec<Arc<Run>>,
    pub(crate) base: Arc<Run>,
}

impl Run {
    pub(crate) fn records(&self) -> u64 {
        self.segments.iter().map(|segment| segment.info.records).sum()
    }

    pub(crate) fn tombstones(&self) -> u64 {
        self.segments.iter().map(|segment| segment.info.tombstones).sum()
    }

    /// The index of the segment that would hold `key`.
    pub(crate) fn segment_for(&self, key: &Key) -> Option<usize> {
        self.segments.partition_point(|segment| segment.info.first <= *key).checked_sub(1)
    }

    fn get(&self, key: &Key, hash: u64, buffer: &mut PageBuffer) -> Result<Option<Option<Value>>> {
        match self.segment_for(key) {
            Some(index) if self.segments[index].info.last >= *key => self.segments[index].get(key, hash, buffer),
            _ => Ok(None),
        }
    }
}

impl Version {
    /// The value of `key`.
    pub(crate) fn get(&self, key: &Key, hash: u64, buffer: &mut PageBuffer) -> Result<Option<Value>> {
        for delta in &self.deltas {
            if let Some(found) = delta.get(key, hash, buffer)? {
                return Ok(found);
            }
        }
        Ok(self.base.get(key, hash, buffer)?.flatten())
    }

    pub(crate) fn runs(&self) -> impl Iterator<Item = &Arc<Run>> {
        self.deltas.iter().chain(std::iter::once(&self.base))
    }

    pub(crate) fn segments(&self) -> impl Iterator<Item = &Arc<Segment>> {
        self.runs().flat_map(|run| &run.segments)
    }

    /// The greatest key of any run.
    pub(crate) fn last_key(&self) -> Option<Key> {
        self.runs().filter_map(|run| run.segments.last()).map(|segment| segment.info.last).max()
    }

    /// Pairs, counting a key once a run; exact where nothing was overwritten since the last full merge.
    pub(crate) fn pairs_estimate(&self) -> u64 {
        let deltas = self.deltas.iter();
        let (records, tombstones) =
            deltas.fold((0, 0), |(records, dead), run| (records + run.records(), dead + run.tombstones()));
        (self.base.records() + records).saturating_sub(2 * tombstones)
    }
}
