//! The oddities of an archive: everything in it that a careless reader takes for something else.
//!
//! Owns: their names. Must not: know how they are made. Plain values, used on any thread.

/// A feature of real archives that misleads a reader that does not expect it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Oddity {
    /// Mints of both token programs
    Mints,
    /// Multisigs of 355 bytes, which look like token accounts in every other place
    Multisigs,
    /// Accounts of the System program, without data
    Wallets,
    /// Accounts of other programs with the bytes of a token account
    Foreign,
    /// Accounts of a token program with a length or a type that no token account has; with account-owner, data of 0 to
    /// 40 bytes
    Lengths,
    /// Token accounts that were not initialised
    Uninitialised,
    /// Token accounts that are frozen, or in a state that no program knows
    Frozen,
    /// Token-2022 accounts with extensions, of up to 1024 bytes
    Extensions,
    /// Accounts that are executable: programs, and accounts of the story
    Executables,
    /// Data of up to 10 MiB, made of bytes that look like records of the story's keys
    Large,
    /// Accounts that are closed again, and tombstones of accounts that are nowhere else
    Tombstones,
    /// Older versions of accounts in the files of older slots, before and after the newest one
    Obsolete,
    /// Accounts that were closed and opened again
    Reopened,
    /// Token accounts that another program owns now, with their lamports, and some that have come back
    Assigned,
    /// Slots with several files, and two versions of an account in one slot or in one file
    Files,
    /// Files that are filled up with zeros, as older validators wrote them
    Padding,
    /// The manifest before the status cache in full archives; it comes after it in incremental ones
    Order,
}

/// The oddities that an archive has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Oddities(u32);

impl Oddities {
    /// Returns all oddities but these.
    pub(super) fn without(left_out: &[Oddity]) -> Self {
        Self(left_out.iter().fold(u32::MAX, |set, oddity| set & !(1 << *oddity as u32)))
    }

    pub(super) fn none() -> Self {
        Self(0)
    }

    pub(super) fn has(self, oddity: Oddity) -> bool {
        self.0 & (1 << oddity as u32) != 0
    }
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum as _;

    use super::*;

    #[test]
    fn an_oddity_that_is_left_out_is_the_only_one() {
        let oddities = Oddities::without(&[Oddity::Mints, Oddity::Order]);
        let kept = Oddity::value_variants().iter().filter(|oddity| oddities.has(**oddity)).count();
        assert_eq!(kept, Oddity::value_variants().len() - 2);
        assert!(!oddities.has(Oddity::Mints) && !oddities.has(Oddity::Order));
        assert!(Oddity::value_variants().iter().all(|oddity| !Oddities::none().has(*oddity)));
    }
}
