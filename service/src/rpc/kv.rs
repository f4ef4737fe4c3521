//! The methods of `solkv.v1.Kv`.

use std::sync::Arc;

use bytes::Bytes;
use engine_api::{ErrorKind, Key, Value};
use proto::v1::kv_server::Kv;
use proto::v1::{
    Entry, GET_MANY_KEYS_MAX, GetManyRequest, GetManyResponse, GetRequest, GetResponse, StatusRequest, StatusResponse,
};
use tonic::{Request, Response, Status};

use super::budget::Peer;
use super::maps::refuse_other_map;
use super::places::Taking;
use super::wait::{Waits, Wanted};
use crate::base::published::between_slots;
use crate::base::slow::Transport;
use crate::lookups::{GET_MANY_QUEUE_KEYS, LookupError, Lookups, Origin, counted_keys};
use crate::net::figures::Place;
use crate::overlay::Overlay;
use crate::status;

/// The methods' implementation, shared by both listeners.
pub(super) struct KvService {
    lookups: Lookups,
    status: status::Status,
    waits: Waits,
}

impl KvService {
    pub(super) fn new(lookups: Lookups, status: status::Status, overlay: Arc<Overlay>) -> Self {
        Self { lookups, status, waits: Waits::new(overlay) }
    }

    /// Waits for the slot that the request names, and returns the time that this took, in ns. Most requests name none,
    /// and no clock is read for them.
    async fn wait(&self, wanted: &Wanted, keys: usize, peer: &Arc<Peer>) -> Result<u64, Status> {
        if !wanted.names_a_slot() {
            return Ok(0);
        }
        let start = self.lookups.clock();
        self.waits.until(wanted, keys, peer).await?;
        Ok(self.lookups.elapsed_ns(start))
    }
}

#[tonic::async_trait]
impl Kv for KvService {
    async fn get(&self, request: Request<GetRequest>) -> Result<Response<GetResponse>, Status> {
        let asked = self.lookups.clock();
        let (metadata, extensions, message) = request.into_parts();
        let GetRequest { key: bytes, commitment, min_context_slot, map } = message;
        refuse_other_map(&map)?;
        let key = key(&bytes).ok_or_else(|| wrong_length(&bytes, ""))?;
        let wanted = Wanted::new(&metadata, commitment, min_context_slot)?;
        let peer = Peer::of(&extensions)?;
        let slot_wait_ns = self.wait(&wanted, 1, peer).await?;
        let origin = origin(peer, asked, slot_wait_ns);
        let answer = self.lookups.get(key, wanted.commitment, origin).await.map_err(status)?;
        wanted.check(answer.slot)?;
        Ok(Response::new(GetResponse { value: answer.value.map(wire), slot: answer.slot }))
    }

    async fn get_many(&self, request: Request<GetManyRequest>) -> Result<Response<GetManyResponse>, Status> {
        let asked = self.lookups.clock();
        let (metadata, extensions, message) = request.into_parts();
        refuse_other_map(&message.map)?;
        let wanted = Wanted::new(&metadata, message.commitment, message.min_context_slot)?;
        let packed = !message.packed_keys.is_empty();
        let keys = keys_of(message)?;
        let peer = Peer::of(&extensions)?;
        let slot_wait_ns = self.wait(&wanted, keys.len(), peer).await?;
        let origin = origin(peer, asked, slot_wait_ns);
        let _place = Taking::new(peer, Place::BatchKeys, counted_keys(keys.len()) as u64, GET_MANY_QUEUE_KEYS as u64)?;
        let answer = self.lookups.get_many(keys, wanted.commitment, origin).await.map_err(status)?;
        wanted.check(answer.slot)?;
        let mut response = GetManyResponse { slot: answer.slot, ..Default::default() };
        if packed {
            (response.packed_values, response.present) = pack(&answer.value);
        } else {
            response.entries = answer.value.into_iter().map(|value| Entry { value: value.map(wire) }).collect();
        }
        Ok(Response::new(response))
    }

    async fn status(&self, request: Request<StatusRequest>) -> Result<Response<StatusResponse>, Status> {
        refuse_other_map(&request.get_ref().map)?;
        Ok(Response::new(self.status.response()))
    }
}

fn origin(peer: &Peer, asked: u64, slot_wait_ns: u64) -> Origin {
    let transport = if peer.from.is_none() { Transport::GrpcUds } else { Transport::GrpcTcp };
    // The address of the state that a connection's requests share serves as the connection's identifier.
    Origin { transport, connection: std::ptr::from_ref(peer).addr(), asked, slot_wait_ns }
}

/// Checks and returns the keys of a batch, packed or not.
fn keys_of(asked: GetManyRequest) -> Result<Vec<Key>, Status> {
    let many = |got: usize| {
        let message = format!("too many keys, ask in parts: got={got} max={GET_MANY_KEYS_MAX}");
        (got > GET_MANY_KEYS_MAX).then(|| Status::invalid_argument(message))
    };
    let GetManyRequest { keys: asked, packed_keys, .. } = asked;
    if !packed_keys.is_empty() {
        if !asked.is_empty() {
            return Err(Status::invalid_argument("give keys or packed_keys, not both"));
        }
        let (keys, rest) = packed_keys.as_chunks::<{ size_of::<Key>() }>();
        if !rest.is_empty() {
            let message = format!("packed_keys must be 32 bytes a key: got={}", packed_keys.len());
            return Err(Status::invalid_argument(message));
        }
        return many(keys.len()).map_or_else(|| Ok(keys.to_vec()), Err);
    }
    if let Some(refused) = many(asked.len()) {
        return Err(refused);
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
fn wrong_length(bytes: &[u8], at: &str) -> Status {
    let hint = match bytes.len() {
        33 => "; a base58 pubkey where JSON takes base64?",
        43 | 44 if bytes.is_ascii() => "; a base58 pubkey as text? give its 32 bytes",
        _ => "",
    };
    Status::invalid_argument(format!("key must be 32 bytes: got={}{at}{hint}", bytes.len()))
}

fn key(bytes: &[u8]) -> Option<Key> {
    bytes.try_into().ok()
}

fn wire(value: Value) -> Bytes {
    Bytes::copy_from_slice(&value)
}

fn status(error: LookupError) -> Status {
    let error = match error {
        LookupError::Busy => return Status::resource_exhausted("too many lookups are waiting, try again later"),
        LookupError::Stopped => return Status::unavailable("the service is shutting down"),
        LookupError::NotFollowed => {
            return Status::failed_precondition(
                "this service does not follow processed slots: ask at confirmed, or start it with processed = true",
            );
        }
        LookupError::Overflowed => {
            return Status::unavailable(
                "the overlay of processed slots is full and starts over: ask at confirmed, or try again later",
            );
        }
        LookupError::NotFinal => {
            return Status::unavailable(
                "no finalized answer yet: slots applied before or since the start are not final; ask at confirmed, or \
                 try again later",
            );
        }
        LookupError::Healing => return Status::unavailable(between_slots().to_string()),
        LookupError::Engine(error) => error,
    };
    tracing::error!(%error, kind = ?error.kind(), "a lookup failed");
    let message = error.to_string();
    match error.kind() {
        ErrorKind::Retry | ErrorKind::FreeSpace | ErrorKind::Reopen => Status::unavailable(message),
        ErrorKind::DataDamaged => Status::data_loss(message),
        // The request's input was checked before: if the engine refuses it now, the service is at fault.
        ErrorKind::FixInput | ErrorKind::Internal => Status::internal(message),
    }
}
