//! Unix sockets: binding over a stale file, the file's mode and group, its removal.
//!
//! Owns: a socket file from bind to drop. Must not: remove a file that another process listens on.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::{self as unix, FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};

use super::socket::SocketAccess;

/// A bound Unix socket, whose calls never block; dropping it removes its file.
#[derive(Debug)]
pub struct UdsListener {
    listener: UnixListener,
    file: SocketFile,
}

impl UdsListener {
    /// Binds `path` and replaces a socket file that a dead process left; `access` decides who may connect.
    ///
    /// # Errors
    /// Another process listens there, the file is not a socket, or the file system refuses.
    pub fn bind(path: &Path, access: &SocketAccess) -> anyhow::Result<Self> {
        remove_stale(path)?;
        let name = path.display();
        let listener = UnixListener::bind(path).with_context(|| format!("cannot bind unix socket: path={name}"))?;
        let bound = fs::symlink_metadata(path).with_context(|| format!("cannot inspect socket: path={name}"))?;
        let file = SocketFile { path: path.to_owned(), id: (bound.dev(), bound.ino()) };
        // The group before the mode, so that at no moment a wrong group may connect.
        if let Some(group) = &access.group {
            let gid = group.gid();
            unix::lchown(path, None, Some(gid))
                .with_context(|| format!("cannot set the socket's group: path={name} gid={gid}"))?;
        }
        let mode = access.mode;
        fs::set_permissions(path, fs::Permissions::from_mode(mode))
            .with_context(|| format!("cannot set the socket's mode: path={name} mode={mode}"))?;
        listener.set_nonblocking(true).with_context(|| format!("cannot set up socket: path={name}"))?;
        Ok(Self { listener, file })
    }

    pub(crate) fn into_parts(self) -> (UnixListener, SocketFile) {
        (self.listener, self.file)
    }
}

/// A socket's file, removed when this is dropped, unless another file has taken its place.
#[derive(Debug)]
pub(crate) struct SocketFile {
    path: PathBuf,
    /// Device and inode of the bound file.
    id: (u64, u64),
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let ours = fs::symlink_metadata(&self.path).is_ok_and(|now| (now.dev(), now.ino()) == self.id);
        if ours && let Err(error) = fs::remove_file(&self.path) {
            tracing::warn!(%error, path = %self.path.display(), "cannot remove the unix socket");
        }
    }
}

fn remove_stale(path: &Path) -> anyhow::Result<()> {
    let name = path.display();
    let found = match fs::symlink_metadata(path) {
        Ok(found) => found,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error).with_context(|| format!("cannot inspect socket: path={name}")),
    };
    if !found.file_type().is_socket() {
        bail!("not a socket, choose another path or remove it: path={name}");
    }
    match UnixStream::connect(path) {
        Ok(_) => bail!("another process listens here, stop it or choose another path: path={name}"),
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
            fs::remove_file(path).with_context(|| format!("cannot remove a stale socket: path={name}"))
        }
        Err(error) => Err(error).with_context(|| format!("cannot tell whether the socket is in use: path={name}")),
    }
}
