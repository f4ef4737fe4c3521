//! Notes for an operator about a store and its process: losses from a repair, too much memory for the engine, and those of
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
use crate::memory::Division;
use crate::options::EngineOptions;
use crate::repair::lost;

/// Memory that a service needs beside the engine's cache while it catches up: it takes 136 MiB besides pages of files, and with
/// 108 MiB the kernel killed one.
const BESIDE_MIN: u64 = 192 << 20;

/// Returns the notes to log when the store in `dir` is opened with `options`. The directory may be missing, if the
/// store is yet to be made.
///
/// # Errors
/// Any error of [`inspect`](crate::inspect), or of reading the list of losses.
pub fn notes(dir: &Path, options: &EngineOptions) -> Result<Vec<Note>> {
    let known = marker::read(dir)?.filter(|known| known.engine == options.engine);
    let options = effective(options, known.as_ref());
    let common = not_whole(lost(dir)?).into_iter().chain(too_much_memory(&options.division()));
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

/// Builds the note about a configured memory that leaves too little of the limit, because an engine fills its cache in time.
fn too_much_memory(division: &Division) -> Option<Note> {
    let &Division { cache_bytes, rest_bytes, ref limit, configured } = division;
    let [memory, rest, limit] = [cache_bytes, rest_bytes, limit.bytes].map(ByteSize::b);
    let text = if memory > limit {
        format!("memory={memory} is more than this process may use, which is {limit}: the kernel will kill it")
    } else if configured && cache_bytes > 0 && rest_bytes < BESIDE_MIN {
        format!(
            "memory={memory} leaves rest={rest} of memory_limit={limit}, and a service that catches up takes up to {}: the \
             kernel may kill it: give less memory, or a higher limit",
            ByteSize::b(BESIDE_MIN)
        )
    } else {
        return None;
    };
    Some(Note { text, is_warning: true })
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

    #[test]
    fn a_memory_that_leaves_too_little_beside_it_is_warned_of() {
        let of = |memory: Option<u64>, limit_mib: u64| {
            let options = EngineOptions { memory: memory.map(ByteSize::mib), ..EngineOptions::new(EngineKind::Strata) };
            let limit = probe::MemoryLimit { bytes: limit_mib << 20, cgroup_file: None };
            too_much_memory(&options.division_of(limit)).map(|note| note.text)
        };
        let said = of(Some(512), 620).expect("killed when it was tried");
        assert!(said.contains("rest=108") && said.contains("give less memory"), "{said}");
        assert!(of(Some(700), 620).is_some_and(|said| said.contains("will kill it")), "more than there is");
        assert_eq!([of(Some(512), 768), of(None, 512), of(None, 96)], [None, None, None]);
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
        let options = rocksdb.clone().with("bloom", 20).options;
        let known = marker::Identity { options, ..marker::Identity::new(EngineKind::Rocksdb) };
        marker::write(dir.path(), &known).unwrap();
        assert!(of(&rocksdb)[0].text.contains("bloom=20"));
    }
}
