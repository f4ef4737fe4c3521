//! Sources of secrets: the file that a setting names, or the systemd credential of a fixed name.
//!
//! Owns: finding these files, reading them, refusing one that everybody may read. Must not: print or quote their
//! contents, not even in an error. Threads: `main` at start, the blocking pool at SIGHUP.

use std::fs::{File, OpenOptions};
use std::io::Read as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use engine_api::Code;

/// Maximum size of a file: more than any certificate chain or list of tokens. A path that names a device must not fill
/// the memory.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Permission bit that lets everybody read a file.
const OTHERS_READ: u32 = 0o004;

/// Returns the setting's file; without one the systemd credential, if it exists.
pub(crate) fn find(setting: Option<&Path>, credential: &str) -> Option<PathBuf> {
    let given = || std::env::var_os("CREDENTIALS_DIRECTORY").map(|dir| Path::new(&dir).join(credential));
    setting.map(Path::to_owned).or_else(|| given().filter(|path| path.exists()))
}

/// Reads a file that only its owner and group may read.
///
/// # Errors
/// Everybody may read the file, it is too large or not text, or the file system refuses.
pub(crate) fn read(path: &Path) -> Result<String> {
    secret(path).context(Code::Secret)
}

fn secret(path: &Path) -> Result<String> {
    let name = path.display();
    let file = open(path)?;
    let mode = file.metadata().with_context(|| format!("cannot inspect file={name}"))?.mode();
    ensure!(
        mode & OTHERS_READ == 0,
        "every user may read this secret, forbid that with chmod o-r: file={name} mode={:04o}",
        mode & 0o7777
    );
    text(file, path)
}

/// Reads a file that is not secret, such as a certificate.
///
/// # Errors
/// The file is too large or not text, or the file system refuses.
pub(crate) fn read_public(path: &Path) -> Result<String> {
    open(path).and_then(|file| text(file, path)).context(Code::Secret)
}

/// Opens a regular file, without blocking on a pipe. The file is read more than once, which only a regular file allows.
fn open(path: &Path) -> Result<File> {
    let name = path.display();
    let nonblocking = rustix::fs::OFlags::NONBLOCK.bits() as i32;
    let file = OpenOptions::new().read(true).custom_flags(nonblocking).open(path);
    let file = file.with_context(|| format!("cannot read file={name}"))?;
    let kind = file.metadata().with_context(|| format!("cannot inspect file={name}"))?.file_type();
    ensure!(kind.is_file(), "not a regular file, and it has to be read more than once: file={name}: give another");
    Ok(file)
}

fn text(file: File, path: &Path) -> Result<String> {
    let name = path.display();
    let mut bytes = Vec::new();
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).with_context(|| format!("cannot read file={name}"))?;
    ensure!(bytes.len() as u64 <= FILE_BYTES_MAX, "too large: file={name} max_bytes={FILE_BYTES_MAX}");
    // The conversion's own error would contain the file's bytes.
    String::from_utf8(bytes).map_err(|_| anyhow::anyhow!("not text: file={name}"))
}

#[cfg(test)]
pub(crate) mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    /// Writes a file with the given mode.
    pub(crate) fn file(dir: &Path, name: &str, text: &str, mode: u32) -> PathBuf {
        let path = dir.join(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        path
    }

    /// Creates a named pipe that has no writer.
    fn fifo(dir: &Path) -> PathBuf {
        let path = dir.join("fifo");
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        path
    }

    #[test]
    fn a_secret_that_everybody_may_read_is_refused_and_not_quoted() {
        let dir = tempfile::tempdir().unwrap();
        let open = file(dir.path(), "open", "hunter2", 0o644);
        let error = format!("{:#}", read(&open).unwrap_err());
        assert!(error.contains("chmod o-r") && error.contains("mode=0644") && !error.contains("hunter2"), "{error}");
        assert_eq!(read_public(&open).unwrap(), "hunter2");
        assert_eq!(read(&file(dir.path(), "closed", "hunter2", 0o640)).unwrap(), "hunter2");
        for no_file in [&fifo(dir.path()), dir.path(), Path::new("/dev/null")] {
            let error = format!("{:#}", read_public(no_file).unwrap_err());
            assert!(error.contains("not a regular file"), "{error}");
        }
        let missing = format!("{:#}", read(&dir.path().join("missing")).unwrap_err());
        assert!(missing.starts_with("E-SECRET: cannot read file="), "{missing}");
    }
}
