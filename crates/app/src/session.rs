//! The built-in token issuer: a person's password against a JWT signed with ES256.
//!
//! A token says only who and in which session; role, tenant and whether the session still holds are looked up at each
//! call, so that disabling and ending work at once. The pairs of keys stand in the database, made when first needed:
//! every server signs with the newest and accepts all.

mod life;

use crate::{App, error::AppError, password::Password, principal::Principal, recent::Recent};
use aws_lc_rs::{
    hmac,
    rand::SystemRandom,
    signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair},
};
use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey, Header, Validation};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use sha2::{Digest, Sha256};
use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant as RealTime},
};
use store::{
    Scope,
    signing_key::{self, SigningKeyRow},
    user,
};
use types::{Instant, SessionId, UserId};

pub use life::{Origin, Whose, begin, list, revoke, revoke_others};
pub(crate) use life::{forget_expired, revoke_all};
pub use store::{session::SessionRow, user::UserRow};

/// How the issuer works.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionSettings {
    /// Claim `iss` of its tokens: a token of another issuer is refused.
    pub issuer: String,
    /// Claim `aud` of its tokens: a token for another audience is refused.
    pub audience: String,
    /// How long a token is good.
    pub lifetime: Lifetime,
}

impl Default for SessionSettings {
    /// Issuer and audience `gpuledger`, one hour.
    fn default() -> Self {
        Self { issuer: "gpuledger".into(), audience: "gpuledger".into(), lifetime: Lifetime(3600) }
    }
}

/// A token's lifetime in seconds: 15 minutes to 12 hours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lifetime(u32);

impl Lifetime {
    /// `None` outside 900 to 43,200 seconds.
    #[must_use]
    pub fn from_secs(seconds: u32) -> Option<Self> {
        (900..=43_200).contains(&seconds).then_some(Self(seconds))
    }
}

/// Seconds that clocks of two servers may differ.
const LEEWAY_S: i64 = 30;
/// The longest token that is looked at.
const LONGEST_TOKEN: usize = 4096;
/// How long keys are kept before the database is asked again.
const KEYS_FRESH: Duration = Duration::from_secs(60);
/// How soon an unknown key asks the database again, so that made-up keys cannot flood it.
const KEYS_RETRY: Duration = Duration::from_secs(5);

/// Settings, keys and what was looked up lately; shared by all clones of an [`App`].
#[derive(Clone)]
pub struct Sessions(Arc<Inner>);

struct Inner {
    settings: SessionSettings,
    /// Never locked while the database is asked.
    keys: Mutex<Option<Keys>>,
    /// Held while this server makes the first pair.
    making: tokio::sync::Mutex<()>,
    users: Recent<UserId, Principal>,
    /// Whose each session is that holds; absent for one that does not.
    holders: Recent<SessionId, Option<UserId>>,
    credentials: Recent<String, Option<(Principal, [u8; 32])>>,
}

struct Keys {
    read_at: RealTime,
    /// When the database was last asked, with or without an answer.
    asked_at: RealTime,
    newest_first: Arc<Vec<Key>>,
}

struct Key {
    kid: String,
    signs: EncodingKey,
    verifies: DecodingKey,
    /// For what must come back unchanged, from whoever it was given to.
    seals: hmac::Key,
}

impl std::fmt::Debug for Sessions {
    /// Without keys, so that no log carries them.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sessions").field("settings", &self.0.settings).finish_non_exhaustive()
    }
}

#[derive(Debug, Serialize, Deserialize)]
struct Claims {
    iss: String,
    aud: String,
    sub: UserId,
    sid: SessionId,
    iat: i64,
    exp: i64,
}

/// What a successful login gives.
pub struct Session {
    /// To be sent as a bearer token.
    pub token: String,
    pub row: SessionRow,
    pub user: UserRow,
}

impl std::fmt::Debug for Session {
    /// Without the token, so that no log carries it.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").field("row", &self.row).finish_non_exhaustive()
    }
}

impl Sessions {
    /// An issuer that has not yet looked for its keys.
    #[must_use]
    pub fn new(settings: SessionSettings) -> Self {
        Self(Arc::new(Inner {
            settings,
            keys: Mutex::new(None),
            making: tokio::sync::Mutex::new(()),
            users: Recent::default(),
            holders: Recent::default(),
            credentials: Recent::default(),
        }))
    }

    /// Claim `iss` of what this installation signs.
    pub(crate) fn issuer(&self) -> &str {
        &self.0.settings.issuer
    }

    /// People looked up lately.
    pub(crate) fn users(&self) -> &Recent<UserId, Principal> {
        &self.0.users
    }

    /// Sessions looked up lately: the person of each that holds.
    pub(crate) fn holders(&self) -> &Recent<SessionId, Option<UserId>> {
        &self.0.holders
    }

    /// Keys and node credentials looked up lately, by kind and prefix; absent for one that was revoked here.
    pub(crate) fn credentials(&self) -> &Recent<String, Option<(Principal, [u8; 32])>> {
        &self.0.credentials
    }

    /// The current keys; those read lately serve, unless `wanted` is not among them. While the database does not answer,
    /// older ones serve too.
    async fn keys(&self, app: &App, wanted: Option<&str>) -> Result<Arc<Vec<Key>>, AppError> {
        let mut older = None;
        if let Some(keys) = self.kept().as_mut() {
            let is_there = wanted.is_none_or(|kid| keys.newest_first.iter().any(|key| key.kid == kid));
            let is_fresh = is_there && keys.read_at.elapsed() < KEYS_FRESH;
            if is_fresh || keys.asked_at.elapsed() < KEYS_RETRY {
                return Ok(Arc::clone(&keys.newest_first));
            }
            keys.asked_at = RealTime::now();
            older = is_there.then(|| Arc::clone(&keys.newest_first));
        }
        match (self.read_or_make_keys(app).await, older) {
            (Ok(newest_first), _) => {
                let now = RealTime::now();
                *self.kept() = Some(Keys { read_at: now, asked_at: now, newest_first: Arc::clone(&newest_first) });
                Ok(newest_first)
            }
            (Err(_), Some(older)) => Ok(older),
            (Err(error), None) => Err(error),
        }
    }

    /// Keys that every server has, the newest first: seal with that one, and open with all.
    pub(crate) async fn seals(&self, app: &App) -> Result<Vec<hmac::Key>, AppError> {
        Ok(self.keys(app, None).await?.iter().map(|key| key.seals.clone()).collect())
    }

    fn kept(&self) -> std::sync::MutexGuard<'_, Option<Keys>> {
        // each change replaces a whole value, so that what a panic leaves is good
        self.0.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn read_or_make_keys(&self, app: &App) -> Result<Arc<Vec<Key>>, AppError> {
        let mut tx = app.store.begin("session.keys", Scope::Operator).await?;
        let mut rows = signing_key::current(&mut tx).await?;
        drop(tx);
        if rows.is_empty() {
            let _alone = self.0.making.lock().await;
            let mut tx = app.store.begin("session.make_key", Scope::Operator).await?;
            rows = signing_key::current(&mut tx).await?;
            if rows.is_empty() {
                let row = make_key(app.clock.now())?;
                signing_key::insert(&mut tx, &row).await?;
                tx.commit().await?;
                rows.push(row);
            }
        }
        Ok(Arc::new(rows.into_iter().map(Key::from).collect()))
    }
}

impl From<SigningKeyRow> for Key {
    fn from(row: SigningKeyRow) -> Self {
        let pair = hmac::Key::new(hmac::HMAC_SHA256, &row.private_key);
        Self {
            seals: hmac::Key::new(hmac::HMAC_SHA256, hmac::sign(&pair, b"gpuledger: seals").as_ref()),
            kid: row.kid,
            signs: EncodingKey::from_ec_der(&row.private_key),
            verifies: DecodingKey::from_ec_der(&row.public_key),
        }
    }
}

fn make_key(now: Instant) -> Result<SigningKeyRow, AppError> {
    let failed = |e: &dyn std::fmt::Display| AppError::Internal(format!("no signing key could be made: {e}"));
    let algorithm = &ECDSA_P256_SHA256_FIXED_SIGNING;
    let document = EcdsaKeyPair::generate_pkcs8(algorithm, &SystemRandom::new()).map_err(|e| failed(&e))?;
    let pair = EcdsaKeyPair::from_pkcs8(algorithm, document.as_ref()).map_err(|e| failed(&e))?;
    let public_key = pair.public_key().as_ref().to_vec();
    Ok(SigningKeyRow {
        kid: hex::encode(&Sha256::digest(&public_key)[..8]),
        private_key: document.as_ref().to_vec(),
        public_key,
        created_at: now,
    })
}

/// Logs a person in. An unknown address, a wrong password and a disabled account get the same answer in equal time.
///
/// # Errors
/// [`AppError::Unauthenticated`].
pub async fn login(app: &App, email: &str, password: Password, origin: Origin) -> Result<Session, AppError> {
    let mut tx = app.store.begin("session.login", Scope::Operator).await?;
    let found = user::by_email(&mut tx, &email.to_lowercase()).await?;
    drop(tx); // no connection is kept while the password is checked
    let is_right = password.verify(found.as_ref().and_then(|user| user.password_hash.clone())).await?;
    let user = found.filter(|user| is_right && user.disabled_at.is_none());
    let outcome = if user.is_some() { "passed" } else { "failed" };
    metrics::counter!("gpuledger_logins_total", "outcome" => outcome).increment(1);
    let user = user.ok_or(AppError::Unauthenticated("no such email address and password"))?;
    begin(app, user, origin).await
}

/// The token of a session.
async fn token_of(app: &App, session: &SessionRow) -> Result<String, AppError> {
    let settings = &app.sessions.0.settings;
    let claims = Claims {
        iss: settings.issuer.clone(),
        aud: settings.audience.clone(),
        sub: session.user_id,
        sid: session.session_id,
        iat: session.created_at.as_millis() / 1000,
        exp: session.expires_at.as_millis() / 1000,
    };
    sign(app, &claims).await
}

/// A token with these claims, signed with the newest key.
pub(crate) async fn sign<C: Serialize + Sync>(app: &App, claims: &C) -> Result<String, AppError> {
    let keys = app.sessions.keys(app, None).await?;
    let key = keys.first().ok_or_else(|| AppError::Internal("there is no signing key".into()))?;
    let header = Header { kid: Some(key.kid.clone()), ..Header::new(Algorithm::ES256) };
    jsonwebtoken::encode(&header, claims, &key.signs)
        .map_err(|e| AppError::Internal(format!("a token could not be signed: {e}")))
}

/// The person and the session that a token names, if it is one of ours and has not expired. Whether the session still
/// holds is not asked.
pub(crate) async fn verify(app: &App, token: &str) -> Result<(UserId, SessionId), AppError> {
    let (keys, place) = key_of(app, token).await?;
    check(token, &keys[place].verifies, &app.sessions.0.settings, app.clock.now())
}

/// The claims of a token that one of this database's servers signed for `audience`. Time is the caller's to check.
pub(crate) async fn signed<C: DeserializeOwned>(app: &App, token: &str, audience: &str) -> Result<C, AppError> {
    let (keys, place) = key_of(app, token).await?;
    claims(token, &keys[place].verifies, &app.sessions.0.settings.issuer, audience)
}

/// The keys, and which of them the token says it is signed with.
async fn key_of(app: &App, token: &str) -> Result<(Arc<Vec<Key>>, usize), AppError> {
    const FOREIGN: AppError = AppError::Unauthenticated("the token is not signed with a key of this server");
    if token.len() > LONGEST_TOKEN {
        return Err(AppError::Unauthenticated("the token is too long"));
    }
    let header = jsonwebtoken::decode_header(token).map_err(|_| AppError::Unauthenticated("the token is not valid"))?;
    let kid = header.kid.filter(|_| header.alg == Algorithm::ES256).ok_or(FOREIGN)?;
    let keys = app.sessions.keys(app, Some(&kid)).await?;
    let place = keys.iter().position(|key| key.kid == kid).ok_or(FOREIGN)?;
    Ok((keys, place))
}

/// What the token says, once signature, issuer and audience are right.
fn claims<C: DeserializeOwned>(token: &str, key: &DecodingKey, issuer: &str, audience: &str) -> Result<C, AppError> {
    let mut validation = Validation::new(Algorithm::ES256);
    validation.set_issuer(&[issuer]);
    validation.set_audience(&[audience]);
    validation.set_required_spec_claims(&["exp", "iss", "aud", "sub"]);
    // the library would read the machine's clock; time is compared by the ledger's
    validation.validate_exp = false;
    let decoded = jsonwebtoken::decode::<C>(token, key, &validation);
    Ok(decoded.map_err(|_| AppError::Unauthenticated("the token is not valid"))?.claims)
}

/// Signature, issuer, audience and time.
fn check(
    token: &str,
    key: &DecodingKey,
    settings: &SessionSettings,
    now: Instant,
) -> Result<(UserId, SessionId), AppError> {
    let claims: Claims = claims(token, key, &settings.issuer, &settings.audience)?;
    let now_s = now.as_millis() / 1000;
    if now_s >= claims.exp.saturating_add(LEEWAY_S) {
        return Err(AppError::Unauthenticated("the token has expired"));
    }
    if claims.iat.saturating_sub(LEEWAY_S) > now_s {
        return Err(AppError::Unauthenticated("the token is not valid yet"));
    }
    Ok((claims.sub, claims.sid))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    const NOW: i64 = 1_800_000_000;

    fn claims() -> Value {
        let id = "01980000-0000-7000-8000-000000000001";
        json!({"iss": "gpuledger", "aud": "gpuledger", "sub": id, "sid": id, "iat": NOW, "exp": NOW + 900})
    }

    fn checked_at(token: &str, key: &Key, seconds: i64) -> Result<(UserId, SessionId), AppError> {
        let now = Instant::from_millis(seconds * 1000).unwrap();
        check(token, &key.verifies, &SessionSettings::default(), now)
    }

    fn sign(claims: &Value, key: &Key) -> String {
        jsonwebtoken::encode(&Header::new(Algorithm::ES256), claims, &key.signs).unwrap()
    }

    fn key() -> Key {
        make_key(Instant::EPOCH).unwrap().into()
    }

    #[test]
    fn a_token_of_ours_holds_until_it_expires() {
        let key = key();
        let token = sign(&claims(), &key);
        assert!(checked_at(&token, &key, NOW).is_ok());
        assert!(checked_at(&token, &key, NOW + 900 + 29).is_ok(), "clocks may differ by 30 s");
        assert!(checked_at(&token, &key, NOW + 900 + 30).is_err());
        assert!(checked_at(&token, &key, NOW - 31).is_err());
    }

    #[test]
    fn tokens_of_others_are_refused() {
        let key = key();
        let with = |field: &str, value: Value| {
            let mut changed = claims();
            changed[field] = value;
            sign(&changed, &key)
        };
        let without = |field: &str| {
            let mut changed = claims();
            changed.as_object_mut().unwrap().remove(field);
            sign(&changed, &key)
        };
        let mut bad = vec![
            with("iss", json!("somebody")),
            with("aud", json!("another")),
            with("aud", json!(["another"])),
            with("sub", json!("root")),
            with("sid", json!(1)),
            with("exp", json!("soon")),
            sign(&claims(), &self::key()),
        ];
        bad.extend(["iss", "aud", "sub", "sid", "exp"].map(without));
        for token in bad {
            assert!(checked_at(&token, &key, NOW).is_err(), "{token} was accepted");
        }
    }

    #[test]
    fn unsigned_and_foreign_algorithms_are_refused() {
        use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD as BASE64};
        let key = key();
        let payload = BASE64.encode(claims().to_string());
        for alg in ["none", "None", "HS256", "RS256"] {
            let head = BASE64.encode(json!({"alg": alg, "typ": "JWT"}).to_string());
            assert!(checked_at(&format!("{head}.{payload}."), &key, NOW).is_err(), "{alg} was accepted");
        }
        // signed with the public key as if it were a shared secret
        let row = make_key(Instant::EPOCH).unwrap();
        let secret = EncodingKey::from_secret(&row.public_key).unwrap();
        let confused = jsonwebtoken::encode(&Header::new(Algorithm::HS256), &claims(), &secret).unwrap();
        assert!(checked_at(&confused, &Key::from(row), NOW).is_err());
    }

    /// While the database is away, kept keys serve even when they should be read again, and nobody waits for anybody.
    #[tokio::test]
    async fn kept_keys_serve_while_the_database_is_away() {
        let settings = store::StoreSettings {
            acquire: Duration::from_millis(100),
            ..store::StoreSettings::new("postgres://nobody@127.0.0.1:1/nothing")
        };
        let app = App::new(
            store::Store::open(&settings).unwrap(),
            types::Clock::System,
            crate::Random::System,
            Sessions::new(SessionSettings::default()),
            crate::Schedulers::new(types::ServerId(uuid::Uuid::nil()), crate::SchedulerSettings::default()),
        );
        assert!(app.sessions.keys(&app, None).await.is_err(), "there is no key, and none can be read");
        let key = key();
        let kid = key.kid.clone();
        let keys = |old: Duration, key: Key| {
            let then = RealTime::now().checked_sub(old).unwrap();
            Keys { read_at: then, asked_at: then, newest_first: Arc::new(vec![key]) }
        };
        *app.sessions.kept() = Some(keys(KEYS_FRESH * 2, key));
        let stale = app.sessions.keys(&app, Some(&kid));
        let mut stale = std::pin::pin!(stale);
        assert!(first_look(stale.as_mut()).await.is_none(), "one asks the database");
        let meanwhile = app.sessions.keys(&app, Some(&kid));
        let mut meanwhile = std::pin::pin!(meanwhile);
        assert!(first_look(meanwhile.as_mut()).await.is_some_and(|keys| keys.is_ok()), "the others go on");
        assert_eq!(stale.await.unwrap()[0].kid, kid);
        *app.sessions.kept() = Some(keys(KEYS_RETRY * 2, self::key()));
        assert!(app.sessions.keys(&app, Some(&kid)).await.is_err(), "whether the key is ours is not known");
    }

    /// Whether a future is ready at its first look.
    async fn first_look<F: Future>(mut future: std::pin::Pin<&mut F>) -> Option<F::Output> {
        std::future::poll_fn(|cx| {
            std::task::Poll::Ready(match future.as_mut().poll(cx) {
                std::task::Poll::Ready(output) => Some(output),
                std::task::Poll::Pending => None,
            })
        })
        .await
    }
}
