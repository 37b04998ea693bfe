//! A token issuer for tests: OpenID Connect with keys that the test changes, on a real socket.

use aws_lc_rs::{
    rand::SystemRandom,
    signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair},
};
use axum::{
    Form, Json, Router,
    extract::State,
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use base64::{Engine, prelude::BASE64_STANDARD, prelude::BASE64_URL_SAFE_NO_PAD};
use jsonwebtoken::{Algorithm, EncodingKey, Header, jwk::Jwk};
use reqwest::Url;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};
use tokio::{net::TcpListener, task::JoinHandle};
use types::Clock;

/// What the ledger is to every issuer of tests.
pub const CLIENT_ID: &str = "gpuledger";
/// Its secret, which a header must encode.
pub const CLIENT_SECRET: &str = "a secret: of + tests";
/// Where browsers are sent back to.
pub const REDIRECT_URI: &str = "http://127.0.0.1:1/login";
/// The audience of bearer tokens.
pub const AUDIENCE: &str = "https://ledger.example";

/// A running issuer.
#[derive(Debug)]
pub struct Issuer {
    address: SocketAddr,
    inner: Arc<Mutex<Inner>>,
    serving: JoinHandle<()>,
}

#[derive(Debug, Default)]
struct Inner {
    issuer: String,
    /// What the discovery document says instead of it.
    claims_to_be: Option<String>,
    keys: Vec<IssuerKey>,
    is_down: bool,
    reads: usize,
    refused: usize,
    logins: HashMap<String, Login>,
}

/// A pair of keys, whose public part is published while it is among the issuer's.
#[derive(Clone)]
pub struct IssuerKey {
    /// Names it in headers and in the set.
    pub kid: String,
    /// Signs with ES256.
    pub signs: EncodingKey,
}

impl std::fmt::Debug for IssuerKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("IssuerKey").field("kid", &self.kid).finish_non_exhaustive()
    }
}

/// Somebody logged in with a browser, and a code was given.
#[derive(Debug)]
struct Login {
    challenge: String,
    claims: Value,
}

impl IssuerKey {
    /// A new pair.
    ///
    /// # Panics
    /// When no key can be made.
    #[must_use]
    pub fn new(kid: &str) -> Self {
        let Ok(pair) = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &SystemRandom::new()) else {
            panic!("no key can be made");
        };
        Self { kid: kid.to_owned(), signs: EncodingKey::from_ec_der(pair.as_ref()) }
    }

    /// A token over claims.
    ///
    /// # Panics
    /// When it cannot be signed.
    #[must_use]
    pub fn sign(&self, claims: &Value) -> String {
        let header = Header { kid: Some(self.kid.clone()), ..Header::new(Algorithm::ES256) };
        match jsonwebtoken::encode(&header, claims, &self.signs) {
            Ok(token) => token,
            Err(error) => panic!("no token: {error}"),
        }
    }

    /// The public part, as a set holds it.
    ///
    /// # Panics
    /// When it cannot be told from the private one.
    #[must_use]
    pub fn public(&self) -> Value {
        let mut jwk = match Jwk::from_encoding_key(&self.signs, Algorithm::ES256) {
            Ok(jwk) => jwk,
            Err(error) => panic!("no public key: {error}"),
        };
        jwk.common.key_id = Some(self.kid.clone());
        json!(jwk)
    }
}

impl Issuer {
    /// One with one key, on a free port.
    ///
    /// # Panics
    /// When it cannot listen.
    pub async fn start() -> Self {
        Self::start_at(SocketAddr::from(([127, 0, 0, 1], 0))).await
    }

    /// One with one key, at an address.
    ///
    /// # Panics
    /// When it cannot listen there.
    pub async fn start_at(address: SocketAddr) -> Self {
        let listener = match TcpListener::bind(address).await {
            Ok(listener) => listener,
            Err(error) => panic!("no issuer at {address}: {error}"),
        };
        let address = listener.local_addr().unwrap_or(address);
        let inner = Inner {
            issuer: format!("http://{address}/realm"),
            keys: vec![IssuerKey::new("first")],
            ..Inner::default()
        };
        let inner = Arc::new(Mutex::new(inner));
        let routes = Router::new()
            .route("/realm/.well-known/openid-configuration", get(discovery))
            .route("/realm/keys", get(keys))
            .route("/realm/token", post(token))
            .with_state(Arc::clone(&inner));
        let serving = tokio::spawn(async move {
            // it ends with the test
            let _ = axum::serve(listener, routes).await;
        });
        Self { address, inner, serving }
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its name, as tokens and configurations have it.
    #[must_use]
    pub fn url(&self) -> String {
        self.inner().issuer.clone()
    }

    /// The variables that configure it under a name in capitals.
    #[must_use]
    pub fn configuration(&self, name: &str) -> Vec<(String, String)> {
        [
            ("ISSUER", self.url()),
            ("AUDIENCES", format!("[\"{AUDIENCE}\"]")),
            ("CLIENT_ID", CLIENT_ID.to_owned()),
            ("CLIENT_SECRET", CLIENT_SECRET.to_owned()),
            ("REDIRECT_URI", REDIRECT_URI.to_owned()),
            ("REFRESH", "5s".to_owned()),
            ("OUTAGE", "15s".to_owned()),
        ]
        .map(|(key, value)| (format!("GPULEDGER_OIDC__{name}__{key}"), value))
        .into()
    }

    /// Good claims of a bearer token.
    #[must_use]
    pub fn claims(&self, subject: &str) -> Value {
        let now = Clock::System.now().as_millis() / 1000;
        json!({"iss": self.url(), "sub": subject, "aud": AUDIENCE, "iat": now, "exp": now + 3600})
    }

    /// A good bearer token, signed with the newest key.
    ///
    /// # Panics
    /// When there is no key.
    #[must_use]
    pub fn token(&self, subject: &str) -> String {
        let claims = self.claims(subject);
        match self.inner().keys.last() {
            Some(key) => key.sign(&claims),
            None => panic!("the issuer has no key"),
        }
    }

    /// The keys that are published, the newest last.
    #[must_use]
    pub fn keys(&self) -> Vec<IssuerKey> {
        self.inner().keys.clone()
    }

    /// Publishes other keys.
    pub fn publish(&self, keys: Vec<IssuerKey>) {
        self.inner().keys = keys;
    }

    /// Says in its discovery document that it is another.
    pub fn claim_to_be(&self, issuer: &str) {
        self.inner().claims_to_be = Some(issuer.to_owned());
    }

    /// Answers nothing but 503 from now on, or answers again.
    pub fn set_down(&self, is_down: bool) {
        self.inner().is_down = is_down;
    }

    /// How often its keys were read.
    #[must_use]
    pub fn reads(&self) -> usize {
        self.inner().reads
    }

    /// How many questions it refused while it was down.
    #[must_use]
    pub fn refused(&self) -> usize {
        self.inner().refused
    }

    /// Somebody's browser goes to an authorization URL and logs in: the code and state that it comes back with. `change`
    /// may make the id token another than it should be.
    ///
    /// # Panics
    /// When the URL is not what it should be.
    #[must_use]
    pub fn log_in(&self, url: &str, subject: &str, change: impl FnOnce(&mut Value)) -> (String, String) {
        let url = match Url::parse(url) {
            Ok(url) => url,
            Err(error) => panic!("{url}: {error}"),
        };
        assert!(url.as_str().starts_with(&format!("{}/authorize?", self.url())), "{url}");
        let query: HashMap<String, String> = url.query_pairs().into_owned().collect();
        let of = |name: &str| match query.get(name) {
            Some(value) => value.clone(),
            None => panic!("{name} is missing: {url}"),
        };
        for (name, value) in [
            ("response_type", "code"),
            ("client_id", CLIENT_ID),
            ("redirect_uri", REDIRECT_URI),
            ("scope", "openid"),
            ("code_challenge_method", "S256"),
        ] {
            assert_eq!(of(name), value, "{url}");
        }
        let mut claims = self.claims(subject);
        claims["aud"] = json!(CLIENT_ID);
        claims["nonce"] = json!(of("nonce"));
        change(&mut claims);
        let mut inner = self.inner();
        let code = format!("code {} + more", inner.logins.len());
        inner.logins.insert(code.clone(), Login { challenge: of("code_challenge"), claims });
        (code, of("state"))
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        lock(&self.inner)
    }
}

impl Drop for Issuer {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

fn lock(inner: &Mutex<Inner>) -> MutexGuard<'_, Inner> {
    inner.lock().unwrap_or_else(PoisonError::into_inner)
}

type Shared = State<Arc<Mutex<Inner>>>;

/// What it answers while it is down.
fn down(inner: &mut Inner) -> Option<Response> {
    inner.refused += usize::from(inner.is_down);
    inner.is_down.then(|| StatusCode::SERVICE_UNAVAILABLE.into_response())
}

async fn discovery(State(inner): Shared) -> Response {
    let mut inner = lock(&inner);
    if let Some(answer) = down(&mut inner) {
        return answer;
    }
    let issuer = &inner.issuer;
    Json(json!({
        "issuer": inner.claims_to_be.as_ref().unwrap_or(issuer),
        "jwks_uri": format!("{issuer}/keys"),
        "authorization_endpoint": format!("{issuer}/authorize"),
        "token_endpoint": format!("{issuer}/token"),
    }))
    .into_response()
}

async fn keys(State(inner): Shared) -> Response {
    let mut inner = lock(&inner);
    if let Some(answer) = down(&mut inner) {
        return answer;
    }
    inner.reads += 1;
    let keys: Vec<Value> = inner.keys.iter().map(IssuerKey::public).collect();
    Json(json!({"keys": keys})).into_response()
}

async fn token(State(inner): Shared, headers: HeaderMap, Form(form): Form<HashMap<String, String>>) -> Response {
    let mut inner = lock(&inner);
    if let Some(answer) = down(&mut inner) {
        return answer;
    }
    let refuse = |error: &str| (StatusCode::BAD_REQUEST, Json(json!({"error": error}))).into_response();
    // id and secret are encoded as a form before they go into the header (RFC 6749, 2.3.1)
    let expected = format!("Basic {}", BASE64_STANDARD.encode(format!("{CLIENT_ID}:a+secret%3A+of+%2B+tests")));
    if headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok()) != Some(&expected) {
        return refuse("invalid_client");
    }
    let of = |name: &str| form.get(name).map_or("", String::as_str);
    if of("grant_type") != "authorization_code" || of("redirect_uri") != REDIRECT_URI {
        return refuse("invalid_request");
    }
    // a code is good once, whatever comes of it
    let Some(login) = inner.logins.remove(of("code")) else { return refuse("invalid_grant") };
    if BASE64_URL_SAFE_NO_PAD.encode(Sha256::digest(of("code_verifier"))) != login.challenge {
        return refuse("invalid_grant");
    }
    match inner.keys.last() {
        Some(key) => Json(json!({"id_token": key.sign(&login.claims), "access_token": "x", "token_type": "Bearer"}))
            .into_response(),
        None => refuse("server_error"),
    }
}
