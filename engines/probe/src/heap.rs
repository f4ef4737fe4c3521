//! The C library's heap under a small memory limit.
//!
//! Owns: the number of its arenas. Must not: override the operator's own `MALLOC_ARENA_MAX`. Runs on the main thread,
//! before there are others.

/// Memory limit in bytes below which the heap has one arena.
const LIMIT_SMALL_BYTES: u64 = 1 << 30;

/// Gives the heap of this process one arena if `limit_bytes`, the memory that the process may use, is small. glibc
/// gives threads arenas of their own, and memory that is freed in one arena is not used in another. With 20 threads 15
/// to 30 MiB were unused. Under a limit of 96 MiB this made the difference between running and being killed.
pub fn limit_arenas(limit_bytes: u64) {
    if limit_bytes < LIMIT_SMALL_BYTES && std::env::var_os("MALLOC_ARENA_MAX").is_none() {
        #[cfg(target_env = "gnu")]
        // SAFETY: mallopt has no preconditions. It fails only for values that it does not know.
        unsafe {
            libc::mallopt(libc::M_ARENA_MAX, 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::process::Command;
    use std::sync::Barrier;

    use super::*;

    /// Name of the variable by which the test passes the limit to its own process.
    const LIMIT: &str = "LIMIT_BYTES";
    /// Size and alignment of the heaps that glibc gives to threads.
    const HEAP_BYTES: usize = 64 << 20;

    #[cfg(target_env = "gnu")]
    #[test]
    fn under_a_small_limit_all_threads_use_one_arena() {
        for (limit_bytes, own, many) in [(LIMIT_SMALL_BYTES - 1, None, false), (LIMIT_SMALL_BYTES, None, true)]
            .into_iter()
            .chain([(0, Some("8"), true)])
        {
            let mut command = Command::new(std::env::current_exe().unwrap());
            command.args([
                "--exact",
                "heap::tests::a_process_with_threads",
                "--ignored",
                "--test-threads=1",
                "--nocapture",
            ]);
            command.env_remove("MALLOC_ARENA_MAX").envs(own.map(|own| ("MALLOC_ARENA_MAX", own)));
            let output = command.env(LIMIT, limit_bytes.to_string()).output().unwrap();
            let said = String::from_utf8_lossy(&output.stdout);
            assert!(output.status.success() && said.contains(&format!("own={many}")), "{limit_bytes}: {said}");
        }
    }

    /// Prints whether threads that begin later have heaps of their own. The harness has already started one thread,
    /// which has a heap.
    #[test]
    #[ignore = "the test above runs it in a process of its own"]
    fn a_process_with_threads() {
        let Some(limit_bytes) = std::env::var(LIMIT).ok() else { return };
        limit_arenas(limit_bytes.parse().unwrap());
        let all = Barrier::new(4);
        let allocate = || {
            all.wait();
            let place = std::ptr::from_ref(Box::new([1u8; 500]).as_ref()).addr();
            all.wait();
            place / HEAP_BYTES
        };
        let heaps: HashSet<usize> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(allocate)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        println!("own={}", heaps.len() > 2);
    }
}
