//! A reader: one snapshot and the buffers of its gets. It stays on the thread that opened it.

use std::ops::ControlFlow;
use std::sync::Arc;

use engine_api::{Checkpoint, Key, Reader, Resident, Result, Value, Visitor, one_slot_per_key};

use crate::read::batch::{Batch, DEPTH};
use crate::read::cursor::{Cursor, Merged, RunCursor, Window};
use crate::read::lookup::{Lookup, Reads};
use crate::read::uring::{Pipeline, cannot_wait};
use crate::read::version::Run;
use crate::read::visible::{Newest, Visible};

pub(crate) struct StrataReader<'e> {
    /// The newest state of the store.
    newest: &'e Newest,
    reads: &'e Arc<Reads>,
    visible: Arc<Visible>,
    lookup: Lookup,
    /// Pipeline for batches and for the first pages of scans. The first of them makes it; one that fails drops it.
    pipeline: Option<Pipeline>,
}

impl<'e> StrataReader<'e> {
    pub(crate) fn new(newest: &'e Newest, reads: &'e Arc<Reads>) -> Self {
        Self { newest, reads, visible: newest.load_full(), lookup: Lookup::new(reads), pipeline: None }
    }

    /// Takes the pipeline for single pages. Whoever has used it without an error puts it back.
    fn pages(&mut self) -> Pipeline {
        self.pipeline.take().unwrap_or_else(|| Pipeline::lasting(DEPTH, 1, self.reads))
    }

    /// Visits the pairs with `first <= key < to` of the memtables, and of the runs that `may_hold` lets through.
    fn scan_runs(
        &mut self,
        first: &Key,
        to: Option<Key>,
        may_hold: impl Fn(&Run) -> bool,
        visit: &mut Visitor<'_>,
    ) -> Result<()> {
        let lists = self.visible.lists_from(first)?;
        let runs: Vec<_> = self.visible.version.runs().filter(|run| run.records() > 0 && may_hold(run)).collect();
        let window = Window::scan(self.reads, runs.len());
        let mut runs: Vec<_> = runs.into_iter().map(|run| RunCursor::new(run, first, to, &window)).collect();
        self.read_first(&mut runs)?;
        if lists.is_empty() && runs.len() == 1 {
            // One run and nothing else, as after a load: visit its pages directly, without merging.
            return runs.pop().map_or(Ok(()), |run| run.visit(visit));
        }
        let mut records = Merged::new(lists.into_iter().chain(runs.into_iter().map(Cursor::Run)).collect())?;
        while let Some((key, value)) = records.next()? {
            // Memtables have records beyond it.
            if to.is_some_and(|to| key >= to) {
                break;
            }
            if let Some(value) = value
                && visit(&key, &value) == ControlFlow::Break(())
            {
                break;
            }
        }
        Ok(())
    }

    /// Reads the first page of each run that has to be read, as many of them at once as the device gains by.
    fn read_first(&mut self, runs: &mut [Box<RunCursor>]) -> Result<()> {
        let mut lacking: Vec<_> = runs.iter_mut().filter(|run| run.lacks_first()).collect();
        for runs in lacking.chunks_mut(DEPTH) {
            let mut pipeline = self.pages();
            runs.iter().enumerate().for_each(|(slot, run)| run.ask_first(slot, &mut pipeline));
            while let Some((slot, read)) = pipeline.wait().map_err(cannot_wait)? {
                runs[slot].take_first(read, pipeline.page(slot, 0))?;
            }
            self.pipeline = Some(pipeline);
        }
        Ok(())
    }
}

impl Reader for StrataReader<'_> {
    fn get(&mut self, key: &Key) -> Result<Option<Value>> {
        self.visible.get(key, &mut self.lookup)
    }

    fn get_resident(&mut self, key: &Key) -> Resident {
        self.visible.get_resident(key, &mut self.lookup)
    }

    fn get_many(&mut self, keys: &[Key], values: &mut [Option<Value>]) -> Result<()> {
        one_slot_per_key(keys, values)?;
        let mut pipeline = self.pages();
        Batch::new(&self.visible, keys, values, &mut self.lookup, &mut pipeline).run()?;
        self.pipeline = Some(pipeline);
        Ok(())
    }

    fn scan_from(&mut self, first: &Key, visit: &mut Visitor<'_>) -> Result<()> {
        self.scan_runs(first, None, |_| true, visit)
    }

    fn scan_prefix(&mut self, first: &Key, prefix_bytes: usize, visit: &mut Visitor<'_>) -> Result<()> {
        let hash = (prefix_bytes >= self.reads.seed.prefix_bytes()).then(|| self.reads.seed.filter_hash(first));
        let may_hold = |run: &Run| hash.is_none_or(|hash| run.may_hold_prefix(&first[..prefix_bytes], first, hash));
        self.scan_runs(first, after(first, prefix_bytes), may_hold, visit)
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

/// Returns the first key after all that begin with the same `prefix_bytes` bytes as `key`; `None` if there is none.
fn after(key: &Key, prefix_bytes: usize) -> Option<Key> {
    let mut after = [0; 32];
    after[..prefix_bytes].copy_from_slice(&key[..prefix_bytes]);
    let last = after[..prefix_bytes].iter().rposition(|byte| *byte != 0xff)?;
    after[last] += 1;
    after[last + 1..].fill(0);
    Some(after)
}
