//! A connection as the HTTP/2 server gets it: bytes in and out, and an end to it when the other side is silent.
//!
//! Owns: the socket, its room among the connections, and two deadlines that HTTP/2 has not: the first bytes must come
//! soon, and answers that are held must be read. Dead peers are HTTP/2's own affair (its pings). Threads: the network
//! edge.

use std::io::{self, ErrorKind, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};
use tonic::transport::server::Connected;

use super::budget::Peer;
use crate::net::limit::Admission;

/// From accepting a connection (or the end of its TLS handshake) until HTTP/2's opening line has come.
pub(super) const GREETING_TIMEOUT: Duration = Duration::from_secs(5);

/// Length of HTTP/2's opening line, `PRI * HTTP/2.0...`.
const PREFACE_BYTES: u64 = 24;

/// How often it is looked at whether held answers are read.
const STALL_TICK: Duration = Duration::from_secs(10);

/// Ticks in a row without any progress until the connection is cut: a minute. A client whose HTTP/2 runs but which asks
/// for none of its answers must not keep others from theirs.
const STALL_TICKS_MAX: u32 = 6;

/// What a connection runs over: TCP, TLS or a Unix socket.
pub(super) trait Transport: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Transport for T {}

/// An accepted connection.
pub(super) struct Socket {
    transport: Box<dyn Transport>,
    peer: Arc<Peer>,
    admission: Admission,
    received: u64,
    tick: Pin<Box<Sleep>>,
    /// See [`Peer::progress`], at the last tick.
    progress: Option<u64>,
    stalled_ticks: u32,
}

impl Socket {
    pub(super) fn new(transport: Box<dyn Transport>, peer: Arc<Peer>, admission: Admission) -> Self {
        let tick = Box::pin(tokio::time::sleep(GREETING_TIMEOUT));
        Self { transport, peer, admission, received: 0, tick, progress: None, stalled_ticks: 0 }
    }

    /// An error once a deadline has passed. Asked at each read, write and flush, so that it is heard of whichever of
    /// them the connection is at.
    fn check(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        while self.tick.as_mut().poll(context).is_ready() {
            if self.received < PREFACE_BYTES {
                self.admission.cut();
                return Err(io::Error::new(ErrorKind::TimedOut, "no HTTP/2 came in time"));
            }
            let progress = self.peer.progress();
            let stalled = progress.is_some() && progress == self.progress;
            self.stalled_ticks = if stalled { self.stalled_ticks + 1 } else { 0 };
            self.progress = progress;
            if self.stalled_ticks >= STALL_TICKS_MAX {
                self.admission.cut();
                tracing::info!(listener = self.admission.listener().name(), "cut a connection that reads no answers");
                return Err(io::Error::new(ErrorKind::TimedOut, "the answers are not read"));
            }
            self.tick.as_mut().reset(Instant::now() + STALL_TICK);
        }
        Ok(())
    }
}

/// What the requests find among their extensions.
impl Connected for Socket {
    type ConnectInfo = Arc<Peer>;

    fn connect_info(&self) -> Arc<Peer> {
        Arc::clone(&self.peer)
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.check(context)?;
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.transport).poll_read(context, buffer);
        self.received += (buffer.filled().len() - before) as u64;
        read
    }
}

impl AsyncWrite for Socket {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        self.check(context)?;
        Pin::new(&mut self.transport).poll_write(context, data)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        data: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.check(context)?;
        Pin::new(&mut self.transport).poll_write_vectored(context, data)
    }

    fn is_write_vectored(&self) -> bool {
        self.transport.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.check(context)?;
        Pin::new(&mut self.transport).poll_flush(context)
    }

    /// Waits for a TLS peer to read, and pings have ended by now.
    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.check(context)?;
        Pin::new(&mut self.transport).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::super::budget::{Budget, Charge};
    use super::*;
    use crate::net::figures::Listener;
    use crate::net::limit::Limit;
    use crate::status::Shared;

    fn socket(shared: &Arc<Shared>) -> (Socket, tokio::io::DuplexStream) {
        let (ours, theirs) = tokio::io::duplex(64);
        let peer = Peer::new(Budget::new(Arc::clone(shared)), None);
        let admission = Limit::grpc(1, shared).0.admit().unwrap();
        (Socket::new(Box::new(ours), peer, admission), theirs)
    }

    fn cut(shared: &Shared) -> u64 {
        shared.net.of(Listener::GrpcTcp).cut.load(Ordering::Relaxed)
    }

    #[tokio::test(start_paused = true)]
    async fn silence_is_cut_and_a_greeting_is_not() {
        let shared = Shared::new(Default::default());
        let (mut silent, mut theirs) = socket(&shared);
        theirs.write_all(b"PRI").await.unwrap();
        let mut buffer = [0; 24];
        let error = silent.read_exact(&mut buffer).await.unwrap_err();
        assert_eq!((error.kind(), cut(&shared)), (ErrorKind::TimedOut, 1));
        let (mut greeted, mut theirs) = socket(&shared);
        theirs.write_all(&buffer).await.unwrap();
        greeted.read_exact(&mut buffer).await.unwrap();
        let idle = tokio::time::timeout(STALL_TICK * 100, greeted.read_u8()).await;
        assert!(idle.is_err() && cut(&shared) == 1, "an idle connection without answers under way is let be");
    }

    #[tokio::test(start_paused = true)]
    async fn answers_that_are_not_read_end_the_connection_and_slow_ones_do_not() {
        let shared = Shared::new(Default::default());
        let (mut socket, mut theirs) = socket(&shared);
        theirs.write_all(&[0; 24]).await.unwrap();
        socket.read_exact(&mut [0; 24]).await.unwrap();
        let hold = |peer: &Arc<Peer>| {
            let charge = Charge::new(peer);
            assert!(charge.grow(1));
            charge
        };
        let peer = Arc::clone(&socket.peer);
        let _first = hold(&peer);
        let mut others: Vec<_> = (0..20).map(|_| hold(&peer)).collect();
        let slow = async {
            while others.pop().is_some() {
                tokio::time::sleep(STALL_TICK * (STALL_TICKS_MAX - 1)).await;
            }
        };
        tokio::select! {
            read = socket.read_u8() => panic!("{read:?}"),
            () = slow => {}
        }
        let error = socket.read_u8().await.unwrap_err();
        assert_eq!((error.kind(), cut(&shared)), (ErrorKind::TimedOut, 1));
    }
}
