//! Maps RocksDB's errors, which are strings, to the caller's reactions.

use engine_api::{Error, ErrorKind, Result};
use rocksdb::ErrorKind as Rocks;

/// Maps an error of opening, reading or background work. `what` names the action.
pub(crate) fn rocks(what: &str, error: rocksdb::Error) -> Error {
    let kind = classify(&error);
    Error::with_source(kind, format!("{what}: reason={error}"), error)
}

/// Maps an error of a write to the log. Whatever the error was, it is not known whether the batch is in the log.
pub(crate) fn write(what: &str, error: rocksdb::Error) -> Error {
    let kind = match classify(&error) {
        ErrorKind::DataDamaged => ErrorKind::DataDamaged,
        _ => ErrorKind::Reopen,
    };
    Error::with_source(kind, format!("{what}: reason={error}: close the process and open again"), error)
}

/// Returns the stored 32 bytes of a key or value.
pub(crate) fn bytes32(bytes: &[u8], what: &str) -> Result<[u8; 32]> {
    bytes.try_into().map_err(|_| {
        Error::new(
            ErrorKind::DataDamaged,
            format!("stored {what} has a wrong length: bytes={} expected=32", bytes.len()),
        )
    })
}

fn classify(error: &rocksdb::Error) -> ErrorKind {
    let text: &str = error.as_ref();
    if text.contains("No space left on device") || text.contains("File too large") || text.contains("quota exceeded") {
        return ErrorKind::FreeSpace;
    }
    if text.contains("lock hold by current process") || text.contains("While lock file") {
        return ErrorKind::FixInput;
    }
    match error.kind() {
        Rocks::Corruption => ErrorKind::DataDamaged,
        Rocks::Busy | Rocks::TimedOut | Rocks::TryAgain => ErrorKind::Retry,
        Rocks::InvalidArgument | Rocks::NotSupported => ErrorKind::FixInput,
        Rocks::IOError => ErrorKind::Reopen,
        _ => ErrorKind::Internal,
    }
}
