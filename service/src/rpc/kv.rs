//! The methods of `solkv.v1.Kv`.

use std::time::Duration;

use bytes::Bytes;
use engine_api::{Key, Value};
use futures::TryStreamExt as _;
use futures::stream::{self, BoxStream};
use proto::v1::kv_server::Kv;
use proto::v1::{
    ChangesRequest, ChangesResponse, CountOfRequest, CountOfResponse, Entry, GET_MANY_KEYS_MAX, GetAtRequest,
    GetAtResponse, GetManyRequest, GetManyResponse, GetRequest, GetResponse, KeysOfRequest, KeysOfResponse, PastChange,
    StatusRequest, StatusResponse,
};
use tonic::metadata::MetadataMap;
use tonic::{Request, Response, Status};

use super::peer;
use crate::ask::refusal::{Cause, Refusal};
use crate::ask::wait::Wanted;
use crate::ask::{Ask, refuse_other_map};
use crate::base::chain::Commitment;
use crate::derive::{HISTORY_MAX, Keys};
use crate::status;

/// The methods' implementation, shared by both listeners.
pub(super) struct KvService {
    ask: Ask,
    status: status::Status,
}

impl KvService {
    pub(super) fn new(ask: Ask, status: status::Status) -> Self {
        Self { ask, status }
    }
}

#[tonic::async_trait]
impl Kv for KvService {
    type KeysOfStream = BoxStream<'static, Result<KeysOfResponse, Status>>;

    async fn get(&self, request: Request<GetRequest>) -> Result<Response<GetResponse>, Status> {
        let (metadata, extensions, message) = request.into_parts();
        let GetRequest { key: bytes, commitment, min_context_slot, map } = message;
        refuse_other_map(&map)?;
        let key = key(&bytes).ok_or_else(|| wrong_length(&bytes, ""))?;
        let wanted = wanted(&metadata, commitment, min_context_slot)?;
        let answer = self.ask.get(key, &wanted, peer(&extensions)?).await?;
        Ok(Response::new(GetResponse { value: answer.value.map(wire), slot: answer.slot }))
    }

    async fn get_many(&self, request: Request<GetManyRequest>) -> Result<Response<GetManyResponse>, Status> {
        let (metadata, extensions, message) = request.into_parts();
        refuse_other_map(&message.map)?;
        let wanted = wanted(&metadata, message.commitment, message.min_context_slot)?;
        let packed = !message.packed_keys.is_empty();
        let answer = self.ask.get_many(keys_of(message)?, &wanted, peer(&extensions)?).await?;
        let mut response = GetManyResponse { slot: answer.slot, ..Default::default() };
        if packed {
            (response.packed_values, response.present) = pack(&answer.value);
        } else {
            response.entries = answer.value.into_iter().map(|value| Entry { value: value.map(wire) }).collect();
        }
        Ok(Response::new(response))
    }

    async fn keys_of(&self, request: Request<KeysOfRequest>) -> Result<Response<Self::KeysOfStream>, Status> {
        let (metadata, extensions, message) = request.into_parts();
        let KeysOfRequest { value, limit, cursor, commitment, min_context_slot, map } = message;
        refuse_other_map(&map)?;
        let value = key(&value).ok_or_else(|| wrong_length(&value, " of value"))?;
        let (cursor, limit) = (self::cursor(&cursor)?, limit_of(limit));
        let wanted = derived(&metadata, commitment, min_context_slot)?;
        let answer = self.ask.keys_of(value, cursor, limit, &wanted, peer(&extensions)?).await?;
        let messages = stream::try_unfold(answer, |mut answer| async {
            Ok(answer.next().await?.map(|keys| (keys_message(&keys), answer)))
        });
        Ok(Response::new(Box::pin(messages.map_err(|refusal: Refusal| refusal.into()))))
    }

    async fn count_of(&self, request: Request<CountOfRequest>) -> Result<Response<CountOfResponse>, Status> {
        let (metadata, extensions, message) = request.into_parts();
        let CountOfRequest { value, limit, commitment, min_context_slot, map } = message;
        refuse_other_map(&map)?;
        let value = key(&value).ok_or_else(|| wrong_length(&value, " of value"))?;
        let wanted = derived(&metadata, commitment, min_context_slot)?;
        let mut answer = self.ask.keys_of(value, None, limit_of(limit), &wanted, peer(&extensions)?).await?;
        let mut counted = CountOfResponse::default();
        while let Some(keys) = answer.next().await? {
            counted.count += keys.keys.len() as u64;
            (counted.has_more, counted.slot) = (keys.cursor.is_some(), keys.slot);
        }
        Ok(Response::new(counted))
    }

    async fn get_at(&self, request: Request<GetAtRequest>) -> Result<Response<GetAtResponse>, Status> {
        let (metadata, extensions, GetAtRequest { key: bytes, slot, commitment, map }) = request.into_parts();
        refuse_other_map(&map)?;
        let key = key(&bytes).ok_or_else(|| wrong_length(&bytes, ""))?;
        // The map has to be there: a later change could be of the slot asked for.
        let wanted = derived(&metadata, commitment, Some(slot))?;
        let past = self.ask.get_at(key, slot, &wanted, peer(&extensions)?).await?;
        let value = past.value.map(wire);
        Ok(Response::new(GetAtResponse { value, until_slot: past.until_slot, slot: past.slot }))
    }

    async fn changes(&self, request: Request<ChangesRequest>) -> Result<Response<ChangesResponse>, Status> {
        let (metadata, extensions, message) = request.into_parts();
        let ChangesRequest { key: bytes, limit, cursor, commitment, min_context_slot, map } = message;
        refuse_other_map(&map)?;
        let key = key(&bytes).ok_or_else(|| wrong_length(&bytes, ""))?;
        let (cursor, limit) = (self::cursor(&cursor)?, if limit == 0 { HISTORY_MAX } else { limit as usize });
        if limit > HISTORY_MAX {
            let text = format!("too many changes, go on with the cursor: limit={limit} max={HISTORY_MAX}");
            return Err(Refusal::new(Cause::Invalid, text).into());
        }
        let wanted = derived(&metadata, commitment, min_context_slot)?;
        let past = self.ask.changes(key, cursor, limit, &wanted, peer(&extensions)?).await?;
        let changes = past.changes.iter().map(|change| PastChange {
            slot: change.slot,
            before: change.before.map(wire),
            after: change.after.map(wire),
        });
        let cursor = past.cursor.map_or_else(Bytes::new, |cursor| Bytes::copy_from_slice(&cursor));
        let (slot, oldest_slot) = (past.slot, past.oldest_slot);
        Ok(Response::new(ChangesResponse { changes: changes.collect(), slot, oldest_slot, cursor }))
    }

    async fn status(&self, request: Request<StatusRequest>) -> Result<Response<StatusResponse>, Status> {
        refuse_other_map(&request.get_ref().map)?;
        Ok(Response::new(self.status.response()))
    }
}

/// Reads the state that a request asks for, and its deadline.
fn wanted(metadata: &MetadataMap, commitment: i32, min_context_slot: Option<u64>) -> Result<Wanted, Refusal> {
    let known = self::commitment(commitment)?;
    // Read only with a slot, because most lookups wait for nothing.
    let deadline = min_context_slot.and_then(|_| timeout(metadata.get("grpc-timeout")?.to_str().ok()?));
    Ok(Wanted::new(known, min_context_slot, deadline))
}

fn commitment(asked: i32) -> Result<Commitment, Refusal> {
    Commitment::from_wire(asked).ok_or_else(|| Refusal::new(Cause::Invalid, format!("no such commitment: got={asked}")))
}

/// Reads the state that a request to a derived store asks for, and its deadline: it may have to wait for that store.
fn derived(metadata: &MetadataMap, commitment: i32, min_context_slot: Option<u64>) -> Result<Wanted, Refusal> {
    let deadline = metadata.get("grpc-timeout").and_then(|text| timeout(text.to_str().ok()?));
    Ok(Wanted::new(self::commitment(commitment)?, min_context_slot, deadline))
}

/// Reads a cursor; empty is none.
fn cursor<const BYTES: usize>(bytes: &[u8]) -> Result<Option<[u8; BYTES]>, Refusal> {
    let no_cursor = |_| {
        let text = format!("not a cursor: bytes={}: pass on that of an answer, or begin without one", bytes.len());
        Refusal::new(Cause::Invalid, text)
    };
    (!bytes.is_empty()).then(|| bytes.try_into().map_err(no_cursor)).transpose()
}

/// Returns the number of keys that a request asks for.
fn limit_of(limit: u32) -> u64 {
    if limit == 0 { u64::MAX } else { limit.into() }
}

fn keys_message(Keys { keys, slot, cursor }: &Keys) -> KeysOfResponse {
    let cursor = cursor.as_ref().map_or_else(Bytes::new, |cursor| Bytes::copy_from_slice(cursor));
    KeysOfResponse { packed_keys: keys.concat().into(), slot: *slot, cursor }
}

/// Parses a `grpc-timeout` header: at most eight digits and a unit.
fn timeout(text: &str) -> Option<Duration> {
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if digits.is_empty() || digits.len() > 8 || !digits.bytes().all(|digit| digit.is_ascii_digit()) {
        return None;
    }
    let value: u64 = digits.parse().ok()?;
    Some(match unit {
        "H" => Duration::from_secs(value * 3600),
        "M" => Duration::from_secs(value * 60),
        "S" => Duration::from_secs(value),
        "m" => Duration::from_millis(value),
        "u" => Duration::from_micros(value),
        "n" => Duration::from_nanos(value),
        _ => return None,
    })
}

/// Checks and returns the keys of a batch, packed or not.
fn keys_of(asked: GetManyRequest) -> Result<Vec<Key>, Refusal> {
    let GetManyRequest { keys: asked, packed_keys, .. } = asked;
    let (packed, rest) = packed_keys.as_chunks::<{ size_of::<Key>() }>();
    let got = asked.len().max(packed.len());
    let wrong = if !packed_keys.is_empty() && !asked.is_empty() {
        Some("give keys or packed_keys, not both".to_owned())
    } else if !rest.is_empty() {
        Some(format!("packed_keys must be 32 bytes a key: got={}", packed_keys.len()))
    } else {
        (got > GET_MANY_KEYS_MAX).then(|| format!("too many keys, ask in parts: got={got} max={GET_MANY_KEYS_MAX}"))
    };
    if let Some(message) = wrong {
        return Err(Refusal::new(Cause::Invalid, message));
    }
    if !packed.is_empty() {
        return Ok(packed.to_vec());
    }
    let mut keys = Vec::with_capacity(asked.len());
    for (index, bytes) in asked.iter().enumerate() {
        keys.push(key(bytes).ok_or_else(|| wrong_length(bytes, &format!(" index={index}")))?);
    }
    Ok(keys)
}

/// Packs values one after another, with zeros for absent ones, and returns them with the bits that tell which are
/// present.
fn pack(values: &[Option<Value>]) -> (Bytes, Bytes) {
    let mut packed = Vec::with_capacity(size_of_val(values));
    let mut present = vec![0u8; values.len().div_ceil(8)];
    for (index, value) in values.iter().enumerate() {
        packed.extend_from_slice(&value.unwrap_or_default());
        present[index / 8] |= u8::from(value.is_some()) << (index % 8);
    }
    (packed.into(), present.into())
}

/// Refuses a key of a wrong length, and names the usual mistake. A pubkey in base58 is 43 or 44 characters, and these
/// characters, decoded as base64, are 33 bytes.
fn wrong_length(bytes: &[u8], at: &str) -> Refusal {
    let hint = match bytes.len() {
        33 => "; a base58 pubkey where JSON takes base64?",
        43 | 44 if bytes.is_ascii() => "; a base58 pubkey as text? give its 32 bytes",
        _ => "",
    };
    Refusal::new(Cause::Invalid, format!("key must be 32 bytes: got={}{at}{hint}", bytes.len()))
}

fn key(bytes: &[u8]) -> Option<Key> {
    bytes.try_into().ok()
}

fn wire(value: Value) -> Bytes {
    Bytes::copy_from_slice(&value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deadlines_are_read_and_commitments_are_known() {
        assert_eq!(timeout("150m"), Some(Duration::from_millis(150)));
        assert_eq!(timeout("2S"), Some(Duration::from_secs(2)));
        for text in ["", "S", "1", "-1S", "123456789S", "1x", "\u{e9}", "1\u{e9}"] {
            assert_eq!(timeout(text), None, "{text:?}");
        }
        let mut metadata = MetadataMap::new();
        metadata.insert("grpc-timeout", "8S".parse().unwrap());
        let expected = Wanted::new(Commitment::Confirmed, Some(1), Some(Duration::from_secs(8)));
        assert_eq!(wanted(&metadata, 0, Some(1)).unwrap(), expected);
        assert_eq!(wanted(&metadata, 7, None).unwrap_err().cause, Cause::Invalid);
    }
}
