//! A client of the API, for the commands that work on a server.

use crate::{error, problem::Problem, token};
use reqwest::{Method, StatusCode};
use serde_json::Value;
use std::{
    path::{Path, PathBuf},
    time::Duration,
};
use tokio::time::Instant;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// The longest that the server may take; a `wait` of 30 seconds included.
const TIMEOUT: Duration = Duration::from_secs(60);
/// How long a command goes on trying while the server cannot answer.
const PATIENCE: Duration = Duration::from_secs(3);
/// The largest answer that is read.
const MAX_ANSWER: usize = 32 << 20;

/// Where the server is, and who asks.
#[derive(Debug, Clone, clap::Args)]
pub struct ServerArgs {
    /// Where the server answers [default: http://127.0.0.1:7070]
    #[arg(long, env = "GPULEDGER_SERVER", value_name = "URL")]
    pub server: Option<String>,
    /// An API key, or the token of a login; otherwise what `gpuledger login` saved is used. The variable is safer: every
    /// user of the machine sees a command line
    #[arg(long, env = "GPULEDGER_TOKEN", hide_env_values = true, value_name = "TOKEN")]
    pub token: Option<String>,
    /// The certificate authority of the server, as PEM, if it is not a public one: nothing else is trusted then
    #[arg(long, env = "GPULEDGER_CA_FILE", value_name = "FILE")]
    pub ca_file: Option<PathBuf>,
}

/// Where a server answers when nothing is said.
pub(crate) const USUAL_SERVER: &str = "http://127.0.0.1:7070";

impl ServerArgs {
    /// A client with a credential.
    pub(crate) fn client(&self) -> Result<Client, ClientError> {
        self.client_of(USUAL_SERVER)
    }

    /// The same, with another server where none is named.
    pub(crate) fn client_of(&self, usual: &str) -> Result<Client, ClientError> {
        let client = self.anonymous_client_of(usual)?;
        let token = match &self.token {
            Some(token) => token.trim().to_owned(),
            None => token::saved()?,
        };
        Ok(Client { token: Some(token), ..client })
    }

    /// A client without a credential.
    pub(crate) fn anonymous_client(&self) -> Result<Client, ClientError> {
        self.anonymous_client_of(USUAL_SERVER)
    }

    fn anonymous_client_of(&self, usual: &str) -> Result<Client, ClientError> {
        Client::new(self.server.as_deref().unwrap_or(usual), self.ca_file.as_deref())
    }
}

/// Why there is no good answer.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The client cannot be set up: an address, a credential or certificates are not usable.
    #[error("{0}")]
    Setup(String),
    /// The server says no.
    #[error("{problem}")]
    Refused { status: u16, problem: Box<Problem> },
    /// No answer, or none yet.
    #[error("{0}")]
    Unavailable(String),
    /// An answer that makes no sense.
    #[error("the server's answer makes no sense: {0}")]
    Answer(String),
}

impl ClientError {
    /// The status of a refusal.
    pub(crate) const fn status(&self) -> Option<u16> {
        match self {
            Self::Refused { status, .. } => Some(*status),
            _ => None,
        }
    }
}

/// Speaks to one server with one credential.
#[derive(Clone)]
pub struct Client {
    http: reqwest::Client,
    base: String,
    ca_file: Option<PathBuf>,
    token: Option<String>,
    patience: Duration,
}

impl std::fmt::Debug for Client {
    /// Without the credential.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("base", &self.base).finish_non_exhaustive()
    }
}

/// One call. Every one can be repeated: a request for memory carries a key, and all other changes are harmless when
/// made twice.
#[derive(Debug)]
pub(crate) struct Call<'a> {
    pub method: Method,
    pub path: &'a str,
    pub query: &'a [(&'a str, String)],
    pub body: Option<&'a Value>,
    /// The idempotency key.
    pub key: Option<&'a str>,
}

impl Client {
    fn new(server: &str, ca_file: Option<&Path>) -> Result<Self, ClientError> {
        let base = server.trim_end_matches('/');
        let builder = reqwest::Client::builder()
            .connect_timeout(CONNECT_TIMEOUT)
            .timeout(TIMEOUT)
            // a credential is never sent on to where a redirect points
            .redirect(reqwest::redirect::Policy::none());
        let builder = agent::trust::trust(builder, base, ca_file);
        let http = builder.map_err(|e| ClientError::Setup(error::explain(&e)))?.build();
        let http = http.map_err(|e| ClientError::Setup(error::explain(&e)))?;
        let ca_file = ca_file.map(Path::to_owned);
        Ok(Self { http, base: base.to_owned(), ca_file, token: None, patience: PATIENCE })
    }

    /// The same client, which goes on trying for so long while the server cannot answer.
    pub(crate) fn with_patience(&self, patience: Duration) -> Self {
        Self { patience, ..self.clone() }
    }

    pub(crate) async fn get(&self, path: &str, query: &[(&str, String)]) -> Result<Value, ClientError> {
        self.call(Call { method: Method::GET, path, query, body: None, key: None }).await
    }

    pub(crate) async fn post(&self, path: &str, body: Option<&Value>) -> Result<Value, ClientError> {
        self.call(Call { method: Method::POST, path, query: &[], body, key: None }).await
    }

    /// Every item of a list, page after page, up to `most`.
    pub(crate) async fn list(
        &self,
        path: &str,
        query: &[(&str, String)],
        most: usize,
    ) -> Result<Vec<Value>, ClientError> {
        let mut items = Vec::new();
        let mut cursor: Option<String> = None;
        loop {
            let mut query = query.to_vec();
            query.push(("limit", (most - items.len()).clamp(1, 200).to_string()));
            query.extend(cursor.take().map(|cursor| ("cursor", cursor)));
            let mut page = self.get(path, &query).await?;
            let Value::Array(more) = page["items"].take() else {
                return Err(ClientError::Answer(format!("{path} is no list")));
            };
            let is_last = more.is_empty();
            items.extend(more);
            cursor = page["next_cursor"].as_str().map(str::to_owned);
            if cursor.is_none() || is_last || items.len() >= most {
                items.truncate(most);
                return Ok(items);
            }
        }
    }

    /// Sends a call and reads its answer, trying again while the server cannot answer.
    pub(crate) async fn call(&self, call: Call<'_>) -> Result<Value, ClientError> {
        let deadline = Instant::now() + self.patience;
        let mut pause = Duration::from_millis(100);
        loop {
            let (why, retry_after) = match self.try_call(&call).await {
                Ok(Attempt::Answered(value)) => return Ok(value),
                Ok(Attempt::Again(why, retry_after)) => (why, retry_after),
                Err(error) => return Err(error),
            };
            let wait = retry_after.unwrap_or(pause).min(Duration::from_secs(10));
            if Instant::now() + wait > deadline {
                return Err(ClientError::Unavailable(why));
            }
            tokio::time::sleep(wait).await;
            pause = (pause * 2).min(Duration::from_secs(5));
        }
    }

    async fn try_call(&self, call: &Call<'_>) -> Result<Attempt, ClientError> {
        let mut request = self.http.request(call.method.clone(), format!("{}{}", self.base, call.path));
        if !call.query.is_empty() {
            request = request.query(call.query);
        }
        if let Some(token) = &self.token {
            request = request.bearer_auth(token);
        }
        if let Some(key) = call.key {
            request = request.header("idempotency-key", key);
        }
        if let Some(body) = call.body {
            request = request.json(body);
        }
        let mut response = match request.send().await {
            Ok(response) => response,
            Err(e) if e.is_builder() => return Err(ClientError::Setup(error::explain(&e))),
            Err(e) => {
                if let Some(advice) = agent::trust::advice(&e, self.ca_file.as_deref()) {
                    return Err(ClientError::Setup(format!("{}: {advice}", self.base)));
                }
                let why = format!("no answer from {}: {}", self.base, error::explain(&e.without_url()));
                return Ok(Attempt::Again(why, None));
            }
        };
        let status = response.status();
        let retry_after =
            response.headers().get("retry-after").and_then(|v| v.to_str().ok()?.parse().ok()).map(Duration::from_secs);
        let mut body = Vec::new();
        loop {
            match response.chunk().await {
                Ok(Some(chunk)) if body.len() + chunk.len() > MAX_ANSWER => {
                    return Err(ClientError::Answer(format!("it is larger than {MAX_ANSWER} bytes")));
                }
                Ok(Some(chunk)) => body.extend_from_slice(&chunk),
                Ok(None) => break,
                Err(e) => {
                    let why = format!("the answer from {} broke off: {}", self.base, error::explain(&e.without_url()));
                    return Ok(Attempt::Again(why, None));
                }
            }
        }
        self.judge(status, retry_after, &body)
    }

    fn judge(&self, status: StatusCode, retry_after: Option<Duration>, body: &[u8]) -> Result<Attempt, ClientError> {
        if status.is_success() {
            let value = if body.is_empty() { Ok(Value::Null) } else { serde_json::from_slice(body) };
            return value.map(Attempt::Answered).map_err(|e| ClientError::Answer(e.to_string()));
        }
        let problem = Problem::read(status.as_u16(), body);
        let is_passing = matches!(
            status,
            StatusCode::TOO_MANY_REQUESTS
                | StatusCode::BAD_GATEWAY
                | StatusCode::SERVICE_UNAVAILABLE
                | StatusCode::GATEWAY_TIMEOUT
        );
        if is_passing {
            return Ok(Attempt::Again(format!("{} answers: {problem}", self.base), retry_after));
        }
        if status == StatusCode::INTERNAL_SERVER_ERROR {
            return Err(ClientError::Answer(problem.to_string()));
        }
        Err(ClientError::Refused { status: status.as_u16(), problem: Box::new(problem) })
    }
}

/// What one try gave.
enum Attempt {
    Answered(Value),
    /// Try again: why, and after how long if the server says.
    Again(String, Option<Duration>),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_needs_a_scheme_and_a_host() {
        for good in ["http://127.0.0.1:7070", "http://h/", "http://[::1]:80"] {
            assert!(Client::new(good, None).is_ok(), "{good}");
        }
        for bad in ["", "localhost:7070", "ftp://h", "http://", "file:///etc/passwd"] {
            assert!(Client::new(bad, None).is_err(), "{bad} was accepted");
        }
    }

    #[test]
    fn only_passing_trouble_is_tried_again() {
        let client = Client::new("http://h", None).unwrap();
        let again =
            |status| matches!(client.judge(StatusCode::from_u16(status).unwrap(), None, b"{}"), Ok(Attempt::Again(..)));
        assert!(again(503) && again(502) && again(504) && again(429));
        assert!(!again(200) && !again(401) && !again(404) && !again(409) && !again(422) && !again(500));
        assert!(matches!(client.judge(StatusCode::NO_CONTENT, None, b""), Ok(Attempt::Answered(Value::Null))));
        let html = client.judge(StatusCode::OK, None, b"<html>");
        assert!(matches!(html, Err(ClientError::Answer(_))));
    }
}
