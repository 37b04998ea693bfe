//! The section `[http]`.

use super::{count, millis, outside};
use crate::{certificate::TlsFiles, connection::ConnectionLimits, duration};
use serde::Deserialize;
use std::{net::SocketAddr, path::PathBuf, time::Duration};
use types::Bytes;

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Http {
    pub listen: SocketAddr,
    pub tls_certificate: Option<PathBuf>,
    pub tls_key: Option<PathBuf>,
    #[serde(deserialize_with = "duration::deserialize")]
    pub timeout: Duration,
    pub body_limit: Bytes,
    pub body_memory: Bytes,
    pub in_flight: usize,
    pub connections: usize,
    pub connections_per_address: usize,
    #[serde(deserialize_with = "duration::deserialize")]
    pub head_timeout: Duration,
    #[serde(deserialize_with = "duration::deserialize")]
    pub idle_timeout: Duration,
    #[serde(deserialize_with = "duration::deserialize")]
    pub stall_timeout: Duration,
    pub head_limit: Bytes,
    pub headers: usize,
    pub uri_limit: Bytes,
    pub streams: u32,
    #[serde(deserialize_with = "duration::deserialize")]
    pub drain: Duration,
    pub trusted_proxies: Vec<api::TrustedProxy>,
}

impl Http {
    /// Rules that a type does not hold.
    pub(super) fn check(&self, wrong: &mut Vec<String>) {
        let mut within = |key: &str, value, range, unit: &str| wrong.extend(outside(key, value, &range, unit));
        within("http.timeout", millis(self.timeout), 1000..=3_600_000, "ms");
        within("http.body_limit", self.body_limit.0, 65_536..=(256 << 20), " bytes");
        within("http.in_flight", count(self.in_flight), 1..=100_000, "");
        let body = self.body_limit.0;
        within("http.body_memory", self.body_memory.0, body.saturating_mul(2)..=(1 << 40), " bytes");
        within("http.connections", count(self.connections), 16..=1_000_000, "");
        within("http.connections_per_address", count(self.connections_per_address), 1..=1_000_000, "");
        within("http.head_timeout", millis(self.head_timeout), 100..=600_000, "ms");
        within("http.idle_timeout", millis(self.idle_timeout), 1000..=3_600_000, "ms");
        within("http.stall_timeout", millis(self.stall_timeout), 100..=600_000, "ms");
        within("http.head_limit", self.head_limit.0, 8192..=(1 << 20), " bytes");
        within("http.headers", count(self.headers), 16..=1000, "");
        within("http.uri_limit", self.uri_limit.0, 1024..=65_534, " bytes");
        within("http.streams", self.streams.into(), 1..=10_000, "");
        if self.tls_certificate.is_some() != self.tls_key.is_some() {
            wrong.push("http.tls_certificate and http.tls_key must be given together".to_owned());
        }
    }

    /// Limits of requests.
    #[must_use]
    pub fn limits(&self) -> api::HttpLimits {
        api::HttpLimits {
            body: usize::try_from(self.body_limit.0).unwrap_or(usize::MAX),
            duration: self.timeout,
            in_flight: self.in_flight,
            stall: self.stall_timeout,
            body_memory: usize::try_from(self.body_memory.0).unwrap_or(usize::MAX),
            uri: usize::try_from(self.uri_limit.0).unwrap_or(usize::MAX),
        }
    }

    /// What stops whoever guesses.
    #[must_use]
    pub fn guard(&self) -> api::Guard {
        api::Guard::new(self.trusted_proxies.clone())
    }

    /// Limits of the connections that carry it.
    #[must_use]
    pub(crate) fn connections(&self) -> ConnectionLimits {
        ConnectionLimits {
            connections: self.connections,
            per_address: self.connections_per_address,
            head: self.head_timeout,
            idle: self.idle_timeout,
            stall: self.stall_timeout,
            head_size: usize::try_from(self.head_limit.0).unwrap_or(usize::MAX),
            headers: self.headers,
            streams: self.streams,
        }
    }

    /// The server's certificate and key, where it is to speak TLS.
    #[must_use]
    pub(crate) fn tls(&self) -> Option<TlsFiles> {
        let (certificate, key) = (self.tls_certificate.clone()?, self.tls_key.clone()?);
        Some(TlsFiles { certificate, key })
    }
}
