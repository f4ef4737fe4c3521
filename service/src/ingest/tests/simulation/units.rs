//! The messages of a confirmed block, and the order in which a connection sends the slots' messages.
//!
//! Owns: the liberties that a stock server takes without a fault: repeated, early and interleaved messages. Must not:
//! put an account after both its block's meta and its confirmation, because no client could know that one is missing.

use std::collections::VecDeque;

use loadgen::stream::filter::Filter;
use workload::Rng;
use yellowstone_grpc_proto::geyser::subscribe_update::UpdateOneof;
use yellowstone_grpc_proto::geyser::{SlotStatus, SubscribeUpdate};

use super::chain::{Block, Chain};
use super::messages::{self, Item};
use crate::ingest::follow::Selection;
use crate::ingest::subscribe::Commitment;

/// The client's request, and the settings that it was made from.
#[derive(Clone, Copy)]
pub(super) struct Subscription<'a> {
    pub(super) filter: &'a Filter,
    pub(super) selection: Selection,
    pub(super) commitment: Commitment,
}

/// Returns the messages of a confirmed block without its `lost` part: 1 is the block meta, 2 the confirmation. Its
/// accounts come before the later one of its meta and its confirmation. The meta is before some of them only where `early`.
pub(super) fn of_block(
    subscription: Subscription<'_>,
    block: &Block,
    lost: Option<u64>,
    early: bool,
    rng: &mut Rng,
) -> Vec<SubscribeUpdate> {
    let Subscription { filter, selection, commitment } = subscription;
    let slot = block.slot;
    // A server at these commitments mostly sends the last writes only. Several servers at one address need not.
    let mut writes = if rng.chance(0.7) { block.last_writes() } else { block.writes.clone() };
    if rng.chance(0.3) {
        shuffle(&mut writes, rng);
    }
    let mut out: Vec<SubscribeUpdate> = Vec::with_capacity(writes.len() + 4);
    for write in &writes {
        let Some(update) = messages::account(selection, filter, slot, write, rng) else { continue };
        if rng.chance(0.05) {
            out.push(update.clone());
        }
        out.push(update);
        if rng.chance(0.02) {
            out.push(messages::noise(slot, rng));
        }
    }
    let finalized = commitment == Commitment::Finalized;
    let (mut meta, mut confirmed) = (messages::meta(block), messages::status(slot, messages::confirmation(commitment)));
    if rng.chance(0.3) {
        std::mem::swap(&mut meta, &mut confirmed);
    }
    let is_meta = |update: &SubscribeUpdate| matches!(update.update_oneof, Some(UpdateOneof::BlockMeta(_)));
    let lost_one = |update: &SubscribeUpdate| lost.is_some_and(|part| (part == 1) == is_meta(update));
    if !lost_one(&meta) {
        let at = if rng.chance(0.3) { rng.below(out.len() as u64 + 1) as usize } else { out.len() };
        // A child confirms a block without a confirmation of its own, which is complete with its meta then.
        let is_last = lost == Some(2) || !early;
        out.insert(if is_last { out.len() } else { at }, meta);
    }
    if finalized {
        // A confirmation below the wanted commitment has to be ignored.
        let at = rng.below(out.len() as u64 + 1) as usize;
        out.insert(at, messages::status(slot, SlotStatus::SlotConfirmed));
    }
    if !lost_one(&confirmed) {
        out.push(confirmed);
    }
    out
}

/// Reorders slots, interleaves their messages, and repeats slots.
pub(super) fn reorder(units: &mut Vec<(u64, Vec<Item>)>, chain: &Chain, rng: &mut Rng) {
    if units.len() > 1 && rng.chance(0.5) {
        for at in 0..units.len() - 1 {
            if rng.chance(0.2) {
                let to = (at + 1 + rng.below(4) as usize).min(units.len() - 1);
                units[at..=to].rotate_left(1);
            }
        }
    }
    if units.len() > 1 && rng.chance(0.3) {
        let at = rng.below(units.len() as u64 - 1) as usize;
        let (number, second) = units.remove(at + 1);
        let first = std::mem::take(&mut units[at].1);
        units[at] = (number.max(units[at].0), riffle(first, second, rng));
    }
    if !units.is_empty() && rng.chance(0.5) {
        let at = rng.below(units.len() as u64) as usize;
        let again = units[at].clone();
        // A failed bank is sent only once.
        let dead = |item: &Item| matches!(item, Ok(SubscribeUpdate { update_oneof: Some(UpdateOneof::Slot(status)), .. }) if status.status == SlotStatus::SlotDead as i32);
        let failed = chain.slots.iter().any(|slot| slot.number == again.0 && slot.failed.is_some());
        if !failed && !again.1.iter().any(dead) {
            let to = (at + 1 + rng.below(6) as usize).min(units.len());
            units.insert(to, again);
        }
    }
}

fn riffle(first: Vec<Item>, second: Vec<Item>, rng: &mut Rng) -> Vec<Item> {
    let (mut first, mut second) = (VecDeque::from(first), VecDeque::from(second));
    let mut out = Vec::with_capacity(first.len() + second.len());
    while !first.is_empty() || !second.is_empty() {
        let next = if rng.chance(0.5) { first.pop_front() } else { second.pop_front() };
        out.extend(next);
    }
    out
}

fn shuffle<T>(all: &mut [T], rng: &mut Rng) {
    for at in (1..all.len()).rev() {
        all.swap(at, rng.below(at as u64 + 1) as usize);
    }
}
