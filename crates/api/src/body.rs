//! Bodies on their way in: read only when a handler takes one, which is after the caller's credential was looked at, and
//! with a bound on size, time and on what all of them together may take.

use crate::{problem::Problem, router::HttpLimits};
use axum::{
    body::{Body, Bytes, HttpBody},
    extract::Request,
    http::{HeaderMap, StatusCode, header},
    middleware::Next,
    response::{IntoResponse, Response},
};
use flate2::bufread::GzDecoder;
use std::{
    future::poll_fn,
    io::{self, Read},
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    thread::available_parallelism,
    time::Duration,
};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, TryAcquireError},
    time::timeout,
};

/// The longest body of whoever has shown no credential.
const ANONYMOUS: usize = 64 << 10;
/// The largest window that a zstd frame may ask for, as a power of two: 8 MiB, which every decoder should have (RFC 8878).
const WINDOW_LOG: u32 = 23;
/// What a decoder hands over at once.
const PIECE: usize = 64 << 10;

/// The bounds of one request's body, and its share of what all bodies may take, which is held until it is answered.
#[derive(Debug, Clone)]
pub(crate) struct BodyLimits {
    size: usize,
    stall: Duration,
    memory: Arc<Semaphore>,
    /// Places for the bodies of callers who have shown no credential: a quarter of all places, so that slow ones leave room.
    anonymous: Arc<Semaphore>,
    /// Turns to decode: half of the processors, so that bombs leave the others to everybody else.
    decoders: Arc<Semaphore>,
    held: Arc<Mutex<Vec<OwnedSemaphorePermit>>>,
}

/// Put into a request by the extractor of its caller.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HasCredential;

impl BodyLimits {
    pub(crate) fn new(limits: &HttpLimits) -> Self {
        Self {
            size: limits.body,
            stall: limits.stall,
            memory: Arc::new(Semaphore::new(limits.body_memory.min(Semaphore::MAX_PERMITS))),
            anonymous: Arc::new(Semaphore::new(limits.in_flight.div_ceil(4))),
            decoders: Arc::new(Semaphore::new(available_parallelism().map_or(1, |n| n.get().div_ceil(2)))),
            held: Arc::default(),
        }
    }

    /// Takes so many bytes of what all bodies share.
    fn take(&self, bytes: usize) -> Result<(), Problem> {
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        let full = "The bodies of all requests together are over what they may take.";
        self.hold(Arc::clone(&self.memory).try_acquire_many_owned(bytes), full)
    }

    /// Takes a place for a body of whoever has shown no credential.
    fn take_anonymous_place(&self) -> Result<(), Problem> {
        let full = "Too many requests without a credential are in work.";
        self.hold(Arc::clone(&self.anonymous).try_acquire_owned(), full)
    }

    fn hold(&self, permit: Result<OwnedSemaphorePermit, TryAcquireError>, full: &str) -> Result<(), Problem> {
        let permit = permit.map_err(|_| Problem::unavailable(full))?;
        self.held.lock().unwrap_or_else(PoisonError::into_inner).push(permit);
        Ok(())
    }
}

/// Refuses a body that says itself that it is too long, and gives each request the bounds for its own.
pub(crate) async fn bound(limits: BodyLimits, mut request: Request, next: Next) -> Response {
    let length = request.headers().get(header::CONTENT_LENGTH).and_then(|v| v.to_str().ok()?.parse::<u64>().ok());
    if length.is_some_and(|length| usize::try_from(length).map_or(true, |length| length > limits.size)) {
        return Problem::of_status(StatusCode::PAYLOAD_TOO_LARGE).into_response();
    }
    let limits = BodyLimits { held: Arc::default(), ..limits };
    request.extensions_mut().insert(limits.clone());
    // `limits` holds the share until the answer is there
    let response = next.run(request).await;
    drop(limits);
    response
}

/// How a body is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Encoding {
    Plain,
    Gzip,
    Zstd,
}

impl Encoding {
    /// One encoding at most: what is encoded twice is not read.
    fn of(headers: &HeaderMap) -> Result<Self, Problem> {
        let mut values = headers.get_all(header::CONTENT_ENCODING).iter();
        let unsupported = || Problem::of_status(StatusCode::UNSUPPORTED_MEDIA_TYPE);
        let encoding = match values.next().map(|value| value.to_str().map(str::trim)) {
            None => Self::Plain,
            Some(Ok(name)) if name.eq_ignore_ascii_case("identity") => Self::Plain,
            Some(Ok(name)) if name.eq_ignore_ascii_case("gzip") => Self::Gzip,
            Some(Ok(name)) if name.eq_ignore_ascii_case("zstd") => Self::Zstd,
            Some(_) => return Err(unsupported()),
        };
        if values.next().is_some() { Err(unsupported()) } else { Ok(encoding) }
    }
}

/// Reads the JSON text of a request.
pub(crate) async fn read(request: Request) -> Result<Bytes, Problem> {
    let (parts, body) = request.into_parts();
    let limits = parts.extensions.get::<BodyLimits>().cloned();
    let limits = limits.unwrap_or_else(|| BodyLimits::new(&HttpLimits::default()));
    let anonymous = parts.extensions.get::<HasCredential>().is_none();
    let size = if anonymous { limits.size.min(ANONYMOUS) } else { limits.size };
    if !is_json(&parts.headers) {
        return Err(Problem::of_status(StatusCode::UNSUPPORTED_MEDIA_TYPE));
    }
    let encoding = Encoding::of(&parts.headers)?;
    let received = if anonymous {
        limits.take_anonymous_place()?;
        // it is short, so that it comes at once or not at all
        let received = timeout(limits.stall, receive(body, size, &limits)).await;
        received.unwrap_or_else(|_| Err(Problem::of_status(StatusCode::REQUEST_TIMEOUT)))?
    } else {
        receive(body, size, &limits).await?
    };
    if encoding == Encoding::Plain {
        return Ok(received);
    }
    // what comes out may take as much as it is allowed to be
    limits.take(size)?;
    let turn = Arc::clone(&limits.decoders).acquire_owned().await;
    let decoded = tokio::task::spawn_blocking(move || {
        // given up when the work ends, also when nobody waits for it any longer
        let _turn = turn;
        decode(encoding, &received, size)
    })
    .await;
    match decoded {
        Ok(Ok(text)) => Ok(text.into()),
        Ok(Err(status)) => Err(Problem::of_status(status)),
        Err(_) => Err(Problem::of_status(StatusCode::INTERNAL_SERVER_ERROR)),
    }
}

fn is_json(headers: &HeaderMap) -> bool {
    let value = headers.get(header::CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or_default();
    let essence = value.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    essence == "application/json" || essence.starts_with("application/") && essence.ends_with("+json")
}

/// All that comes, up to `size`, as long as it goes on coming.
async fn receive(mut body: Body, size: usize, limits: &BodyLimits) -> Result<Bytes, Problem> {
    let mut received = Vec::new();
    loop {
        let frame = poll_fn(|cx| Pin::new(&mut body).poll_frame(cx));
        let frame = match timeout(limits.stall, frame).await {
            Err(_) => return Err(Problem::of_status(StatusCode::REQUEST_TIMEOUT)),
            Ok(None) => return Ok(received.into()),
            // broken off, or against the rules of its framing
            Ok(Some(Err(_))) => return Err(Problem::of_status(StatusCode::BAD_REQUEST)),
            Ok(Some(Ok(frame))) => frame,
        };
        let Ok(data) = frame.into_data() else { continue };
        if received.len() + data.len() > size {
            return Err(Problem::of_status(StatusCode::PAYLOAD_TOO_LARGE));
        }
        limits.take(data.len())?;
        received.extend_from_slice(&data);
    }
}

/// What was encoded, up to `size`. One member or frame: whatever follows it is an error.
fn decode(encoding: Encoding, encoded: &[u8], size: usize) -> Result<Vec<u8>, StatusCode> {
    let broken = |_: io::Error| StatusCode::BAD_REQUEST;
    match encoding {
        Encoding::Plain => Ok(encoded.to_vec()),
        Encoding::Gzip => {
            let mut decoder = GzDecoder::new(encoded);
            let text = up_to(size, &mut decoder)?;
            if decoder.into_inner().is_empty() { Ok(text) } else { Err(StatusCode::BAD_REQUEST) }
        }
        Encoding::Zstd => {
            let mut decoder = zstd::stream::read::Decoder::with_buffer(encoded).map_err(broken)?.single_frame();
            decoder.window_log_max(WINDOW_LOG).map_err(broken)?;
            let text = up_to(size, &mut decoder)?;
            if decoder.finish().is_empty() { Ok(text) } else { Err(StatusCode::BAD_REQUEST) }
        }
    }
}

fn up_to(size: usize, decoder: &mut impl Read) -> Result<Vec<u8>, StatusCode> {
    let mut text = Vec::new();
    let mut piece = vec![0; PIECE];
    loop {
        let read = decoder.read(&mut piece).map_err(|_| StatusCode::BAD_REQUEST)?;
        if read == 0 {
            return Ok(text);
        }
        if text.len() + read > size {
            return Err(StatusCode::PAYLOAD_TOO_LARGE);
        }
        text.extend_from_slice(&piece[..read]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::{Compression, write::GzEncoder};
    use std::io::Write;

    const SIZE: usize = 64 << 10;

    fn gzip(plain: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(plain).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn what_was_encoded_comes_back_and_a_bomb_does_not() {
        let text = vec![b' '; SIZE];
        let bomb = vec![b' '; SIZE + 1];
        for (encoding, encode) in [
            (Encoding::Gzip, gzip as fn(&[u8]) -> Vec<u8>),
            (Encoding::Zstd, |plain| zstd::encode_all(plain, 3).unwrap()),
        ] {
            assert_eq!(decode(encoding, &encode(&text), SIZE).unwrap(), text);
            assert_eq!(decode(encoding, &encode(&bomb), SIZE), Err(StatusCode::PAYLOAD_TOO_LARGE));
            let twice = [encode(b"{}"), encode(b"{}")].concat();
            assert_eq!(decode(encoding, &twice, SIZE), Err(StatusCode::BAD_REQUEST), "{encoding:?}: two members");
            let whole = encode(&text);
            let cut = &whole[..whole.len() / 2];
            assert_eq!(decode(encoding, cut, SIZE), Err(StatusCode::BAD_REQUEST), "{encoding:?}: cut off");
        }
    }

    #[test]
    fn a_frame_that_asks_for_a_large_window_is_refused_before_it_gets_any() {
        let mut encoder = zstd::stream::write::Encoder::new(Vec::new(), 3).unwrap();
        encoder.window_log(27).unwrap();
        // unknown length, so that the frame names its window
        encoder.include_contentsize(false).unwrap();
        encoder.write_all(b"{}").unwrap();
        encoder.flush().unwrap();
        let frame = encoder.finish().unwrap();
        assert_eq!(decode(Encoding::Zstd, &frame, SIZE), Err(StatusCode::BAD_REQUEST));
    }

    #[test]
    fn one_encoding_is_read() {
        let headers = |values: &[&str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(header::CONTENT_ENCODING, value.parse().unwrap());
            }
            headers
        };
        assert_eq!(Encoding::of(&headers(&[])).unwrap(), Encoding::Plain);
        assert_eq!(Encoding::of(&headers(&["GZIP"])).unwrap(), Encoding::Gzip);
        for values in [&["gzip, gzip"][..], &["gzip", "gzip"], &["br"], &["deflate"], &["zstd,"], &[""]] {
            assert!(Encoding::of(&headers(values)).is_err(), "{values:?}");
        }
    }
}
