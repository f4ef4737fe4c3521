//! A reader: one snapshot and one page's buffer.

use std::ops::ControlFlow;
use std::sync::Arc;

use engine_api::{Checkpoint, Key, Reader, Result, Value, Visitor, get_many_by_get};

use crate::cursor::{Cursor, Merged, RunCursor};
use crate::engine::{Shared, Visible};
use crate::file::PageBuffer;

pub(crate) struct StrataReader<'e> {
    shared: &'e Shared,
    visible: Arc<Visible>,
    buffer: PageBuffer,
}

impl<'e> StrataReader<'e> {
    pub(crate) fn new(shared: &'e Shared) -> Self {
        Self { shared, visible: shared.visible.load_full(), buffer: PageBuffer::new(1) }
    }
}

impl Reader for StrataReader<'_> {
    fn get(&mut self, key: &Key) -> Result<Option<Value>> {
        self.visible.get(key, &mut self.buffer)
    }

    fn get_many(&mut self, keys: &[Key], values: &mut [Option<Value>]) -> Result<()> {
        get_many_by_get(self, keys, values)
    }

    fn scan(&mut self, visit: &mut Visitor<'_>) -> Result<()> {
        let mut records = all(&self.visible)?;
        while let Some((key, value)) = records.next()? {
            if let Some(value) = value
                && visit(&key, &value) == ControlFlow::Break(())
            {
                break;
            }
        }
        Ok(())
    }

    fn checkpoint(&mut self) -> Result<Checkpoint> {
        Ok(self.visible.checkpoint)
    }

    fn refresh(&mut self) -> Result<()> {
        let now = self.shared.visible.load();
        if !Arc::ptr_eq(&now, &self.visible) {
            self.visible = Arc::clone(&now);
        }
        Ok(())
    }
}

/// Every record of a snapshot, newest wins.
fn all(visible: &Visible) -> Result<Merged> {
    let mut cursors = vec![Cursor::List(visible.active.sorted(visible.length).into_iter())];
    cursors.extend(visible.frozen.iter().map(|frozen| Cursor::List(frozen.mem.sorted(frozen.length).into_iter())));
    cursors.extend(visible.version.runs().map(|run| Cursor::Run(RunCursor::new(run, &[0; 32], None))));
    Merged::new(cursors)
}
