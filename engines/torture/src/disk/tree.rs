//! The content of the file system: the state that programs see, the durable state, and the pending changes between
//! them.
//!
//! Owns: inodes, names, the pending changes of both, the space. Must not: speak FUSE, or decide when a fault comes.
//! Used under the file system's lock.
//!
//! A change is visible at once and pending until it is flushed. `fsync` and `fdatasync` make a file's bytes and size
//! durable, a write through a descriptor with `O_DSYNC` makes its own pages durable, and `fsync` of a directory the
//! names in it. `sync_file_range` makes nothing durable. Flushing a file does not make its name durable, because POSIX
//! does not promise it, unless [`Tree::flush_keeps_names`] is set: ext4, XFS and btrfs make the name of a new file
//! durable as well.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::time::SystemTime;

use super::image::{Image, PAGE_BYTES};

pub(crate) type Ino = u64;
pub(crate) const ROOT: Ino = 1;

/// An error number of the C library.
pub(crate) type Errno = i32;

/// A change of a file that is not durable yet.
#[derive(Clone, Debug)]
pub(crate) struct Pending {
    /// Position in the order of all changes of the file system.
    pub(crate) at: u64,
    pub(crate) change: Change,
}

#[derive(Clone, Debug)]
pub(crate) enum Change {
    Write { offset: u64, bytes: Vec<u8> },
    Size(u64),
}

/// A change of names that is not durable yet. The edits of one operation happen together or not at all.
#[derive(Clone, Debug)]
pub(crate) struct Naming {
    pub(crate) at: u64,
    pub(crate) edits: Vec<Edit>,
}

/// In directory `dir`, `name` refers to inode `to` from now on, or to nothing if that is `None`.
#[derive(Clone, Debug)]
pub(crate) struct Edit {
    pub(crate) dir: Ino,
    pub(crate) name: OsString,
    pub(crate) to: Option<Ino>,
}

#[derive(Debug, Default)]
pub(crate) struct File {
    pub(crate) live: Image,
    pub(crate) durable: Image,
    pub(crate) pending: Vec<Pending>,
    /// Whether a flush has failed and the page cache holds bytes that neither the device nor a later flush has.
    pub(crate) cache_differs: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Dir {
    pub(crate) live: BTreeMap<OsString, Ino>,
    pub(crate) durable: BTreeMap<OsString, Ino>,
}

#[derive(Debug)]
pub(crate) enum Body {
    File(File),
    Dir(Dir),
}

#[derive(Debug)]
pub(crate) struct Inode {
    pub(crate) body: Body,
    pub(crate) opens: u64,
    pub(crate) modified: SystemTime,
}

#[derive(Debug)]
pub(crate) struct Tree {
    pub(crate) inodes: BTreeMap<Ino, Inode>,
    pub(crate) naming: Vec<Naming>,
    next_ino: Ino,
    clock: u64,
    pub(crate) capacity_pages: u64,
    /// Whether flushing a file makes the names durable that the file was given.
    pub(crate) flush_keeps_names: bool,
}

impl Tree {
    /// Creates a file system of that size with an empty root.
    pub(crate) fn new(capacity_bytes: u64) -> Self {
        let root = inode(Body::Dir(Dir::default()));
        Self {
            inodes: BTreeMap::from([(ROOT, root)]),
            naming: Vec::new(),
            next_ino: ROOT + 1,
            clock: 0,
            capacity_pages: capacity_bytes / PAGE_BYTES,
            flush_keeps_names: false,
        }
    }

    pub(crate) fn inode(&self, ino: Ino) -> Result<&Inode, Errno> {
        self.inodes.get(&ino).ok_or(libc::ENOENT)
    }

    pub(crate) fn file(&self, ino: Ino) -> Result<&File, Errno> {
        match &self.inode(ino)?.body {
            Body::File(file) => Ok(file),
            Body::Dir(_) => Err(libc::EISDIR),
        }
    }

    pub(crate) fn dir(&self, ino: Ino) -> Result<&Dir, Errno> {
        match &self.inode(ino)?.body {
            Body::Dir(dir) => Ok(dir),
            Body::File(_) => Err(libc::ENOTDIR),
        }
    }

    /// Returns the inode that `name` refers to in directory `dir`.
    pub(crate) fn lookup(&self, dir: Ino, name: &OsStr) -> Result<Ino, Errno> {
        self.dir(dir)?.live.get(name).copied().ok_or(libc::ENOENT)
    }

    /// Returns the number of names that refer to an inode.
    pub(crate) fn links(&self, ino: Ino) -> u64 {
        let named = |inode: &Inode| match &inode.body {
            Body::Dir(dir) => dir.live.values().filter(|other| **other == ino).count() as u64,
            Body::File(_) => 0,
        };
        self.inodes.values().map(named).sum()
    }

    /// Returns the number of free pages. A removed file takes none once nobody has it open.
    pub(crate) fn free_pages(&self) -> u64 {
        let mut named: BTreeSet<Ino> = BTreeSet::new();
        for inode in self.inodes.values() {
            if let Body::Dir(dir) = &inode.body {
                named.extend(dir.live.values());
            }
        }
        let taken = |(ino, inode): (&Ino, &Inode)| match &inode.body {
            Body::File(file) if inode.opens > 0 || named.contains(ino) => file.live.pages(),
            _ => 0,
        };
        self.capacity_pages.saturating_sub(self.inodes.iter().map(taken).sum())
    }

    /// Writes as many bytes as there is space for, and returns their number.
    pub(crate) fn write(&mut self, ino: Ino, offset: u64, bytes: &[u8]) -> Result<usize, Errno> {
        let free = self.free_pages();
        let at = self.tick();
        let file = self.file_mut(ino)?;
        let mut fits = bytes.len() as u64;
        while file.live.missing(offset, fits) > free {
            // Down to the end of the previous page.
            let end = (offset + fits - 1) / PAGE_BYTES * PAGE_BYTES;
            fits = end.saturating_sub(offset);
        }
        if fits == 0 && !bytes.is_empty() {
            return Err(libc::ENOSPC);
        }
        let bytes = &bytes[..fits as usize];
        file.live.write(offset, bytes);
        file.pending.push(Pending { at, change: Change::Write { offset, bytes: bytes.to_vec() } });
        self.touch(ino);
        Ok(fits as usize)
    }

    /// Makes the pages of this range durable, as a write with `O_DSYNC` does.
    pub(crate) fn sync_pages(&mut self, ino: Ino, offset: u64, bytes: u64) -> Result<(), Errno> {
        self.file_mut(ino)?.flush_pages(offset, bytes);
        Ok(())
    }

    pub(crate) fn set_size(&mut self, ino: Ino, size: u64) -> Result<(), Errno> {
        let at = self.tick();
        let file = self.file_mut(ino)?;
        if file.live.size() != size {
            file.live.set_size(size);
            file.pending.push(Pending { at, change: Change::Size(size) });
        } else {
            // Frees the pages that were reserved past the end.
            file.live.set_size(size + 1);
            file.live.set_size(size);
        }
        self.touch(ino);
        Ok(())
    }

    /// Implements `fallocate(2)` in the modes that engines use.
    pub(crate) fn allocate(&mut self, ino: Ino, offset: u64, bytes: u64, mode: i32) -> Result<(), Errno> {
        let free = self.free_pages();
        let file = self.file_mut(ino)?;
        if mode == libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE {
            let size = file.live.size();
            let inside = size.saturating_sub(offset).min(bytes);
            if inside > 0 {
                let zeros = vec![0; inside as usize];
                self.write(ino, offset, &zeros)?;
            }
            self.file_mut(ino)?.live.punch(offset, bytes);
            return Ok(());
        }
        if mode & !libc::FALLOC_FL_KEEP_SIZE != 0 {
            return Err(libc::EOPNOTSUPP);
        }
        if file.live.missing(offset, bytes) > free {
            return Err(libc::ENOSPC);
        }
        file.live.reserve(offset, bytes);
        if mode & libc::FALLOC_FL_KEEP_SIZE == 0 && offset + bytes > file.live.size() {
            return self.set_size(ino, offset + bytes);
        }
        Ok(())
    }

    /// Creates a file or a directory under a name that is free.
    pub(crate) fn create(&mut self, dir: Ino, name: &OsStr, is_dir: bool) -> Result<Ino, Errno> {
        if self.dir(dir)?.live.contains_key(name) {
            return Err(libc::EEXIST);
        }
        if self.free_pages() == 0 {
            return Err(libc::ENOSPC);
        }
        let ino = self.next_ino;
        self.next_ino += 1;
        let body = if is_dir { Body::Dir(Dir::default()) } else { Body::File(File::default()) };
        self.inodes.insert(ino, inode(body));
        self.name(vec![Edit { dir, name: name.to_owned(), to: Some(ino) }])?;
        Ok(ino)
    }

    pub(crate) fn link(&mut self, ino: Ino, dir: Ino, name: &OsStr) -> Result<(), Errno> {
        self.file(ino)?;
        if self.dir(dir)?.live.contains_key(name) {
            return Err(libc::EEXIST);
        }
        self.name(vec![Edit { dir, name: name.to_owned(), to: Some(ino) }])
    }

    pub(crate) fn remove(&mut self, dir: Ino, name: &OsStr, is_dir: bool) -> Result<(), Errno> {
        let ino = self.lookup(dir, name)?;
        match (&self.inode(ino)?.body, is_dir) {
            (Body::Dir(found), true) if !found.live.is_empty() => return Err(libc::ENOTEMPTY),
            (Body::Dir(_), false) => return Err(libc::EISDIR),
            (Body::File(_), true) => return Err(libc::ENOTDIR),
            _ => {}
        }
        self.name(vec![Edit { dir, name: name.to_owned(), to: None }])?;
        self.forget_unused();
        Ok(())
    }

    pub(crate) fn rename(&mut self, from: (Ino, &OsStr), to: (Ino, &OsStr)) -> Result<(), Errno> {
        let ino = self.lookup(from.0, from.1)?;
        let replaced = self.lookup(to.0, to.1).ok();
        if replaced == Some(ino) {
            return Ok(());
        }
        if let Some(Body::Dir(dir)) = replaced.and_then(|old| self.inodes.get(&old)).map(|old| &old.body)
            && !dir.live.is_empty()
        {
            return Err(libc::ENOTEMPTY);
        }
        self.name(vec![
            Edit { dir: from.0, name: from.1.to_owned(), to: None },
            Edit { dir: to.0, name: to.1.to_owned(), to: Some(ino) },
        ])?;
        self.forget_unused();
        Ok(())
    }

    /// Makes a file's bytes and size durable, and its names if [`Tree::flush_keeps_names`] is set.
    pub(crate) fn sync_file(&mut self, ino: Ino) -> Result<(), Errno> {
        self.file_mut(ino)?.flush();
        if self.flush_keeps_names {
            self.sync_names(|edit| edit.to == Some(ino));
        }
        Ok(())
    }

    /// Makes a directory's names durable, and the changes in other directories that they depend on.
    pub(crate) fn sync_dir(&mut self, ino: Ino) -> Result<(), Errno> {
        self.dir(ino)?;
        self.sync_names(|edit| edit.dir == ino);
        Ok(())
    }

    /// Makes the chosen changes of names durable, and the earlier ones that they depend on.
    fn sync_names(&mut self, chosen: impl Fn(&Edit) -> bool) {
        let mut wanted: BTreeSet<(Ino, OsString)> = BTreeSet::new();
        let mut durable = Vec::new();
        for at in (0..self.naming.len()).rev() {
            let edits = &self.naming[at].edits;
            let depended = |edit: &Edit| wanted.contains(&(edit.dir, edit.name.clone()));
            if edits.iter().any(|edit| chosen(edit) || depended(edit)) {
                wanted.extend(edits.iter().map(|edit| (edit.dir, edit.name.clone())));
                durable.push(self.naming.remove(at));
            }
        }
        for naming in durable.into_iter().rev() {
            self.make_durable(&naming);
        }
        self.forget_unused();
    }

    /// Applies a change of names to the durable state.
    pub(crate) fn make_durable(&mut self, naming: &Naming) {
        for edit in &naming.edits {
            if let Some(Inode { body: Body::Dir(dir), .. }) = self.inodes.get_mut(&edit.dir) {
                set(&mut dir.durable, edit);
            }
        }
    }

    pub(crate) fn opened(&mut self, ino: Ino) {
        if let Some(inode) = self.inodes.get_mut(&ino) {
            inode.opens += 1;
        }
    }

    pub(crate) fn closed(&mut self, ino: Ino) {
        if let Some(inode) = self.inodes.get_mut(&ino) {
            inode.opens = inode.opens.saturating_sub(1);
        }
        self.forget_unused();
    }

    /// Drops inodes that nobody has open and that no name refers to: neither a visible nor a durable nor a pending one.
    pub(crate) fn forget_unused(&mut self) {
        let mut used = BTreeSet::from([ROOT]);
        used.extend(self.naming.iter().flat_map(|naming| &naming.edits).filter_map(|edit| edit.to));
        for inode in self.inodes.values() {
            if let Body::Dir(dir) = &inode.body {
                used.extend(dir.live.values().chain(dir.durable.values()));
            }
        }
        self.inodes.retain(|ino, inode| inode.opens > 0 || used.contains(ino));
    }

    fn name(&mut self, edits: Vec<Edit>) -> Result<(), Errno> {
        for edit in &edits {
            self.dir(edit.dir)?;
        }
        let at = self.tick();
        for edit in &edits {
            if let Some(Inode { body: Body::Dir(dir), .. }) = self.inodes.get_mut(&edit.dir) {
                set(&mut dir.live, edit);
            }
            self.touch(edit.dir);
        }
        self.naming.push(Naming { at, edits });
        Ok(())
    }

    fn file_mut(&mut self, ino: Ino) -> Result<&mut File, Errno> {
        match self.inodes.get_mut(&ino).map(|inode| &mut inode.body) {
            Some(Body::File(file)) => Ok(file),
            Some(Body::Dir(_)) => Err(libc::EISDIR),
            None => Err(libc::ENOENT),
        }
    }

    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    fn touch(&mut self, ino: Ino) {
        if let Some(inode) = self.inodes.get_mut(&ino) {
            inode.modified = SystemTime::now();
        }
    }
}

impl File {
    /// Makes every pending change of the file durable.
    pub(crate) fn flush(&mut self) {
        for pending in self.pending.drain(..) {
            match pending.change {
                Change::Write { offset, bytes } => self.durable.write(offset, &bytes),
                Change::Size(size) => self.durable.set_size(size),
            }
        }
    }

    /// Makes the pages of this range durable. Other pending changes stay pending, unless one changes the size: then all
    /// of them become durable.
    fn flush_pages(&mut self, offset: u64, bytes: u64) {
        if self.pending.iter().any(|pending| matches!(pending.change, Change::Size(_))) {
            return self.flush();
        }
        let from = offset / PAGE_BYTES * PAGE_BYTES;
        let to = (offset + bytes).next_multiple_of(PAGE_BYTES);
        let mut rest = Vec::new();
        for Pending { at, change } in self.pending.drain(..) {
            let Change::Write { offset, bytes } = change else { continue };
            let end = offset + bytes.len() as u64;
            let head = from.saturating_sub(offset).min(bytes.len() as u64) as usize;
            let tail = end.saturating_sub(to).min(bytes.len() as u64) as usize;
            if head > 0 {
                rest.push(Pending { at, change: Change::Write { offset, bytes: bytes[..head].to_vec() } });
            }
            if tail > 0 {
                let change = Change::Write { offset: end - tail as u64, bytes: bytes[bytes.len() - tail..].to_vec() };
                rest.push(Pending { at, change });
            }
        }
        self.pending = rest;
        let bytes = self.live.read(from, to - from);
        self.durable.write(from, &bytes);
    }
}

fn inode(body: Body) -> Inode {
    Inode { body, opens: 0, modified: SystemTime::now() }
}

fn set(names: &mut BTreeMap<OsString, Ino>, edit: &Edit) {
    match edit.to {
        Some(ino) => names.insert(edit.name.clone(), ino),
        None => names.remove(&edit.name),
    };
}
