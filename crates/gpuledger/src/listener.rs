//! Answers HTTP on a socket: HTTP/1.1, or over TLS also HTTP/2 by ALPN. Each connection is bounded in time and memory by
//! its [`ConnectionLimits`], and finishes its requests when the server stops.

use crate::connection::{Connection, ConnectionLimits, Connections, Request, Stage};
use axum::{
    Router,
    body::Bytes,
    extract::ConnectInfo,
    http::{Request as HttpRequest, Response},
};
use hyper::{
    body::{Body, Frame, Incoming, SizeHint},
    server::conn::{http1, http2},
    service::service_fn,
};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use std::{
    convert::Infallible,
    io,
    net::SocketAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream},
    task::JoinSet,
    time::{Instant, MissedTickBehavior, interval, sleep, timeout},
};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tower::Service;

/// Between two looks at what is overdue.
const LOOK: Duration = Duration::from_millis(500);
/// How long a connection that is closed may take to send what is written already.
const LEAVE: Duration = Duration::from_secs(1);
/// Between two tries to accept while there are no file descriptors.
const EXHAUSTED: Duration = Duration::from_millis(100);
/// How often it is said that there is no room.
const SAY_AGAIN: Duration = Duration::from_secs(10);
/// The most of an answer that is handed over at once, so that memory follows what the peer really reads.
const PIECE: usize = 16 << 10;
/// What is buffered of a connection, each way; the window of a stream.
const BUFFER: usize = 64 << 10;
/// What all streams of one connection of HTTP/2 may send before somebody reads it.
const WINDOW: u32 = 256 << 10;
/// Streams of HTTP/2 that a peer opened and reset before they were looked at; more end the connection.
const RESETS: usize = 20;
/// File descriptors for everything but connections and the database.
const OTHER_FILES: u64 = 100;

/// What every connection is served with.
#[derive(Clone)]
struct Terms {
    router: Router,
    tls: Option<TlsAcceptor>,
    limits: ConnectionLimits,
    stop: CancellationToken,
}

/// Answers until `stop`, and then for at most `drain` those that are under way.
pub(crate) async fn serve(
    listener: TcpListener,
    router: Router,
    tls: Option<TlsAcceptor>,
    limits: ConnectionLimits,
    drain: Duration,
    stop: &CancellationToken,
) {
    let connections = Connections::new(limits);
    let terms = Terms { router, tls, limits, stop: stop.clone() };
    let mut tasks = JoinSet::new();
    let mut look = interval(LOOK);
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut said: Option<Instant> = None;
    loop {
        let accepted = tokio::select! {
            biased;
            () = stop.cancelled() => break,
            _ = look.tick() => {
                connections.close_overdue(Instant::now());
                continue;
            }
            Some(_) = tasks.join_next() => continue,
            accepted = listener.accept(), if tasks.len() < limits.connections + leaving(limits.connections) => accepted,
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) if is_of_one_connection(&error) => continue,
            Err(error) => {
                tracing::error!(%error, "no connection can be accepted");
                sleep(EXHAUSTED).await;
                continue;
            }
        };
        let now = Instant::now();
        match connections.admit(peer.ip(), now) {
            Ok(connection) => {
                let terms = terms.clone();
                tasks.spawn(async move {
                    converse(stream, peer, &connection, terms).await;
                    connection.ended();
                });
            }
            Err(refused) => {
                let reason = refused.name();
                metrics::counter!("gpuledger_http_connections_refused_total", "reason" => reason).increment(1);
                if said.is_none_or(|said| now.duration_since(said) > SAY_AGAIN) {
                    said = Some(now);
                    tracing::warn!(%peer, reason, "a connection is refused: all that may be open are at work");
                }
            }
        }
    }
    drop(listener);
    let ended = async { while tasks.join_next().await.is_some() {} };
    if timeout(drain, ended).await.is_err() {
        tracing::warn!(connections = connections.len(), "requests that were still under way are cut off");
    }
}

/// How many connections that were closed for newcomers may still be on their way out: with more, newcomers wait.
const fn leaving(connections: usize) -> usize {
    connections / 8 + 1
}

/// Errors of the one connection that was to be accepted, not of the listener.
fn is_of_one_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}

/// Raises the limit on open files as far as it goes, and lowers `limits` to what fits under it.
pub(crate) fn fit_open_files(limits: &mut ConnectionLimits, database: u32) {
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else { return };
    let wanted = u64::try_from(limits.connections + leaving(limits.connections)).unwrap_or(u64::MAX);
    let needed = wanted.saturating_add(OTHER_FILES + u64::from(database));
    let mut files = soft;
    if soft < needed && setrlimit(Resource::RLIMIT_NOFILE, needed.min(hard), hard).is_ok() {
        files = needed.min(hard);
    }
    if files < needed {
        // eight in nine are for those that are open
        let room = (files.saturating_sub(OTHER_FILES + u64::from(database)) / 9 * 8).max(16);
        tracing::warn!(
            open_files = files,
            needed,
            connections = room,
            "the limit on open files is too low for http.connections: raise LimitNOFILE of the unit, or ulimit -n"
        );
        limits.connections = usize::try_from(room).unwrap_or(limits.connections).min(limits.connections);
    }
}

/// Serves one connection to its end.
async fn converse(stream: TcpStream, peer: SocketAddr, connection: &Arc<Connection>, terms: Terms) {
    // an answer is written whole, so nothing is gained by waiting for more
    let _ = stream.set_nodelay(true);
    let Some(acceptor) = &terms.tls else {
        return speak(stream, false, peer, connection, &terms).await;
    };
    let shaken = tokio::select! {
        () = connection.close.cancelled() => return,
        () = terms.stop.cancelled() => return,
        shaken = acceptor.accept(stream) => shaken,
    };
    match shaken {
        Ok(stream) => {
            let is_http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
            speak(stream, is_http2, peer, connection, &terms).await;
        }
        Err(error) => {
            metrics::counter!("gpuledger_tls_handshakes_failed_total").increment(1);
            tracing::debug!(%peer, %error, "no TLS connection came about");
        }
    }
}

/// Speaks HTTP over whatever carries it.
async fn speak<IO>(io: IO, is_http2: bool, peer: SocketAddr, connection: &Arc<Connection>, terms: &Terms)
where
    IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let limits = terms.limits;
    let service = service_fn({
        let (router, connection) = (terms.router.clone(), Arc::clone(connection));
        move |request| answer(router.clone(), &connection, peer, request)
    });
    let io = TokioIo::new(io);
    if is_http2 {
        let mut http2 = http2::Builder::new(TokioExecutor::new());
        http2
            .timer(TokioTimer::new())
            .max_concurrent_streams(limits.streams)
            .max_header_list_size(u32::try_from(limits.head_size).unwrap_or(u32::MAX))
            .max_pending_accept_reset_streams(RESETS)
            .max_local_error_reset_streams(RESETS)
            .initial_stream_window_size(BUFFER as u32)
            .initial_connection_window_size(WINDOW)
            .max_send_buf_size(BUFFER);
        let conversation = std::pin::pin!(http2.serve_connection(io, service));
        drive(conversation, |it| it.graceful_shutdown(), connection, terms).await;
    } else {
        let mut http1 = http1::Builder::new();
        http1
            .timer(TokioTimer::new())
            // all of a connection's times are kept by `Connections`, which knows what it waits for
            .header_read_timeout(None)
            .max_headers(limits.headers)
            .max_header_size(limits.head_size)
            .max_buf_size(BUFFER.max(limits.head_size));
        let conversation = std::pin::pin!(http1.serve_connection(io, service));
        drive(conversation, |it| it.graceful_shutdown(), connection, terms).await;
    }
}

/// Goes on until the peer leaves, the connection is closed, or the server stops.
async fn drive<C: Future<Output = Result<(), hyper::Error>>>(
    mut conversation: Pin<&mut C>,
    finish: fn(Pin<&mut C>),
    connection: &Connection,
    terms: &Terms,
) {
    tokio::select! {
        ended = conversation.as_mut() => {
            if let Err(error) = ended {
                tracing::debug!(%error, "a connection ended badly");
            }
            return;
        }
        () = connection.close.cancelled() => {
            if !connection.has_asked() {
                return;
            }
        }
        () = terms.stop.cancelled() => {
            finish(conversation.as_mut());
            if connection.has_asked() {
                tokio::select! {
                    _ = conversation => {}
                    () = connection.close.cancelled() => {}
                }
                return;
            }
        }
    }
    finish(conversation.as_mut());
    // what is written already is sent, and a request that has just come is answered if that is quick
    let _ = timeout(LEAVE, conversation).await;
}

/// Hands a request to the routes, with its peer's address as [`ConnectInfo`].
fn answer(
    mut router: Router,
    connection: &Arc<Connection>,
    peer: SocketAddr,
    request: HttpRequest<Incoming>,
) -> impl Future<Output = Result<Response<Departing>, Infallible>> + use<> {
    let under_way = connection.begin();
    let arriving = Arc::clone(&under_way);
    let mut request = request.map(|body| axum::body::Body::new(Arriving { body, request: arriving }));
    request.extensions_mut().insert(ConnectInfo(peer));
    // routes are always ready
    let answered = router.call(request);
    async move {
        let response = answered.await?;
        under_way.is_at(Stage::Answer);
        Ok(response.map(|body| Departing { body, rest: Bytes::new(), request: under_way }))
    }
}

/// A request's body, whose progress is watched.
struct Arriving {
    body: Incoming,
    request: Arc<Request>,
}

impl Body for Arriving {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        match &polled {
            Poll::Pending => self.request.waits_for_body(),
            Poll::Ready(_) => self.request.body_came(),
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Arriving {
    /// Nobody waits for it any longer.
    fn drop(&mut self) {
        self.request.body_came();
    }
}

/// An answer's body, handed over in pieces as the peer takes them.
struct Departing {
    body: axum::body::Body,
    /// What the body gave and the peer has no room for yet.
    rest: Bytes,
    request: Arc<Request>,
}

impl Body for Departing {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        self.request.is_at(Stage::Answer);
        if self.rest.is_empty() {
            match std::task::ready!(Pin::new(&mut self.body).poll_frame(cx)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => self.rest = data,
                    Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
                },
                other => return Poll::Ready(other),
            }
        }
        let piece = self.rest.len().min(PIECE);
        Poll::Ready(Some(Ok(Frame::data(self.rest.split_to(piece)))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let rest = u64::try_from(self.rest.len()).unwrap_or(u64::MAX);
        let mut hint = self.body.size_hint();
        if let Some(upper) = hint.upper() {
            hint.set_upper(upper.saturating_add(rest));
        }
        hint.set_lower(hint.lower().saturating_add(rest));
        hint
    }
}
