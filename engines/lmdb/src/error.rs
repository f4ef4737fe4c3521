//! Maps LMDB's errors to the caller's reactions. Does no I/O.

use engine_api::{Error, ErrorKind, Value};

/// Maps an LMDB error. `what` names the action that failed.
pub(crate) fn lmdb(what: &str, error: lmdb::Error) -> Error {
    use lmdb::Error as E;
    let (kind, hint) = match error {
        E::MapFull => (ErrorKind::FreeSpace, ": raise --lmdb-map-size"),
        E::ReadersFull => (ErrorKind::Retry, ": too many readers are open: drop some"),
        E::PageNotFound | E::Corrupted => (ErrorKind::DataDamaged, ""),
        // LMDB returns this after it could not write a meta page.
        E::Panic => (ErrorKind::Reopen, ": close the process and open again"),
        E::MapResized => (ErrorKind::Reopen, ": another process has grown the map"),
        E::Invalid => (ErrorKind::FixInput, ": the file is not LMDB's"),
        E::VersionMismatch => (ErrorKind::FixInput, ": the file or its lock file has another LMDB version"),
        E::TxnFull => (ErrorKind::FixInput, ": commit smaller batches"),
        E::Other(errno) => return io(what, errno),
        _ => (ErrorKind::Internal, ""),
    };
    Error::with_source(kind, format!("{what}: reason={error}{hint}"), error)
}

/// Builds the error for a key or value of a wrong length in the pairs table.
pub(crate) fn wrong_length(what: &str, len: usize) -> Error {
    Error::new(
        ErrorKind::DataDamaged,
        format!("{what}: the store holds an entry of a wrong length: bytes={len} expected={}", size_of::<Value>()),
    )
}

/// Returns the error that a return code of LMDB's stands for.
pub(crate) fn check(rc: i32) -> lmdb::Result<()> {
    if rc == lmdb_sys::MDB_SUCCESS { Ok(()) } else { Err(lmdb::Error::from_err_code(rc)) }
}

fn io(what: &str, errno: i32) -> Error {
    let source = std::io::Error::from_raw_os_error(errno);
    match source.kind() {
        std::io::ErrorKind::OutOfMemory => Error::with_source(
            ErrorKind::FixInput,
            format!("{what}: reason={source}: allow more address space (ulimit -v) or lower --lmdb-map-size"),
            source,
        ),
        std::io::ErrorKind::InvalidInput => {
            Error::with_source(ErrorKind::Internal, format!("{what}: reason={source}"), source)
        }
        _ => Error::io(format!("{what}: reason={source}"), source),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_follow_what_lmdb_does_next() {
        use lmdb::Error as E;
        let cases = [
            (E::MapFull, ErrorKind::FreeSpace),
            (E::ReadersFull, ErrorKind::Retry),
            (E::PageNotFound, ErrorKind::DataDamaged),
            (E::Corrupted, ErrorKind::DataDamaged),
            (E::Panic, ErrorKind::Reopen),
            (E::Invalid, ErrorKind::FixInput),
            (E::VersionMismatch, ErrorKind::FixInput),
            (E::BadDbi, ErrorKind::Internal),
            // ENOSPC, EDQUOT, EIO, EACCES, ENOMEM, EINVAL on Linux.
            (E::Other(28), ErrorKind::FreeSpace),
            (E::Other(122), ErrorKind::FreeSpace),
            (E::Other(5), ErrorKind::Reopen),
            (E::Other(13), ErrorKind::FixInput),
            (E::Other(12), ErrorKind::FixInput),
            (E::Other(22), ErrorKind::Internal),
        ];
        for (error, kind) in cases {
            assert_eq!(lmdb("x", error).kind(), kind, "{error:?}");
        }
        assert!(lmdb("x", E::MapFull).to_string().contains("--lmdb-map-size"));
    }
}
