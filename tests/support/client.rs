//! A client of the API for tests: JSON in, JSON out, nothing hidden.

use reqwest::{Method, header};
use serde_json::Value;
use std::path::Path;

/// Speaks to one server, with one credential or none.
#[derive(Debug, Clone)]
pub struct Client {
    http: reqwest::Client,
    base: String,
    bearer: Option<String>,
}

/// What the server answered.
#[derive(Debug, Clone)]
pub struct Answer {
    /// What was asked, for messages.
    request: String,
    /// The HTTP status.
    pub status: u16,
    /// All headers.
    pub headers: header::HeaderMap,
    /// The body, byte for byte.
    pub body: Vec<u8>,
    /// The body as JSON; null when it is none.
    pub json: Value,
}

impl Client {
    /// A client without a credential.
    ///
    /// # Panics
    /// When no HTTP client can be made on this machine.
    #[must_use]
    pub fn new(base: &str) -> Self {
        Self::trusting(base, None)
    }

    /// The same, which trusts the certificate authority of a file alone.
    ///
    /// # Panics
    /// When no HTTP client can be made on this machine, or the file is none.
    #[must_use]
    pub fn trusting(base: &str, ca_file: Option<&Path>) -> Self {
        let builder = reqwest::Client::builder().redirect(reqwest::redirect::Policy::none());
        let builder = match agent::trust::trust(builder, base, ca_file) {
            Ok(builder) => builder,
            Err(error) => panic!("no HTTP client: {error}"),
        };
        let http = match builder.build() {
            Ok(http) => http,
            Err(error) => panic!("no HTTP client: {error}"),
        };
        Self { http, base: base.trim_end_matches('/').to_owned(), bearer: None }
    }

    /// The same client with a token, an API key or a node's credential.
    #[must_use]
    pub fn with(&self, bearer: &str) -> Self {
        Self { bearer: Some(bearer.to_owned()), ..self.clone() }
    }

    /// The same client from an address of its own, which servers limit by itself.
    ///
    /// # Panics
    /// When no HTTP client can be made on this machine.
    #[must_use]
    pub fn from_address(&self, address: std::net::IpAddr) -> Self {
        let builder = reqwest::Client::builder().redirect(reqwest::redirect::Policy::none()).local_address(address);
        let http = match agent::trust::trust(builder, &self.base, None).map(reqwest::ClientBuilder::build) {
            Ok(Ok(http)) => http,
            other => panic!("no HTTP client: {other:?}"),
        };
        Self { http, ..self.clone() }
    }

    /// The same client at another server.
    #[must_use]
    pub fn at(&self, base: &str) -> Self {
        Self { base: base.trim_end_matches('/').to_owned(), ..self.clone() }
    }

    /// `GET`.
    pub async fn get(&self, path: &str) -> Answer {
        self.send(self.request(Method::GET, path)).await
    }

    /// `POST` with a JSON body.
    pub async fn post(&self, path: &str, body: &Value) -> Answer {
        self.send(self.request(Method::POST, path).json(body)).await
    }

    /// `PUT` with a JSON body.
    pub async fn put(&self, path: &str, body: &Value) -> Answer {
        self.send(self.request(Method::PUT, path).json(body)).await
    }

    /// `DELETE`.
    pub async fn delete(&self, path: &str) -> Answer {
        self.send(self.request(Method::DELETE, path)).await
    }

    /// A request with this client's credential, for a test that needs other headers or a body that is no JSON.
    pub fn request(&self, method: Method, path: &str) -> reqwest::RequestBuilder {
        let request = self.http.request(method, format!("{}{path}", self.base));
        match &self.bearer {
            Some(bearer) => request.bearer_auth(bearer),
            None => request,
        }
    }

    /// Sends what [`Self::request`] began.
    ///
    /// # Panics
    /// When no answer comes: a test that expects this sends through `reqwest` itself.
    pub async fn send(&self, request: reqwest::RequestBuilder) -> Answer {
        let request = match request.build() {
            Ok(request) => request,
            Err(error) => panic!("no request: {error}"),
        };
        let asked = format!("{} {}", request.method(), request.url());
        let response = match self.http.execute(request).await {
            Ok(response) => response,
            Err(error) => panic!("{asked}: {error:?}"),
        };
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        let body = match response.bytes().await {
            Ok(body) => body.to_vec(),
            Err(error) => panic!("{asked}: {error:?}"),
        };
        let json = serde_json::from_slice(&body).unwrap_or(Value::Null);
        Answer { request: asked, status, headers, body, json }
    }
}

impl Answer {
    /// The JSON of an answer that must have this status.
    ///
    /// # Panics
    /// When it has another one.
    #[track_caller]
    #[expect(clippy::must_use_candidate, reason = "mostly it is the status that matters")]
    pub fn expect(self, status: u16) -> Value {
        assert_eq!(self.status, status, "{self}");
        self.json
    }

    /// The problem of an answer that must be one (RFC 9457): with this status and code, and with a fault in this field
    /// if one is given.
    ///
    /// # Panics
    /// When it is not.
    #[track_caller]
    pub fn problem(self, status: u16, code: &str, field: Option<&str>) -> Value {
        assert_eq!(self.status, status, "{self}");
        let content_type = self.headers.get(header::CONTENT_TYPE).and_then(|v| v.to_str().ok());
        assert_eq!(content_type, Some("application/problem+json"), "{self}");
        assert_eq!(self.json["status"], status, "{self}");
        assert_eq!(self.json["code"], code, "{self}");
        assert_eq!(self.json["type"], format!("/problems/{}", code.replace('_', "-")), "{self}");
        assert!(self.json["title"].as_str().is_some_and(|title| !title.is_empty()), "no title: {self}");
        if let Some(field) = field {
            let faults = self.json["errors"].as_array().into_iter().flatten();
            assert!(faults.into_iter().any(|fault| fault["field"] == field), "{field} is not named: {self}");
        }
        self.json
    }
}

impl std::fmt::Display for Answer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} answered {}: {}", self.request, self.status, String::from_utf8_lossy(&self.body))
    }
}
