//! One connection to the Yellowstone server: made, subscribed, its pings answered, given up when silent.
//!
//! Owns: what the end of a connection means. Must not: know what is done with an update, or whether there is a network.
//! Runs on a receiver's task. Its clock is tokio's, which the simulation turns.

use std::time::Duration;

use futures::{SinkExt, StreamExt};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval, timeout};
use tonic::{Code, Status};
use tracing::{error, warn};
use yellowstone_grpc_client::GeyserGrpcClientError;
use yellowstone_grpc_proto::geyser::subscribe_update::UpdateOneof;
use yellowstone_grpc_proto::geyser::{SubscribeRequest, SubscribeRequestPing, SubscribeUpdate};

use super::backoff::Backoff;
use super::upstream::{Client, Upstream, chain};
use crate::status::Gap;

/// How long the server may take over one request that is not the stream itself.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// How often a quiet stream is looked at: the resolution of every timeout of the ingest.
const TICK: Duration = Duration::from_millis(500);

/// Wait before trying again what only a person can put right: a token, a filter, a gap.
const SLOW_RETRY: Duration = Duration::from_secs(30);

/// A subscription that is open.
pub(crate) struct Connection<C: Client> {
    updates: C::Updates,
    requests: C::Requests,
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

impl<C: Client> Connection<C> {
    /// Connects and subscribes. `from_slot` is the one in `request`: asked for first, where the server knows what it
    /// can replay.
    pub(crate) async fn open(
        upstream: &impl Upstream<Client = C>,
        idle_timeout: Duration,
        request: SubscribeRequest,
        from_slot: Option<u64>,
    ) -> Result<Self, Ended> {
        let mut client = upstream.connect().await?;
        if let Some(from_slot) = from_slot {
            check_replay(&mut client, from_slot).await?;
        }
        let (requests, updates) = timeout(idle_timeout.max(REQUEST_TIMEOUT), client.subscribe(request))
            .await
            .map_err(|_| Ended::Retry("the server does not answer the subscription".to_owned()))?
            .map_err(|error| client_ended(error, from_slot))?;
        // One timer for the connection: one for each update would cost more than the update.
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Ok(Self { updates, requests, ticks, heard_at: Instant::now(), heard: false, idle_timeout, from_slot })
    }

    /// Waits for an update or the next tick.
    pub(crate) async fn next(&mut self) -> Result<Next, Ended> {
        loop {
            let next = tokio::select! {
                biased;
                next = self.updates.next() => next,
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
            self.pong().await?;
        }
    }

    async fn pong(&mut self) -> Result<(), Ended> {
        // A request with a ping changes nothing of the subscription. Unanswered pings let load balancers drop the stream.
        let request = SubscribeRequest { ping: Some(SubscribeRequestPing { id: 1 }), ..Default::default() };
        self.requests.send(request).await.map_err(|error| Ended::Retry(format!("cannot answer a ping: {error}")))
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

/// Asks what the server can still replay, where it knows this request.
async fn check_replay(client: &mut impl Client, from_slot: u64) -> Result<(), Ended> {
    let reply = timeout(REQUEST_TIMEOUT, client.first_available())
        .await
        .map_err(|_| Ended::Retry("the server does not answer a replay info request".to_owned()))?;
    match reply {
        Ok(Some(first)) if first > from_slot => Err(Ended::Gap(not_available(from_slot, first))),
        Ok(_) => Ok(()),
        // Older servers do not know the request: the subscription itself will tell.
        Err(GeyserGrpcClientError::TonicStatus(status)) if status.code() == Code::Unimplemented => Ok(()),
        Err(error) => Err(client_ended(error, Some(from_slot))),
    }
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
