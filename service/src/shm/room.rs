//! Room for clients: how many there may be, and how many of one user.
//!
//! Owns: these limits. Must not: know a session, or refuse anybody. Thread: `shm-lookup`.

/// Maximum number of clients. Each may cost 0.6 MiB of memory if it asks for the largest batches, 40 MiB in all, and
/// costs the spinning thread one look at a cache line in each round.
pub(super) const SESSIONS_MAX: usize = 64;

/// Maximum number of clients of one user: half, so that the other half is free for everybody else, as over the Unix
/// socket.
pub(super) const SESSIONS_PER_USER: usize = SESSIONS_MAX / 2;

/// The reason why there is no room for a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Full {
    pub(super) whose: &'static str,
    pub(super) max: usize,
}

/// Checks whether there is room for a client of `user` in addition to those of `users`. Returns the limit if there is
/// none.
pub(super) fn full(users: impl ExactSizeIterator<Item = u32>, user: u32) -> Option<Full> {
    if users.len() >= SESSIONS_MAX {
        return Some(Full { whose: "", max: SESSIONS_MAX });
    }
    let own = users.filter(|other| *other == user).count();
    (own >= SESSIONS_PER_USER).then_some(Full { whose: " of this user", max: SESSIONS_PER_USER })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_has_half_of_the_sessions() {
        let of = |users: &[(u32, usize)], user| {
            let users: Vec<u32> = users.iter().flat_map(|(user, count)| vec![*user; *count]).collect();
            full(users.into_iter(), user).map(|full| full.max)
        };
        let half = SESSIONS_PER_USER;
        assert_eq!((of(&[(1, half - 1)], 1), of(&[(1, half)], 1), of(&[(1, half)], 2)), (None, Some(half), None));
        assert_eq!(of(&[(1, half), (2, half - 1)], 3), None);
        assert_eq!(of(&[(1, half), (2, half)], 3), Some(SESSIONS_MAX));
    }
}
