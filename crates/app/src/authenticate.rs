//! Who a bearer credential belongs to.

use crate::{
    App,
    credential::{CredentialKind, Presented},
    error::AppError,
    oidc,
    principal::{Actor, Principal},
    session,
};
use store::{Scope, api_key, node_credential, user};
use types::{Role, SessionId, TenantId, UserId};

const REVOKED: AppError = AppError::Unauthenticated("the credential is unknown or revoked");

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
        let (principal, hash) = match recent {
            Some(known) => known,
            None => {
                let known = self.machine(&presented).await?;
                self.sessions.credentials().put(known_as, known.clone());
                known
            }
        };
        if presented.matches(&hash) { Ok(principal) } else { Err(REVOKED) }
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

    async fn machine(&self, presented: &Presented) -> Result<(Principal, [u8; 32]), AppError> {
        let mut tx = self.store.begin("authenticate.machine", Scope::Operator).await?;
        match presented.kind {
            CredentialKind::ApiKey => {
                let key = api_key::by_prefix(&mut tx, &presented.prefix).await?;
                let key = key.filter(|key| key.revoked_at.is_none()).ok_or(REVOKED)?;
                Ok((principal(Actor::Key(key.key_id), key.role, key.tenant_id), key.hash))
            }
            CredentialKind::Node => {
                let known = node_credential::by_prefix(&mut tx, &presented.prefix).await?;
                let known = known.filter(|known| known.is_valid).ok_or(REVOKED)?;
                Ok((Principal::Node { node: known.node_id, pool: known.pool_id }, known.hash))
            }
            CredentialKind::JoinToken => {
                Err(AppError::Unauthenticated("a join token lets a node join and nothing else"))
            }
            CredentialKind::Invitation => {
                Err(AppError::Unauthenticated("an invitation makes an account and nothing else"))
            }
        }
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
