//! A reader: one snapshot and the buffers of its gets. It stays on the thread that opened it.

use std::ops::ControlFlow;
use std::sync::Arc;

use engine_api::{Checkpoint, Key, Reader, Result, Value, Visitor, one_slot_per_key};

use crate::memtable::LIST_BYTES;
use crate::read::batch::{Batch, DEPTH};
use crate::read::cursor::{Cursor, Merged, RunCursor, Window};
use crate::read::lookup::{Lookup, Reads};
use crate::read::uring::Pipeline;
use crate::read::visible::{Newest, Visible};

pub(crate) struct StrataReader<'e> {
    /// The newest state of the store.
    newest: &'e Newest,
    reads: &'e Arc<Reads>,
    visible: Arc<Visible>,
    lookup: Lookup,
    /// Pipeline for batches. The first batch makes it; a batch that fails drops it.
    pipeline: Option<Pipeline>,
}

impl<'e> StrataReader<'e> {
    pub(crate) fn new(newest: &'e Newest, reads: &'e Arc<Reads>) -> Self {
        Self { newest, reads, visible: newest.load_full(), lookup: Lookup::new(reads), pipeline: None }
    }
}

impl Reader for StrataReader<'_> {
    fn get(&mut self, key: &Key) -> Result<Option<Value>> {
        self.visible.get(key, &mut self.lookup)
    }

    fn get_many(&mut self, keys: &[Key], values: &mut [Option<Value>]) -> Result<()> {
        one_slot_per_key(keys, values)?;
        let mut pipeline = self.pipeline.take().unwrap_or_else(|| Pipeline::lasting(DEPTH, 1, self.reads));
        Batch::new(&self.visible, keys, values, &mut self.lookup, &mut pipeline).run()?;
        self.pipeline = Some(pipeline);
        Ok(())
    }

    fn scan_from(&mut self, first: &Key, visit: &mut Visitor<'_>) -> Result<()> {
        let lists = self.visible.lists_from(first)?;
        let mut runs = self.visible.version.runs().filter(|run| run.records() > 0);
        match (lists.is_empty(), runs.next(), runs.next()) {
            // One run and nothing else, as after a load: visit its pages directly, without merging.
            (true, Some(run), None) => RunCursor::new(run, first, None, Window::scan(self.reads, 1)).visit(visit),
            _ => scan_merged(&self.visible, self.reads, lists, first, visit),
        }
    }

    fn checkpoint(&mut self) -> Result<Checkpoint> {
        Ok(self.visible.checkpoint.clone())
    }

    fn refresh(&mut self) -> Result<()> {
        let now = self.newest.load();
        if !Arc::ptr_eq(&now, &self.visible) {
            self.visible = Arc::clone(&now);
        }
        Ok(())
    }
}

/// Scans every pair of a snapshot from key `first` on. The newest record of a key wins.
fn scan_merged(
    visible: &Visible,
    reads: &Arc<Reads>,
    lists: Vec<Cursor>,
    first: &Key,
    visit: &mut Visitor<'_>,
) -> Result<()> {
    let _lists = reads.budget.take_for_work(visible.unflushed() * LIST_BYTES);
    let window = Window::scan(reads, visible.version.runs().count());
    let runs = visible.version.runs().map(|run| RunCursor::boxed(run, first, None, window.clone()));
    let mut records = Merged::new(lists.into_iter().chain(runs).collect())?;
    while let Some((key, value)) = records.next()? {
        if let Some(value) = value
            && visit(&key, &value) == ControlFlow::Break(())
        {
            break;
        }
    }
    Ok(())
}
