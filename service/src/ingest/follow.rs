//! Which accounts a token extraction asks the server for, and which changes each choice misses.
//!
//! Owns: [`Follow`], and the sentences about it that operators read. Must not: do I/O. Any thread.

use std::fmt;

use solana::extract::Extract;

/// Which accounts the service subscribes to. An account that leaves the token programs takes its key out of the map,
/// but only if the server sends its last write in the slot. A server sends only accounts that match a filter of the
/// subscription.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, clap::ValueEnum, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Follow {
    /// Every account, with a slice of its data: nothing is missed.
    #[default]
    Exact,
    /// Token accounts, and System accounts without data. Missed: accounts that leave for another program, or become a
    /// mint, a multisig or uninitialised.
    Wallets,
    /// Token accounts, and accounts without lamports. Missed in addition: accounts that are closed and funded again in
    /// one slot.
    Closed,
}

/// An extraction, and the accounts that it is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Selection {
    /// Which value is taken from an account.
    pub extract: Extract,
    /// Which accounts are subscribed to. Always [`Follow::Exact`] with [`Extract::AccountOwner`].
    pub follow: Follow,
}

/// Writes the settings `extract` and `follow`.
impl fmt::Display for Selection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let follow = match self.follow {
            Follow::Exact => "exact",
            Follow::Wallets => "wallets",
            Follow::Closed => "closed",
        };
        write!(f, "{} {follow}", self.extract.name())
    }
}

impl Selection {
    /// Returns the selection of every account that the extraction concerns.
    pub fn exact(extract: Extract) -> Self {
        Self { extract, follow: Follow::Exact }
    }

    /// Returns the cautions, as sentences, for an operator who follows this selection on an engine with the label
    /// `engine`. `has_filter` says whether that engine answers lookups of absent keys from memory.
    pub fn cautions(self, engine: &str, has_filter: bool) -> impl Iterator<Item = String> {
        self.misses().map(str::to_owned).into_iter().chain(self.reads(engine, has_filter))
    }

    /// Returns a caution that names the outdated values that the map may keep forever; `None` if nothing is missed.
    fn misses(self) -> Option<&'static str> {
        match self.follow {
            Follow::Exact => None,
            Follow::Wallets => Some(
                "follow = \"wallets\" misses a token account that moves to another program than System, or becomes a \
                 mint, a multisig or uninitialised: its key keeps the old value",
            ),
            Follow::Closed => Some(
                "follow = \"closed\" misses a token account that is closed and funded again in the same slot, moves \
                 to another program, or becomes a mint, a multisig or uninitialised: its key keeps the old value",
            ),
        }
    }

    /// Returns a caution about the device reads of an engine without a filter in memory. `None` where looking up an
    /// absent key costs next to nothing.
    ///
    /// Most accounts on the stream are no token accounts, so most updates concern keys that the map does not hold.
    fn reads(self, engine: &str, has_filter: bool) -> Option<String> {
        if self.extract == Extract::AccountOwner || has_filter {
            return None;
        }
        let asked = match self.follow {
            Follow::Exact => "follow = \"exact\" takes an update of every account, most of which are not in the map",
            Follow::Wallets => "follow = \"wallets\" takes an update of every wallet, none of which is in the map",
            Follow::Closed => return None,
        };
        let fewer = match self.follow {
            Follow::Exact => "follow = \"wallets\" takes fewer and misses little, as --help says; ",
            _ => "",
        };
        Some(format!(
            "{asked}, and engine={engine} has no filter in memory, so that each may read the device; {fewer}strata, \
             and rocksdb with --bloom, have a filter"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cautions(extract: Extract, follow: Follow, has_filter: bool) -> Vec<String> {
        Selection { extract, follow }.cautions("redb", has_filter).collect()
    }

    #[test]
    fn an_engine_without_a_filter_is_named_with_the_way_out() {
        let said = cautions(Extract::TokenOwner, Follow::Exact, false);
        let is_named = said[0].contains("follow = \"wallets\"") && said[0].contains("engine=redb");
        assert!(said.len() == 1 && is_named, "{said:?}");
        assert!(cautions(Extract::AccountOwner, Follow::Exact, false).is_empty(), "every account is in the map");
        assert!(cautions(Extract::TokenOwner, Follow::Exact, true).is_empty());
    }

    #[test]
    fn missed_changes_are_named() {
        for follow in [Follow::Wallets, Follow::Closed] {
            let said = cautions(Extract::TokenMint, follow, true);
            assert!(said.len() == 1 && said[0].contains("keeps the old value"), "{said:?}");
        }
    }
}
