//! A connection as the server of its protocol sees it: bytes in and out, and an end if the other side is silent.
//!
//! Owns: the socket, its place among the connections, and the deadlines that protocols lack. The first bytes and the
//! first request must come soon, later requests within the idle limit, and held answers must be read. A connection
//! whose place went to another ends at once. Must not: know a protocol, or look for dead peers, which HTTP/2 does itself
//! with its pings. Threads: the network edge.

use std::io::{self, ErrorKind, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

use super::figures::Ending;
use super::limit::{Admission, Seat};

/// Time from accepting a connection (or the end of its TLS handshake) until the protocol's opening bytes must have come.
const GREETING_TIMEOUT: Duration = Duration::from_secs(5);

/// Time from then until the first request that is admitted. It is also the limit between two health checks on a
/// connection that makes no other request. A client connects because it has a request; if it waits longer, it can
/// connect again.
const FIRST_REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// Interval of the checks whether held answers are read and whether requests come.
const STALL_TICK: Duration = Duration::from_secs(10);

/// Time without progress after which held answers end the connection. A client whose protocol works but which reads none
/// of its answers must not keep others from theirs.
const STALL_TIMEOUT: Duration = Duration::from_secs(60);

/// The transport below a connection: TCP, TLS or a Unix socket.
pub(crate) trait Transport: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Transport for T {}

/// An accepted connection, with its deadlines.
pub(crate) struct Connection<P> {
    transport: Box<dyn Transport>,
    admission: Admission,
    /// State that the connection's requests share.
    pub(crate) attached: P,
    /// Number of bytes with which the protocol's clients begin.
    greeting_bytes: u64,
    /// Limit on the time without a request; zero is never.
    idle_timeout: Duration,
    received: u64,
    tick: Pin<Box<Sleep>>,
    /// Number of requests as of the last check; see [`Activity`](super::activity::Activity).
    requests: u64,
    /// Time of the last check that found the connection active.
    busy_at: Instant,
    /// Progress as of the last check; see [`Activity::progress`](super::activity::Activity::progress).
    progress: Option<u64>,
    /// Time of the last check that found progress.
    progress_at: Instant,
}

impl<P> Connection<P> {
    pub(super) fn new(
        transport: Box<dyn Transport>,
        admission: Admission,
        attached: P,
        greeting_bytes: u64,
        idle_timeout: Duration,
    ) -> Self {
        let tick = Box::pin(tokio::time::sleep(GREETING_TIMEOUT));
        let now = Instant::now();
        Self {
            transport,
            admission,
            attached,
            greeting_bytes,
            idle_timeout,
            received: 0,
            tick,
            requests: 0,
            busy_at: now,
            progress: None,
            progress_at: now,
        }
    }

    /// Returns an error once a deadline has passed or the place is gone. Called at each read, write and flush, so that
    /// the connection learns of it in any of them.
    fn check(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        if self.admission.seat().poll_evicted(context).is_ready() {
            return Err(io::Error::new(ErrorKind::ConnectionAborted, "another connection has taken its place"));
        }
        if self.admission.seat().activity.poll_cut(context).is_ready() {
            tracing::debug!(
                listener = self.admission.seat().listener().name(),
                "cut the connection whose answers were held the longest, because others need the room"
            );
            return Err(self.cut(Ending::Unread, "others need the room of its answers"));
        }
        while self.tick.as_mut().poll(context).is_ready() {
            if self.received < self.greeting_bytes {
                return Err(self.cut(Ending::Greeting, "no opening bytes came in time"));
            }
            let now = Instant::now();
            if self.stalled(now) {
                tracing::info!(
                    listener = self.admission.seat().listener().name(),
                    "cut a connection that reads no answers"
                );
                return Err(self.cut(Ending::Unread, "the answers are not read"));
            }
            let activity = &self.admission.seat().activity;
            let requests = activity.requests();
            if activity.is_busy() || self.progress.is_some() || requests != self.requests {
                (self.requests, self.busy_at) = (requests, now);
            }
            let (limit, ending) = if self.admission.seat().is_settled() {
                (Some(self.idle_timeout).filter(|limit| !limit.is_zero()), Ending::Idle)
            } else {
                (Some(FIRST_REQUEST_TIMEOUT), Ending::FirstRequest)
            };
            let end = limit.map(|limit| self.busy_at + limit);
            if end.is_some_and(|end| end <= now) {
                return Err(self.cut(ending, "nothing was asked"));
            }
            let tick = now + STALL_TICK;
            self.tick.as_mut().reset(end.map_or(tick, |end| end.min(tick)));
        }
        Ok(())
    }

    /// Whether answers are held of which the client has read nothing for [`STALL_TIMEOUT`].
    fn stalled(&mut self, now: Instant) -> bool {
        let progress = self.admission.seat().activity.progress();
        if progress.is_none() || progress != self.progress {
            (self.progress, self.progress_at) = (progress, now);
        }
        now - self.progress_at >= STALL_TIMEOUT
    }

    fn cut(&self, ending: Ending, why: &'static str) -> io::Error {
        self.admission.seat().cut(ending);
        io::Error::new(ErrorKind::TimedOut, why)
    }
}

impl<P: Unpin> AsyncRead for Connection<P> {
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

impl<P: Unpin> AsyncWrite for Connection<P> {
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

    /// A TLS shutdown waits for the peer to read, and by then HTTP/2 sends no more pings.
    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.check(context)?;
        Pin::new(&mut self.transport).poll_shutdown(context)
    }
}

/// Marks a request of a connection as under way, until this is dropped.
pub(crate) struct UnderWay(Arc<Seat>);

impl UnderWay {
    /// Counts one more request of a connection.
    pub(crate) fn new(seat: &Arc<Seat>) -> Self {
        seat.activity.begin_request();
        Self(Arc::clone(seat))
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.activity.end_request();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};

    use super::super::figures::{Figures, Listener};
    use super::super::limit::tests::{ROOMY, source};
    use super::super::limit::{ConnectionLimits, Limit};
    use super::*;

    const IDLE: Duration = Duration::from_secs(300);

    /// Returns a connection over TCP, its other end, and the limit, with which one more connection evicts it.
    fn socket(figures: &Arc<Figures>) -> (Connection<()>, DuplexStream, Limit) {
        let (ours, theirs) = tokio::io::duplex(64);
        let limits = ConnectionLimits { max_connections: 1, per_source: 1, ..ROOMY };
        let limit = Limit::grpc(limits, figures).0;
        let admission = limit.admit(source(1)).unwrap();
        (Connection::new(Box::new(ours), admission, (), 24, IDLE), theirs, limit)
    }

    /// Returns a connection as [`socket`] does, after the client has sent the opening line.
    async fn greeted(figures: &Arc<Figures>) -> (Connection<()>, DuplexStream, Limit) {
        let (mut socket, mut theirs, limit) = socket(figures);
        theirs.write_all(&[0; 24]).await.unwrap();
        socket.read_exact(&mut [0; 24]).await.unwrap();
        (socket, theirs, limit)
    }

    /// Returns the number of connections cut by this rule, and by all rules.
    fn cut(figures: &Figures, ending: Ending) -> (u64, u64) {
        (figures.endings(ending), figures.of(Listener::GrpcTcp).cut.load(Ordering::Relaxed))
    }

    #[tokio::test(start_paused = true)]
    async fn silence_is_cut_and_so_is_a_greeting_that_no_request_follows() {
        let figures = Arc::<Figures>::default();
        let (mut silent, mut theirs, _limit) = socket(&figures);
        theirs.write_all(b"PRI").await.unwrap();
        let error = silent.read_exact(&mut [0; 24]).await.unwrap_err();
        assert_eq!((error.kind(), cut(&figures, Ending::Greeting)), (ErrorKind::TimedOut, (1, 1)));
        let (mut greeted, _theirs, _limit) = greeted(&figures).await;
        let begun = Instant::now();
        let error = greeted.read_u8().await.unwrap_err();
        assert_eq!((error.kind(), cut(&figures, Ending::FirstRequest)), (ErrorKind::TimedOut, (1, 2)));
        assert!(begun.elapsed() >= FIRST_REQUEST_TIMEOUT && begun.elapsed() < FIRST_REQUEST_TIMEOUT * 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_settled_connection_is_cut_when_it_asks_nothing_and_has_nothing_under_way() {
        let figures = Arc::<Figures>::default();
        let (mut socket, _theirs, _limit) = greeted(&figures).await;
        let seat = Arc::clone(socket.admission.seat());
        seat.settle().unwrap();
        let subscription = UnderWay::new(&seat);
        let idle = tokio::time::timeout(IDLE * 3, socket.read_u8()).await;
        assert!(idle.is_err(), "an answer is under way");
        drop(subscription);
        for _ in 0..10 {
            drop(UnderWay::new(&seat));
            let idle = tokio::time::timeout(IDLE - STALL_TICK, socket.read_u8()).await;
            assert!(idle.is_err(), "it asks now and then");
        }
        assert_eq!(cut(&figures, Ending::Idle), (0, 0));
        let error = socket.read_u8().await.unwrap_err();
        assert_eq!((error.kind(), cut(&figures, Ending::Idle)), (ErrorKind::TimedOut, (1, 1)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_newcomer_that_loses_its_place_ends_at_once() {
        let figures = Arc::<Figures>::default();
        let (mut socket, _theirs, limit) = greeted(&figures).await;
        let begun = Instant::now();
        let next = async { limit.admit(source(2)).unwrap() };
        let (error, next) = tokio::join!(socket.read_u8(), next);
        assert_eq!((error.unwrap_err().kind(), begun.elapsed()), (ErrorKind::ConnectionAborted, Duration::ZERO));
        drop(socket);
        assert!(limit.admit(source(3)).is_some());
        drop(next);
    }

    #[tokio::test(start_paused = true)]
    async fn answers_that_are_not_read_end_the_connection_and_slow_ones_do_not() {
        let figures = Arc::<Figures>::default();
        let (mut socket, _theirs, _limit) = greeted(&figures).await;
        let seat = Arc::clone(socket.admission.seat());
        seat.activity.held.store(1, Ordering::Relaxed);
        let slow = async {
            for _ in 0..20 {
                seat.activity.released.fetch_add(1, Ordering::Relaxed);
                tokio::time::sleep(STALL_TIMEOUT - STALL_TICK).await;
            }
        };
        tokio::select! {
            read = socket.read_u8() => panic!("{read:?}"),
            () = slow => {}
        }
        let error = socket.read_u8().await.unwrap_err();
        assert_eq!((error.kind(), cut(&figures, Ending::Unread)), (ErrorKind::TimedOut, (1, 1)));
    }
}
