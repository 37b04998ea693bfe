//! An issuer over the network: its discovery document and its keys, kept for a while, and what it gives for a code.
//!
//! Nobody who sends tokens decides how often the issuer is asked: it is one question at a time, and none within
//! [`RETRY`] of the last, whatever keys the tokens name.

use super::{
    settings::{ClientSettings, ProviderSettings, SecureUrl},
    token::{self, Expected, Key, Signed},
};
use crate::error::AppError;
use reqwest::{Client, RequestBuilder, Url, redirect};
use secrecy::ExposeSecret;
use serde::Deserialize;
use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant as RealTime},
};
use types::Instant;

/// The least time between two questions for keys.
pub const RETRY: Duration = Duration::from_secs(5);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// For one question, its answer included.
const TIMEOUT: Duration = Duration::from_secs(5);
/// The largest answer that is read, in bytes.
const LONGEST_ANSWER: usize = 256 << 10;

/// A client for all issuers: it follows no redirect, because an issuer is trusted at its own address alone.
pub(super) fn client(settings: &[ProviderSettings]) -> Result<Client, reqwest::Error> {
    let builder =
        Client::builder().connect_timeout(CONNECT_TIMEOUT).timeout(TIMEOUT).redirect(redirect::Policy::none());
    let needs_tls = settings.iter().any(|provider| provider.issuer.url().scheme() == "https");
    // without this, a host without any CA certificates could not even talk plain HTTP
    if needs_tls { builder.build() } else { builder.tls_certs_only([]).build() }
}

/// An issuer, and what is known of it.
pub(crate) struct Provider {
    pub(super) settings: ProviderSettings,
    http: Client,
    /// Never locked while the issuer is asked.
    known: Mutex<Known>,
    /// Held by the one who asks.
    asking: Arc<tokio::sync::Mutex<()>>,
}

#[derive(Default)]
struct Known {
    found: Option<Arc<Found>>,
    /// When the issuer was last asked, and whether it answered.
    asked: Option<(RealTime, bool)>,
}

/// What an issuer says of itself.
pub(super) struct Found {
    read_at: RealTime,
    pub authorization_endpoint: Option<SecureUrl>,
    token_endpoint: Option<SecureUrl>,
    /// Whether a client's secret goes into the header, not into the form.
    takes_basic: bool,
    keys: Vec<Key>,
}

/// The parts of a discovery document that are used.
#[derive(Deserialize)]
struct Discovery {
    issuer: String,
    jwks_uri: String,
    authorization_endpoint: Option<String>,
    token_endpoint: Option<String>,
    token_endpoint_auth_methods_supported: Option<Vec<String>>,
}

impl Provider {
    pub(super) fn new(settings: ProviderSettings, http: Client) -> Self {
        Self { settings, http, known: Mutex::default(), asking: Arc::default() }
    }

    /// The subject of a token that this issuer signed and that is what it must be.
    pub(super) async fn subject(
        self: &Arc<Self>,
        token: &str,
        audiences: &[String],
        login: Option<token::Login<'_>>,
        now: Instant,
    ) -> Result<String, AppError> {
        let signed = Signed::of(token)?;
        let found = self.found(|found| found.keys.iter().any(|key| key.fits(&signed))).await?;
        let key = found.keys.iter().find(|key| key.fits(&signed)).ok_or(token::UNKNOWN_KEY)?;
        let leeway_s = i64::try_from(self.settings.leeway.as_secs()).unwrap_or(0);
        let expected = Expected { issuer: self.settings.issuer.as_str(), audiences, login, leeway_s };
        token::subject(token, &signed, key, &expected, now)
    }

    /// What the issuer says of itself: what was read lately, if that is enough; else it is asked, unless it was a moment
    /// ago. While it cannot be asked, what is known serves on for a while.
    ///
    /// # Errors
    /// [`AppError::Unavailable`] when it does not answer and what is known is not enough.
    pub(super) async fn found(self: &Arc<Self>, is_enough: impl Fn(&Found) -> bool) -> Result<Arc<Found>, AppError> {
        let kept = self.kept(&is_enough);
        if let Some(kept) = kept.as_ref().filter(|kept| kept.read_at.elapsed() < self.settings.refresh) {
            return Ok(Arc::clone(kept));
        }
        let turn = match (Arc::clone(&self.asking).try_lock_owned(), kept) {
            (Ok(turn), _) => turn,
            (Err(_), Some(kept)) => return Ok(kept),
            (Err(_), None) => Arc::clone(&self.asking).lock_owned().await,
        };
        if self.known().asked.is_none_or(|(at, _)| at.elapsed() >= RETRY) {
            let provider = Arc::clone(self);
            let ask = async move {
                provider.ask().await;
                drop(turn);
            };
            // goes on when the caller goes away, or callers that go away could keep every answer from being kept
            tokio::spawn(ask).await.map_err(|e| AppError::Internal(format!("asking an issuer: {e}")))?;
        }
        if let Some(kept) = self.kept(&is_enough) {
            return Ok(kept);
        }
        let known = self.known();
        match (&known.found, known.asked) {
            (Some(found), Some((_, true))) => Ok(Arc::clone(found)),
            _ => Err(self.unavailable("it cannot be asked for its keys")),
        }
    }

    /// What is known, if it is enough and not too old to serve.
    fn kept(&self, is_enough: &impl Fn(&Found) -> bool) -> Option<Arc<Found>> {
        let known = self.known();
        known.found.as_ref().filter(|found| found.read_at.elapsed() < self.settings.outage && is_enough(found)).cloned()
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        // each change replaces whole values, so that what a panic leaves is good
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn unavailable(&self, reason: &str) -> AppError {
        AppError::Unavailable(format!("the issuer {}: {reason}", self.settings.name))
    }

    async fn ask(&self) {
        let answer = self.read().await;
        let outcome = if answer.is_ok() { "answered" } else { "failed" };
        metrics::counter!("gpuledger_oidc_reads_total", "provider" => self.settings.name.clone(), "outcome" => outcome)
            .increment(1);
        let mut known = self.known();
        known.asked = Some((RealTime::now(), answer.is_ok()));
        match answer {
            Ok(found) => known.found = Some(Arc::new(found)),
            Err(reason) => tracing::warn!(provider = self.settings.name, reason, "an issuer's keys cannot be read"),
        }
    }

    async fn read(&self) -> Result<Found, String> {
        let issuer = self.settings.issuer.as_str();
        let address = format!("{}/.well-known/openid-configuration", issuer.trim_end_matches('/'));
        let document = self.get(&address).await?;
        let document: Discovery =
            serde_json::from_slice(&document).map_err(|e| format!("{address} is no discovery document: {e}"))?;
        if document.issuer != issuer {
            let other: String = document.issuer.chars().take(80).collect();
            return Err(format!("{address} is of the issuer {other:?}, not {issuer:?}"));
        }
        let keys = self.get(self.endpoint(&document.jwks_uri)?.as_str()).await?;
        let keys = token::keys(&keys).map_err(|e| format!("{} is no set of keys: {e}", document.jwks_uri))?;
        let endpoint = |text: Option<String>| text.map(|text| self.endpoint(&text)).transpose();
        Ok(Found {
            read_at: RealTime::now(),
            authorization_endpoint: endpoint(document.authorization_endpoint)?,
            token_endpoint: endpoint(document.token_endpoint)?,
            takes_basic: document
                .token_endpoint_auth_methods_supported
                .is_none_or(|methods| methods.iter().any(|method| method == "client_secret_basic")),
            keys,
        })
    }

    /// An address that the issuer names; one on this machine only where the issuer is here, too.
    fn endpoint(&self, text: &str) -> Result<SecureUrl, String> {
        let endpoint: SecureUrl = text.parse().map_err(|e| format!("the discovery document's {e}"))?;
        let is_as_secure = endpoint.url().scheme() == "https" || self.settings.issuer.url().scheme() == "http";
        if is_as_secure { Ok(endpoint) } else { Err(format!("{text:?} is less secure than the issuer")) }
    }

    async fn get(&self, address: &str) -> Result<Vec<u8>, String> {
        let url = Url::parse(address).map_err(|e| format!("{address}: {e}"))?;
        match answer(self.http.get(url).header("accept", "application/json")).await? {
            (200, body) => Ok(body),
            (status, _) => Err(format!("{address} answered {status}")),
        }
    }

    /// What the issuer gives for a code: a token that says who logged in.
    ///
    /// # Errors
    /// [`AppError::Unauthenticated`] when it does not accept the code, [`AppError::Unavailable`] for all else.
    pub(super) async fn redeem(
        self: &Arc<Self>,
        client: &ClientSettings,
        code: &str,
        verifier: &str,
    ) -> Result<String, AppError> {
        #[derive(Deserialize)]
        struct Granted {
            id_token: String,
        }
        #[derive(Deserialize)]
        struct Refused {
            error: String,
        }
        let found = self.found(|found| found.token_endpoint.is_some()).await?;
        let endpoint = found.token_endpoint.as_ref().ok_or_else(|| self.unavailable("it names no token endpoint"))?;
        let mut pairs = vec![
            ("grant_type", "authorization_code"),
            ("code", code),
            ("redirect_uri", client.redirect_uri.as_str()),
            ("code_verifier", verifier),
        ];
        let mut request = self.http.post(endpoint.url().clone()).header("accept", "application/json");
        match &client.secret {
            Some(secret) if found.takes_basic => {
                request = request.basic_auth(encoded(&client.id), Some(encoded(secret.expose_secret())));
            }
            Some(secret) => {
                pairs.extend([("client_id", client.id.as_str()), ("client_secret", secret.expose_secret())])
            }
            None => pairs.push(("client_id", &client.id)),
        }
        let form = form(&pairs);
        let request = request.header("content-type", "application/x-www-form-urlencoded").body(form);
        let (status, body) = answer(request).await.map_err(|reason| self.unavailable(&reason))?;
        if status == 200 {
            let granted: Granted = serde_json::from_slice(&body).map_err(|_| {
                self.unavailable("its answer to a code holds no id_token: is `openid` among the scopes?")
            })?;
            return Ok(granted.id_token);
        }
        match serde_json::from_slice::<Refused>(&body) {
            Ok(refused) if status < 500 && refused.error == "invalid_grant" => {
                Err(AppError::Unauthenticated("the issuer does not accept the code"))
            }
            Ok(refused) => {
                let error: String = refused.error.chars().take(80).collect();
                Err(self.unavailable(&format!("it answered {status} to a code: {error:?}")))
            }
            Err(_) => Err(self.unavailable(&format!("it answered {status} to a code"))),
        }
    }
}

/// Pairs as a form has them.
fn form(pairs: &[(&str, &str)]) -> String {
    // the query of an address has the same encoding, and the crate that encodes it is here already
    Url::parse_with_params("form:", pairs).ok().and_then(|url| url.query().map(str::to_owned)).unwrap_or_default()
}

/// A client's id or secret as it stands in the header, by RFC 6749.
fn encoded(text: &str) -> String {
    form(&[("", text)]).trim_start_matches('=').to_owned()
}

/// Status and body of an answer that is not too large; or what went wrong, with its causes.
async fn answer(request: RequestBuilder) -> Result<(u16, Vec<u8>), String> {
    let mut response = request.send().await.map_err(|e| chain(&e))?;
    let status = response.status().as_u16();
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(|e| chain(&e))? {
        if body.len() + chunk.len() > LONGEST_ANSWER {
            return Err(format!("the answer is larger than {LONGEST_ANSWER} bytes"));
        }
        body.extend_from_slice(&chunk);
    }
    Ok((status, body))
}

fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        text = format!("{text}: {next}");
        cause = next.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_hide_nothing_and_break_nothing() {
        assert_eq!(form(&[("code", "a b&c=d+ü"), ("x", "")]), "code=a+b%26c%3Dd%2B%C3%BC&x=");
        assert_eq!(encoded("s:e=c r+t"), "s%3Ae%3Dc+r%2Bt");
        assert_eq!(encoded("=x"), "%3Dx");
    }
}
