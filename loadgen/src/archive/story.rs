//! The story of one archive: which versions of which accounts lie in which files, and in which order the files come.
//!
//! Owns: the accounts of the stream as an archive holds them, with their history. Must not: know how files are packed.
//! Runs on the thread that writes the archive.
//!
//! ```text
//! accounts from before the stream: groups of keys, each in up to four files
//!     older -> middle -> first -> current          an older version, a close, and the newest version
//! a block of the stream: one file                  the last write of each account in it
//! ```
//! The newest version of an account is the one with the highest slot, among those with the highest file id, and among
//! those at the highest offset. Half of the groups and half of the blocks have their newer files first in the archive,
//! so that the order of the files says nothing.
//!
//! Memory: one file at a time, and for the blocks 16 bytes for each update and some 20 for each account that they touch.

use std::collections::HashMap;
use std::sync::Arc;

use anyhow::Result;
use workload::Rng;

use super::manifest::{Listed, manifest};
use super::oddity::{Oddities, Oddity};
use super::options::Like;
use super::others::{EXTENDED_BYTES, FOREIGN_PROGRAM, Others};
use super::page::{Counts, Layer, Page};
use super::writer::ArchiveWriter;
use crate::stream::Workload;
use crate::stream::account::{Account, Extract, STATE_OFFSET, TOKEN_BYTES};
use crate::stream::chain::{Block, Write, block_hash};
use crate::stream::keys::Keys;

/// Largest number of keys in a group. A file then has about a megabyte, as it has on mainnet.
const GROUP_KEYS_MAX: u64 = 4096;
/// Smallest number of groups, so that a small archive has many files as well.
const GROUPS_MIN: u64 = 8;
/// Accounts of the story for each account that the stream does not know.
const KEYS_PER_OTHER: u64 = 16;
/// Number of slots before the stream over which accounts were last written: an epoch.
const OLD_SLOTS_MAX: u64 = 432_000;
/// Bit in the version of a value that an archive alone has, in versions that newer ones replace.
const OBSOLETE: u32 = 1 << 29;
/// Files for each file that is filled up with zeros.
const FILES_PER_PADDED: u64 = 4;
/// Bytes of a status cache, about as many as agave writes after a few slots.
const STATUS_CACHE_BYTES: usize = 10_658;

/// Past of an account from before the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Past {
    /// The account was written once.
    None,
    /// The account had another value.
    Changed,
    /// It was closed and opened again.
    Reopened,
    /// It belonged to another program for a while.
    Assigned,
    /// It was written twice in one slot, which has two files.
    TwiceInSlot,
    /// It was written twice in one file.
    TwiceInFile,
}

/// One file to be written.
#[derive(Clone, Copy, Debug)]
enum Job {
    /// One layer of a group.
    Layer(u64, Layer),
    /// A block of the stream.
    Block(usize),
}

/// Progress of an archive, counted in accounts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct At {
    /// Slot whose state the archive holds.
    pub slot: u64,
    /// Accounts that are written already.
    pub done: u64,
    /// Accounts that the archive will have.
    pub total: u64,
}

/// One archive: its accounts, its files and their order.
pub(super) struct Story<'a> {
    workload: &'a Workload,
    keys: &'a Keys,
    like: Like,
    oddities: Oddities,
    /// Slot of the full archive, if this is an incremental one.
    base: Option<u64>,
    slot: u64,
    blocks: &'a [Arc<Block>],
    /// Index of the last block that touches an account.
    latest: HashMap<u64, u32>,
    others: Others,
    /// Number of accounts that are divided into groups: the known keys, or as many as the blocks of an incremental archive
    /// write.
    grouped: u64,
    groups: u64,
    /// First slot of the groups' files, and the number of their slots.
    slots: (u64, u64),
    /// Number of slots between two groups. It has no divisor in common with the number of slots, so that groups share a
    /// slot only if there are more groups than slots.
    step: u64,
    salt: u64,
}

impl<'a> Story<'a> {
    /// Plans the `number`-th archive of a run, which is at `slot` after these blocks: those since the full archive at
    /// slot `base`, or since the start of the stream.
    pub(super) fn new(
        workload: &'a Workload,
        keys: &'a Keys,
        (like, oddities): (Like, Oddities),
        number: u64,
        (base, slot): (Option<u64>, u64),
        blocks: &'a [Arc<Block>],
    ) -> Self {
        let touched = |(at, block): (usize, &'a Arc<Block>)| block.updates.iter().map(move |one| (one.id, at as u32));
        let latest = blocks.iter().enumerate().flat_map(touched).collect();
        let written: u64 = blocks.iter().map(|block| block.updates.len() as u64).sum();
        let grouped = if base.is_none() { keys.known() } else { written };
        let last_slot = if base.is_none() { workload.start_slot - 1 } else { slot };
        let slots = (last_slot - base.map_or(0, |base| base + 1) + 1).min(OLD_SLOTS_MAX);
        Self {
            workload,
            keys,
            like,
            oddities,
            base,
            slot,
            blocks,
            latest,
            others: Others::new(workload.seed, workload.extract, oddities, number),
            grouped,
            groups: grouped.div_ceil(GROUP_KEYS_MAX).max(grouped.min(GROUPS_MIN)).max(1),
            slots: (last_slot + 1 - slots, slots),
            step: step(slots),
            salt: draw(workload.seed ^ 0x0061_7263_6869_7665, number),
        }
    }

    /// Makes every file of the archive, and returns their list for [`Story::write`]. The list comes first, because the
    /// manifest precedes the files and contains their lengths. `at` is called before each file, and its error ends the
    /// listing.
    pub(super) fn list(&self, at: &mut dyn FnMut(At) -> Result<()>) -> Result<Vec<Listed>> {
        let mut page = Page::new(self.salt);
        let mut files = Vec::new();
        for job in self.jobs() {
            at(At { slot: self.slot, done: 0, total: self.total() })?;
            self.fill(&mut page, job);
            if !page.bytes().is_empty() {
                let (slot, id) = self.place(job);
                files.push(Listed { slot, id, bytes: page.bytes().len() as u64 });
            }
            page.turn();
        }
        Ok(files)
    }

    /// Writes everything in the archive, whose manifest lists `files`: those of the archive and those of its base. `at` is
    /// called before each file, and its error ends the writing.
    pub(super) fn write(
        &self,
        writer: &mut ArchiveWriter,
        files: &[Listed],
        at: &mut dyn FnMut(At) -> Result<()>,
    ) -> Result<Counts> {
        let mut page = Page::new(self.salt);
        self.write_heads(writer, &mut page, files)?;
        let mut progress = At { slot: self.slot, done: 0, total: self.total() };
        for job in self.jobs() {
            at(progress)?;
            progress.done += match job {
                Job::Layer(group, Layer::Current) => self.bound(group + 1) - self.bound(group),
                Job::Layer(..) => 0,
                Job::Block(at) => self.blocks[at].updates.len() as u64,
            };
            self.fill(&mut page, job);
            if page.bytes().is_empty() {
                continue;
            }
            let (slot, id) = self.place(job);
            if self.has(Oddity::Padding) && draw(self.salt, id).is_multiple_of(FILES_PER_PADDED) {
                page.pad();
            }
            writer.accounts(slot, id, page.bytes())?;
            page.turn();
        }
        Ok(page.counts())
    }

    /// Writes the status cache, of which nobody reads more than the name, and the manifest.
    fn write_heads(&self, writer: &mut ArchiveWriter, page: &mut Page, files: &[Listed]) -> Result<()> {
        let status_cache = opaque(self.salt, STATUS_CACHE_BYTES);
        let blockhash = block_hash(self.workload.seed, self.slot);
        let manifest = manifest(!self.salt, self.slot, &blockhash, files);
        if self.has(Oddity::Order) && self.base.is_none() {
            page.note(Oddity::Order);
            writer.manifest(&manifest)?;
            return writer.status_cache(&status_cache);
        }
        writer.status_cache(&status_cache)?;
        writer.manifest(&manifest)
    }

    /// Number of accounts that the progress counts.
    fn total(&self) -> u64 {
        self.grouped + self.blocks.iter().map(|block| block.updates.len() as u64).sum::<u64>()
    }

    fn fill(&self, page: &mut Page, job: Job) {
        match job {
            Job::Layer(group, layer) => self.fill_layer(page, group, layer),
            Job::Block(at) => self.fill_block(page, at),
        }
    }

    fn has(&self, oddity: Oddity) -> bool {
        self.oddities.has(oddity)
    }

    /// Lists the files in the order in which they are written.
    fn jobs(&self) -> Vec<Job> {
        let blocks = 0..self.blocks.len();
        let mut jobs: Vec<Job> = blocks.clone().rev().filter(|at| at.is_multiple_of(2)).map(Job::Block).collect();
        for group in 0..self.groups {
            let layers = Layer::ALL.map(|layer| Job::Layer(group, layer));
            if group.is_multiple_of(2) {
                jobs.extend(layers.into_iter().rev());
            } else {
                jobs.extend(layers);
            }
        }
        jobs.extend(blocks.filter(|at| !at.is_multiple_of(2)).map(Job::Block));
        jobs
    }

    /// Returns slot and id of a file. The ids of a group rise with its layers, because these may share a slot.
    fn place(&self, job: Job) -> (u64, u64) {
        let layers = Layer::ALL.len() as u64;
        let (slot, id) = match job {
            Job::Block(at) => (self.blocks[at].slot, self.groups * layers + at as u64),
            Job::Layer(group, layer) => {
                let (first, slots) = self.slots;
                let newest = group * self.step % slots;
                let back = match layer {
                    Layer::Older => newest / 3,
                    Layer::Middle => newest / 3 * 2,
                    Layer::First | Layer::Current => newest,
                };
                (first + back, group * layers + layer as u64)
            }
        };
        (if self.like == Like::Firedancer { self.slot } else { slot }, id)
    }

    /// Returns the first account of a group.
    fn bound(&self, group: u64) -> u64 {
        (u128::from(self.grouped) * u128::from(group) / u128::from(self.groups)) as u64
    }

    fn fill_layer(&self, page: &mut Page, group: u64, layer: Layer) {
        let accounts = self.bound(group)..self.bound(group + 1);
        // A known key that is not in the map at the start has no version before its first event.
        if self.base.is_none() && !self.workload.base_empty {
            accounts.clone().for_each(|id| self.fill_known(page, layer, id));
        }
        for n in accounts.start.div_ceil(KEYS_PER_OTHER)..accounts.end.div_ceil(KEYS_PER_OTHER) {
            self.others.put(page, layer, n);
        }
        if self.has(Oddity::Large) {
            self.others.put_large(page, layer, group, self.keys);
        }
        if layer == Layer::First && !page.bytes().is_empty() {
            page.note(Oddity::Files);
        }
    }

    /// Puts the versions of a known key from before the stream that belong into this layer.
    fn fill_known(&self, page: &mut Page, layer: Layer, id: u64) {
        let drawn = draw(self.salt, id);
        let touched = self.latest.contains_key(&id);
        if touched && (!self.has(Oddity::Obsolete) || drawn >> 63 == 0) {
            return;
        }
        if touched && layer == Layer::Current {
            page.note(Oddity::Obsolete);
        }
        let past = self.past(drawn);
        match (layer, past) {
            (Layer::Older, Past::Changed | Past::Reopened | Past::Assigned) => {
                page.note(past.oddity());
                self.push_open(page, id, OBSOLETE, drawn);
            }
            (Layer::Middle, Past::Reopened) => page.push_closed(&self.keys.key(id)),
            (Layer::Middle, Past::Assigned) => {
                let key = self.keys.key(id);
                let value = self.keys.value(id, OBSOLETE);
                let mut account = Account::open(self.workload.extract, &key, &value, drawn);
                account.owner = FOREIGN_PROGRAM;
                page.push(&key, &account, account.data(), false);
            }
            (Layer::First, Past::TwiceInSlot) => self.push_open(page, id, OBSOLETE, drawn),
            (Layer::Current, Past::TwiceInFile) => {
                page.note(Oddity::Files);
                self.push_open(page, id, OBSOLETE, drawn);
                self.push_open(page, id, 0, drawn);
            }
            (Layer::Current, _) => self.push_open(page, id, 0, drawn),
            _ => {}
        }
    }

    /// Chooses the past of a known key: one in 64 for each of the rare ones, one in eight has changed.
    fn past(&self, drawn: u64) -> Past {
        let past = match drawn % 64 {
            0 => Past::Reopened,
            1 => Past::Assigned,
            2 => Past::TwiceInSlot,
            3 => Past::TwiceInFile,
            4..=11 => Past::Changed,
            _ => return Past::None,
        };
        if self.has(past.oddity()) { past } else { Past::None }
    }

    /// Puts the last writes of a block. Those that a later block replaces may have been cleaned away.
    fn fill_block(&self, page: &mut Page, at: usize) {
        let block = &self.blocks[at];
        // Without older versions below it, a tombstone says nothing that a full archive has to say.
        let buries = self.base.is_some() || self.has(Oddity::Obsolete) || self.has(Oddity::Tombstones);
        for (update, event) in block.updates.iter().zip(block.first_event..) {
            let is_newest = self.latest.get(&update.id) == Some(&(at as u32));
            if !is_newest {
                if !self.has(Oddity::Obsolete) || draw(self.salt ^ block.slot, update.id) & 1 == 0 {
                    continue;
                }
                page.note(Oddity::Obsolete);
            }
            let account = match update.write {
                Write::Open => {
                    self.push_open(page, update.id, update.version, event);
                    continue;
                }
                Write::Closed => Account::closed(),
                Write::Left(variant) => Account::left(variant),
            };
            let key = self.keys.key(update.id);
            if account.lamports > 0 {
                page.push(&key, &account, account.data(), false);
            } else if buries {
                page.push_closed(&key);
            }
        }
    }

    /// Puts an open account of the story, in one of the shapes in which the account still holds the value.
    fn push_open(&self, page: &mut Page, id: u64, version: u32, amount: u64) {
        let (key, value) = (self.keys.key(id), self.keys.value(id, version));
        let extract = self.workload.extract;
        let mut account = Account::open(extract, &key, &value, amount);
        let drawn = draw(self.salt ^ u64::from(version), !id);
        let mut bytes = account.data().len();
        if extract == Extract::AccountOwner {
            if self.has(Oddity::Lengths) {
                page.note(Oddity::Lengths);
                bytes = drawn as usize % (bytes + 1);
            }
        } else {
            if self.has(Oddity::Frozen)
                && let Some(state) = [2, 2, 2, 2, 2, 2, 3, 255].get(drawn as usize % 64)
            {
                page.note(Oddity::Frozen);
                account.data_mut()[STATE_OFFSET] = *state;
            }
            let extended = EXTENDED_BYTES.get((drawn >> 16) as usize % (EXTENDED_BYTES.len() * 2));
            if let (true, true, Some(extended)) = (self.has(Oddity::Extensions), bytes > TOKEN_BYTES, extended) {
                page.note(Oddity::Extensions);
                let mut data = account.data().to_vec();
                data.resize(*extended, 1);
                account = Account::of(account.lamports, account.owner, data);
                bytes = *extended;
            }
        }
        let executable = self.has(Oddity::Executables) && (drawn >> 32).is_multiple_of(128);
        if executable {
            page.note(Oddity::Executables);
        }
        page.push(&key, &account, &account.data()[..bytes], executable);
    }
}

impl Past {
    /// Returns the oddity of such a past. It is never asked for accounts without a past.
    fn oddity(self) -> Oddity {
        match self {
            Self::None | Self::Changed => Oddity::Obsolete,
            Self::Reopened => Oddity::Reopened,
            Self::Assigned => Oddity::Assigned,
            Self::TwiceInSlot | Self::TwiceInFile => Oddity::Files,
        }
    }
}

/// Returns 64 bits that depend on nothing but these two numbers.
fn draw(salt: u64, number: u64) -> u64 {
    Rng::new(salt.wrapping_add(number)).next_u64()
}

/// Makes bytes that mean nothing.
fn opaque(seed: u64, bytes: usize) -> Vec<u8> {
    let mut rng = Rng::new(seed);
    let mut out: Vec<u8> =
        std::iter::repeat_with(|| rng.next_u64().to_le_bytes()).take(bytes / 8 + 1).flatten().collect();
    out.truncate(bytes);
    out
}

/// Returns about five eighths of the number of slots, with no divisor in common with it.
fn step(slots: u64) -> u64 {
    let is_coprime = |step: &u64| {
        let (mut a, mut b) = (*step, slots);
        while b > 0 {
            (a, b) = (b, a % b);
        }
        a == 1
    };
    // One past the number of slots is coprime to it, so that there is always an answer.
    (slots / 8 * 5 + 1..=slots + 1).find(is_coprime).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_share_a_slot_only_if_there_are_more_groups_than_slots() {
        for slots in [1, 2, 3, 8, 640, 1000, 432_000] {
            let step = step(slots);
            let mut seen = vec![false; slots as usize];
            (0..slots).for_each(|group| seen[(group * step % slots) as usize] = true);
            assert!(seen.iter().all(|seen| *seen), "slots={slots} step={step}");
        }
    }
}
