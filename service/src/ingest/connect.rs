//! One connection to the Yellowstone server: made, subscribed, its pings answered, given up when silent.
//!
//! Owns: the client's settings, and what the end of a connection means. Must not: know what is done with an update, or
//! log the token. Runs on a receiver's task.

use std::time::{Duration, Instant};

use futures::StreamExt;
use tokio::time::{Interval, MissedTickBehavior, interval, timeout};
use tonic::transport::ClientTlsConfig;
use tonic::{Code, Status};
use tracing::{error, warn};
use yellowstone_grpc_client::{
    GeyserGrpcBuilder, GeyserGrpcBuilderError, GeyserGrpcClient, GeyserGrpcClientError, GeyserStream,
    SubscribeRequestSink,
};
use yellowstone_grpc_proto::geyser::subscribe_update::UpdateOneof;
use yellowstone_grpc_proto::geyser::{SubscribeRequest, SubscribeRequestPing, SubscribeUpdate};

use super::backoff::Backoff;
use super::receive::ReceiveConfig;
use crate::status::Gap;

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

/// A subscription that is open.
pub(crate) struct Connection {
    stream: GeyserStream,
    sink: SubscribeRequestSink,
    ticks: Interval,
    heard_at: Instant,
    heard: bool,
    idle_timeout: Duration,
    from_slot: Option<u64>,
}

/// What comes of a connection next.
#[expect(clippy::large_enum_variant, reason = "it lives for one turn of a loop, and a box would cost each update more")]
pub(crate) enum Next {
    /// An update; never a ping.
    Update(SubscribeUpdate),
    /// Half a second has passed.
    Tick,
}

/// Why a connection ended.
#[derive(Debug)]
pub(crate) enum Ended {
    /// Trying again is likely to help.
    Retry(String),
    /// Trying again helps only once somebody changed something.
    Refused(String),
    /// The server no longer has the slots.
    Gap(Gap),
    /// Nobody takes what is received.
    Closed,
}

impl Connection {
    /// Connects and subscribes. `from_slot` is the one in `request`: asked for first, where the server knows what it
    /// can replay.
    pub(crate) async fn open(
        config: &ReceiveConfig,
        request: SubscribeRequest,
        from_slot: Option<u64>,
    ) -> Result<Self, Ended> {
        let mut client = connect(config).await?;
        if let Some(from_slot) = from_slot {
            check_replay(&mut client, from_slot).await?;
        }
        let idle_timeout = config.idle_timeout;
        let (sink, stream) = timeout(idle_timeout.max(REQUEST_TIMEOUT), client.subscribe_with_request(Some(request)))
            .await
            .map_err(|_| Ended::Retry("the server does not answer the subscription".to_owned()))?
            .map_err(|error| client_ended(error, from_slot))?;
        // One timer for the connection: one for each update would cost more than the update.
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Ok(Self { stream, sink, ticks, heard_at: Instant::now(), heard: false, idle_timeout, from_slot })
    }

    /// Waits for an update or the next tick.
    pub(crate) async fn next(&mut self) -> Result<Next, Ended> {
        loop {
            let next = tokio::select! {
                biased;
                next = self.stream.next() => next,
                _ = self.ticks.tick() => {
                    if std::mem::take(&mut self.heard) {
                        self.heard_at = Instant::now();
                    }
                    if self.heard_at.elapsed() > self.idle_timeout {
                        let idle_ms = self.heard_at.elapsed().as_millis();
                        return Err(Ended::Retry(format!("no message for idle_ms={idle_ms}")));
                    }
                    return Ok(Next::Tick);
                }
            };
            let update = match next {
                None => return Err(Ended::Retry("the server closed the stream".to_owned())),
                Some(Err(status)) => return Err(status_ended(&status, self.from_slot)),
                Some(Ok(update)) => update,
            };
            self.heard = true;
            if !matches!(update.update_oneof, Some(UpdateOneof::Ping(_))) {
                return Ok(Next::Update(update));
            }
            pong(&mut self.sink).await?;
        }
    }
}

impl Ended {
    /// Logs why, and gives the wait before the next attempt; `None` when there is none to be made.
    pub(crate) fn log_and_wait(&self, url: &str, backoff: &mut Backoff) -> Option<Duration> {
        match self {
            Self::Closed => None,
            Self::Retry(why) => {
                let wait = backoff.next_wait();
                warn!(url, retry_ms = wait.as_millis() as u64, "stream ended: {why}");
                Some(wait)
            }
            Self::Refused(why) => {
                error!(url, retry_ms = SLOW_RETRY.as_millis() as u64, "{why}");
                Some(SLOW_RETRY)
            }
            Self::Gap(gap) => {
                error!(first_slot = gap.first_slot, last_slot = gap.last_slot, "gap: {}", gap.detail);
                Some(SLOW_RETRY)
            }
        }
    }
}

async fn connect(config: &ReceiveConfig) -> Result<GeyserGrpcClient, Ended> {
    let builder = builder(config).map_err(|error| {
        // The token's own error does not hold the token.
        Ended::Refused(format!("cannot use the stream's settings: url={}: {error}", config.url))
    })?;
    builder.connect().await.map_err(|error| Ended::Retry(format!("cannot connect: {}", chain(&error))))
}

fn builder(config: &ReceiveConfig) -> Result<GeyserGrpcBuilder, GeyserGrpcBuilderError> {
    let builder = GeyserGrpcBuilder::from_shared(config.url.clone())?
        .x_token(config.x_token.as_deref())?
        .connect_timeout(CONNECT_TIMEOUT)
        .http2_adaptive_window(true)
        .http2_keep_alive_interval(KEEP_ALIVE_INTERVAL)
        .keep_alive_timeout(KEEP_ALIVE_TIMEOUT)
        .keep_alive_while_idle(true)
        .tcp_nodelay(true)
        .buffer_size(CLIENT_BUFFER_REQUESTS)
        .max_decoding_message_size(MESSAGE_MAX_BYTES);
    if config.url.starts_with("https://") {
        return builder.tls_config(ClientTlsConfig::new().with_native_roots());
    }
    Ok(builder)
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
}
