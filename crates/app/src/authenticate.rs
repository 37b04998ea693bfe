//! Who a bearer credential belongs to.

use crate::{
    App,
    credential::{CredentialKind, Presented},
    error::AppError,
    node_refusal::{self, RefusalReason},
    oidc,
    principal::{Actor, Principal},
    session,
};
use store::{Scope, api_key, node_credential, user};
use types::{Role, SessionId, TenantId, UserId};

const REVOKED: AppError = AppError::Unauthenticated("the credential is unknown or revoked");
const SUPERSEDED: AppError = AppError::Unauthenticated(
    "the credential was replaced by a newer one, which is in use: this host's state is a copy or was set back; let it join \
     again",
);
/// What is compared with where there is no such credential: nobody has a secret with this hash.
const NOBODYS: [u8; 32] = [0; 32];
/// The use of a key is noted at most this often, in milliseconds.
const USE_NOTED_EVERY_MS: i64 = 300_000;

/// Whoever a bearer credential belongs to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Authenticated {
    pub principal: Principal,
    /// The session that a person's token of ours names; absent for others.
    pub session: Option<SessionId>,
}

impl App {
    /// Whoever this bearer credential belongs to: a person's token, ours or another issuer's, an API key or a node's
    /// credential, told apart by how they begin. What was looked up within five seconds is not looked up again.
    ///
    /// # Errors
    /// [`AppError::Unauthenticated`] saying what kind of fault, never how near it was to right;
    /// [`AppError::InvitationNeeded`]; [`AppError::Unavailable`].
    pub async fn authenticate(&self, bearer: &str) -> Result<Authenticated, AppError> {
        if bearer.starts_with("gl") {
            let principal = self.machine_of(bearer).await?;
            return Ok(Authenticated { principal, session: None });
        }
        if let Some(identity) = oidc::identity(self, bearer).await? {
            let principal = self.person(oidc::user_of(self, &identity).await?).await?;
            return Ok(Authenticated { principal, session: None });
        }
        let (user, session) = session::verify(self, bearer).await?;
        if self.holder(session).await? != Some(user) {
            return Err(AppError::Unauthenticated("the session has ended"));
        }
        let principal = self.person(user).await?;
        Ok(Authenticated { principal, session: Some(session) })
    }

    /// Whose a session is, while it holds.
    async fn holder(&self, session_id: SessionId) -> Result<Option<UserId>, AppError> {
        if let Some(holder) = self.sessions.holders().get(&session_id) {
            return Ok(holder);
        }
        let mut tx = self.store.begin("authenticate.session", Scope::Operator).await?;
        let row = store::session::get(&mut tx, session_id).await?;
        // when it ends by itself, its token says
        let holder = row.filter(|row| row.revoked_at.is_none()).map(|row| row.user_id);
        self.sessions.holders().keep(session_id, holder);
        Ok(holder)
    }

    async fn machine_of(&self, bearer: &str) -> Result<Principal, AppError> {
        let presented = Presented::parse(bearer).ok_or(AppError::Unauthenticated("the credential is malformed"))?;
        let known_as = known_as(presented.kind, &presented.prefix);
        let recent = self.sessions.credentials().get(known_as.as_str());
        if let Some(Some((principal, hash))) = recent
            && presented.matches(&hash)
        {
            return Ok(principal);
        }
        // whatever is wrong with it costs one look into the database, so that no time tells which prefixes exist
        metrics::counter!("gpuledger_credential_looks_total").increment(1);
        let principal = match presented.kind {
            CredentialKind::ApiKey => self.key(&presented).await?,
            CredentialKind::Node => self.node(&presented).await?,
            CredentialKind::JoinToken => {
                return Err(AppError::Unauthenticated("a join token lets a node join and nothing else"));
            }
            CredentialKind::Invitation => {
                return Err(AppError::Unauthenticated("an invitation makes an account and nothing else"));
            }
        };
        self.sessions.credentials().keep(known_as, Some((principal.clone(), presented.hash())));
        Ok(principal)
    }

    async fn person(&self, user_id: UserId) -> Result<Principal, AppError> {
        if let Some(principal) = self.sessions.users().get(&user_id) {
            return Ok(principal);
        }
        let mut tx = self.store.begin("authenticate.person", Scope::Operator).await?;
        let user = user::get(&mut tx, user_id)
            .await?
            .filter(|user| user.disabled_at.is_none())
            .ok_or(AppError::Unauthenticated("the account is unknown or disabled"))?;
        let principal = principal(Actor::User(user_id), user.role, user.tenant_id);
        self.sessions.users().keep(user_id, principal.clone());
        Ok(principal)
    }

    async fn key(&self, presented: &Presented) -> Result<Principal, AppError> {
        let now = self.clock.now();
        let mut tx = self.store.begin("authenticate.key", Scope::Operator).await?;
        let key = api_key::by_prefix(&mut tx, &presented.prefix).await?;
        let hash = key.as_ref().map_or(&NOBODYS, |key| &key.hash);
        let is_right = presented.matches(hash);
        let key = key
            .filter(|key| is_right && key.revoked_at.is_none() && key.expires_at.is_none_or(|end| now < end))
            .ok_or(REVOKED)?;
        if key.last_used_at.is_none_or(|last| now.since(last) >= USE_NOTED_EVERY_MS) {
            api_key::set_last_used(&mut tx, key.key_id, now).await?;
            tx.commit().await?;
        }
        Ok(principal(Actor::Key(key.key_id), key.role, key.tenant_id))
    }

    async fn node(&self, presented: &Presented) -> Result<Principal, AppError> {
        let now = self.clock.now();
        let mut tx = self.store.begin("authenticate.node", Scope::Operator).await?;
        let known = node_credential::by_prefix(&mut tx, &presented.prefix).await?;
        let hash = known.as_ref().map_or(&NOBODYS, |known| &known.hash);
        let is_right = presented.matches(hash);
        let known = known.filter(|known| is_right && known.is_valid).ok_or(REVOKED)?;
        if known.superseded_at.is_some_and(|since| now.since(since) >= crate::node_credential::OVERLAP_MS) {
            drop(tx);
            node_refusal::note(self, known.node_id, known.pool_id, RefusalReason::SupersededCredential).await;
            return Err(SUPERSEDED);
        }
        if known.first_used_at.is_none() && known.superseded_at.is_none() {
            node_credential::use_first(&mut tx, known.credential_id, known.node_id, now).await?;
            tx.commit().await?;
        }
        Ok(Principal::Node { node: known.node_id, pool: known.pool_id })
    }
}

/// Under what name a credential is kept among those looked up lately.
pub(crate) fn known_as(kind: CredentialKind, prefix: &str) -> String {
    format!("{}{prefix}", kind.marker())
}

/// Who somebody with a role is.
pub(crate) fn principal(actor: Actor, role: Role, tenant: Option<TenantId>) -> Principal {
    match tenant {
        Some(tenant) => Principal::Tenant { actor, role, tenant },
        None => Principal::Platform { actor, role },
    }
}
