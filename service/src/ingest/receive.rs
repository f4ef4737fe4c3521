//! Receives the stream: connects, subscribes, answers pings, and hands compact inputs on in batches.
//!
//! Owns: the connection, when to give it up and when to try again. Must not: block the runtime, keep updates beyond
//! one batch, or log the token. Runs as one task on the tokio runtime; the ingest-apply thread has the channel's other
//! end.
//!
//! Backpressure: a full channel leaves the socket unread, so the server's own queue is what fills.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use futures::StreamExt;
use tokio::sync::{mpsc, watch};
use tokio::time::{MissedTickBehavior, interval, timeout};
use tonic::transport::ClientTlsConfig;
use tonic::{Code, Status};
use tracing::{error, info, warn};
use yellowstone_grpc_client::{
    GeyserGrpcBuilder, GeyserGrpcBuilderError, GeyserGrpcClient, GeyserGrpcClientError, SubscribeRequestSink,
};
use yellowstone_grpc_proto::geyser::subscribe_update::UpdateOneof;
use yellowstone_grpc_proto::geyser::{SubscribeRequest, SubscribeRequestPing, SubscribeUpdate};

use super::assemble::Input;
use super::backoff::Backoff;
use super::convert::{Converted, convert};
use super::extract::Extract;
use super::subscribe::{Commitment, request};
use crate::status::{Gap, Shared, count};

/// Batches in the channel between the receiver and ingest-apply: with [`BATCH_INPUTS`] about 260 thousand updates or
/// 40 MiB at most, a few seconds at full rate, so that a commit does not stop the socket; more only adds lag.
pub const QUEUE_BATCHES: usize = 256;

/// Inputs in one batch: enough to make the channel's cost per update vanish.
pub const BATCH_INPUTS: usize = 1024;

/// The largest message taken in: an account is at most 10 MiB, and a server may not honour the slice.
const MESSAGE_MAX_BYTES: usize = 64 << 20;

/// Requests waiting inside the client's channel before its buffer pushes back; only pings and one subscription.
const CLIENT_BUFFER_REQUESTS: usize = 64;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// How long the server may take over one request that is not the stream itself.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(10);
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(10);

/// How often a quiet stream is looked at: the resolution of every timeout of the ingest.
const TICK: Duration = Duration::from_millis(500);

/// Wait before trying again what only a person can put right: a token, a filter, a gap.
const SLOW_RETRY: Duration = Duration::from_secs(30);

/// Where from, and what.
#[derive(Clone)]
pub struct ReceiveConfig {
    /// `http://` or `https://` URL of the Yellowstone server.
    pub url: String,
    /// Sent as `x-token`. Never logged.
    pub x_token: Option<String>,
    /// What to subscribe to.
    pub extract: Extract,
    /// When a slot is taken in.
    pub commitment: Commitment,
    /// Without any message, pings included, for this long the connection is given up.
    pub idle_timeout: Duration,
}

impl std::fmt::Debug for ReceiveConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReceiveConfig")
            .field("url", &self.url)
            .field("x_token", &self.x_token.as_ref().map(|_| "(hidden)"))
            .field("extract", &self.extract)
            .field("commitment", &self.commitment)
            .field("idle_timeout", &self.idle_timeout)
            .finish()
    }
}

/// What the receiver hands on.
#[derive(Debug)]
pub enum Message {
    /// Inputs in the order they arrived; never empty.
    Batch(Vec<Input>),
    /// A new connection follows: the assembler has to be told [`Input::Reconnected`].
    Reconnected,
    /// Nothing arrived for a while, although connected: time to look at what waits.
    Tick,
    /// The server says that it cannot send these slots.
    Gap(Gap),
}

/// Receives until `stop` turns true, its sender is gone, or the channel's other end is gone.
///
/// A connection starts over from [`Shared::resume_slot`].
pub async fn receive(
    config: ReceiveConfig,
    tx: mpsc::Sender<Message>,
    shared: Arc<Shared>,
    mut stop: watch::Receiver<bool>,
) {
    let receiver = Receiver { config, tx, shared };
    tokio::select! {
        () = receiver.run() => {}
        // An error is the sender's end, which means stop as well.
        _ = stop.wait_for(|stop| *stop) => {}
    }
    // ORDERING: Relaxed: a statistic.
    receiver.shared.connected.store(false, Ordering::Relaxed);
}

struct Receiver {
    config: ReceiveConfig,
    tx: mpsc::Sender<Message>,
    shared: Arc<Shared>,
}

/// Why a connection ended.
#[derive(Debug)]
enum Ended {
    /// Trying again is likely to help.
    Retry(String),
    /// Trying again helps only once somebody changed something.
    Refused(String),
    /// The server no longer has the slots.
    Gap(Gap),
    /// Nobody takes what is received.
    Closed,
}

impl Receiver {
    async fn run(&self) {
        let mut backoff = Backoff::new();
        loop {
            let mut heard_slot = false;
            let from_slot = self.shared.resume_slot();
            let ended = self.follow(from_slot, &mut heard_slot).await;
            // ORDERING: Relaxed: a statistic.
            self.shared.connected.store(false, Ordering::Relaxed);
            if heard_slot {
                backoff.reset();
            }
            let wait = match ended {
                Ended::Closed => return,
                Ended::Retry(why) => {
                    let wait = backoff.next_wait();
                    warn!(url = %self.config.url, retry_ms = wait.as_millis() as u64, "stream ended: {why}");
                    wait
                }
                Ended::Refused(why) => {
                    error!(url = %self.config.url, retry_ms = SLOW_RETRY.as_millis() as u64, "{why}");
                    SLOW_RETRY
                }
                Ended::Gap(gap) => {
                    error!(first_slot = gap.first_slot, last_slot = gap.last_slot, "gap: {}", gap.detail);
                    if self.tx.send(Message::Gap(gap)).await.is_err() {
                        return;
                    }
                    SLOW_RETRY
                }
            };
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                () = self.tx.closed() => return,
            }
        }
    }

    /// One connection, from the first byte to its end.
    async fn follow(&self, from_slot: Option<u64>, heard_slot: &mut bool) -> Ended {
        match self.try_follow(from_slot, heard_slot).await {
            Err(ended) => ended,
            Ok(never) => match never {},
        }
    }

    async fn try_follow(
        &self,
        from_slot: Option<u64>,
        heard_slot: &mut bool,
    ) -> Result<std::convert::Infallible, Ended> {
        let mut client = self.connect().await?;
        if let Some(from_slot) = from_slot {
            check_replay(&mut client, from_slot).await?;
        }
        let subscription = request(self.config.extract, self.config.commitment, from_slot);
        let (mut sink, mut stream) =
            timeout(self.config.idle_timeout.max(REQUEST_TIMEOUT), client.subscribe_with_request(Some(subscription)))
                .await
                .map_err(|_| Ended::Retry("the server does not answer the subscription".to_owned()))?
                .map_err(|error| client_ended(error, from_slot))?;
        self.send(Message::Reconnected).await?;
        // ORDERING: Relaxed: a statistic.
        self.shared.connected.store(true, Ordering::Relaxed);
        count(&self.shared.counters.connects, 1);
        info!(url = %self.config.url, from_slot, "subscribed");

        let mut batch = Vec::with_capacity(BATCH_INPUTS);
        // One timer for the connection: one for each update would cost more than the update.
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut heard_at = Instant::now();
        let mut heard = false;
        loop {
            let next = tokio::select! {
                biased;
                next = stream.next() => next,
                _ = ticks.tick() => {
                    if std::mem::take(&mut heard) {
                        heard_at = Instant::now();
                    }
                    if heard_at.elapsed() > self.config.idle_timeout {
                        let idle_ms = heard_at.elapsed().as_millis();
                        return Err(Ended::Retry(format!("no message for idle_ms={idle_ms}")));
                    }
                    self.send(Message::Tick).await?;
                    continue;
                }
            };
            let update = match next {
                None => return Err(Ended::Retry("the server closed the stream".to_owned())),
                Some(Err(status)) => return Err(status_ended(&status, from_slot)),
                Some(Ok(update)) => update,
            };
            heard = true;
            *heard_slot |= self.take(update, &mut batch, &mut sink).await?;
        }
    }

    /// Takes one update in; true when it ends a slot or says something about one.
    async fn take(
        &self,
        update: SubscribeUpdate,
        batch: &mut Vec<Input>,
        sink: &mut SubscribeRequestSink,
    ) -> Result<bool, Ended> {
        count(&self.shared.counters.updates_received, 1);
        if matches!(update.update_oneof, Some(UpdateOneof::Ping(_))) {
            pong(sink).await?;
            return Ok(false);
        }
        let (input, boundary) = match convert(self.config.extract, self.config.commitment, update) {
            Ok(Converted::Nothing) => return Ok(false),
            Ok(Converted::Account(input)) => (input, false),
            Ok(Converted::Boundary(input)) => {
                self.heard_of(&input);
                (input, true)
            }
            Err(malformed) => {
                count(&self.shared.counters.updates_malformed, 1);
                // Skipping it would leave the map wrong without a word.
                return Err(Ended::Gap(Gap {
                    first_slot: malformed.slot,
                    last_slot: malformed.slot,
                    detail: malformed.detail,
                }));
            }
        };
        batch.push(input);
        if boundary || batch.len() == BATCH_INPUTS {
            self.send(Message::Batch(std::mem::replace(batch, Vec::with_capacity(BATCH_INPUTS)))).await?;
        }
        Ok(boundary)
    }

    fn heard_of(&self, input: &Input) {
        if let Input::BlockMeta { slot, .. } | Input::Status { slot, confirmed: true, .. } = input {
            // ORDERING: Relaxed: a statistic.
            self.shared.newest_slot.fetch_max(*slot, Ordering::Relaxed);
        }
    }

    async fn send(&self, message: Message) -> Result<(), Ended> {
        self.tx.send(message).await.map_err(|_| Ended::Closed)?;
        let queued = self.tx.max_capacity() - self.tx.capacity();
        // ORDERING: Relaxed: a statistic.
        self.shared.queue_batches.store(queued as u64, Ordering::Relaxed);
        Ok(())
    }

    async fn connect(&self) -> Result<GeyserGrpcClient, Ended> {
        let builder = self.builder().map_err(|error| {
            // The token's own error does not hold the token.
            Ended::Refused(format!("cannot use the stream's settings: url={}: {error}", self.config.url))
        })?;
        builder.connect().await.map_err(|error| Ended::Retry(format!("cannot connect: {}", chain(&error))))
    }

    fn builder(&self) -> Result<GeyserGrpcBuilder, GeyserGrpcBuilderError> {
        let builder = GeyserGrpcBuilder::from_shared(self.config.url.clone())?
            .x_token(self.config.x_token.as_deref())?
            .connect_timeout(CONNECT_TIMEOUT)
            .http2_adaptive_window(true)
            .http2_keep_alive_interval(KEEP_ALIVE_INTERVAL)
            .keep_alive_timeout(KEEP_ALIVE_TIMEOUT)
            .keep_alive_while_idle(true)
            .tcp_nodelay(true)
            .buffer_size(CLIENT_BUFFER_REQUESTS)
            .max_decoding_message_size(MESSAGE_MAX_BYTES);
        if self.config.url.starts_with("https://") {
            return builder.tls_config(ClientTlsConfig::new().with_native_roots());
        }
        Ok(builder)
    }
}

/// Asks what the server can still replay, where it knows this request.
async fn check_replay(client: &mut GeyserGrpcClient, from_slot: u64) -> Result<(), Ended> {
    let reply = timeout(REQUEST_TIMEOUT, client.subscribe_replay_info())
        .await
        .map_err(|_| Ended::Retry("the server does not answer a replay info request".to_owned()))?;
    match reply {
        Ok(info) => match info.first_available {
            Some(first) if first > from_slot => Err(Ended::Gap(not_available(from_slot, first))),
            _ => Ok(()),
        },
        // Older servers do not know the request: the subscription itself will tell.
        Err(GeyserGrpcClientError::TonicStatus(status)) if status.code() == Code::Unimplemented => Ok(()),
        Err(error) => Err(client_ended(error, Some(from_slot))),
    }
}

async fn pong(sink: &mut SubscribeRequestSink) -> Result<(), Ended> {
    // A request with a ping changes nothing of the subscription. Unanswered pings let load balancers drop the stream.
    let request = SubscribeRequest { ping: Some(SubscribeRequestPing { id: 1 }), ..Default::default() };
    futures::SinkExt::send(sink, request).await.map_err(|error| Ended::Retry(format!("cannot answer a ping: {error}")))
}

fn not_available(from_slot: u64, first_available: u64) -> Gap {
    Gap {
        // The slot asked for is applied already; what is missing starts behind it.
        first_slot: from_slot.saturating_add(1),
        last_slot: first_available.saturating_sub(1).max(from_slot.saturating_add(1)),
        detail: format!(
            "the server cannot replay from_slot={from_slot}: first_available={first_available}; load a newer snapshot"
        ),
    }
}

fn client_ended(error: GeyserGrpcClientError, from_slot: Option<u64>) -> Ended {
    match error {
        GeyserGrpcClientError::TonicStatus(status) => status_ended(&status, from_slot),
        GeyserGrpcClientError::TransportError(error) => Ended::Retry(chain(&error)),
    }
}

fn status_ended(status: &Status, from_slot: Option<u64>) -> Ended {
    let (code, message) = (status.code(), status.message());
    match code {
        // The same code also says that a message was too large, which is no gap.
        Code::OutOfRange if message.contains("broadcast from") => {
            let from_slot = from_slot.unwrap_or(0);
            let first_available = last_number(message).unwrap_or(from_slot);
            let mut gap = not_available(from_slot, first_available);
            gap.detail = format!("{}: {message}", gap.detail);
            Ended::Gap(gap)
        }
        Code::Unauthenticated | Code::PermissionDenied => Ended::Refused(format!(
            "the server refuses the token: code={code:?} message={message:?}; check x-token-file"
        )),
        Code::InvalidArgument | Code::Unimplemented => Ended::Refused(format!(
            "the server refuses the subscription: code={code:?} message={message:?}; it has to allow the filters of \
             this extraction"
        )),
        Code::OutOfRange => Ended::Refused(format!("the stream cannot be read: message={message:?}")),
        _ => Ended::Retry(format!("code={code:?} message={message:?}")),
    }
}

fn last_number(text: &str) -> Option<u64> {
    text.rsplit(|c: char| !c.is_ascii_digit()).find(|digits| !digits.is_empty())?.parse().ok()
}

/// The error with its causes: the transport's own text is only "transport error".
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        text = format!("{text}: {cause}");
        next = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_old_is_a_gap_and_too_large_is_not() {
        let status = Status::out_of_range("broadcast from 100 is not available, last available: 250");
        let Ended::Gap(gap) = status_ended(&status, Some(100)) else { panic!("a gap") };
        assert_eq!((gap.first_slot, gap.last_slot), (101, 249));
        let status = Status::out_of_range("decoded message length too large: found 9, limit 8");
        assert!(matches!(status_ended(&status, Some(100)), Ended::Refused(_)));
    }

    #[test]
    fn what_a_person_must_put_right_is_told_from_what_passes() {
        for status in [Status::unauthenticated("no"), Status::permission_denied("no"), Status::invalid_argument("no")] {
            assert!(matches!(status_ended(&status, None), Ended::Refused(_)), "{status}");
        }
        for status in [
            Status::internal("failed to get replay response"),
            Status::internal("lagged to send an update"),
            Status::unavailable("server is shutting down try again later"),
        ] {
            assert!(matches!(status_ended(&status, Some(3)), Ended::Retry(_)), "{status}");
        }
    }

    #[test]
    fn the_token_is_not_printed() {
        let config = ReceiveConfig {
            url: "http://localhost".to_owned(),
            x_token: Some("hunter2".to_owned()),
            extract: Extract::TokenMint,
            commitment: Commitment::Confirmed,
            idle_timeout: Duration::from_secs(1),
        };
        assert!(!format!("{config:?}").contains("hunter2"));
    }
}
