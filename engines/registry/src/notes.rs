//! Notes for an operator about a store and its process: losses from a repair, more memory than there is, and those of
//! the store's engine.
//!
//! Owns: the arithmetic and the sentences. Must not: open an engine, or refuse anything. Runs on the thread that opens
//! the store.

use std::path::Path;

use bytesize::ByteSize;
use engine_api::{Note, Result};

use crate::directory::DATA;
use crate::engine::effective;
use crate::marker;
use crate::options::EngineOptions;
use crate::repair::lost;

/// Returns the notes to log when the store in `dir` is opened with `options`. The directory may be missing, if the
/// store is yet to be made.
///
/// # Errors
/// Any error of [`inspect`](crate::inspect), or of reading the list of losses.
pub fn notes(dir: &Path, options: &EngineOptions) -> Result<Vec<Note>> {
    let known = marker::read(dir)?.filter(|known| known.engine == options.engine);
    let options = effective(options, known.as_ref());
    let common = not_whole(lost(dir)?).into_iter().chain(more_than_there_is(&options));
    let engine = (options.engine.descriptor().notes)(&dir.join(DATA), &options.settings());
    Ok(common.chain(engine).collect())
}

/// Builds the note about a repair that could not save everything: the store is sound, but some changes are lost.
fn not_whole(lost: u64) -> Option<Note> {
    let text = format!(
        "a repair of this store has lost a part of its pairs: lost={lost}: lost keys are answered as absent, or \
         with the value before: restore a snapshot, or load it again"
    );
    (lost > 0).then_some(Note { text, is_warning: true })
}

/// Builds the note about an engine whose cache is larger than the memory limit, because an engine fills its cache in
/// time.
fn more_than_there_is(options: &EngineOptions) -> Option<Note> {
    let division = options.division();
    let (memory, limit) = (ByteSize::b(division.cache_bytes), ByteSize::b(division.limit.bytes));
    let text = format!("memory={memory} is more than this process may use, which is {limit}: the kernel will kill it");
    (division.cache_bytes > division.limit.bytes).then_some(Note { text, is_warning: true })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::list::EngineKind;

    #[test]
    fn more_memory_than_there_is_is_said() {
        let dir = tempfile::tempdir().unwrap();
        for (kind, said) in [(EngineKind::Strata, 1), (EngineKind::Redb, 1), (EngineKind::Lmdb, 0)] {
            let options = EngineOptions { memory: Some(ByteSize::pib(1)), ..EngineOptions::new(kind) };
            assert_eq!(notes(dir.path(), &options).unwrap().len(), said, "{kind}");
        }
    }

    #[cfg(feature = "rocksdb")]
    #[test]
    fn a_filter_that_only_the_marker_names_counts() {
        let dir = tempfile::tempdir().unwrap();
        let of = |options: &EngineOptions| notes(dir.path(), options).unwrap();
        assert_eq!(of(&EngineOptions::new(EngineKind::Strata)), []);
        let rocksdb = EngineOptions::new(EngineKind::Rocksdb);
        assert_eq!(of(&rocksdb), []);
        // If no filter is asked for, the marker's one counts.
        let known = marker::Identity { bloom: 20, ..marker::Identity::new(EngineKind::Rocksdb) };
        marker::write(dir.path(), &known).unwrap();
        assert!(of(&rocksdb)[0].text.contains("bloom=20"));
    }
}
