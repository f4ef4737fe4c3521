//! The gRPC transport: one connection, which is replaced when it breaks.
//!
//! Owns: the channel, its credentials, the retry of a read. Must not: interpret answers beyond their form.

pub(crate) mod stream;

mod codes;
mod credentials;

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use bytes::Bytes;
use futures::TryStreamExt as _;
use futures::stream::FuturesOrdered;
use prost::Message as _;
use proto::v1::kv_client::KvClient;
use proto::v1::{
    ChangesRequest, CountOfRequest, GET_MANY_KEYS_MAX, GetAtRequest, GetManyRequest, GetManyResponse, GetRequest,
    KeysOfRequest, StatusRequest,
};
use tokio::sync::Mutex;
use tokio::time::timeout_at;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Response, Status};

use self::codes::{is_broken, with_causes};
use self::credentials::Credentials;
use crate::backoff::Backoff;
use crate::error::{Error, Result};
use crate::{Answer, Builder, Changes, Key, KeysOf, Past, PastChange, Read, Value};

/// Number of batches of one `get_many` under way at once: enough that the service reads one while another is on the
/// wire. It is an eighth of the number that the service accepts from all its clients together.
const BATCHES_AHEAD: usize = 4;

/// Silence on a connection after which it sends an HTTP/2 ping. A service that has vanished silently is noticed after
/// this and [`KEEPALIVE_TIMEOUT`] together.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(30);
/// Longest wait for the answer to a ping; then the connection counts as broken.
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);

/// A channel, and the token that its calls carry.
pub(crate) struct Connection {
    channel: Channel,
    authorization: Option<MetadataValue<Ascii>>,
}

impl Connection {
    /// Returns the channel, and a request that carries the token, if there is one.
    pub(crate) fn call<M>(&self, message: M) -> (Channel, Request<M>) {
        let mut request = Request::new(message);
        if let Some(value) = &self.authorization {
            request.metadata_mut().insert("authorization", value.clone());
        }
        (self.channel.clone(), request)
    }
}

/// A connection that is replaced whenever it breaks.
pub(crate) struct Grpc {
    settings: Builder,
    current: ArcSwap<Connection>,
    /// Held while a new connection is made, so that several callers that saw the same break make only one.
    connecting: Mutex<()>,
}

impl Grpc {
    pub(crate) async fn connect(settings: Builder) -> Result<Self> {
        let limit = Instant::now() + settings.deadline;
        let first = dial(&settings, limit).await?;
        Ok(Self { settings, current: ArcSwap::from_pointee(first), connecting: Mutex::new(()) })
    }

    pub(crate) async fn get(&self, key: &Key, read: Read) -> Result<Answer<Option<Value>>> {
        let request = GetRequest {
            key: Bytes::copy_from_slice(key),
            commitment: read.commitment as i32,
            min_context_slot: read.min_context_slot,
            map: String::new(),
        };
        let send = |mut client: KvClient<Channel>, request| async move { client.get(request).await };
        let reply = self.call(request, read.deadline, send).await?;
        Ok(Answer { value: optional(reply.value.as_ref())?, slot: reply.slot })
    }

    /// Returns the values of any number of keys, in batches of which several are under way at once.
    pub(crate) async fn get_many(&self, keys: &[Key], read: Read) -> Result<Answer<Vec<Option<Value>>>> {
        if keys.len() <= GET_MANY_KEYS_MAX {
            return self.batch(keys, read).await;
        }
        let mut batches = keys.chunks(GET_MANY_KEYS_MAX);
        let mut under_way = FuturesOrdered::new();
        let (mut value, mut oldest) = (Vec::with_capacity(keys.len()), None::<Option<u64>>);
        loop {
            while under_way.len() < BATCHES_AHEAD
                && let Some(batch) = batches.next()
            {
                under_way.push_back(self.batch(batch, read));
            }
            let Some(next) = under_way.try_next().await? else {
                return Ok(Answer { value, slot: oldest.flatten() });
            };
            value.extend(next.value);
            oldest = Some(oldest.map_or(next.slot, |oldest| oldest.min(next.slot)));
        }
    }

    async fn batch(&self, keys: &[Key], read: Read) -> Result<Answer<Vec<Option<Value>>>> {
        let request = GetManyRequest {
            keys: Vec::new(),
            packed_keys: Bytes::copy_from_slice(keys.as_flattened()),
            commitment: read.commitment as i32,
            min_context_slot: read.min_context_slot,
            map: String::new(),
        };
        let send = |mut client: KvClient<Channel>, request| async move { client.get_many(request).await };
        let reply = self.call(request, read.deadline, send).await?;
        let value = unpack(&reply, keys.len())?;
        Ok(Answer { value, slot: reply.slot })
    }

    pub(crate) async fn keys_of(
        &self,
        value: &Value,
        cursor: Option<&[u8]>,
        limit: u32,
        read: Read,
    ) -> Result<Answer<KeysOf>> {
        let request = KeysOfRequest {
            value: Bytes::copy_from_slice(value),
            limit,
            cursor: cursor.map_or_else(Bytes::new, Bytes::copy_from_slice),
            commitment: read.commitment as i32,
            min_context_slot: read.min_context_slot,
            map: String::new(),
        };
        // The messages are taken together, so that a call that breaks between them is sent once more as a whole.
        let send = |mut client: KvClient<Channel>, request| async move {
            let messages = client.keys_of(request).await?.into_inner();
            Ok(Response::new(messages.try_collect::<Vec<_>>().await?))
        };
        let messages = self.call(request, read.deadline, send).await?;
        let Some(last) = messages.last() else {
            return Err(Error::failed("an answer without a message"));
        };
        let cursor = (!last.cursor.is_empty()).then(|| last.cursor.to_vec());
        let (mut keys, slot) = (Vec::new(), last.slot);
        for message in &messages {
            let (packed, rest) = message.packed_keys.as_chunks::<32>();
            if !rest.is_empty() || message.slot != slot {
                let bytes = message.packed_keys.len();
                return Err(Error::failed(format!(
                    "not an answer of keys: packed_keys={bytes} slot={:?}",
                    message.slot
                )));
            }
            keys.extend_from_slice(packed);
        }
        Ok(Answer { value: KeysOf { keys, cursor }, slot })
    }

    pub(crate) async fn count_of(&self, value: &Value, limit: u32, read: Read) -> Result<Answer<(u64, bool)>> {
        let request = CountOfRequest {
            value: Bytes::copy_from_slice(value),
            limit,
            commitment: read.commitment as i32,
            min_context_slot: read.min_context_slot,
            map: String::new(),
        };
        let send = |mut client: KvClient<Channel>, request| async move { client.count_of(request).await };
        let reply = self.call(request, read.deadline, send).await?;
        Ok(Answer { value: (reply.count, reply.has_more), slot: reply.slot })
    }

    pub(crate) async fn get_at(&self, key: &Key, slot: u64, read: Read) -> Result<Answer<Past>> {
        let request = GetAtRequest {
            key: Bytes::copy_from_slice(key),
            slot,
            commitment: read.commitment as i32,
            map: String::new(),
        };
        let send = |mut client: KvClient<Channel>, request| async move { client.get_at(request).await };
        let reply = self.call(request, read.deadline, send).await?;
        let past = Past { value: optional(reply.value.as_ref())?, until_slot: reply.until_slot };
        Ok(Answer { value: past, slot: reply.slot })
    }

    pub(crate) async fn changes(
        &self,
        key: &Key,
        cursor: Option<&[u8]>,
        limit: u32,
        read: Read,
    ) -> Result<Answer<Changes>> {
        let request = ChangesRequest {
            key: Bytes::copy_from_slice(key),
            limit,
            cursor: cursor.map_or_else(Bytes::new, Bytes::copy_from_slice),
            commitment: read.commitment as i32,
            min_context_slot: read.min_context_slot,
            map: String::new(),
        };
        let send = |mut client: KvClient<Channel>, request| async move { client.changes(request).await };
        let reply = self.call(request, read.deadline, send).await?;
        let change = |change: &proto::v1::PastChange| {
            let (before, after) = (optional(change.before.as_ref())?, optional(change.after.as_ref())?);
            Ok(PastChange { slot: change.slot, before, after })
        };
        let changes = reply.changes.iter().map(change).collect::<Result<_>>()?;
        let cursor = (!reply.cursor.is_empty()).then(|| reply.cursor.to_vec());
        Ok(Answer { value: Changes { changes, oldest_slot: reply.oldest_slot, cursor }, slot: reply.slot })
    }

    pub(crate) async fn status(&self, limit: Duration) -> Result<crate::Status> {
        let send = |mut client: KvClient<Channel>, request| async move { client.status(request).await };
        let reply = self.call(StatusRequest::default(), Instant::now() + limit, send).await?;
        // The bytes are those that shared memory carries: one decoder serves both.
        crate::Status::decode(&reply.encode_to_vec())
    }

    /// Returns the current connection, which may be broken.
    pub(crate) fn connection(&self) -> Arc<Connection> {
        self.current.load_full()
    }

    /// Sends a read. If the connection breaks, sends it once more over a new one. If the service refuses the token and
    /// the file now holds another, sends it once more with that token.
    async fn call<M: Clone, T, F>(
        &self,
        message: M,
        deadline: Instant,
        send: impl Fn(KvClient<Channel>, Request<M>) -> F,
    ) -> Result<T>
    where
        F: Future<Output = Result<Response<T>, Status>>,
    {
        let used = self.connection();
        let attempt = async |connection: &Connection| {
            let (channel, mut request) = connection.call(message.clone());
            // The service learns how long the client will wait for its answer.
            request.set_timeout(deadline.saturating_duration_since(Instant::now()));
            let answer = send(KvClient::new(channel), request);
            timeout_at(deadline.into(), answer).await.unwrap_or_else(|_| Err(Status::deadline_exceeded("")))
        };
        match attempt(&used).await {
            Err(status) if is_broken(&status) => {
                let connection = self.reconnect(&used, deadline).await?;
                attempt(&connection).await
            }
            Err(status) if status.code() == Code::Unauthenticated => match self.renew(&used).await? {
                Some(connection) => attempt(&connection).await,
                None => Err(status),
            },
            outcome => outcome,
        }
        .map(Response::into_inner)
        .map_err(|status| codes::of_call(&status))
    }

    /// Returns a connection with the token that the file holds now, after the service refused the token of `refused`.
    /// `None` if the file still holds that token.
    pub(crate) async fn renew(&self, refused: &Connection) -> Result<Option<Arc<Connection>>> {
        let authorization = credentials(&self.settings).await?.authorization;
        if authorization == refused.authorization {
            return Ok(None);
        }
        let renewed = Arc::new(Connection { channel: refused.channel.clone(), authorization });
        self.current.store(Arc::clone(&renewed));
        Ok(Some(renewed))
    }

    /// Returns a connection other than `broken`: one that another caller has made in the meantime, or a new one.
    ///
    /// # Errors
    /// The last attempt's error once `deadline` leaves no time for another; at once any error that another attempt
    /// cannot mend.
    pub(crate) async fn reconnect(&self, broken: &Arc<Connection>, deadline: Instant) -> Result<Arc<Connection>> {
        let Ok(_turn) = timeout_at(deadline.into(), self.connecting.lock()).await else {
            return Err(Error::deadline());
        };
        let current = self.connection();
        if !Arc::ptr_eq(&current, broken) {
            return Ok(current);
        }
        let mut backoff = Backoff::new();
        loop {
            match dial(&self.settings, deadline).await {
                Ok(connection) => {
                    let connection = Arc::new(connection);
                    self.current.store(Arc::clone(&connection));
                    return Ok(connection);
                }
                Err(error) => tokio::time::sleep(backoff.after(error, deadline)?).await,
            }
        }
    }
}

async fn credentials(settings: &Builder) -> Result<Credentials> {
    let own = settings.clone();
    let read = tokio::task::spawn_blocking(move || Credentials::read(&own)).await;
    read.map_err(|_| Error::failed("reading the credentials panicked"))?
}

/// Makes one attempt to connect. It succeeds once a call is answered, even with an error. An open socket proves too
/// little, because it may belong to a process that is about to end.
async fn dial(settings: &Builder, deadline: Instant) -> Result<Connection> {
    let Credentials { tls, authorization } = credentials(settings).await?;
    let address = &settings.address;
    let wrong = |what: &str, error: &tonic::transport::Error| {
        Error::bad_input(format!("{}: address={address}", with_causes(&format!("{what}: {error}"), error)))
    };
    let endpoint = Endpoint::from_shared(address.to_string()).map_err(|error| wrong("not an address", &error))?;
    let mut endpoint = endpoint.http2_keep_alive_interval(KEEPALIVE_INTERVAL).keep_alive_timeout(KEEPALIVE_TIMEOUT);
    if let Some(tls) = tls {
        endpoint = endpoint.tls_config(tls).map_err(|error| wrong("cannot use TLS", &error))?;
    }
    let broken = |error: &dyn std::error::Error| with_causes(&format!("cannot connect: {error}"), error);
    let why = match timeout_at(deadline.into(), endpoint.connect()).await {
        Ok(Ok(channel)) => {
            let connection = Connection { channel, authorization };
            let (channel, request) = connection.call(StatusRequest::default());
            match timeout_at(deadline.into(), KvClient::new(channel).status(request)).await {
                Ok(Err(status)) if is_broken(&status) => broken(&status),
                Ok(_) => return Ok(connection),
                Err(_) => "connected, but no answer within the deadline".to_owned(),
            }
        }
        Ok(Err(error)) => broken(&error),
        Err(_) => "cannot connect: no answer within the deadline".to_owned(),
    };
    Err(Error::unavailable(format!("{why}; is the service running? address={address}")))
}

fn optional(bytes: Option<&Bytes>) -> Result<Option<Value>> {
    bytes.map(|bytes| value_of(bytes)).transpose()
}

fn value_of(bytes: &[u8]) -> Result<Value> {
    bytes.try_into().map_err(|_| Error::failed(format!("a value must be 32 bytes: got={}", bytes.len())))
}

/// Returns the values in a packed answer to `keys` keys.
fn unpack(reply: &GetManyResponse, keys: usize) -> Result<Vec<Option<Value>>> {
    let (values, rest) = reply.packed_values.as_chunks::<32>();
    if values.len() != keys || !rest.is_empty() || reply.present.len() != keys.div_ceil(8) {
        let (bytes, bits) = (reply.packed_values.len(), reply.present.len());
        return Err(Error::failed(format!("not an answer to keys={keys}: packed_values={bytes} present={bits} bytes")));
    }
    let present = |index: usize| reply.present[index / 8] >> (index % 8) & 1 == 1;
    Ok(values.iter().enumerate().map(|(index, value)| present(index).then_some(*value)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_socket_that_is_not_there_is_told_once() {
        let settings = Builder::new("unix:///nowhere/kv.sock").unwrap();
        let error = dial(&settings, Instant::now() + Duration::from_secs(60)).await.err().unwrap().to_string();
        assert_eq!(error.matches("os error 2").count(), 1, "{error}");
    }

    #[test]
    fn a_packed_answer_must_fit_its_keys() {
        let reply = |values: usize, present: &'static [u8]| GetManyResponse {
            packed_values: vec![3; values].into(),
            present: Bytes::from_static(present),
            ..Default::default()
        };
        let found = unpack(&reply(9 * 32, &[0b101, 1]), 9).unwrap();
        let present: Vec<usize> = (0..9).filter(|index| found[*index] == Some([3; 32])).collect();
        assert_eq!((present, found[1]), (vec![0, 2, 8], None));
        for wrong in [reply(8 * 32, &[0, 0]), reply(9 * 32, &[0]), reply(9 * 32 + 1, &[0, 0]), reply(0, &[])] {
            assert_eq!(unpack(&wrong, 9).unwrap_err().kind(), crate::ErrorKind::Failed);
        }
        assert_eq!(unpack(&reply(0, &[]), 0).unwrap(), []);
    }
}
