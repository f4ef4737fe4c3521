//! The manifest of an archive: a bank, and the list of its accounts files, as agave 4.2 writes both.
//!
//! Owns: the layout. Must not: choose the files, or share code with the programs that read archives. Plain functions,
//! used on any thread.
//!
//! A manifest is bincode: little-endian numbers, a byte before an optional value, and a count before the elements of a
//! list. Only the slots, the blockhash of the archive's slot and the list of files have a meaning. Other hashes and
//! keys are random, and other numbers are zero or those of mainnet.

use std::collections::BTreeMap;

use workload::Rng;

/// Number of recent blockhashes that a bank knows.
const BLOCKHASHES: u64 = 301;
/// Number of slots in an epoch of mainnet.
const EPOCH_SLOTS: u64 = 432_000;
/// Number of vote accounts, and of delegations to them.
const VOTE_ACCOUNTS: u64 = 3;
/// Bytes of a vote account's data.
const VOTE_DATA_BYTES: usize = 3762;
/// Bytes of the lattice hash of all accounts.
const LATTICE_HASH_BYTES: usize = 2048;

/// An accounts file in the manifest's list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Listed {
    /// Slot in the file's name.
    pub(super) slot: u64,
    /// Id in the file's name.
    pub(super) id: u64,
    /// Bytes of the file's records, without the zeros that fill it up.
    pub(super) bytes: u64,
}

/// Makes the manifest of a bank at `slot`, whose blockhash is `blockhash`, that has these accounts files.
pub(super) fn manifest(seed: u64, slot: u64, blockhash: &[u8; 32], files: &[Listed]) -> Vec<u8> {
    let mut out = Fields { bytes: Vec::new(), rng: Rng::new(seed) };
    blockhashes(&mut out, blockhash);
    bank(&mut out, slot);
    stakes(&mut out, slot / EPOCH_SLOTS);
    // Three sets of accounts and the stakes of epochs that nobody uses any more, and whether the bank is frozen.
    out.numbers(&[0; 4]);
    out.flag(true);
    accounts(&mut out, slot, files);
    // The fee of a signature, no incremental persistence, no hash of the epoch's accounts, no stakes of epochs.
    out.number(5000);
    out.flag(false);
    out.flag(false);
    out.number(0);
    out.flag(true);
    out.random(LATTICE_HASH_BYTES);
    out.bytes
}

fn blockhashes(out: &mut Fields, newest: &[u8; 32]) {
    out.number(BLOCKHASHES);
    out.flag(true);
    out.bytes.extend_from_slice(newest);
    out.number(BLOCKHASHES);
    out.bytes.extend_from_slice(newest);
    out.numbers(&[5000, BLOCKHASHES, 0]);
    for index in 1..BLOCKHASHES {
        out.random(32);
        out.numbers(&[5000, index, 0]);
    }
    out.number(BLOCKHASHES - 1);
}

fn bank(out: &mut Fields, slot: u64) {
    let parent = slot.saturating_sub(1);
    // One ancestor, the hashes of the bank and of its parent, no hard fork.
    out.numbers(&[1, parent, 0]);
    out.random(32 + 32);
    out.numbers(&[parent, 0]);
    // Transactions, ticks, signatures, capitalization, greatest tick, hashes a tick.
    out.numbers(&[0, slot * 64, 0, 0, (slot + 1) * 64]);
    out.flag(true);
    out.number(12_500);
    // Ticks a slot, nanoseconds a slot in 16 bytes, genesis, slots a year, bytes of account data.
    out.numbers(&[64, 400_000_000, 0, 0, 78_892_314.0_f64.to_bits(), 0]);
    // Slot, epoch, height, leader, the leader's fees, fee.
    out.numbers(&[slot, slot / EPOCH_SLOTS, slot]);
    out.random(32);
    out.numbers(&[0, 0]);
    // Fees: target and greatest and least fee, target of signatures, the share that is burnt. Then the rent collected.
    out.numbers(&[10_000, 20_000, 5000, 100_000]);
    out.small(50);
    out.number(0);
    // The collector of rent: epoch, schedule, slots a year, rent.
    out.number(slot / EPOCH_SLOTS);
    schedule(out);
    out.numbers(&[78_892_314.0_f64.to_bits(), 3480, 2.0_f64.to_bits()]);
    out.small(50);
    schedule(out);
    // Inflation: initial, terminal, taper, foundation and its term, one that is unused.
    out.numbers(&[0.08_f64, 0.015, 0.15, 0.05, 7.0, 0.0].map(f64::to_bits));
}

/// Puts slots of an epoch, slots ahead of it, whether epochs grow at first, and the first normal epoch and slot.
fn schedule(out: &mut Fields) {
    out.numbers(&[EPOCH_SLOTS, EPOCH_SLOTS]);
    out.flag(false);
    out.numbers(&[0, 0]);
}

fn stakes(out: &mut Fields, epoch: u64) {
    out.number(VOTE_ACCOUNTS);
    for _ in 0..VOTE_ACCOUNTS {
        // Key, stake, and the account: lamports, data, owner, executable, rent epoch.
        out.random(32);
        out.numbers(&[1_000_000_000, 27_000_000, VOTE_DATA_BYTES as u64]);
        out.random(VOTE_DATA_BYTES + 32);
        out.flag(false);
        out.number(u64::MAX);
    }
    out.number(VOTE_ACCOUNTS);
    for _ in 0..VOTE_ACCOUNTS {
        // Keys of the stake and of the voter; stake, epochs of its begin and its end, rate of warming up.
        out.random(32 + 32);
        out.numbers(&[1_000_000_000, 0, u64::MAX, 0.25_f64.to_bits()]);
    }
    // One that is unused, the epoch, and the history: an epoch with its three sums.
    out.numbers(&[0, epoch, 1, epoch.saturating_sub(1), 3_000_000_000, 0, 0]);
}

/// Puts the list: each slot with its files. Then a write version, the slot, and hashes and statistics of the bank.
fn accounts(out: &mut Fields, slot: u64, files: &[Listed]) {
    let mut by_slot: BTreeMap<u64, Vec<Listed>> = BTreeMap::new();
    for file in files {
        by_slot.entry(file.slot).or_default().push(*file);
    }
    out.number(by_slot.len() as u64);
    for (slot, files) in by_slot {
        out.numbers(&[slot, files.len() as u64]);
        for file in files {
            out.numbers(&[file.id, file.bytes]);
        }
    }
    out.numbers(&[0, slot]);
    out.random(32 + 32);
    out.numbers(&[0; 5]);
    // Two lists of roots, which are empty.
    out.numbers(&[0; 2]);
}

/// The manifest as it grows.
struct Fields {
    bytes: Vec<u8>,
    rng: Rng,
}

impl Fields {
    fn number(&mut self, number: u64) {
        self.bytes.extend(number.to_le_bytes());
    }

    fn numbers(&mut self, numbers: &[u64]) {
        numbers.iter().for_each(|number| self.number(*number));
    }

    fn small(&mut self, byte: u8) {
        self.bytes.push(byte);
    }

    fn flag(&mut self, flag: bool) {
        self.small(u8::from(flag));
    }

    /// Puts bytes that mean nothing.
    fn random(&mut self, bytes: usize) {
        let end = self.bytes.len() + bytes;
        while self.bytes.len() < end {
            let random = self.rng.next_u64();
            self.number(random);
        }
        self.bytes.truncate(end);
    }
}
