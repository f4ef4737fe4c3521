//! One connection to the Yellowstone server: made, subscribed, its pings answered, given up when no slot comes.
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

use super::backoff::Waits;
use super::upstream::{Client, Upstream, chain};
use crate::chain::{Gap, SLOT_END};

/// How long the server may take over one request that is not the stream itself.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// How often a quiet stream is looked at: the resolution of every timeout of the ingest.
const TICK: Duration = Duration::from_millis(500);

/// Wait before trying again what only a person can put right: a token, a filter.
const SLOW_RETRY: Duration = Duration::from_secs(30);

/// A subscription that is open.
pub(crate) struct Connection<C: Client> {
    updates: C::Updates,
    requests: C::Requests,
    ticks: Interval,
    /// When the last tick was.
    ticked_at: Instant,
    /// How long there was no [progress](Self::progressed). Only time in which this connection was read counts: a
    /// receiver that is held up by a full queue is no silence of the server.
    idle: Duration,
    idle_timeout: Duration,
    /// Something of a slot was heard on this connection.
    heard: bool,
    terms: Terms,
}

/// What the words of a server are read with.
#[derive(Clone, Copy, Debug)]
struct Terms {
    /// The slot that the store stands at.
    applied: Option<u64>,
    /// A token is sent.
    token: bool,
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
    /// The server is there and brings no slot that can be applied; `heard`: it tells of slots all the same.
    Idle { why: String, heard: bool },
    /// Trying again helps only once somebody changed something.
    Refused(String),
    /// The server no longer has the slots, or one of its messages cannot be read.
    Gap(Gap),
    /// What the server can send again begins right after the slot that was asked for: ask for this one.
    BeginsAt(u64),
    /// ingest-apply has seen a gap on this connection.
    GivenUp,
    /// There are new credentials.
    Renewed,
    /// Nobody takes what is received.
    Closed,
}

impl<C: Client> Connection<C> {
    /// Connects and subscribes. `applied` is the slot that the store stands at, which `request` asks to begin with; the
    /// server is asked first from where it can. One that begins right after that slot is asked for the next one: the
    /// assembler compares its parent with what was applied.
    pub(crate) async fn open(
        upstream: &impl Upstream<Client = C>,
        idle_timeout: Duration,
        mut request: SubscribeRequest,
        applied: Option<u64>,
    ) -> Result<Self, Ended> {
        let terms = Terms { applied, token: upstream.has_token() };
        let mut client = upstream.connect().await?;
        if let Some(from_slot) = request.from_slot {
            request.from_slot = Some(check_replay(&mut client, from_slot, applied).await?);
        }
        let (requests, updates) = timeout(idle_timeout.max(REQUEST_TIMEOUT), client.subscribe(request))
            .await
            .map_err(|_| Ended::Retry("the server does not answer the subscription".to_owned()))?
            .map_err(|error| client_ended(error, terms))?;
        // One timer for the connection: one for each update would cost more than the update.
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (ticked_at, idle) = (Instant::now(), Duration::ZERO);
        Ok(Self { updates, requests, ticks, ticked_at, idle, idle_timeout, heard: false, terms })
    }

    /// What was read last says something of a slot.
    pub(crate) fn heard_of_a_slot(&mut self) {
        self.heard = true;
    }

    /// What was read last is of use: a slot was applied, or can be. Nobody is served by a server that sends pings, old
    /// slots again, or parts of slots of which none becomes whole.
    pub(crate) fn progressed(&mut self) {
        self.idle = Duration::ZERO;
    }

    fn idle_ended(&self) -> Ended {
        let (idle_ms, heard) = (self.idle.as_millis(), self.heard);
        let sent = if heard { "no slot that can be applied" } else { "no slot" };
        Ended::Idle { why: format!("the server is there and sent {sent} for idle_ms={idle_ms}"), heard }
    }

    /// Waits for an update or the next tick.
    pub(crate) async fn next(&mut self) -> Result<Next, Ended> {
        loop {
            let next = tokio::select! {
                biased;
                next = self.updates.next() => next,
                _ = self.ticks.tick() => {
                    let now = Instant::now();
                    self.idle += now.duration_since(self.ticked_at).min(2 * TICK);
                    self.ticked_at = now;
                    if self.idle > self.idle_timeout {
                        return Err(self.idle_ended());
                    }
                    return Ok(Next::Tick);
                }
            };
            let update = match next {
                None => return Err(Ended::Retry("the server closed the stream".to_owned())),
                Some(Err(status)) => return Err(status_ended(&status, self.terms)),
                Some(Ok(update)) => update,
            };
            if !matches!(update.update_oneof, Some(UpdateOneof::Ping(_))) {
                return Ok(Next::Update(update));
            }
            self.pong().await?;
        }
    }

    async fn pong(&mut self) -> Result<(), Ended> {
        // A request with a ping changes nothing of the subscription. Unanswered pings let load balancers drop the stream.
        let request = SubscribeRequest { ping: Some(SubscribeRequestPing { id: 1 }), ..Default::default() };
        let Err(error) = self.requests.send(request).await else { return Ok(()) };
        // The server has ended the stream, and says why after all that it had sent before.
        let last_word = async {
            while let Some(update) = self.updates.next().await {
                if let Err(status) = update {
                    return Some(status);
                }
            }
            None
        };
        let last_word = timeout(TICK, last_word).await.ok().flatten();
        Err(last_word.map_or_else(
            || Ended::Retry(format!("cannot answer a ping: {error}")),
            |status| status_ended(&status, self.terms),
        ))
    }
}

impl Ended {
    /// Why the stream brings nothing now, unless it is that slots are missing.
    pub(crate) fn trouble(&self) -> Option<&str> {
        match self {
            Self::Retry(why) | Self::Refused(why) | Self::Idle { why, .. } => Some(why),
            Self::Gap(_) | Self::BeginsAt(_) | Self::GivenUp | Self::Renewed | Self::Closed => None,
        }
    }

    /// The same in words that `mask` has taken secrets out of: a server may quote what it was sent.
    pub(crate) fn masked(self, mask: impl Fn(&str) -> String) -> Self {
        match self {
            Self::Retry(why) => Self::Retry(mask(&why)),
            Self::Refused(why) => Self::Refused(mask(&why)),
            Self::Idle { why, heard } => Self::Idle { why: mask(&why), heard },
            Self::Gap(gap) => Self::Gap(Gap { detail: mask(&gap.detail), ..gap }),
            Self::BeginsAt(_) | Self::GivenUp | Self::Renewed | Self::Closed => self,
        }
    }

    /// Logs why, and gives the wait before the next attempt; `None` when there is none to be made.
    pub(crate) fn log_and_wait(&self, url: &str, waits: &mut Waits) -> Option<Duration> {
        match self {
            Self::Closed => None,
            Self::BeginsAt(_) | Self::Renewed => Some(Duration::ZERO),
            Self::Retry(why) | Self::Idle { why, .. } => {
                // A server that sends what is of no use is asked as rarely as one that lacks a slot.
                let useless = matches!(self, Self::Idle { heard: true, .. });
                let wait = if useless { waits.gap.next_wait() } else { waits.broken.next_wait() };
                warn!(url, retry_ms = wait.as_millis() as u64, "stream ended: {why}");
                Some(wait)
            }
            Self::Refused(why) => {
                error!(url, retry_ms = SLOW_RETRY.as_millis() as u64, "{why}");
                Some(SLOW_RETRY)
            }
            // ingest-apply tells of it.
            Self::Gap(_) | Self::GivenUp => {
                let wait = waits.gap.next_wait();
                warn!(url, retry_ms = wait.as_millis() as u64, "the next connection is asked for the missing slots");
                Some(wait)
            }
        }
    }
}

/// Asks what the server can still replay. Gives the slot to begin with: `from_slot`, or the one after it where the
/// server's slots begin there and `from_slot` is applied.
async fn check_replay(client: &mut impl Client, from_slot: u64, applied: Option<u64>) -> Result<u64, Ended> {
    match timeout(REQUEST_TIMEOUT, client.first_available()).await {
        Ok(Ok(Some(first))) if first > from_slot => match not_available(applied.unwrap_or(from_slot), first) {
            Ended::BeginsAt(next) => Ok(next),
            ended => Err(ended),
        },
        Ok(Ok(_)) => Ok(from_slot),
        Ok(Err(GeyserGrpcClientError::TransportError(error))) => Err(Ended::Retry(chain(&error))),
        // Servers need not know this request, nor allow it or answer it: the subscription itself will tell.
        Ok(Err(GeyserGrpcClientError::TonicStatus(_))) | Err(_) => Ok(from_slot),
    }
}

/// A server that has `first_available` as its oldest slot was asked for more, by a store that stands at `applied`.
fn not_available(applied: u64, first_available: u64) -> Ended {
    if first_available >= SLOT_END {
        return Ended::Retry("the server has just started and has no slots to send again yet".to_owned());
    }
    let missing = applied.saturating_add(1);
    if first_available == missing {
        return Ended::BeginsAt(missing);
    }
    Ended::Gap(Gap {
        first_slot: missing,
        last_slot: first_available.saturating_sub(1).max(missing),
        detail: format!(
            "the server cannot replay from slot={applied}: first_available={first_available}; unless another server \
             behind this URL has the slots, load a newer snapshot"
        ),
    })
}

fn client_ended(error: GeyserGrpcClientError, terms: Terms) -> Ended {
    match error {
        GeyserGrpcClientError::TonicStatus(status) => status_ended(&status, terms),
        GeyserGrpcClientError::TransportError(error) => Ended::Retry(chain(&error)),
    }
}

fn status_ended(status: &Status, Terms { applied, token }: Terms) -> Ended {
    let (code, message) = (status.code(), status.message());
    match code {
        // The same code also says that a message was too large, which is no gap.
        Code::OutOfRange if message.contains("broadcast from") => {
            let applied = applied.unwrap_or(0);
            match not_available(applied, last_number(message).unwrap_or(applied)) {
                Ended::Gap(gap) => Ended::Gap(Gap { detail: format!("{}: {message:?}", gap.detail), ..gap }),
                ended => ended,
            }
        }
        Code::Internal if message.contains("from_slot is not supported") => Ended::Refused(format!(
            "the server keeps no slots to send again: message={message:?}; it needs replay_stored_slots of 150 or more"
        )),
        Code::Unauthenticated if token => Ended::Refused(format!(
            "the server refuses the token: code={code:?} message={message:?}; check x-token-file"
        )),
        Code::Unauthenticated => Ended::Refused(format!(
            "the server asks for a token: code={code:?} message={message:?}; give one in x-token-file"
        )),
        Code::PermissionDenied => {
            let token = if token { "; if it means the token, check x-token-file" } else { "" };
            Ended::Refused(format!("the server does not allow this: code={code:?} message={message:?}{token}"))
        }
        Code::InvalidArgument | Code::Unimplemented => Ended::Refused(format!(
            "the server refuses the subscription: code={code:?} message={message:?}; it has to allow the filters of \
             this extraction; where it allows no subscription to all accounts, or few data slices, see follow in --help"
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

    fn at(applied: Option<u64>) -> Terms {
        Terms { applied, token: true }
    }

    #[test]
    fn too_old_is_a_gap_and_too_large_is_not() {
        let status = Status::out_of_range("broadcast from 100 is not available, last available: 250");
        let Ended::Gap(gap) = status_ended(&status, at(Some(100))) else { panic!("a gap") };
        assert_eq!((gap.first_slot, gap.last_slot), (101, 249));
        let status = Status::out_of_range("decoded message length too large: found 9, limit 8");
        assert!(matches!(status_ended(&status, at(Some(100))), Ended::Refused(_)));
    }

    #[test]
    fn slots_that_begin_right_after_the_applied_one_are_no_gap() {
        assert!(matches!(not_available(100, 101), Ended::BeginsAt(101)));
        let status = Status::out_of_range("broadcast from 100 is not available, last available: 101");
        assert!(matches!(status_ended(&status, at(Some(100))), Ended::BeginsAt(101)));
        let Ended::Gap(gap) = not_available(100, 102) else { panic!("a gap") };
        assert_eq!((gap.first_slot, gap.last_slot), (101, 101));
    }

    #[test]
    fn a_server_that_has_just_started_has_no_gap() {
        for first_available in [u64::MAX, u64::MAX - 1, SLOT_END] {
            assert!(matches!(not_available(100, first_available), Ended::Retry(_)), "{first_available}");
        }
        let status = Status::out_of_range(format!("broadcast from 100 is not available, last available: {}", u64::MAX));
        assert!(matches!(status_ended(&status, at(Some(100))), Ended::Retry(_)));
    }

    #[test]
    fn what_a_person_must_put_right_is_told_from_what_passes() {
        for status in [
            Status::unauthenticated("no"),
            Status::permission_denied("no"),
            Status::invalid_argument("no"),
            Status::internal("from_slot is not supported"),
        ] {
            assert!(matches!(status_ended(&status, at(None)), Ended::Refused(_)), "{status}");
        }
        for status in [
            Status::internal("failed to get replay response"),
            Status::internal("lagged to send an update"),
            Status::unavailable("server is shutting down try again later"),
        ] {
            assert!(matches!(status_ended(&status, at(Some(3))), Ended::Retry(_)), "{status}");
        }
    }

    #[test]
    fn the_token_is_named_only_where_it_can_be_the_reason() {
        let words = |status: &Status, token| match status_ended(status, Terms { applied: None, token }) {
            Ended::Refused(why) => why,
            ended => panic!("{ended:?}"),
        };
        let (plan, wrong) =
            (Status::permission_denied("your plan has run out"), Status::unauthenticated("who are you"));
        assert!(!words(&plan, false).contains("token") && words(&plan, false).contains("your plan has run out"));
        assert!(words(&plan, true).contains("if it means the token"));
        assert!(words(&wrong, true).contains("refuses the token") && words(&wrong, true).contains("who are you"));
        assert!(words(&wrong, false).contains("asks for a token"));
    }
}
