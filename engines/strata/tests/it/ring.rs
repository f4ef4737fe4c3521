//! Faults of `io_uring`: reads of the ring that the kernel cuts short or fails, and a ring or a part of it that it
//! refuses.
//!
//! The faults are the kernel's own. At the place of a fault, the store's file hands out the descriptor of another real
//! file, which is shorter or cannot be read. Reads without the ring always use the right file. A test cannot make the
//! kernel put off a read (EAGAIN, EINTR): `read::uring` tests how such a result is treated.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use engine_api::{Durability, Engine, Key, Value};
use parking_lot::Mutex;
use solkv_engine_strata::storage::{DirStorage, Storage, StorageFile};
use solkv_engine_strata::{Sizes, StrataEngine, StrataOptions};

use crate::support::{Map, Rng, all, apply, key, stat, try_commit, value};

/// Too little memory for the pages of [`filled`], so that gets read from the device.
const LITTLE: StrataOptions = StrataOptions { memory_bytes: 1 << 20, disk_reserve_bytes: 0, prefix_bytes: 32 };
const SIZES: Sizes = Sizes { mem_records: 8_192, segment_records: 8_192, wal_bytes: 16 << 20 };
const PAIRS: u64 = 40_000;

/// A fault that a read of the ring meets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// The file ends at this offset.
    CutAt(u64),
    /// Reads fail with EIO, as on a broken device.
    Broken,
}

#[derive(Default)]
struct State {
    fault: Option<Fault>,
    /// Number of the read of the ring that meets the fault; `None` for all reads.
    at: Option<u64>,
    reads: u64,
    met: u64,
    /// Descriptors with the fault, by the file that they replace. They stay open, because the kernel may still read
    /// them.
    others: BTreeMap<PathBuf, OwnedFd>,
}

/// A directory whose files hand other descriptors to the ring.
#[derive(Clone)]
struct RingStorage {
    dir: Arc<DirStorage>,
    state: Arc<Mutex<State>>,
}

struct RingFile {
    file: Arc<dyn StorageFile>,
    path: PathBuf,
    state: Arc<Mutex<State>>,
}

impl RingStorage {
    fn new(dir: &Path) -> Self {
        Self { dir: Arc::new(DirStorage::open(dir).unwrap()), state: Arc::default() }
    }

    /// Makes this read of the ring meet the fault from now on, or every read if `at` is `None`.
    fn set(&self, fault: Option<Fault>, at: Option<u64>) {
        *self.state.lock() = State { fault, at, ..State::default() };
    }

    /// Returns the number of reads of the ring since [`RingStorage::set`], and how many of them met the fault.
    fn counts(&self) -> (u64, u64) {
        let state = self.state.lock();
        (state.reads, state.met)
    }

    fn wrap(&self, file: io::Result<Arc<dyn StorageFile>>, name: &str) -> io::Result<Arc<dyn StorageFile>> {
        let path = Path::new(&self.dir.shown()).join(name);
        Ok(Arc::new(RingFile { file: file?, path, state: Arc::clone(&self.state) }))
    }

    fn open(&self) -> engine_api::Result<StrataEngine> {
        StrataEngine::open_sized(Arc::new(self.clone()), &LITTLE, SIZES)
    }
}

impl Storage for RingStorage {
    fn create(&self, name: &str) -> io::Result<Arc<dyn StorageFile>> {
        self.wrap(self.dir.create(name), name)
    }

    fn open(&self, name: &str, direct: bool) -> io::Result<Arc<dyn StorageFile>> {
        self.wrap(self.dir.open(name, direct), name)
    }

    fn open_write(&self, name: &str) -> io::Result<Arc<dyn StorageFile>> {
        self.dir.open_write(name)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.dir.rename(from, to)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.dir.remove(name)
    }

    fn list(&self) -> io::Result<Vec<String>> {
        self.dir.list()
    }

    fn sync_dir(&self) -> io::Result<()> {
        self.dir.sync_dir()
    }

    fn free_bytes(&self) -> io::Result<u64> {
        self.dir.free_bytes()
    }

    fn used_bytes(&self) -> io::Result<u64> {
        self.dir.used_bytes()
    }

    fn link_or_copy(&self, name: &str, dir: &Path) -> io::Result<()> {
        self.dir.link_or_copy(name, dir)
    }

    fn shown(&self) -> String {
        self.dir.shown()
    }
}

impl RingFile {
    /// Opens a descriptor with the fault.
    fn other(&self, fault: Fault) -> OwnedFd {
        match fault {
            Fault::CutAt(at) => {
                let mut bytes = std::fs::read(&self.path).unwrap();
                bytes.truncate(at as usize);
                let mut file = tempfile::tempfile().unwrap();
                io::Write::write_all(&mut file, &bytes).unwrap();
                file.into()
            }
            // The memory of this process, at an address without any: the only file whose reads are certain to fail so.
            Fault::Broken => File::open("/proc/self/mem").unwrap().into(),
        }
    }
}

impl StorageFile for RingFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.file.read_at(buf, offset)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.file.write_at(bytes, offset)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    fn len_bytes(&self) -> io::Result<u64> {
        self.file.len_bytes()
    }

    fn forget_pages(&self) {
        self.file.forget_pages();
    }

    fn raw_fd(&self) -> Option<RawFd> {
        let fault = {
            let mut state = self.state.lock();
            state.reads += 1;
            let now = state.at.is_none_or(|at| state.reads == at);
            let fault = state.fault.filter(|_| now);
            state.met += u64::from(fault.is_some());
            fault
        };
        let Some(fault) = fault else { return self.file.raw_fd() };
        let mut state = self.state.lock();
        Some(state.others.entry(self.path.clone()).or_insert_with(|| self.other(fault)).as_raw_fd())
    }
}

/// Makes a directory in memory if the system has one, because durability does not matter here and flushes to a disk are
/// slow.
fn directory() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

/// Fills a store of some segments and a delta in real files.
fn filled(dir: &Path) -> (RingStorage, Map) {
    let storage = RingStorage::new(dir);
    let engine = storage.open().unwrap();
    let mut map = Map::new();
    for seq in 1..=PAIRS / 4_000 {
        let put = |n| (key(n), (n % 9 != 0).then(|| value(n)));
        let changes: Vec<_> = ((seq - 1) * 4_000..seq * 4_000).map(put).collect();
        try_commit(&engine, &changes, seq, Durability::Buffered).unwrap();
        apply(&mut map, &changes);
    }
    engine.settle().unwrap();
    let changes: Vec<_> = (0..4_000).map(|n| (key(n * 7), Some(value(!n)))).collect();
    try_commit(&engine, &changes, 99, Durability::Buffered).unwrap();
    apply(&mut map, &changes);
    Box::new(engine).close().unwrap();
    (storage, map)
}

fn some_keys(rng: &mut Rng) -> Vec<Key> {
    (0..300).map(|_| key(rng.below(PAIRS + PAIRS / 4))).collect()
}

fn assert_gets(keys: &[Key], found: &[Option<Value>], map: &Map, place: &str) {
    for (key, found) in keys.iter().zip(found) {
        assert!(*found == map.get(key).copied(), "{key:x?} {place}");
    }
}

/// Does batches, scans and a merge with this fault at every read of the ring, and expects right answers.
fn assert_no_difference(fault: Fault) {
    let dir = directory();
    let (storage, map) = filled(dir.path());
    let engine = storage.open().unwrap();
    storage.set(Some(fault), None);
    let mut rng = Rng::new(1);
    for round in 0..8 {
        let keys = some_keys(&mut rng);
        let mut found = vec![None; keys.len()];
        engine.reader().unwrap().get_many(&keys, &mut found).unwrap_or_else(|error| panic!("{fault:?}: {error}"));
        assert_gets(&keys, &found, &map, &format!("{fault:?} round={round}"));
    }
    let (_, met) = storage.counts();
    assert!(met > 100, "batches read by the ring: met={met}");
    assert!(all(&engine).unwrap() == map, "{fault:?}");
    engine.settle().unwrap_or_else(|error| panic!("{fault:?}: {error}"));
    storage.set(None, None);
    assert!(all(&engine).unwrap() == map, "merged: {fault:?}");
    drop(engine);
    assert!(all(&storage.open().unwrap()).unwrap() == map, "opened again: {fault:?}");
}

#[test]
fn a_read_of_the_ring_that_is_cut_short_is_read_to_its_end() {
    for at in [0, 4096 * 5 + 512, 4096 * 40, 4096 * 100 + 2048] {
        assert_no_difference(Fault::CutAt(at));
    }
}

#[test]
fn a_read_of_the_ring_that_fails_is_an_error_and_the_next_batch_is_right() {
    let dir = directory();
    let (storage, map) = filled(dir.path());
    let (mut failed, mut right) = (0, 0);
    for at in 1..120 {
        let engine = storage.open().unwrap();
        storage.set(Some(Fault::Broken), Some(at));
        let mut reader = engine.reader().unwrap();
        let mut rng = Rng::new(at);
        for round in 0..3 {
            let keys = some_keys(&mut rng);
            let mut found = vec![None; keys.len()];
            match reader.get_many(&keys, &mut found) {
                Ok(()) => {
                    assert_gets(&keys, &found, &map, &format!("at={at} round={round}"));
                    right += 1;
                }
                Err(error) => {
                    assert!(error.to_string().contains("cannot read: file="), "{error}");
                    failed += 1;
                }
            }
        }
        assert_eq!(storage.counts().1, 1, "at={at}");
        storage.set(None, None);
    }
    assert_eq!((failed, right), (119, 2 * 119), "each fault is one error, in the batch that meets it");
}

#[test]
fn a_merge_whose_read_of_the_ring_fails_replaces_nothing() {
    let dir = directory();
    let (storage, map) = filled(dir.path());
    for at in 1..=12 {
        let engine = storage.open().unwrap();
        let changes: Vec<_> = map.iter().take(500).map(|(key, value)| (*key, Some(*value))).collect();
        try_commit(&engine, &changes, 100 + at, Durability::Buffered).unwrap();
        storage.set(Some(Fault::Broken), Some(at));
        let settled = engine.settle();
        let (_, met) = storage.counts();
        assert!(settled.is_err() || met <= 1, "a merge that met an error has not ended: at={at}");
        storage.set(None, None);
        assert!(all(&engine).unwrap() == map, "still open: at={at}");
        drop(engine);
        let engine = storage.open().unwrap();
        assert!(all(&engine).unwrap() == map, "opened again: at={at}");
        engine.scrub().unwrap();
    }
}

#[test]
fn a_ring_that_the_kernel_refuses_costs_no_answer() {
    for errno in [libc::EAGAIN, libc::EPERM] {
        let dir = directory();
        let (storage, map) = filled(dir.path());
        let engine = storage.open().unwrap();
        storage.set(None, None);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                refuse(libc::SYS_io_uring_enter, errno);
                let mut reader = engine.reader().unwrap();
                for seed in 0..3 {
                    let keys = some_keys(&mut Rng::new(seed));
                    let mut found = vec![None; keys.len()];
                    reader.get_many(&keys, &mut found).unwrap_or_else(|error| panic!("errno={errno}: {error}"));
                    assert_gets(&keys, &found, &map, &format!("errno={errno}"));
                }
                assert!(all(&engine).unwrap() == map, "errno={errno}");
            });
        });
        assert!(storage.counts().0 > 0, "the ring was asked first");
        assert!(stat(&engine, "io_uring_refused") > 0, "the statistics say so: errno={errno}");
    }
}

#[test]
fn buffers_that_the_kernel_does_not_hold_cost_no_answer_and_no_ring() {
    let dir = directory();
    let (storage, map) = filled(dir.path());
    let engine = storage.open().unwrap();
    storage.set(None, None);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            refuse(libc::SYS_io_uring_register, libc::ENOMEM);
            let keys = some_keys(&mut Rng::new(1));
            let mut found = vec![None; keys.len()];
            engine.reader().unwrap().get_many(&keys, &mut found).unwrap();
            assert_gets(&keys, &found, &map, "no buffers are held");
        });
    });
    assert!(storage.counts().0 > 0, "the ring reads");
    assert_eq!(stat(&engine, "io_uring_refused"), 0);
}

/// Makes a system call fail for this thread from now on, as a kernel without memory or a container's filter does.
fn refuse(call: i64, errno: i32) {
    const NUMBER_AT: u32 = 0;
    // SAFETY: these macros only build instructions.
    let mut program = unsafe {
        [
            libc::BPF_STMT((libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16, NUMBER_AT),
            libc::BPF_JUMP((libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16, call as u32, 0, 1),
            libc::BPF_STMT((libc::BPF_RET | libc::BPF_K) as u16, libc::SECCOMP_RET_ERRNO | errno as u32),
            libc::BPF_STMT((libc::BPF_RET | libc::BPF_K) as u16, libc::SECCOMP_RET_ALLOW),
        ]
    };
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: the call takes no pointers.
    assert_eq!(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) }, 0);
    // SAFETY: the filter and its program live through the call; without TSYNC it applies to this thread alone.
    let set = unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, &raw const filter) };
    assert_eq!(set, 0, "{}", io::Error::last_os_error());
}
