//! Accounts that the stream does not know: everything that a validator keeps in addition to the accounts of the story.
//!
//! Owns: their keys, their shapes, and the files in which they lie. Must not: hold a key of the story, or leave a pair
//! in the map of the extraction that the archive is for. Runs on the thread that writes the archive.
//!
//! Every account counts for the extraction account-owner, and every token account for the other two. So such an account
//! is closed by a version in a later file, and the map of the archive stays the map of the stream.

use workload::{Key, Pairs};

use super::oddity::{Oddities, Oddity};
use super::page::{Layer, Page};
use super::records::{AccountsFile, DATA_BYTES_MAX, Record};
use crate::stream::account::{
    Account, Extract, MINT_BYTES, MULTISIG_BYTES, SYSTEM_PROGRAM, TOKEN_2022_BYTES, TOKEN_2022_PROGRAM, TOKEN_BYTES,
    TOKEN_PROGRAM, looks_like_an_account,
};
use crate::stream::keys::Keys;

/// Owner of the accounts that belong to no known program.
pub(super) const FOREIGN_PROGRAM: [u8; 32] = [9; 32];
/// Lengths of Token-2022 accounts with extensions. 354 and 356 are next to the length of a multisig.
pub(super) const EXTENDED_BYTES: [usize; 8] = [182, 200, 278, 354, 356, 417, 566, 1024];
/// Address of the loader that owns most programs, `BPFLoaderUpgradeab1e11111111111111111111111`.
const LOADER_PROGRAM: [u8; 32] = [
    2, 168, 246, 145, 78, 136, 161, 176, 226, 16, 21, 62, 247, 99, 174, 43, 0, 194, 185, 61, 22, 193, 36, 210, 192, 83,
    122, 16, 4, 128, 0, 0,
];
/// Lamports of an account here. No reader looks at the amount.
const LAMPORTS: u64 = 1_000_000;
/// Bytes of a program's account: a tag, and the address of its code.
const PROGRAM_BYTES: usize = 36;
/// Bytes of a mint with an extension.
const LONG_MINT_BYTES: usize = 234;
/// Bytes of the smaller ones of the large accounts: more than a reader keeps of a record in its hands.
const LARGE_BYTES: usize = 300_000;
/// Groups of files for each large account.
const GROUPS_PER_LARGE: u64 = 8;
/// Number of the first large account. Smaller numbers are those of all other accounts.
const FIRST_LARGE: u64 = 1 << 60;
/// Records that data imitate before they repeat.
const IMITATED_RECORDS: u64 = 64;
/// Bit in the version of the values in imitated records. No version of the stream has it.
const IMITATED: u32 = 1 << 28;
/// Lengths and account types that make no token account, each with the program that owns it. The data look like a token
/// account in every other place.
const WRONG: [(&[u8; 32], usize, u8); 15] = [
    (&TOKEN_PROGRAM, 0, 2),
    (&TOKEN_PROGRAM, 1, 2),
    (&TOKEN_PROGRAM, 64, 2),
    (&TOKEN_PROGRAM, 72, 2),
    (&TOKEN_PROGRAM, 108, 2),
    (&TOKEN_PROGRAM, 109, 2),
    (&TOKEN_PROGRAM, 164, 2),
    (&TOKEN_PROGRAM, 166, 2),
    (&TOKEN_PROGRAM, 170, 2),
    (&TOKEN_PROGRAM, 200, 2),
    (&TOKEN_2022_PROGRAM, 164, 2),
    (&TOKEN_2022_PROGRAM, 166, 0),
    (&TOKEN_2022_PROGRAM, 170, 1),
    (&TOKEN_2022_PROGRAM, 200, 3),
    (&TOKEN_2022_PROGRAM, 356, 1),
];

/// Kind of such an account.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Mint,
    LongMint,
    Multisig,
    Wallet,
    Foreign,
    Wrong,
    Uninitialised,
    Program,
    Closed,
    NeverOpen,
    Assigned,
    Frozen,
    Extended,
}

/// Kinds by turns, so that each occurs as often as the others, and the oddity that each is.
const KINDS: [(Kind, Oddity); 13] = [
    (Kind::Mint, Oddity::Mints),
    (Kind::LongMint, Oddity::Mints),
    (Kind::Multisig, Oddity::Multisigs),
    (Kind::Wallet, Oddity::Wallets),
    (Kind::Foreign, Oddity::Foreign),
    (Kind::Wrong, Oddity::Lengths),
    (Kind::Uninitialised, Oddity::Uninitialised),
    (Kind::Program, Oddity::Executables),
    (Kind::Closed, Oddity::Tombstones),
    (Kind::NeverOpen, Oddity::Tombstones),
    (Kind::Assigned, Oddity::Assigned),
    (Kind::Frozen, Oddity::Frozen),
    (Kind::Extended, Oddity::Extensions),
];

/// Version of an account in a layer of files.
enum State {
    Open,
    /// As it was opened, but another program owns it.
    Away,
    Closed,
}

/// The accounts of one archive that the stream does not know.
pub(super) struct Others {
    pairs: Pairs,
    extract: Extract,
    oddities: Oddities,
    /// Number of the first account, so that no two archives of a run share a key.
    first: u64,
}

impl Others {
    /// Returns the accounts of the `archive`-th archive of a run.
    pub(super) fn new(seed: u64, extract: Extract, oddities: Oddities, archive: u64) -> Self {
        Self { pairs: Pairs::new(seed ^ 0x6f74_6865_7273), extract, oddities, first: archive << 44 }
    }

    /// Puts the version of account `n` that belongs into this layer, if there is one.
    pub(super) fn put(&self, page: &mut Page, layer: Layer, n: u64) {
        let (kind, oddity) = KINDS[(n % KINDS.len() as u64) as usize];
        if !self.oddities.has(oddity) {
            return;
        }
        let Some(state) = self.state(kind, layer) else { return };
        let key = self.pairs.key(self.first + n);
        page.note(oddity);
        let mut account = match state {
            State::Closed => return page.push_closed(&key),
            State::Open | State::Away => self.account(kind, &key, n),
        };
        if matches!(state, State::Away) {
            account.owner = FOREIGN_PROGRAM;
        }
        page.push(&key, &account, account.data(), kind == Kind::Program);
    }

    /// Puts the large account of a group of files, if it has one. `keys` are those that its data imitate.
    pub(super) fn put_large(&self, page: &mut Page, layer: Layer, group: u64, keys: &Keys) {
        let bytes = match group % GROUPS_PER_LARGE {
            // One of them is as large as an account can be; more would only make the archive larger.
            0 if group == 0 && self.first == 0 => DATA_BYTES_MAX,
            4 => LARGE_BYTES,
            _ => return,
        };
        let key = self.pairs.key(FIRST_LARGE + self.first + group);
        match (layer, self.extract) {
            (Layer::Older, Extract::AccountOwner) | (Layer::Current, Extract::TokenOwner | Extract::TokenMint) => {
                page.note(Oddity::Large);
                let account = Account::of(LAMPORTS, FOREIGN_PROGRAM, imitation(bytes, keys));
                page.push(&key, &account, account.data(), false);
            }
            (Layer::Current, Extract::AccountOwner) => page.push_closed(&key),
            _ => {}
        }
    }

    fn state(&self, kind: Kind, layer: Layer) -> Option<State> {
        let every = self.extract == Extract::AccountOwner;
        let counts = every || matches!(kind, Kind::Closed | Kind::Frozen | Kind::Extended);
        match (kind, layer) {
            (Kind::NeverOpen, Layer::Current) => Some(State::Closed),
            (Kind::NeverOpen, _) => None,
            (Kind::Assigned, Layer::Older) => Some(State::Open),
            (Kind::Assigned, Layer::Middle) => Some(State::Away),
            (Kind::Assigned, Layer::Current) => every.then_some(State::Closed),
            (Kind::Assigned, Layer::First) => None,
            (_, Layer::Older) => counts.then_some(State::Open),
            (_, Layer::Current) => Some(if counts { State::Closed } else { State::Open }),
            (_, Layer::Middle | Layer::First) => None,
        }
    }

    fn account(&self, kind: Kind, key: &Key, n: u64) -> Account {
        // Rounds of kinds, by which the variants of a kind take turns.
        let round = (n / KINDS.len() as u64) as usize;
        let of = |owner: &[u8; 32], data: Vec<u8>| Account::of(LAMPORTS, *owner, data);
        let program = if round.is_multiple_of(2) { TOKEN_PROGRAM } else { TOKEN_2022_PROGRAM };
        match kind {
            Kind::Mint => of(&program, looks_like_an_account(MINT_BYTES, 1, 2)),
            Kind::LongMint => of(&TOKEN_2022_PROGRAM, looks_like_an_account(LONG_MINT_BYTES, 1, 1)),
            Kind::Multisig => of(&program, looks_like_an_account(MULTISIG_BYTES, 1, 2)),
            Kind::Wallet => of(&SYSTEM_PROGRAM, Vec::new()),
            Kind::Foreign => of(&FOREIGN_PROGRAM, looks_like_an_account(TOKEN_BYTES, 1, 2)),
            Kind::Wrong => {
                let (owner, bytes, account_type) = WRONG[round % WRONG.len()];
                of(owner, looks_like_an_account(bytes, 1, account_type))
            }
            Kind::Uninitialised if round.is_multiple_of(2) => {
                of(&TOKEN_PROGRAM, looks_like_an_account(TOKEN_BYTES, 0, 2))
            }
            Kind::Uninitialised => of(&TOKEN_2022_PROGRAM, looks_like_an_account(TOKEN_2022_BYTES, 0, 2)),
            Kind::Program => of(&LOADER_PROGRAM, vec![2; PROGRAM_BYTES]),
            Kind::Closed | Kind::Assigned => {
                Account::open(Extract::TokenOwner, key, &self.pairs.value(self.first + n, 0), n)
            }
            Kind::NeverOpen => Account::closed(),
            Kind::Frozen => of(&TOKEN_PROGRAM, looks_like_an_account(TOKEN_BYTES, [2, 3, 255][round % 3], 2)),
            Kind::Extended => {
                let bytes = EXTENDED_BYTES[round % EXTENDED_BYTES.len()];
                of(&TOKEN_2022_PROGRAM, looks_like_an_account(bytes, 1, 2))
            }
        }
    }
}

/// Makes data that hold records of keys of the story, with values that they never have. An account's data begin at a
/// multiple of eight, so that a reader that loses its place takes them for records.
fn imitation(bytes: usize, keys: &Keys) -> Vec<u8> {
    let mut records = AccountsFile::default();
    for id in 0..IMITATED_RECORDS.min(keys.known()) {
        let (key, value) = (keys.key(id), keys.value(id, IMITATED));
        let account = Account::open(Extract::TokenOwner, &key, &value, id);
        let (lamports, owner, data) = (account.lamports, &account.owner, account.data());
        let record =
            Record { key: &key, lamports, rent_epoch: u64::MAX, owner, executable: false, garbage: [0; 7], data };
        records.push(&record);
    }
    let mut round = records.bytes().to_vec();
    round.resize(round.len().next_multiple_of(8), 0);
    let mut data = round.repeat(bytes / round.len() + 1);
    data.truncate(bytes);
    data
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loader_is_the_well_known_address() {
        assert_eq!(bs58::encode(LOADER_PROGRAM).into_string(), "BPFLoaderUpgradeab1e11111111111111111111111");
    }

    #[test]
    fn an_account_that_counts_is_closed_after_it_was_open() {
        for extract in [Extract::AccountOwner, Extract::TokenOwner, Extract::TokenMint] {
            let others = Others::new(1, extract, Oddities::without(&[]), 0);
            for (kind, _) in KINDS {
                let mut last = None;
                for layer in Layer::ALL {
                    last = others.state(kind, layer).or(last);
                }
                let is_open = !matches!(last, Some(State::Closed));
                let token = matches!(kind, Kind::Closed | Kind::Frozen | Kind::Extended | Kind::NeverOpen);
                assert_eq!(is_open, extract != Extract::AccountOwner && !token, "{extract:?} {kind:?}");
            }
        }
    }
}
