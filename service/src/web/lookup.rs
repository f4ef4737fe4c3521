//! The lookups: a request's words in, the answer of `ask` out.
//!
//! Owns: nothing but this. Must not: decide about a state. Threads: the network edge.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Extension, Path, Query, State};
use axum::response::{IntoResponse, Response};
use engine_api::Value;
use serde::Serialize;

use super::Shared;
use super::answer::{answer, json, of_json, refused};
use super::request::{At, Batch, Keys, Part, Then, key, options};
use crate::ask::budget::Peer;
use crate::ask::refusal::{Cause, Refusal};
use crate::ask::wait::Wanted;
use crate::base::chain::Commitment;
use crate::base::{base58, blocking};

/// A refusal as the outcome of a handler.
pub(super) struct Failure(Refusal);

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        Self(refusal)
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        refused(&self.0)
    }
}

/// Number of keys that are written on the network thread: more would keep the thread's other connections waiting.
const TURN_KEYS: usize = 256;

type Outcome = Result<Response, Failure>;
type Of = Extension<Arc<Peer>>;
type Asked<T> = Result<Query<T>, QueryRejection>;

#[derive(Serialize)]
struct Found {
    value: Option<String>,
    slot: Option<u64>,
}

#[derive(Serialize)]
struct FoundMany {
    values: Vec<Option<String>>,
    slot: Option<u64>,
}

#[derive(Serialize)]
struct FoundKeys {
    keys: Vec<String>,
    slot: Option<u64>,
    /// For the rest of the keys; `null` after the last.
    cursor: Option<String>,
}

#[derive(Serialize)]
struct FoundThen {
    value: Option<String>,
    /// Newest slot of the map.
    slot: Option<u64>,
    /// Slot of the next change; `null` if the value is still there.
    until_slot: Option<u64>,
}

impl Shared {
    fn wanted(&self, commitment: Commitment, min_slot: Option<u64>) -> Wanted {
        Wanted::new(commitment, min_slot, Some(self.request_timeout))
    }
}

fn shown(value: Option<&Value>) -> Option<String> {
    value.map(base58::text)
}

pub(super) async fn get(
    State(shared): State<Arc<Shared>>,
    Extension(peer): Of,
    Path(text): Path<String>,
    query: Asked<At>,
) -> Outcome {
    let (key, at) = (key(&text)?, options(query)?);
    let wanted = shared.wanted(at.commitment()?, at.min_context_slot);
    let found = shared.ask.get(key, &wanted, &peer).await?;
    Ok(answer(&peer, &Found { value: shown(found.value.as_ref()), slot: found.slot })?)
}

pub(super) async fn get_many(State(shared): State<Arc<Shared>>, Extension(peer): Of, body: Body) -> Outcome {
    let (batch, _charge) = Batch::read(body, &peer).await?;
    let wanted = shared.wanted(batch.commitment()?, batch.min_context_slot);
    let Keys(keys) = batch.keys;
    let is_large = keys.len() > TURN_KEYS;
    let found = shared.ask.get_many(keys, &wanted, &peer).await?;
    let write = move || {
        let values = found.value.iter().map(|value| shown(value.as_ref())).collect();
        json(&FoundMany { values, slot: found.slot })
    };
    let bytes = if is_large { blocking(write).await? } else { write()? };
    Ok(of_json(&peer, bytes)?)
}

pub(super) async fn keys_of(
    State(shared): State<Arc<Shared>>,
    Extension(peer): Of,
    Path(text): Path<String>,
    query: Asked<Part>,
) -> Outcome {
    let (value, part) = (key(&text)?, options(query)?);
    let wanted = shared.wanted(part.commitment()?, part.min_context_slot);
    let mut keys = shared.ask.keys_of(value, part.cursor()?, part.limit()?, &wanted, &peer).await?;
    let found = keys.next().await?;
    let found = found.ok_or_else(|| Refusal::new(Cause::Internal, "an answer without a message: this is a bug"))?;
    let cursor = found.cursor.map(|cursor| bs58::encode(cursor).into_string());
    let is_large = found.keys.len() > TURN_KEYS;
    let write = move || {
        let keys = found.keys.iter().map(base58::text).collect();
        json(&FoundKeys { keys, slot: found.slot, cursor })
    };
    let bytes = if is_large { blocking(write).await? } else { write()? };
    Ok(of_json(&peer, bytes)?)
}

pub(super) async fn get_at(
    State(shared): State<Arc<Shared>>,
    Extension(peer): Of,
    Path((text, slot)): Path<(String, String)>,
    query: Asked<Then>,
) -> Outcome {
    let (key, then) = (key(&text)?, options(query)?);
    let slot: u64 = slot.parse().map_err(|_| Refusal::invalid("the slot is no number"))?;
    // The map has to be there: a later change could be of the slot asked for.
    let wanted = shared.wanted(then.commitment()?, Some(slot));
    let past = shared.ask.get_at(key, slot, &wanted, &peer).await?;
    let (value, slot, until_slot) = (shown(past.value.as_ref()), past.slot, past.until_slot);
    Ok(answer(&peer, &FoundThen { value, slot, until_slot })?)
}
