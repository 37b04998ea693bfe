//! Invitations: the only way in for people of other token issuers, and one for people with a password.

use crate::{
    App, Caller, Invalid,
    audit::{self, Change},
    authenticate::principal,
    caller::{role_fault, scope_of},
    credential::{self, CredentialKind, Presented},
    error::AppError,
    oidc::{self, Identity, login},
    password::Password,
    principal::Actor,
    tenant,
    user::{self, UserRow},
};
use serde_json::json;
use store::{Scope, Tx, invitation, membership, membership::MembershipRow};
use types::{InvitationId, Name, Role, TenantId, UserId};

pub use store::invitation::InvitationRow;

/// Seconds that an invitation may be good for: five minutes to 30 days.
pub const LIFETIME_S: std::ops::RangeInclusive<u32> = 300..=2_592_000;

const MANAGERS: [Role; 2] = [Role::Operator, Role::TenantAdmin];
const REFUSED: AppError = AppError::Unauthenticated("the invitation is unknown, expired, revoked or accepted already");

/// What an invitation is made from.
#[derive(Debug, Clone)]
pub struct NewInvitation {
    /// Absent for people of the platform. A tenant's caller need not name its own.
    pub tenant_id: Option<TenantId>,
    /// The account's address. Whoever accepts need not show that it is theirs.
    pub email: String,
    pub role: Role,
    pub lifetime_s: u32,
}

/// An invitation and its secret, which is shown this once.
#[derive(Debug)]
pub struct CreatedInvitation {
    pub row: InvitationRow,
    pub secret: String,
}

/// How whoever accepts will prove who they are, from now on.
#[derive(Debug, Clone)]
pub enum Proof {
    /// With a password of their choice.
    Password(Password),
    /// At the issuer of this token.
    Token(String),
    /// At the issuer of this code.
    Code(login::Code),
}

/// Makes an invitation: an operator for any tenant or for the platform, a tenant's admin for its own tenant.
///
/// # Errors
/// [`AppError::Forbidden`], [`AppError::Invalid`], [`AppError::NotFound`] for an unknown or foreign tenant.
pub async fn create(app: &App, caller: &Caller, new: NewInvitation) -> Result<CreatedInvitation, AppError> {
    caller.require(&MANAGERS)?;
    let tenant_id = caller.tenant_or_platform(new.tenant_id)?;
    let email = new.email.to_lowercase();
    let lifetime = (!LIFETIME_S.contains(&new.lifetime_s))
        .then(|| format!("must be {} to {} seconds", LIFETIME_S.start(), LIFETIME_S.end()));
    check([
        ("email", user::email_fault(&email).map(str::to_owned)),
        ("role", role_fault(tenant_id, new.role).map(str::to_owned)),
        ("lifetime_s", lifetime),
    ])?;
    let minted = credential::mint(CredentialKind::Invitation);
    let now = app.clock.now();
    let row = InvitationRow {
        invitation_id: app.id(InvitationId::new),
        tenant_id,
        email,
        role: new.role,
        prefix: minted.prefix,
        hash: minted.hash,
        created_at: now,
        created_by: caller.actor().to_string(),
        expires_at: now.plus_secs(i64::from(new.lifetime_s)),
        accepted_at: None,
        revoked_at: None,
    };
    let mut tx = app.store.begin("invitation.create", scope_of(tenant_id)).await?;
    invitation::insert(&mut tx, &row).await.map_err(|error| match error {
        e if e.is_rule("invitation_of_tenant") => AppError::NotFound("tenant"),
        e => e.into(),
    })?;
    let detail = json!({"email": row.email, "role": row.role, "prefix": row.prefix, "expires_at": row.expires_at});
    let change =
        Change { tenant: tenant_id, action: "invitation.create", object: row.invitation_id.to_string(), detail };
    audit::record(app, &mut tx, caller, change).await?;
    tx.commit().await?;
    Ok(CreatedInvitation { row, secret: minted.text })
}

/// A page of a tenant's invitations; for the platform without a tenant, of its own.
///
/// # Errors
/// [`AppError::Forbidden`], [`AppError::NotFound`] for an unknown or foreign tenant.
pub async fn list(
    app: &App,
    caller: &Caller,
    tenant: Option<TenantId>,
    after: Option<InvitationId>,
    limit: i64,
) -> Result<Vec<InvitationRow>, AppError> {
    caller.require(&[Role::Operator, Role::BillingClerk, Role::TenantAdmin])?;
    let tenant_id = caller.tenant_or_platform(tenant)?;
    let mut tx = app.store.begin("invitation.list", scope_of(tenant_id)).await?;
    if let Some(tenant_id) = tenant_id {
        tenant::known(&mut tx, tenant_id).await?;
    }
    Ok(invitation::page(&mut tx, tenant_id, after, limit).await?)
}

/// Revokes an invitation that nobody has accepted. Doing it again changes nothing.
///
/// # Errors
/// [`AppError::Forbidden`], [`AppError::NotFound`], [`AppError::Conflict`] `invitation_accepted`.
pub async fn revoke(app: &App, caller: &Caller, invitation_id: InvitationId) -> Result<InvitationRow, AppError> {
    caller.require(&MANAGERS)?;
    let mut tx = app.store.begin("invitation.revoke", caller.scope()?).await?;
    let row = invitation::lock(&mut tx, invitation_id).await?.ok_or(AppError::NotFound("invitation"))?;
    if row.accepted_at.is_some() {
        return Err(AppError::conflict("invitation_accepted", "it was accepted already; disable the account instead"));
    }
    let now = app.clock.now();
    invitation::revoke(&mut tx, invitation_id, now).await?;
    let change = Change {
        tenant: row.tenant_id,
        action: "invitation.revoke",
        object: invitation_id.to_string(),
        detail: json!({"email": row.email, "prefix": row.prefix}),
    };
    audit::record(app, &mut tx, caller, change).await?;
    tx.commit().await?;
    Ok(InvitationRow { revoked_at: row.revoked_at.or(Some(now)), ..row })
}

/// Makes an account of an invitation, once. `request_id` is for the audit log.
///
/// # Errors
/// [`AppError::Unauthenticated`] for an invitation or proof that does not hold, [`AppError::Invalid`],
/// [`AppError::Conflict`] `identity_taken` when whoever it is has an account already, or `email_taken`;
/// [`AppError::NotFound`] for an unknown issuer, [`AppError::Unavailable`] for one that does not answer.
pub async fn accept(
    app: &App,
    request_id: Option<String>,
    secret: &str,
    name: Name,
    proof: Proof,
) -> Result<UserRow, AppError> {
    if let Proof::Password(password) = &proof {
        check([("password", password.fault())])?;
    }
    let presented = Presented::parse(secret).filter(|p| p.kind == CredentialKind::Invitation).ok_or(REFUSED)?;
    let mut tx = app.store.begin("invitation.read", Scope::Operator).await?;
    let row = invitation::usable(&mut tx, &presented.prefix, app.clock.now()).await?;
    let row = row.filter(|row| presented.matches(&row.hash)).ok_or(REFUSED)?;
    drop(tx); // no connection is kept while a password is hashed or an issuer asked
    let (password_hash, identity) = match proof {
        Proof::Password(password) => (Some(password.hash().await?), None),
        Proof::Token(token) => {
            let identity = oidc::identity(app, &token).await?;
            let of_no_issuer = AppError::Unauthenticated("the token is of no issuer that is configured here");
            (None, Some(identity.ok_or(of_no_issuer)?))
        }
        Proof::Code(code) => (None, Some(login::identity(app, &code).await?)),
    };
    let now = app.clock.now();
    let new = UserRow {
        user_id: app.id(UserId::new),
        tenant_id: row.tenant_id,
        email: row.email.clone(),
        name,
        role: row.role,
        password_hash,
        created_at: now,
        disabled_at: None,
    };
    let caller = Caller { principal: principal(Actor::User(new.user_id), new.role, new.tenant_id), request_id };
    let mut tx = app.store.begin("invitation.accept", scope_of(row.tenant_id)).await?;
    // before the account, so that of two at once the second waits here and is told that it came too late
    if !invitation::set_accepted(&mut tx, row.invitation_id, now).await? {
        return Err(REFUSED);
    }
    user::insert(app, &mut tx, &caller, &new).await?;
    if let Some(identity) = &identity {
        bind(&mut tx, identity, &new).await?;
    }
    let change = Change {
        tenant: row.tenant_id,
        action: "invitation.accept",
        object: row.invitation_id.to_string(),
        detail: json!({"user_id": new.user_id, "issuer": identity.as_ref().map(|i| &i.issuer),
            "subject": identity.as_ref().map(|i| &i.subject), "invited_by": row.created_by}),
    };
    audit::record(app, &mut tx, &caller, change).await?;
    tx.commit().await?;
    Ok(new)
}

async fn bind(tx: &mut Tx, identity: &Identity, user: &UserRow) -> Result<(), AppError> {
    let row = MembershipRow {
        issuer: identity.issuer.clone(),
        subject: identity.subject.clone(),
        tenant_id: user.tenant_id,
        user_id: user.user_id,
        created_at: user.created_at,
    };
    membership::insert(tx, &row).await.map_err(|error| match error {
        e if e.is_rule("membership_key") => {
            AppError::conflict("identity_taken", "whoever the issuer says you are has an account here already")
        }
        e => e.into(),
    })
}

/// All rules that are broken.
fn check<const N: usize>(rules: [(&str, Option<String>); N]) -> Result<(), AppError> {
    let faults: Vec<Invalid> = rules
        .into_iter()
        .filter_map(|(field, rule)| rule.map(|rule| Invalid { field: field.to_owned(), rule }))
        .collect();
    if faults.is_empty() { Ok(()) } else { Err(AppError::Invalid(faults)) }
}
