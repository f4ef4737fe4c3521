//! The bytes of one connection: requests in, answers out, in their order.
//!
//! Owns: the two buffers and their bounds, and when answers are sent. Must not: read on while answers wait to be sent, so a
//! client that does not read them is not read from either. Threads: the network edge, one task for each connection.

use std::future::Future;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf as _, BytesMut};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::client::{Client, Shared};
use super::request::{Malformed, Request};
use crate::ask::budget::{Charge, Peer, no_room};
use crate::net::connection::Connection;
use crate::net::figures::Ending;

/// Number of bytes read at once, and of a request that are not charged to the client's budget: 300 gets.
const READ_BYTES: usize = 16 * 1024;

/// Number of requests, and of bytes of answers, after which the other connections of the thread have their turn. A turn takes
/// 50 us or so, also of the requests that take longest.
const TURN_REQUESTS: usize = 64;
const TURN_BYTES: usize = 4 * 1024;

/// Maximum length of a request: the largest batch, whose keys have 48 bytes and their lengths.
const REQUEST_BYTES_MAX: usize = 1024 * 1024;

/// Number of bytes of answers from which on they are sent, and which are not charged. One answer may be larger.
const ANSWERS_BYTES: usize = 16 * 1024;

/// Time in which a client has to read the answers that are sent at once: 0.5 MB at 70 kbit/s.
const WRITE_TIMEOUT: Duration = Duration::from_secs(60);

/// Answers requests until the client ends the connection or breaks the protocol, or `ended` is ready. Then a request under way is
/// answered first.
pub(super) async fn serve(connection: Connection<Arc<Peer>>, shared: Arc<Shared>, ended: impl Future<Output = ()>) {
    let peer = Arc::clone(&connection.attached);
    let client = Client::new(shared, Arc::clone(&peer));
    let mut served = Served {
        connection,
        peer,
        client,
        piece: vec![0; READ_BYTES],
        input: BytesMut::new(),
        request: Request::default(),
        charge: None,
        charged: 0,
    };
    if let Err(error) = served.run(ended).await {
        tracing::debug!(%error, "a connection of the Redis protocol ended early");
    }
}

struct Served {
    connection: Connection<Arc<Peer>>,
    peer: Arc<Peer>,
    client: Client,
    /// Bytes that were read last.
    piece: Vec<u8>,
    /// Bytes that are not answered yet; the request at their beginning is read as far as `request` says.
    input: BytesMut,
    request: Request,
    /// Charge for a request that is larger than [`READ_BYTES`].
    charge: Option<Charge>,
    /// Number of bytes that it holds.
    charged: usize,
}

impl Served {
    async fn run(&mut self, ended: impl Future<Output = ()>) -> io::Result<()> {
        let mut ended = pin!(ended);
        loop {
            if let Err(Malformed(why)) = self.answer().await? {
                self.client.answers.error("ERR", &format!("E-REQUEST: Protocol error: {why}"));
                self.client.is_over = true;
            }
            self.send().await?;
            if self.client.is_over {
                return self.connection.shutdown().await;
            }
            let came = tokio::select! {
                biased;
                () = &mut ended => return self.connection.shutdown().await,
                came = self.connection.read(&mut self.piece) => came?,
            };
            if came == 0 {
                return Ok(());
            }
            self.input.extend_from_slice(&self.piece[..came]);
        }
    }

    /// Answers the requests that have come as a whole, and makes room for the rest of the next one.
    async fn answer(&mut self) -> io::Result<Result<(), Malformed>> {
        let mut malformed = Ok(());
        let (mut requests, mut sent) = (0, self.client.answers.added());
        while !self.client.is_over {
            match self.request.read(&self.input, self.client.is_known()) {
                Ok(Some(form)) => {
                    let words = self.request.words(&self.input);
                    self.client.take(&words, form).await;
                    self.input.advance(self.request.take());
                    (self.charge, self.charged) = (None, 0);
                    requests += 1;
                }
                Ok(None) => break,
                Err(wrong) => {
                    malformed = Err(wrong);
                    break;
                }
            }
            if self.client.answers.bytes.len() >= ANSWERS_BYTES {
                self.send().await?;
            }
            if requests >= TURN_REQUESTS || self.client.answers.added() - sent >= TURN_BYTES as u64 {
                (requests, sent) = (0, self.client.answers.added());
                tokio::task::yield_now().await;
            }
        }
        self.client.answer_gets().await;
        if malformed.is_err() || self.client.is_over {
            return Ok(malformed);
        }
        if self.input.len() > REQUEST_BYTES_MAX {
            return Ok(Err(Malformed("too large a request: ask in parts")));
        }
        if self.input.len() < READ_BYTES && self.input.capacity() > 2 * READ_BYTES {
            // A large request leaves nothing.
            self.input = BytesMut::from(&self.input[..]);
        }
        let owed = self.input.len() / READ_BYTES * READ_BYTES;
        if owed > self.charged {
            let charge = self.charge.get_or_insert_with(|| Charge::new(&self.peer));
            if !charge.grow(owed - self.charged) {
                self.client.answers.refusal(&no_room("requests under way"));
                self.client.is_over = true;
            }
            self.charged = owed;
        }
        Ok(Ok(()))
    }

    /// Sends the answers so far.
    async fn send(&mut self) -> io::Result<()> {
        let mut bytes = std::mem::take(&mut self.client.answers.bytes);
        self.client.answers.taken += bytes.len() as u64;
        if bytes.is_empty() {
            return Ok(());
        }
        let charge = Charge::new(&self.peer);
        if bytes.len() > ANSWERS_BYTES && !charge.grow(bytes.len()) {
            // None of these answers is sent, so the refusal stands for the first of them, and nothing follows.
            self.client.answers.refusal(&no_room("answers not yet read"));
            self.client.is_over = true;
            bytes = std::mem::take(&mut self.client.answers.bytes);
        }
        let connection = &mut self.connection;
        let sent = async {
            connection.write_all(&bytes).await?;
            connection.flush().await
        };
        let in_time = tokio::time::timeout(WRITE_TIMEOUT, sent).await;
        if in_time.is_err() {
            self.peer.seat.cut(Ending::Unread);
        }
        in_time.map_err(|_| io::Error::new(io::ErrorKind::TimedOut, "the answers are not read"))??;
        if bytes.capacity() <= ANSWERS_BYTES {
            self.client.answers.bytes = bytes;
            self.client.answers.bytes.clear();
        }
        Ok(())
    }
}
