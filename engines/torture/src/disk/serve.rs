//! The FUSE side of the file system: each request passes the gate and is done on the tree.
//!
//! Owns: the translation of requests and replies. Must not: keep state of its own. Runs on the threads of the FUSE
//! session.
//!
//! The kernel's write-back cache stays off, so a write arrives here before the program goes on. Reads and mappings go
//! through the page cache, except for files that are opened with `O_DIRECT`. Locks are the kernel's own.

use std::ffi::OsStr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use fuser::{
    BsdFileFlags, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, KernelConfig,
    LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry,
    ReplyOpen, ReplyStatfs, ReplyWrite, Request, TimeOrNow, WriteFlags,
};

use super::Shared;
use super::gate::{Op, Passed};
use super::image::PAGE_BYTES;
use super::tree::{Body, Errno as Code, Ino, Tree};

/// Time that the kernel may cache names and attributes. Long, because nobody else changes them.
const FOREVER: Duration = Duration::from_secs(3600);
/// Size in bytes of the largest write that arrives in one piece.
const WRITE_BYTES_MAX: u32 = 1 << 20;

/// Replies with the value of `$result`, or with its error.
macro_rules! answer {
    ($reply:ident, $result:expr, $value:pat => $done:ident($($field:expr),*)) => {
        match $result {
            Ok($value) => $reply.$done($($field),*),
            Err(e) => $reply.error(e),
        }
    };
}

/// Implementation of the calls that the FUSE session makes.
pub(crate) struct Served(pub(crate) Arc<Shared>);

impl Served {
    /// Passes the gate, and then runs `action` on the tree.
    fn on<T>(&self, op: Op, action: impl FnOnce(&mut Tree) -> Result<T, Code>) -> Result<T, Errno> {
        self.0.gate.pass(op).and_then(|_| action(&mut self.0.tree.lock())).map_err(Errno::from_i32)
    }

    fn entry(&self, op: Op, action: impl FnOnce(&mut Tree) -> Result<Ino, Code>, reply: ReplyEntry) {
        let made = self.on(op, |tree| action(tree).and_then(|ino| attributes(tree, ino)));
        answer!(reply, made, attr => entry(&FOREVER, &attr, Generation(0)));
    }

    fn done(&self, op: Op, action: impl FnOnce(&mut Tree) -> Result<(), Code>, reply: ReplyEmpty) {
        answer!(reply, self.on(op, action), () => ok());
    }

    fn flush(&self, ino: INodeNo, is_dir: bool) -> Result<(), Code> {
        match self.0.gate.pass(Op::Sync)? {
            Passed::Sound if is_dir => self.0.tree.lock().sync_dir(ino.0),
            Passed::Sound => self.0.tree.lock().sync_file(ino.0),
            Passed::SyncFails(chance) => {
                self.0.fail_sync(ino.0, chance);
                Err(libc::EIO)
            }
        }
    }
}

impl Filesystem for Served {
    fn init(&mut self, _req: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        // A size that the kernel does not accept is no reason not to mount.
        config.set_max_write(WRITE_BYTES_MAX).ok();
        Ok(())
    }

    fn lookup(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        self.entry(Op::Look, |tree| tree.lookup(parent.0, name), reply);
    }

    fn getattr(&self, _req: &Request, ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        answer!(reply, self.on(Op::Look, |tree| attributes(tree, ino.0)), attr => attr(&FOREVER, &attr));
    }

    fn setattr(
        &self,
        _req: &Request,
        ino: INodeNo,
        _mode: Option<u32>,
        _uid: Option<u32>,
        _gid: Option<u32>,
        size: Option<u64>,
        _atime: Option<TimeOrNow>,
        _mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _fh: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let change = |tree: &mut Tree| {
            if let Some(size) = size {
                tree.set_size(ino.0, size)?;
            }
            attributes(tree, ino.0)
        };
        let op = if size.is_some() { Op::Change } else { Op::Look };
        answer!(reply, self.on(op, change), attr => attr(&FOREVER, &attr));
    }

    fn mkdir(&self, _req: &Request, parent: INodeNo, name: &OsStr, _mode: u32, _umask: u32, reply: ReplyEntry) {
        self.entry(Op::Write, |tree| tree.create(parent.0, name, true), reply);
    }

    fn unlink(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.done(Op::Change, |tree| tree.remove(parent.0, name, false), reply);
    }

    fn rmdir(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.done(Op::Change, |tree| tree.remove(parent.0, name, true), reply);
    }

    fn rename(
        &self,
        _req: &Request,
        parent: INodeNo,
        name: &OsStr,
        newparent: INodeNo,
        newname: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        if !flags.is_empty() {
            return reply.error(Errno::EINVAL);
        }
        self.done(Op::Change, |tree| tree.rename((parent.0, name), (newparent.0, newname)), reply);
    }

    fn link(&self, _req: &Request, ino: INodeNo, newparent: INodeNo, newname: &OsStr, reply: ReplyEntry) {
        self.entry(Op::Write, |tree| tree.link(ino.0, newparent.0, newname).map(|()| ino.0), reply);
    }

    fn open(&self, _req: &Request, ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        let opened = self.on(Op::Look, |tree| tree.file(ino.0).map(drop).map(|()| tree.opened(ino.0)));
        answer!(reply, opened, () => opened(FileHandle(0), FopenFlags::empty()));
    }

    fn create(
        &self,
        _req: &Request,
        parent: INodeNo,
        name: &OsStr,
        _mode: u32,
        _umask: u32,
        _flags: i32,
        reply: ReplyCreate,
    ) {
        let made = self.on(Op::Write, |tree| {
            let ino = tree.create(parent.0, name, false)?;
            tree.opened(ino);
            attributes(tree, ino)
        });
        answer!(reply, made, attr => created(&FOREVER, &attr, Generation(0), FileHandle(0), FopenFlags::empty()));
    }

    fn release(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        // This does not pass the gate, because a process must be able to end whatever the disk does.
        self.0.tree.lock().closed(ino.0);
        reply.ok();
    }

    fn read(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let read = self.on(Op::Read, |tree| Ok(tree.file(ino.0)?.live.read(offset, u64::from(size))));
        answer!(reply, read, bytes => data(&bytes));
    }

    fn write(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        // `O_SYNC` includes the bit of `O_DSYNC`.
        let flushed = flags.0 & libc::O_DSYNC != 0;
        let write = self.on(Op::Write, |tree| tree.write(ino.0, offset, data)).and_then(|written| {
            if flushed && let Passed::SyncFails(chance) = self.0.gate.pass(Op::Sync).map_err(Errno::from_i32)? {
                self.0.fail_sync(ino.0, chance);
                return Err(Errno::EIO);
            }
            if flushed {
                self.0.tree.lock().sync_pages(ino.0, offset, written as u64).map_err(Errno::from_i32)?;
            }
            Ok(written)
        });
        answer!(reply, write, written => written(written as u32));
    }

    fn flush(&self, _req: &Request, _ino: INodeNo, _fh: FileHandle, _lock_owner: LockOwner, reply: ReplyEmpty) {
        // This call comes with each close, and flushes nothing.
        reply.ok();
    }

    fn fsync(&self, _req: &Request, ino: INodeNo, _fh: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        answer!(reply, self.flush(ino, false).map_err(Errno::from_i32), () => ok());
    }

    fn fsyncdir(&self, _req: &Request, ino: INodeNo, _fh: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        answer!(reply, self.flush(ino, true).map_err(Errno::from_i32), () => ok());
    }

    fn readdir(&self, _req: &Request, ino: INodeNo, _fh: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let names = self.on(Op::Look, |tree| {
            let mut names = vec![(ino.0, FileType::Directory, ".".into()), (ino.0, FileType::Directory, "..".into())];
            for (name, child) in &tree.dir(ino.0)?.live {
                names.push((*child, file_type(&tree.inode(*child)?.body), name.clone()));
            }
            Ok(names)
        });
        match names {
            Ok(names) => {
                for (at, (child, kind, name)) in names.into_iter().enumerate().skip(offset as usize) {
                    if reply.add(INodeNo(child), at as u64 + 1, kind, name) {
                        break;
                    }
                }
                reply.ok();
            }
            Err(e) => reply.error(e),
        }
    }

    fn statfs(&self, _req: &Request, _ino: INodeNo, reply: ReplyStatfs) {
        match self.on(Op::Space, |tree| Ok((tree.capacity_pages, tree.free_pages()))) {
            Ok((all, free)) => {
                let free = if self.0.gate.says_full() { 0 } else { free };
                reply.statfs(all, free, free, 1 << 20, 1 << 20, PAGE_BYTES as u32, 255, PAGE_BYTES as u32);
            }
            Err(e) => reply.error(e),
        }
    }

    fn fallocate(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let op = if mode & libc::FALLOC_FL_PUNCH_HOLE == 0 { Op::Write } else { Op::Change };
        self.done(op, |tree| tree.allocate(ino.0, offset, length, mode), reply);
    }
}

fn attributes(tree: &Tree, ino: Ino) -> Result<FileAttr, Code> {
    let inode = tree.inode(ino)?;
    let (size, pages) = match &inode.body {
        Body::File(file) => (file.live.size(), file.live.pages()),
        Body::Dir(_) => (PAGE_BYTES, 1),
    };
    let kind = file_type(&inode.body);
    let is_dir = kind == FileType::Directory;
    Ok(FileAttr {
        ino: INodeNo(ino),
        size,
        blocks: pages * (PAGE_BYTES / 512),
        atime: inode.modified,
        mtime: inode.modified,
        ctime: inode.modified,
        crtime: inode.modified,
        kind,
        perm: if is_dir { 0o755 } else { 0o644 },
        nlink: if is_dir { 2 } else { tree.links(ino) as u32 },
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: PAGE_BYTES as u32,
        flags: 0,
    })
}

fn file_type(body: &Body) -> FileType {
    match body {
        Body::File(_) => FileType::RegularFile,
        Body::Dir(_) => FileType::Directory,
    }
}
