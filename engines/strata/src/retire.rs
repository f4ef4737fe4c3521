//! Removal of a file that readers may still hold: its last owner removes it, once it is obsolete.
//!
//! Owns: when the removal runs. Must not: know files or count owners. Retired on the thread that replaces the file,
//! dropped on the thread of the last owner.

use crate::sync::{AtomicBool, Ordering};

/// Runs `remove` when it is dropped, if it was retired before.
pub(crate) struct Retire {
    obsolete: AtomicBool,
    remove: Box<dyn FnMut() + Send + Sync>,
}

impl Retire {
    pub(crate) fn new(remove: impl FnMut() + Send + Sync + 'static) -> Self {
        Self { obsolete: AtomicBool::new(false), remove: Box::new(remove) }
    }

    /// Makes the drop run `remove`. The caller must be an owner, so that the drop cannot happen meanwhile.
    pub(crate) fn retire(&self) {
        // ORDERING: Relaxed: read again only when the last owner drops it, which synchronises by itself.
        self.obsolete.store(true, Ordering::Relaxed);
    }
}

impl Drop for Retire {
    fn drop(&mut self) {
        // ORDERING: Relaxed: see `retire`.
        if self.obsolete.load(Ordering::Relaxed) {
            (self.remove)();
        }
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::cell::UnsafeCell;
    use loom::sync::{Arc, Mutex};
    use loom::thread;

    use super::*;

    /// A file that exists until it is removed. loom fails the test if a removal meets a reader.
    struct File(UnsafeCell<u32>);

    // SAFETY: loom checks every access.
    unsafe impl Send for File {}
    // SAFETY: as above.
    unsafe impl Sync for File {}

    impl File {
        fn removals(&self) -> u32 {
            // SAFETY: loom checks that no removal runs at the same time.
            self.0.with(|count| unsafe { *count })
        }
    }

    /// A segment as far as the test needs it: the file and its removal.
    struct Segment {
        file: Arc<File>,
        end: Retire,
    }

    fn segment() -> (Arc<File>, Arc<Segment>) {
        let file = Arc::new(File(UnsafeCell::new(0)));
        let removed = Arc::clone(&file);
        // SAFETY: loom checks that nobody reads at the same time.
        let end = Retire::new(move || removed.0.with_mut(|count| unsafe { *count += 1 }));
        (Arc::clone(&file), Arc::new(Segment { file, end }))
    }

    #[test]
    fn a_retired_file_goes_once_and_only_after_its_last_reader() {
        loom::model(|| {
            let (old_file, old) = segment();
            let (new_file, new) = segment();
            let version = Arc::new(Mutex::new(old));
            let reader = |version: &Arc<Mutex<Arc<Segment>>>| {
                let version = Arc::clone(version);
                thread::spawn(move || {
                    let pinned = Arc::clone(&version.lock().expect("no thread panics"));
                    assert_eq!(pinned.file.removals(), 0, "the file is there while it is held");
                })
            };
            let readers = [reader(&version), reader(&version)];
            // The same order as in `Runs::install`: replace, retire, drop.
            let before = std::mem::replace(&mut *version.lock().expect("no thread panics"), new);
            before.end.retire();
            drop(before);
            readers.into_iter().for_each(|reader| reader.join().expect("no thread panics"));
            assert_eq!(old_file.removals(), 1, "exactly once");
            drop(version);
            assert_eq!(new_file.removals(), 0, "what was not retired stays");
        });
    }
}
