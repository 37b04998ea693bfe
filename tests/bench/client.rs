//! A cheap client of the API: requests are made beforehand, and answers are taken apart no further than is needed. It
//! shares its cores with what it measures.

use crate::Outcome;
use serde_json::Value;
use std::net::SocketAddr;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

/// One connection that stays open.
#[derive(Debug)]
pub struct Connection {
    stream: TcpStream,
    /// What was received; of the last answer once it is whole.
    received: Vec<u8>,
}

/// What the server answered.
#[derive(Debug, Clone, Copy)]
pub struct Answer<'a> {
    pub status: u16,
    pub body: &'a [u8],
}

/// A request as it goes over the wire.
pub fn request(method: &str, path: &str, bearer: &str, headers: &[(&str, &str)], body: &[u8]) -> Vec<u8> {
    let mut head = format!("{method} {path} HTTP/1.1\r\nhost: bench\r\n");
    if !bearer.is_empty() {
        head.push_str(&format!("authorization: Bearer {bearer}\r\n"));
    }
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    head.push_str(&format!("content-length: {}\r\n\r\n", body.len()));
    let mut request = head.into_bytes();
    request.extend_from_slice(body);
    request
}

/// A `POST` of JSON.
pub fn post(path: &str, bearer: &str, body: &Value) -> Vec<u8> {
    request("POST", path, bearer, &[("content-type", "application/json")], body.to_string().as_bytes())
}

impl Connection {
    pub async fn open(address: SocketAddr) -> Outcome<Self> {
        let stream = TcpStream::connect(address).await.map_err(|e| format!("{address}: {e}"))?;
        stream.set_nodelay(true).map_err(|e| e.to_string())?;
        Ok(Self { stream, received: Vec::with_capacity(8192) })
    }

    /// Sends a request and waits for its whole answer.
    pub async fn send(&mut self, request: &[u8]) -> Outcome<Answer<'_>> {
        self.stream.write_all(request).await.map_err(|e| format!("sending: {e}"))?;
        self.received.clear();
        let mut looked = 0;
        let end_of_head = loop {
            self.receive().await?;
            let from = usize::saturating_sub(looked, 3);
            if let Some(at) = self.received[from..].windows(4).position(|four| four == b"\r\n\r\n") {
                break from + at + 4;
            }
            looked = self.received.len();
        };
        let (status, length) = self.head(end_of_head)?;
        while self.received.len() < end_of_head + length {
            self.receive().await?;
        }
        Ok(Answer { status, body: &self.received[end_of_head..end_of_head + length] })
    }

    /// The same for an answer that must have this status and be JSON.
    pub async fn json(&mut self, request: &[u8], status: u16) -> Outcome<Value> {
        let answer = self.send(request).await?;
        answer.expect(status)?;
        serde_json::from_slice(answer.body).map_err(|e| format!("an answer is no JSON: {e}"))
    }

    async fn receive(&mut self) -> Outcome<()> {
        match self.stream.read_buf(&mut self.received).await {
            Ok(0) => Err("the server closed a connection".to_owned()),
            Ok(_) => Ok(()),
            Err(e) => Err(format!("receiving: {e}")),
        }
    }

    /// Status and length of the body.
    fn head(&self, end: usize) -> Outcome<(u16, usize)> {
        let head = std::str::from_utf8(&self.received[..end]).map_err(|e| e.to_string())?;
        let mut lines = head.split("\r\n");
        let status = lines.next().and_then(|line| line.split(' ').nth(1)).and_then(|status| status.parse().ok());
        let length = lines
            .filter_map(|line| line.split_once(':'))
            .find(|(name, _)| name.eq_ignore_ascii_case("content-length"))
            .and_then(|(_, length)| length.trim().parse().ok());
        status.zip(length).ok_or_else(|| format!("an answer without status or length:\n{head}"))
    }
}

impl Answer<'_> {
    /// Fails with what the server said when it is another status.
    pub fn expect(&self, status: u16) -> Outcome<()> {
        if self.status == status {
            return Ok(());
        }
        Err(format!("{} instead of {status}: {}", self.status, String::from_utf8_lossy(self.body)))
    }

    /// The text of the body's first field of this name, without looking at the rest.
    pub fn text(&self, field: &str) -> Outcome<String> {
        let body = String::from_utf8_lossy(self.body);
        let found = body.split_once(&format!("\"{field}\":\"")).and_then(|(_, rest)| rest.split_once('"'));
        found.map(|(text, _)| text.to_owned()).ok_or_else(|| format!("no {field} in {body}"))
    }
}
