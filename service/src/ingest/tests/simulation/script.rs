//! One subscription of the simulated server: its messages, each at its time, and the end of the connection.
//!
//! Owns: when a message is sent, and the check that pings are answered. Must not: decide which messages there are.

use std::collections::VecDeque;
use std::time::Duration;

use futures::channel::mpsc;
use futures::{StreamExt as _, stream};
use tokio::time::{Instant, sleep, sleep_until};
use tonic::Status;
use yellowstone_grpc_proto::geyser::subscribe_update::UpdateOneof;
use yellowstone_grpc_proto::geyser::{SubscribeRequest, SubscribeUpdate};

use super::messages::{self, Item};
use super::server::{Connection, Open};
use crate::ingest::upstream::Client;

/// How often an idle connection is pinged.
const PING_EVERY: Duration = Duration::from_secs(3);

/// Messages of one subscription with their times, and its end.
pub(super) struct Script {
    pub(super) items: VecDeque<(Instant, Item)>,
    /// Number of items that are left once the client has to see that the server contradicts the applied
    /// chain; `None` where it never does.
    pub(super) left_after_lie: Option<usize>,
    pub(super) end: End,
}

pub(super) enum End {
    /// The connection stays open and sends pings.
    Open,
    Silent,
    Closed,
    Status(Status),
}

/// Checks the answers to pings: a server drops a client that leaves its pings unanswered.
pub(super) struct Pings {
    /// Mark that the client listens, dropped with the stream.
    open: Open,
    received: mpsc::Receiver<SubscribeRequest>,
    sent: u64,
    answered: u64,
}

impl Pings {
    pub(super) fn new(open: Open, received: mpsc::Receiver<SubscribeRequest>) -> Self {
        Self { open, received, sent: 0, answered: 0 }
    }

    fn look_at(&mut self, item: &Item) {
        while let Ok(request) = self.received.try_recv() {
            assert!(request.ping.is_some(), "only pings follow a subscription");
            self.answered += 1;
        }
        assert_eq!(self.answered, self.sent, "a ping was not answered");
        if let Ok(SubscribeUpdate { update_oneof: Some(UpdateOneof::Ping(_)), .. }) = item {
            self.sent += 1;
        }
    }
}

/// Plays `script`: sends each item at its time.
pub(super) fn play(script: Script, pings: Pings) -> <Connection as Client>::Updates {
    let next = async |(mut script, mut pings): (Script, Pings)| {
        let item = match script.items.pop_front() {
            Some((at, item)) => {
                if at > Instant::now() {
                    sleep_until(at).await;
                }
                if script.left_after_lie == Some(script.items.len()) {
                    pings.open.shows_lie();
                }
                item
            }
            None => match std::mem::replace(&mut script.end, End::Closed) {
                End::Closed => return None,
                End::Silent => std::future::pending().await,
                End::Status(status) => Err(status),
                End::Open => {
                    script.end = End::Open;
                    sleep(PING_EVERY).await;
                    Ok(messages::ping())
                }
            },
        };
        pings.look_at(&item);
        Some((item, (script, pings)))
    };
    stream::unfold((script, pings), next).boxed()
}
