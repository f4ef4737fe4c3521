//! One connection to the Yellowstone server: makes it, subscribes, answers pings, and gives it up when no slot comes.
//!
//! Owns: the times after which a connection is given up. Must not: know how an update is used, or whether there is a network. Runs
//! on a receiver's task. It takes the time from tokio's clock, which the simulation controls.

use std::time::Duration;

use futures::{SinkExt, StreamExt};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval, timeout};
use yellowstone_grpc_client::GeyserGrpcClientError;
use yellowstone_grpc_proto::geyser::subscribe_update::UpdateOneof;
use yellowstone_grpc_proto::geyser::{SubscribeRequest, SubscribeRequestPing, SubscribeUpdate};

use super::ended::Ended;
use super::server_errors::{Terms, client_ended, not_available, status_ended};
use super::subscribe::has_narrower;
use super::upstream::{Client, Upstream};

/// Maximum time that the server may take over one request. The subscription's answer may take `idle_timeout` where that
/// is longer.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// How often a quiet stream is checked. This is the resolution of every timeout of the ingest.
const TICK: Duration = Duration::from_millis(500);

/// A stream that ends after this long without any message has ended because of the silence, as where the peer answers no
/// keep-alive. A server at work sends several messages a second.
const SILENCE: Duration = Duration::from_secs(10);

/// An open subscription on one connection.
pub(crate) struct Connection<C: Client> {
    updates: C::Updates,
    requests: C::Requests,
    ticks: Interval,
    /// Time of the last tick.
    ticked_at: Instant,
    /// Time without [progress](Self::progressed). Only time in which this connection was read counts: a receiver that a
    /// full queue holds up does not mean that the server is silent.
    idle: Duration,
    idle_timeout: Duration,
    /// Time without any message, counted as `idle` is.
    silent: Duration,
    /// Whether this connection has sent any message about a slot.
    sends_slots: bool,
    terms: Terms,
}

/// Next event of a connection.
#[expect(clippy::large_enum_variant, reason = "it lives for one turn of a loop, and a box would cost each update more")]
pub(crate) enum Next {
    /// An update of the stream; never a ping.
    Update(SubscribeUpdate),
    /// Half a second has passed since the last tick.
    Tick,
}

impl<C: Client> Connection<C> {
    /// Connects and subscribes. `applied` is the store's slot, and `request` asks to begin with it.
    /// The server is asked first which slots it still has. A server whose slots begin right after that slot is asked
    /// for the next slot instead, and the assembler compares the parent of that slot with the applied block.
    pub(crate) async fn open(
        upstream: &impl Upstream<Client = C>,
        idle_timeout: Duration,
        mut request: SubscribeRequest,
        applied: Option<u64>,
    ) -> Result<Self, Ended> {
        let (from_slot, has_narrower) = (request.from_slot, has_narrower(&request));
        let mut terms = Terms { applied, from_slot, is_kept: false, has_narrower, access: upstream.access() };
        let mut client = upstream.connect().await.map_err(Ended::Retry)?;
        check_replay(&mut client, &mut terms).await?;
        request.from_slot = terms.from_slot;
        let (requests, updates) = timeout(idle_timeout.max(REQUEST_TIMEOUT), client.subscribe(request))
            .await
            .map_err(|_| Ended::Retry("the server does not answer the subscription".to_owned()))?
            .map_err(|error| client_ended(error, &terms))?;
        // One timer for the connection: a timer for each update would cost more than the update.
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (ticked_at, idle, silent) = (Instant::now(), Duration::ZERO, Duration::ZERO);
        Ok(Self { updates, requests, ticks, ticked_at, idle, idle_timeout, silent, sends_slots: false, terms })
    }

    /// Notes that the last message read was about a slot.
    pub(crate) fn sent_a_slot(&mut self) {
        self.sends_slots = true;
    }

    /// Notes that the last message read was of use: a slot was handed out to be applied. A server is of no use if it sends
    /// only pings, old slots, slots whose parent is missing, or parts of slots that never become complete.
    pub(crate) fn progressed(&mut self) {
        self.idle = Duration::ZERO;
        self.terms.from_slot = None;
    }

    /// Counts no idle time up to now: messages are still to be taken in.
    pub(crate) fn waits(&mut self) {
        self.idle = Duration::ZERO;
    }

    /// Ends the connection if it has been of no use for too long. Call it at each tick, once progress is noted.
    pub(crate) fn check_idle(&self) -> Result<(), Ended> {
        if self.idle <= self.idle_timeout {
            return Ok(());
        }
        let (idle_ms, sends_slots) = (self.idle.as_millis(), self.sends_slots);
        let sent = if sends_slots { "no slot that can be applied" } else { "no slot" };
        Err(Ended::Idle { why: format!("the server answers, but sent {sent} for idle_ms={idle_ms}"), sends_slots })
    }

    /// Returns the end as one of silence where nothing came before it.
    fn broken(&self, ended: Ended) -> Ended {
        match ended {
            Ended::Retry(why) if self.silent >= SILENCE => {
                Ended::Silent(format!("the server is silent: silent_ms={}: {why}", self.silent.as_millis()))
            }
            ended => ended,
        }
    }

    /// Waits for an update or the next tick, and answers pings.
    pub(crate) async fn next(&mut self) -> Result<Next, Ended> {
        loop {
            let next = tokio::select! {
                biased;
                next = self.updates.next() => next,
                _ = self.ticks.tick() => {
                    let now = Instant::now();
                    let passed = now.duration_since(self.ticked_at).min(2 * TICK);
                    (self.idle, self.silent, self.ticked_at) = (self.idle + passed, self.silent + passed, now);
                    return Ok(Next::Tick);
                }
            };
            let update = match next {
                None => return Err(self.broken(Ended::Retry("the server closed the stream".to_owned()))),
                Some(Err(status)) => return Err(self.broken(status_ended(&status, &self.terms))),
                Some(Ok(update)) => update,
            };
            self.silent = Duration::ZERO;
            if !matches!(update.update_oneof, Some(UpdateOneof::Ping(_))) {
                return Ok(Next::Update(update));
            }
            self.pong().await?;
        }
    }

    async fn pong(&mut self) -> Result<(), Ended> {
        // A request with a ping does not change the subscription. If pings stay unanswered, load balancers drop the
        // stream.
        let request = SubscribeRequest { ping: Some(SubscribeRequestPing { id: 1 }), ..Default::default() };
        let Err(error) = self.requests.send(request).await else { return Ok(()) };
        // The server has ended the stream. Its reason comes after all the updates that it sent before.
        let last_status = async {
            while let Some(update) = self.updates.next().await {
                if let Err(status) = update {
                    return Some(status);
                }
            }
            None
        };
        let last_status = timeout(TICK, last_status).await.ok().flatten();
        Err(last_status.map_or_else(
            || Ended::Retry(format!("cannot answer a ping: {error}")),
            |status| status_ended(&status, &self.terms),
        ))
    }
}

/// Asks the server for the oldest slot that it can still replay. Where that is the slot after the applied one, `terms` ask
/// for it from now on.
async fn check_replay(client: &mut impl Client, terms: &mut Terms) -> Result<(), Ended> {
    let Some(from_slot) = terms.from_slot else { return Ok(()) };
    match timeout(REQUEST_TIMEOUT, client.first_available()).await {
        Ok(Ok(Some(first))) if first > from_slot => {
            match not_available(terms.applied.unwrap_or(from_slot), from_slot, first) {
                Ended::BeginsAt(next) => terms.from_slot = Some(next),
                ended => return Err(ended),
            }
        }
        Ok(Ok(first)) => terms.is_kept = first.is_some(),
        // A failure on the way to the server, which the subscription would report in less detail.
        Ok(Err(GeyserGrpcClientError::TonicStatus(status))) if std::error::Error::source(&status).is_some() => {
            return Err(status_ended(&status, terms));
        }
        Ok(Err(error @ GeyserGrpcClientError::TransportError(_))) => return Err(client_ended(error, terms)),
        // Servers need not know, allow or answer this request: the subscription itself will show whether the slot is
        // there.
        Ok(Err(GeyserGrpcClientError::TonicStatus(_))) | Err(_) => {}
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use futures::channel::mpsc;
    use futures::stream::BoxStream;
    use tonic::Status;

    use super::*;
    use crate::ingest::subscribe::Commitment;

    /// A server that breaks its stream at this time after its first message.
    struct Breaks(Duration);

    impl Upstream for Breaks {
        type Client = Self;

        async fn connect(&self) -> Result<Self, String> {
            Ok(Self(self.0))
        }

        async fn newest_slot(&self, _: Commitment) -> Result<u64, String> {
            Ok(1)
        }
    }

    impl Client for Breaks {
        type Requests = mpsc::Sender<SubscribeRequest>;
        type Updates = BoxStream<'static, Result<SubscribeUpdate, Status>>;

        async fn first_available(&mut self) -> Result<Option<u64>, GeyserGrpcClientError> {
            Ok(None)
        }

        async fn subscribe(
            &mut self,
            _: SubscribeRequest,
        ) -> Result<(Self::Requests, Self::Updates), GeyserGrpcClientError> {
            let after = self.0;
            let breaks = futures::stream::once(async move {
                tokio::time::sleep(after).await;
                Err(Status::internal("h2 protocol error: error reading a body from connection"))
            });
            let first = futures::stream::iter([Ok(SubscribeUpdate::default())]);
            Ok((mpsc::channel(1).0, first.chain(breaks).boxed()))
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_that_ends_after_silence_is_told_from_one_that_breaks_at_work() {
        for (after, silent) in [(1, false), (9, false), (11, true), (20, true)] {
            let server = Breaks(Duration::from_secs(after));
            let opened = Connection::open(&server, Duration::from_secs(30), SubscribeRequest::default(), Some(1)).await;
            let mut connection = opened.unwrap_or_else(|ended| panic!("{ended:?}"));
            let ended = loop {
                if let Err(ended) = connection.next().await {
                    break ended;
                }
            };
            assert_eq!(matches!(ended, Ended::Silent(_)), silent, "{after}: {ended:?}");
            assert!(ended.trouble().is_some_and(|why| why.contains("h2 protocol error")), "{ended:?}");
        }
    }
}
