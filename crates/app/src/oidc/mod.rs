//! People of other token issuers: OpenID Connect, by discovery and published keys.
//!
//! A token proves an issuer and a subject, and nothing else that is taken from it. Who that is here says a membership,
//! which only an invitation makes: no address, name or group of a token lets anybody in.

pub mod login;
mod provider;
mod settings;
mod token;

pub use provider::RETRY;
pub use settings::{ClientSettings, ProviderSettings, SecureUrl, SecureUrlError};

use crate::{App, error::AppError, recent::Recent};
use provider::Provider;
use std::sync::Arc;
use store::{Scope, membership};
use types::UserId;

/// Who somebody is to their issuer.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Identity {
    /// Claim `iss`, as it is configured.
    pub issuer: String,
    /// Claim `sub`.
    pub subject: String,
}

/// The issuers that are configured; shared by all clones of an [`App`].
#[derive(Clone, Default)]
pub struct Oidc(Arc<Inner>);

#[derive(Default)]
struct Inner {
    providers: Vec<Arc<Provider>>,
    /// Memberships are never taken back; accounts are disabled.
    memberships: Recent<Identity, UserId>,
}

impl std::fmt::Debug for Oidc {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.0.providers.iter().map(|provider| &provider.settings)).finish()
    }
}

impl Oidc {
    /// Issuers that have not been asked for anything yet: one that is away stops no server from starting.
    ///
    /// # Errors
    /// [`AppError::Internal`] when this machine has no way to speak HTTPS.
    pub fn new(settings: Vec<ProviderSettings>) -> Result<Self, AppError> {
        let http = provider::client(&settings).map_err(|e| AppError::Internal(format!("no HTTP client: {e}")))?;
        let providers = settings.into_iter().map(|settings| Arc::new(Provider::new(settings, http.clone()))).collect();
        Ok(Self(Arc::new(Inner { providers, memberships: Recent::default() })))
    }

    /// The names of those with which people log in.
    pub fn login_providers(&self) -> impl Iterator<Item = &str> {
        self.0.providers.iter().filter(|p| p.settings.client.is_some()).map(|p| p.settings.name.as_str())
    }

    fn provider(&self, name: &str) -> Option<&Arc<Provider>> {
        self.0.providers.iter().find(|provider| provider.settings.name == name)
    }

    /// Whose token this claims to be, if it is one of these; nothing of it has been verified.
    fn claimed(&self, token: &str) -> Option<&Arc<Provider>> {
        if self.0.providers.is_empty() {
            return None;
        }
        let issuer = token::claimed_issuer(token)?;
        self.0.providers.iter().find(|provider| provider.settings.issuer.as_str() == issuer)
    }
}

/// Who a bearer token proves one to be; `None` when it claims to be of no issuer that is configured.
///
/// # Errors
/// [`AppError::Unauthenticated`]; [`AppError::Unavailable`] while its keys are not known and cannot be asked for.
pub(crate) async fn identity(app: &App, token: &str) -> Result<Option<Identity>, AppError> {
    let Some(provider) = app.oidc.claimed(token) else { return Ok(None) };
    let subject = provider.subject(token, &provider.settings.audiences, None, app.clock.now()).await?;
    Ok(Some(Identity { issuer: provider.settings.issuer.as_str().to_owned(), subject }))
}

/// Which account is theirs, disabled or not. Looked up at most every five seconds.
///
/// # Errors
/// [`AppError::InvitationNeeded`].
pub(crate) async fn user_of(app: &App, identity: &Identity) -> Result<UserId, AppError> {
    if let Some(user_id) = app.oidc.0.memberships.get(identity) {
        return Ok(user_id);
    }
    let mut tx = app.store.begin("oidc.member", Scope::Operator).await?;
    let found = membership::user_of(&mut tx, &identity.issuer, &identity.subject).await?;
    let user_id = found.ok_or(AppError::InvitationNeeded)?;
    app.oidc.0.memberships.put(identity.clone(), user_id);
    Ok(user_id)
}
