//! Logging in with a browser at an issuer: an authorization code, bound by PKCE and a nonce.
//!
//! Nothing is stored between start and finish, so nobody can fill anything by starting, and any server can finish what
//! another one started. All that is needed again is computed from the state and a key that all servers have.

use super::{Identity, provider::Provider, settings::ClientSettings, token};
use crate::{
    App,
    error::AppError,
    session::{self, Origin, Session},
};
use aws_lc_rs::hmac;
use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD as BASE64};
use sha2::{Digest, Sha256};
use std::sync::Arc;
use store::{Scope, user};
use tokio::sync::Semaphore;
use types::Instant;

/// How long a person may take to log in, in seconds.
const LIFETIME_S: i64 = 600;
/// The longest code that is passed on.
const LONGEST_CODE: usize = 4096;
/// Codes that are handed in at once: whoever makes codes up shall not keep an issuer busy through us.
static AT_ONCE: Semaphore = Semaphore::const_new(16);

const UNKNOWN: AppError = AppError::Unauthenticated("the state is of no login that was started here lately");

/// A login that was started.
#[derive(Debug)]
pub struct Started {
    /// Where the person's browser goes.
    pub authorization_url: String,
    /// Comes back with the code. Who starts a login keeps it, and compares.
    pub state: String,
}

/// A proof of having logged in, on its way back from the issuer.
#[derive(Debug, Clone)]
pub struct Code {
    /// Which issuer, by its name here.
    pub provider: String,
    pub code: String,
    pub state: String,
}

/// Starts a login.
///
/// # Errors
/// [`AppError::NotFound`] for an issuer with which nobody logs in, [`AppError::Unavailable`] while it cannot be reached.
pub async fn start(app: &App, name: &str) -> Result<Started, AppError> {
    let (provider, client) = offered(app, name)?;
    let found = provider.found(|found| found.authorization_endpoint.is_some()).await?;
    let endpoint = found
        .authorization_endpoint
        .as_ref()
        .ok_or_else(|| provider.unavailable("it names no authorization endpoint"))?;
    let keys = app.sessions.seals(app).await?;
    let seal = keys.first().ok_or_else(|| AppError::Internal("there is no signing key".into()))?;
    let login = Login::new(name, app.random.bytes(), app.clock.now());
    let mut url = endpoint.url().clone();
    url.query_pairs_mut().extend_pairs([
        ("response_type", "code"),
        ("client_id", &client.id),
        ("redirect_uri", client.redirect_uri.as_str()),
        ("scope", &client.scopes.join(" ")),
        ("state", &login.state(seal)),
        ("nonce", &login.derive(seal, "nonce")),
        ("code_challenge", &BASE64.encode(Sha256::digest(login.derive(seal, "verifier")))),
        ("code_challenge_method", "S256"),
    ]);
    Ok(Started { authorization_url: url.into(), state: login.state(seal) })
}

/// Ends a login: a session for whoever the issuer says it is.
///
/// # Errors
/// [`AppError::Unauthenticated`] for a code or state that does not hold, or a disabled account;
/// [`AppError::InvitationNeeded`] for somebody who is nobody here; [`AppError::NotFound`], [`AppError::Unavailable`].
pub async fn finish(app: &App, code: &Code, origin: Origin) -> Result<Session, AppError> {
    let session = match identity(app, code).await {
        Ok(identity) => enter(app, &identity, origin).await,
        Err(error) => Err(error),
    };
    let outcome = if session.is_ok() { "passed" } else { "failed" };
    metrics::counter!("gpuledger_logins_total", "outcome" => outcome).increment(1);
    session
}

async fn enter(app: &App, identity: &Identity, origin: Origin) -> Result<Session, AppError> {
    let user_id = super::user_of(app, identity).await?;
    let mut tx = app.store.begin("oidc.finish", Scope::Operator).await?;
    let user = user::get(&mut tx, user_id)
        .await?
        .filter(|user| user.disabled_at.is_none())
        .ok_or(AppError::Unauthenticated("the account is unknown or disabled"))?;
    drop(tx);
    session::begin(app, user, origin).await
}

/// Who a code proves one to be.
pub(crate) async fn identity(app: &App, code: &Code) -> Result<Identity, AppError> {
    let (provider, client) = offered(app, &code.provider)?;
    let seals = app.sessions.seals(app).await?;
    let now = app.clock.now();
    let (login, seal) = Login::open(&code.provider, &code.state, &seals, now).ok_or(UNKNOWN)?;
    if !(1..=LONGEST_CODE).contains(&code.code.len()) {
        return Err(AppError::invalid("code", format!("must have 1 to {LONGEST_CODE} bytes")));
    }
    let place = AT_ONCE.try_acquire().map_err(|_| provider.unavailable("too many codes are handed in at once"))?;
    let id_token = provider.redeem(client, &code.code, &login.derive(seal, "verifier")).await?;
    drop(place);
    let nonce = login.derive(seal, "nonce");
    let of_login = token::Login { nonce: &nonce, client_id: &client.id };
    let audiences = std::slice::from_ref(&client.id);
    let subject = provider.subject(&id_token, audiences, Some(of_login), now).await?;
    Ok(Identity { issuer: provider.settings.issuer.as_str().to_owned(), subject })
}

fn offered<'a>(app: &'a App, name: &str) -> Result<(&'a Arc<Provider>, &'a ClientSettings), AppError> {
    let provider = app.oidc.provider(name).ok_or(AppError::NotFound("provider"))?;
    let client = provider.settings.client.as_ref().ok_or(AppError::NotFound("provider"))?;
    Ok((provider, client))
}

/// What makes one login differ from every other: random bytes and the second when it ends.
struct Login<'a> {
    provider: &'a str,
    bytes: [u8; 24],
}

impl<'a> Login<'a> {
    fn new(provider: &'a str, random: [u8; 16], now: Instant) -> Self {
        let ends = now.as_millis() / 1000 + LIFETIME_S;
        let mut bytes = [0; 24];
        bytes[..16].copy_from_slice(&random);
        bytes[16..].copy_from_slice(&ends.to_be_bytes());
        Self { provider, bytes }
    }

    /// What a seal says of this login for one use. A provider's name holds no zero, so no two inputs are the same.
    fn input(&self, used_as: &str) -> Vec<u8> {
        [used_as.as_bytes(), &[0], self.provider.as_bytes(), &[0], &self.bytes].concat()
    }

    /// A secret that only who has the seal can compute again.
    fn derive(&self, seal: &hmac::Key, used_as: &str) -> String {
        BASE64.encode(hmac::sign(seal, &self.input(used_as)))
    }

    fn state(&self, seal: &hmac::Key) -> String {
        let tag = hmac::sign(seal, &self.input("state"));
        BASE64.encode([&self.bytes, tag.as_ref()].concat())
    }

    /// The login that a state is of, if one of the seals made it and it has not ended.
    fn open<'k>(provider: &'a str, state: &str, seals: &'k [hmac::Key], now: Instant) -> Option<(Self, &'k hmac::Key)> {
        let opened: [u8; 56] = BASE64.decode(state).ok()?.try_into().ok()?;
        let (bytes, tag) = opened.split_at(24);
        let login = Self { provider, bytes: bytes.try_into().ok()? };
        let ends = i64::from_be_bytes(login.bytes[16..].try_into().ok()?);
        let seal = seals.iter().find(|seal| hmac::verify(seal, &login.input("state"), tag).is_ok())?;
        (now.as_millis() / 1000 < ends).then_some((login, seal))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Instant {
        Instant::from_millis(seconds * 1000).unwrap()
    }

    #[test]
    fn a_state_is_opened_by_its_seal_for_its_provider_and_in_time() {
        let [old, new, other] = [1, 2, 3].map(|n| hmac::Key::new(hmac::HMAC_SHA256, &[n; 32]));
        let login = Login::new("corp", [7; 16], at(1000));
        let state = login.state(&old);
        let seals = [new, old];
        let (opened, seal) = Login::open("corp", &state, &seals, at(1599)).unwrap();
        assert_eq!(opened.derive(seal, "verifier"), login.derive(&seals[1], "verifier"));
        assert_eq!(opened.derive(seal, "verifier").len(), 43, "PKCE wants 43 to 128 characters");
        assert_ne!(opened.derive(seal, "verifier"), opened.derive(seal, "nonce"));
        assert!(Login::open("corp", &state, &seals, at(1600)).is_none(), "it has ended");
        assert!(Login::open("lab", &state, &seals, at(1000)).is_none(), "it is another provider's");
        assert!(Login::open("corp", &state, &[other], at(1000)).is_none(), "it is of another seal");
        let mut later = BASE64.decode(&state).unwrap();
        later[23] ^= 1;
        for bad in ["", "x", &state[1..], &format!("{state}A"), &BASE64.encode(later)] {
            assert!(Login::open("corp", bad, &seals, at(1000)).is_none(), "{bad} was opened");
        }
    }
}
