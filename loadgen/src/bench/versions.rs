//! The versions of the values in a store that was updated: the rule which pairs have been changed.
//!
//! Owns: this rule. Must not: change anything.
//!
//! Update n changes pair n, and starts again with the first pair after the last one. The keys of consecutive pairs are
//! unrelated, unless they count, so these are random places of the store. A reader can compute each value without
//! remembering any. With 0.72 updates a pair, other random updates would have changed only half of the pairs, some of them
//! more than once.

/// Computes the version of each pair's value after so many updates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Versions {
    pairs: u64,
    updates: u64,
}

impl Versions {
    /// Versions after `updates` updates of `pairs` pairs.
    pub(crate) fn new(pairs: u64, updates: u64) -> Self {
        Self { pairs, updates }
    }

    /// Returns how many times pair `index` was changed.
    pub(crate) fn of(self, index: u64) -> u32 {
        ((self.updates / self.pairs) + u64::from(index < self.updates % self.pairs)) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_of_a_pair_is_the_number_of_its_updates() {
        for updates in [0, 1, 7, 10, 11, 25] {
            let versions = Versions::new(10, updates);
            for index in 0..10 {
                let counted = (0..updates).filter(|update| update % 10 == index).count();
                assert_eq!(versions.of(index), counted as u32, "updates={updates} index={index}");
            }
        }
    }
}
