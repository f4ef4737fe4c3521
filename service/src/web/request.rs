//! Requests as clients write them: keys in base58, options in the query, batches as a body in JSON.
//!
//! Owns: reading them, within bounds. Must not: answer. Threads: the network edge.

use std::fmt;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::Query;
use axum::extract::rejection::QueryRejection;
use engine_api::Key;
use futures::StreamExt as _;
use proto::v1::GET_MANY_KEYS_MAX;
use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

use crate::ask::budget::{Charge, FREE_BYTES, Peer, no_room};
use crate::ask::refusal::{Refusal, unknown_commitment};
use crate::base::chain::Commitment;
use crate::base::{base58, blocking};
use crate::derive::Cursor;

/// Maximum size of a body: the largest batch, with keys of 44 characters on lines of their own.
const BODY_BYTES_MAX: usize = 1024 * 1024;

/// Size of a body that is read on the network thread: one of 80 keys. A larger one would keep the thread's other connections
/// waiting.
const TURN_BYTES: usize = 4 * 1024;

/// Number of keys of a value in an answer, if the client names none.
const KEYS_DEFAULT: u64 = 1000;

const NO_KEY: &str = "a key is the base58 of 32 bytes";

/// Which state a request asks for.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct At {
    commitment: Option<String>,
    pub(super) min_context_slot: Option<u64>,
}

/// The state of a request for the past; the slot is in its path.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Then {
    commitment: Option<String>,
}

/// The state and the part of an answer of keys.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Part {
    commitment: Option<String>,
    pub(super) min_context_slot: Option<u64>,
    limit: Option<u64>,
    cursor: Option<String>,
}

/// A batch, as its body has it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Batch {
    pub(super) keys: Keys,
    commitment: Option<String>,
    pub(super) min_context_slot: Option<u64>,
}

/// Keys of a batch, [`GET_MANY_KEYS_MAX`] at most.
#[derive(Debug)]
pub(super) struct Keys(pub(super) Vec<Key>);

impl At {
    pub(super) fn commitment(&self) -> Result<Commitment, Refusal> {
        commitment(self.commitment.as_deref())
    }
}

impl Then {
    pub(super) fn commitment(&self) -> Result<Commitment, Refusal> {
        commitment(self.commitment.as_deref())
    }
}

impl Batch {
    pub(super) fn commitment(&self) -> Result<Commitment, Refusal> {
        commitment(self.commitment.as_deref())
    }

    /// Reads a batch from a body. Its bytes count as the client's until the charge is dropped.
    ///
    /// # Errors
    /// It is too large, ends early, or is no batch.
    pub(super) async fn read(body: Body, peer: &Arc<Peer>) -> Result<(Self, Charge), Refusal> {
        let (charge, mut bytes, mut pieces) = (Charge::new(peer), Vec::new(), body.into_data_stream());
        while let Some(piece) = pieces.next().await {
            let piece = piece.map_err(|_| Refusal::invalid("the body ended early"))?;
            let length = bytes.len() + piece.len();
            if length > BODY_BYTES_MAX {
                let message = format!("the body is too large, ask in parts: max_bytes={BODY_BYTES_MAX}");
                return Err(Refusal::invalid(message));
            }
            if length > FREE_BYTES && !charge.grow(piece.len()) {
                return Err(no_room("requests under way"));
            }
            bytes.extend_from_slice(&piece);
        }
        let is_large = bytes.len() > TURN_BYTES;
        let read = move || serde_json::from_slice(&bytes).map_err(|error| Refusal::invalid(error.to_string()));
        let batch = if is_large { blocking(read).await? } else { read()? };
        Ok((batch, charge))
    }
}

impl Part {
    pub(super) fn commitment(&self) -> Result<Commitment, Refusal> {
        commitment(self.commitment.as_deref())
    }

    pub(super) fn limit(&self) -> Result<u64, Refusal> {
        let limit = self.limit.unwrap_or(KEYS_DEFAULT);
        if (1..=GET_MANY_KEYS_MAX as u64).contains(&limit) {
            return Ok(limit);
        }
        Err(Refusal::invalid(format!("limit is 1 to {GET_MANY_KEYS_MAX}: go on with cursor")))
    }

    pub(super) fn cursor(&self) -> Result<Option<Cursor>, Refusal> {
        let Some(text) = &self.cursor else { return Ok(None) };
        let mut cursor = Cursor::default();
        let length = bs58::decode(text).onto(&mut cursor);
        if length == Ok(cursor.len()) {
            return Ok(Some(cursor));
        }
        Err(Refusal::invalid("cursor is not of an answer: begin without one"))
    }
}

fn commitment(name: Option<&str>) -> Result<Commitment, Refusal> {
    name.map_or(Ok(Commitment::default()), |name| Commitment::named(name).ok_or_else(unknown_commitment))
}

/// Returns the options of a query.
///
/// # Errors
/// One is unknown, or has another form.
pub(super) fn options<T>(query: Result<Query<T>, QueryRejection>) -> Result<T, Refusal> {
    query.map(|Query(options)| options).map_err(|rejection| Refusal::invalid(rejection.body_text()))
}

/// Reads a key of a path.
///
/// # Errors
/// It is none.
pub(super) fn key(text: &str) -> Result<Key, Refusal> {
    base58::pubkey(text.as_bytes()).ok_or_else(|| Refusal::invalid(NO_KEY))
}

impl<'de> Deserialize<'de> for Keys {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(KeysVisitor)
    }
}

struct KeysVisitor;

impl<'de> Visitor<'de> for KeysVisitor {
    type Value = Keys;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a list of keys in base58")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Keys, A::Error> {
        let mut keys = Vec::new();
        while let Some(OneKey(key)) = list.next_element()? {
            if keys.len() == GET_MANY_KEYS_MAX {
                return Err(A::Error::custom(format!("too many keys, ask in parts: max={GET_MANY_KEYS_MAX}")));
            }
            keys.push(key);
        }
        Ok(Keys(keys))
    }
}

struct OneKey(Key);

impl<'de> Deserialize<'de> for OneKey {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(OneKeyVisitor)
    }
}

struct OneKeyVisitor;

impl Visitor<'_> for OneKeyVisitor {
    type Value = OneKey;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(NO_KEY)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<OneKey, E> {
        base58::pubkey(text.as_bytes()).map(OneKey).ok_or_else(|| E::custom(NO_KEY))
    }
}
