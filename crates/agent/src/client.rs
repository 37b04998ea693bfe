//! How the agent talks to the server: posts JSON, with bounds on time and size.

use crate::trust::{self, TrustError};
use serde::Serialize;
use std::{
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const TIMEOUT: Duration = Duration::from_secs(30);
/// The largest answer that is read: the orders for every part that a node can hold.
const MAX_ANSWER: usize = 8 << 20;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    #[error(transparent)]
    Trust(#[from] TrustError),
    /// The server's certificate does not hold.
    #[error("{0}")]
    Certificate(String),
    #[error("no connection to the server can be set up")]
    Setup(#[source] reqwest::Error),
    #[error("the request failed: {}", chain(.0))]
    Transport(#[source] reqwest::Error),
    #[error("the answer is larger than {MAX_ANSWER} bytes")]
    TooLarge,
    #[error("the request cannot be written as JSON")]
    Json(#[from] serde_json::Error),
}

/// An error with what caused it: the transport's own message names none of it.
fn chain(error: &reqwest::Error) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

/// An answer of the server, whatever its status.
#[derive(Debug)]
pub(crate) struct Answer {
    pub status: u16,
    /// When the server wants to be asked again.
    pub retry_after: Option<Duration>,
    pub body: Vec<u8>,
}

impl Answer {
    pub const fn is_success(&self) -> bool {
        self.status / 100 == 2
    }

    /// Whether another agent speaks for the node, so that this one is not heard.
    pub fn is_anothers(&self) -> bool {
        #[derive(serde::Deserialize)]
        struct Code {
            code: String,
        }
        self.status == 409
            && serde_json::from_slice::<Code>(&self.body)
                .is_ok_and(|problem| matches!(problem.code.as_str(), "another_agent_reports" | "former_boot"))
    }

    /// What a problem document says, or the beginning of whatever came instead.
    pub fn detail(&self) -> String {
        #[derive(serde::Deserialize)]
        struct Problem {
            title: Option<String>,
            detail: Option<String>,
        }
        let problem: Option<Problem> = serde_json::from_slice(&self.body).ok();
        problem.and_then(|p| p.detail.or(p.title)).unwrap_or_else(|| {
            let text = String::from_utf8_lossy(&self.body);
            text.chars().take(200).collect()
        })
    }
}

/// A connection to the server.
#[derive(Clone)]
pub(crate) struct ServerClient {
    http: reqwest::Client,
    base: String,
    /// Shared by all clones: a new one is used by whoever calls next.
    credential: Option<Arc<Mutex<String>>>,
    ca_file: Option<PathBuf>,
}

impl std::fmt::Debug for ServerClient {
    /// Without the credential.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ServerClient").field("base", &self.base).finish_non_exhaustive()
    }
}

impl ServerClient {
    pub fn new(server_url: &str, ca_file: Option<&Path>) -> Result<Self, ClientError> {
        let base = server_url.trim_end_matches('/');
        let builder = reqwest::Client::builder()
            .connect_timeout(CONNECT_TIMEOUT)
            .timeout(TIMEOUT)
            // a credential is never sent on to where a redirect points
            .redirect(reqwest::redirect::Policy::none());
        let http = trust::trust(builder, base, ca_file)?.build().map_err(ClientError::Setup)?;
        Ok(Self { http, base: base.to_owned(), credential: None, ca_file: ca_file.map(Path::to_owned) })
    }

    pub fn with_credential(mut self, credential: &str) -> Self {
        self.credential = Some(Arc::new(Mutex::new(credential.to_owned())));
        self
    }

    /// What it proves itself with.
    pub fn credential(&self) -> Option<String> {
        let credential = self.credential.as_ref()?;
        Some(credential.lock().unwrap_or_else(PoisonError::into_inner).clone())
    }

    /// Proves itself with another one from now on.
    pub fn set_credential(&self, new: String) {
        if let Some(credential) = &self.credential {
            *credential.lock().unwrap_or_else(PoisonError::into_inner) = new;
        }
    }

    pub async fn post<T: Serialize + Sync>(&self, path: &str, body: &T) -> Result<Answer, ClientError> {
        self.send(path, serde_json::to_vec(body)?, None).await
    }

    /// Posts JSON that is compressed already.
    pub async fn post_zstd(&self, path: &str, body: Vec<u8>) -> Result<Answer, ClientError> {
        self.send(path, body, Some("zstd")).await
    }

    async fn send(&self, path: &str, body: Vec<u8>, encoding: Option<&'static str>) -> Result<Answer, ClientError> {
        let mut request =
            self.http.post(format!("{}{path}", self.base)).header("content-type", "application/json").body(body);
        if let Some(encoding) = encoding {
            request = request.header("content-encoding", encoding);
        }
        if let Some(credential) = self.credential() {
            request = request.bearer_auth(credential);
        }
        let mut response =
            request.send().await.map_err(|error| match trust::advice(&error, self.ca_file.as_deref()) {
                Some(advice) => ClientError::Certificate(advice),
                None => ClientError::Transport(error),
            })?;
        let retry_after =
            response.headers().get("retry-after").and_then(|v| v.to_str().ok()?.parse().ok()).map(Duration::from_secs);
        let status = response.status().as_u16();
        let mut body = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(ClientError::Transport)? {
            if body.len() + chunk.len() > MAX_ANSWER {
                return Err(ClientError::TooLarge);
            }
            body.extend_from_slice(&chunk);
        }
        Ok(Answer { status, retry_after, body })
    }
}
