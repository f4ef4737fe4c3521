//! Loads sorted pairs as files of their own, which RocksDB ingests without rewriting them.
//!
//! The files are written to `ingest/`, half of a chunk by the caller's thread and half by `rocksdb-load`, and are complete
//! and synced before RocksDB ingests them. One step of the manifest ingests all files of a chunk, after everything
//! committed before was flushed to sorted files, too. Leftovers of a crash in `ingest/` are removed at the next opening.

use std::fs;
use std::ops::ControlFlow;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::thread;

use engine_api::{Checkpoint, Durability, Error, ErrorKind, Key, Result, Value};
use rocksdb::{IngestExternalFileOptions, ReadOptions, SstFileWriter, WriteBatch};

use crate::store::Store;
use crate::{CHECKPOINT_KEY, error, reader, write};

const INGEST: &str = "ingest";
/// Number of pairs in one file, 32 MiB of user data: half of one of bootstrap's chunks, so that two threads write it.
const FILE_PAIRS: usize = 1 << 19;

/// Loads sorted pairs that follow all keys in the store, and commits them with `checkpoint`.
pub(crate) fn load_sorted(store: &Store, pairs: &[(Key, Value)], checkpoint: &Checkpoint) -> Result<()> {
    if let Some(at) = pairs.windows(2).position(|pair| pair[0].0 >= pair[1].0) {
        return Err(Error::new(
            ErrorKind::FixInput,
            format!("keys must ascend strictly: position={}: sort the pairs and remove duplicates", at + 1),
        ));
    }
    let encoded = checkpoint.encode()?;
    let _writer = store.lock_writer()?;
    let known = already_stored(store, pairs)?;
    if let Some(pairs) = pairs.get(known..).filter(|pairs| !pairs.is_empty()) {
        ingest(store, pairs)?;
    }
    // Before the checkpoint that counts these pairs, because they are in no log.
    store.keep_manifest()?;
    let mut batch = WriteBatch::default();
    batch.put(CHECKPOINT_KEY, encoded);
    write::write(store, batch, Durability::Synced)
}

/// Removes the files of a load that was cut short.
pub(crate) fn remove_leftovers(dir: &Path) -> Result<()> {
    let ingest = dir.join(INGEST);
    match fs::remove_dir_all(&ingest) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
            Err(Error::io(format!("cannot remove an unfinished load: dir={} reason={e}", ingest.display()), e))
        }
        _ => Ok(()),
    }
}

/// Returns the number of pairs at the chunk's start that the store holds already, because a crash came after they were
/// ingested and before the checkpoint. If the store has any other pair at or above the chunk's first key, the chunk is
/// refused.
fn already_stored(store: &Store, pairs: &[(Key, Value)]) -> Result<usize> {
    let Some((first, _)) = pairs.first() else { return Ok(0) };
    let (mut known, mut other) = (0, false);
    reader::scan_from(&store.db, ReadOptions::default(), first, &mut |key, value| {
        if pairs.get(known) == Some(&(*key, *value)) {
            known += 1;
            ControlFlow::Continue(())
        } else {
            other = true;
            ControlFlow::Break(())
        }
    })?;
    if other {
        return Err(Error::new(
            ErrorKind::FixInput,
            "store holds keys at or above the chunk's first key: sorted chunks must follow all keys that are stored",
        ));
    }
    Ok(known)
}

fn ingest(store: &Store, pairs: &[(Key, Value)]) -> Result<()> {
    let dir = store.dir.join(INGEST);
    fs::create_dir_all(&dir)
        .map_err(|e| Error::io(format!("cannot create the load's directory: dir={} reason={e}", dir.display()), e))?;
    let files = write_files(store, &dir, pairs)?;
    // Each file may use up a sequence number that is in no log. So everything committed before has to be in sorted
    // files by then: otherwise the log would have a gap, and a power loss could keep these pairs and lose commits
    // before them.
    store.db.flush().map_err(|e| error::rocks("RocksDB cannot flush what was committed before a load", e))?;
    let mut options = IngestExternalFileOptions::default();
    options.set_move_files(true);
    store.db.ingest_external_file_opts(&options, files).map_err(|e| {
        // The manifest may or may not name the files, and RocksDB has removed them.
        store.poison.set();
        error::write("RocksDB cannot take in sorted files; if it refuses to open the store now, load it again", e)
    })?;
    // RocksDB has moved every file out of the directory. If it stays, the next opening for writing removes it.
    fs::remove_dir(&dir).ok();
    Ok(())
}

/// Writes the pairs as files, half of them on a thread of its own, and returns the files in the order of their keys.
fn write_files(store: &Store, dir: &Path, pairs: &[(Key, Value)]) -> Result<Vec<PathBuf>> {
    let parts: Vec<_> = pairs.chunks(FILE_PAIRS).enumerate().collect();
    let write = |parts: &[(usize, &[(Key, Value)])]| -> Result<Vec<PathBuf>> {
        parts.iter().map(|(number, pairs)| write_file(store, dir.join(format!("{number}.sst")), pairs)).collect()
    };
    let (here, there) = parts.split_at(parts.len().div_ceil(2));
    if there.is_empty() {
        return write(here);
    }
    thread::scope(|scope| {
        let other = thread::Builder::new()
            .name("rocksdb-load".to_owned())
            .spawn_scoped(scope, || write(there))
            .map_err(|e| Error::io(format!("cannot start the second thread of a load: reason={e}"), e))?;
        let mut files = write(here)?;
        files.extend(other.join().unwrap_or_else(|panic| resume_unwind(panic))?);
        Ok(files)
    })
}

fn write_file(store: &Store, path: PathBuf, pairs: &[(Key, Value)]) -> Result<PathBuf> {
    let failed = |e| error::rocks(&format!("cannot write sorted pairs: file={}", path.display()), e);
    let mut file = SstFileWriter::create(&store.rocksdb_options);
    file.open(&path).map_err(failed)?;
    for (key, value) in pairs {
        file.put(key, value).map_err(failed)?;
    }
    file.finish().map_err(failed)?;
    Ok(path)
}
