//! Maps redb's errors to the caller's reactions. Does no I/O.

use std::io::ErrorKind as Io;

use engine_api::{Error, ErrorKind};
use redb::{CommitError, CursorError, DatabaseError, StorageError, TableError, TransactionError};

/// Maps an error of opening the file named `what`.
pub(crate) fn open(what: &str, error: DatabaseError) -> Error {
    match error {
        DatabaseError::DatabaseAlreadyOpen => Error::with_source(
            ErrorKind::FixInput,
            format!("another process has this redb store open: file={what}"),
            error,
        ),
        DatabaseError::UpgradeRequired(version) => Error::with_source(
            ErrorKind::FixInput,
            format!(
                "the file has an older redb format: file={what} format={version}: load the store again with bootstrap"
            ),
            error,
        ),
        DatabaseError::Storage(StorageError::Io(source)) if source.kind() == Io::InvalidData => {
            Error::with_source(ErrorKind::FixInput, format!("not a redb file: file={what} reason={source}"), source)
        }
        DatabaseError::Storage(StorageError::Io(source)) => {
            Error::io(format!("cannot open the redb store: file={what} reason={source}"), source)
        }
        DatabaseError::Storage(source) => storage(&format!("cannot open the redb store: file={what}"), source),
        // RepairAborted and TransactionInProgress do not come here: nothing that calls this aborts a repair or
        // compacts.
        other => Error::with_source(ErrorKind::Internal, format!("cannot open the redb store: file={what}"), other),
    }
}

/// Maps an error of redb's storage layer. `what` names the action.
///
/// Every I/O error is `Reopen`, a full disk included, because redb latches the failure and refuses everything after it.
pub(crate) fn storage(what: &str, error: StorageError) -> Error {
    let kind = match &error {
        StorageError::Corrupted(_) => ErrorKind::DataDamaged,
        StorageError::Io(_) | StorageError::PreviousIo | StorageError::LockPoisoned(_) => ErrorKind::Reopen,
        StorageError::Unsupported => ErrorKind::FixInput,
        // ValueTooLarge is impossible with 32 bytes, and DatabaseClosed while the engine lives.
        _ => ErrorKind::Internal,
    };
    let hint = match &error {
        StorageError::Io(io) if matches!(io.kind(), Io::StorageFull | Io::QuotaExceeded | Io::FileTooLarge) => {
            "; the disk, a quota or the largest size of a file is full: make room and open again, nothing committed is lost"
        }
        _ => "",
    };
    Error::with_source(kind, format!("{what}: reason={error}{hint}"), error)
}

/// Maps an error of opening a table. `what` names the action that needed it.
pub(crate) fn table(what: &str, error: TableError) -> Error {
    match error {
        TableError::Storage(source) => storage(what, source),
        TableError::TableAlreadyOpen(..) => Error::with_source(ErrorKind::Internal, what, error),
        TableError::TableTypeMismatch { .. } => Error::with_source(
            ErrorKind::FixInput,
            format!("{what}: the file has a table of another version of solkv: reason={error}: load the store again"),
            error,
        ),
        // A redb file with tables of another kind was made by another program.
        other => Error::with_source(
            ErrorKind::FixInput,
            format!("{what}: the file does not have this engine's tables: reason={other}"),
            other,
        ),
    }
}

/// Maps an error of beginning a transaction.
pub(crate) fn transaction(what: &str, error: TransactionError) -> Error {
    match error {
        TransactionError::Storage(source) => storage(what, source),
        other => Error::with_source(ErrorKind::Internal, format!("{what}: reason={other}"), other),
    }
}

/// Maps an error of inserting through a cursor in key order.
pub(crate) fn cursor(what: &str, error: CursorError) -> Error {
    match error {
        CursorError::Storage(source) => storage(what, source),
        other => Error::with_source(
            ErrorKind::FixInput,
            format!("{what}: keys must ascend strictly and be greater than every key in the store"),
            other,
        ),
    }
}

/// Maps an error of a commit. Every error but a refused (rolled back) transaction is `Reopen` or worse, because redb
/// says that the batch may or may not be durable.
pub(crate) fn commit(error: CommitError) -> Error {
    const WHAT: &str = "redb commit failed";
    match error {
        CommitError::Storage(source) => storage(WHAT, source),
        other => Error::with_source(ErrorKind::Internal, format!("{WHAT}: rolled back: reason={other}"), other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;

    #[test]
    fn kinds_follow_what_redb_does_next() {
        let kind = |error| storage("x", error).kind();
        assert_eq!(kind(StorageError::Corrupted("page".into())), ErrorKind::DataDamaged);
        assert_eq!(kind(StorageError::PreviousIo), ErrorKind::Reopen);
        // ENOSPC, EDQUOT, EFBIG on Linux.
        for code in [28, 122, 27] {
            let full = || StorageError::Io(io::Error::from_raw_os_error(code));
            let told = storage("x", full());
            assert!(told.kind() == ErrorKind::Reopen && told.to_string().contains("make room"), "{told}");
            assert_eq!(open("f", DatabaseError::Storage(full())).kind(), ErrorKind::FreeSpace);
        }
        assert_eq!(kind(StorageError::Io(io::Error::from_raw_os_error(5))), ErrorKind::Reopen);
        assert_eq!(open("f", DatabaseError::DatabaseAlreadyOpen).kind(), ErrorKind::FixInput);
        assert_eq!(open("f", DatabaseError::UpgradeRequired(2)).kind(), ErrorKind::FixInput);
        assert_eq!(cursor("x", CursorError::UnorderedKey).kind(), ErrorKind::FixInput);
        assert_eq!(commit(CommitError::TransactionPoisoned).kind(), ErrorKind::Internal);
    }
}
