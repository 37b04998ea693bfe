//! `/v1/invitations`

use crate::{
    extract::{Json, Path, Query},
    layers::RequestId,
    oidc::OidcCode,
    page::{Cursor, Page, TenantPaging},
    problem::{Problem, ReadErrors, WriteErrors},
    router::ApiState,
    user::User,
};
use app::{
    AppError, Caller,
    invitation::{self, InvitationRow, Proof},
    password::Password,
};
use axum::{Extension, extract::State, http::StatusCode};
use serde::{Deserialize, Serialize};
use types::{Instant, InvitationId, Name, Role, TenantId};

/// Lets one person make one account.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct Invitation {
    invitation_id: InvitationId,
    /// Absent for people of the platform.
    #[serde(skip_serializing_if = "Option::is_none")]
    tenant_id: Option<TenantId>,
    email: String,
    role: Role,
    /// The part of the secret that is none, by which one recognises it.
    prefix: String,
    created_at: Instant,
    /// Who invites: `user:` or `key:` and an id.
    created_by: String,
    expires_at: Instant,
    #[serde(skip_serializing_if = "Option::is_none")]
    accepted_at: Option<Instant>,
    #[serde(skip_serializing_if = "Option::is_none")]
    revoked_at: Option<Instant>,
}

impl From<InvitationRow> for Invitation {
    fn from(row: InvitationRow) -> Self {
        Self {
            invitation_id: row.invitation_id,
            tenant_id: row.tenant_id,
            email: row.email,
            role: row.role,
            prefix: row.prefix,
            created_at: row.created_at,
            created_by: row.created_by,
            expires_at: row.expires_at,
            accepted_at: row.accepted_at,
            revoked_at: row.revoked_at,
        }
    }
}

/// What an invitation is made from.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewInvitation {
    /// Absent for people of the platform; a tenant's caller need not say.
    tenant_id: Option<TenantId>,
    /// The account's address. Nobody is asked to show that it is theirs, and no mail is sent.
    #[schema(
        min_length = 3,
        max_length = 254,
        example = "kim@example.com",
        pattern = r"^[^\s@\u0000-\u001f\u007f-\u009f]+@[^\s@\u0000-\u001f\u007f-\u009f]+$"
    )]
    email: String,
    role: Role,
    /// Seconds until it expires; seven days where absent.
    #[serde(default = "a_week")]
    #[schema(minimum = 300, maximum = 2_592_000, default = 604_800)]
    lifetime_s: u32,
}

const fn a_week() -> u32 {
    604_800
}

/// An invitation with its secret.
#[derive(Serialize, utoipa::ToSchema)]
pub struct CreatedInvitation {
    #[serde(flatten)]
    invitation: Invitation,
    /// The whole secret, for whoever is invited: shown this once.
    secret: String,
}

impl std::fmt::Debug for CreatedInvitation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CreatedInvitation").field("invitation", &self.invitation).finish_non_exhaustive()
    }
}

/// An invitation, and how one will prove who one is: exactly one of `password`, `oidc_token` and `oidc_code`.
#[derive(Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AcceptedInvitation {
    /// The invitation's secret, `gli_…`.
    #[schema(max_length = 64)]
    secret: String,
    /// One's name.
    name: Name,
    /// To log in with the invitation's address and this password.
    #[schema(value_type = Option<String>, format = Password, min_length = 12, max_length = 200)]
    password: Option<Password>,
    /// To come in as the subject of this token, of an issuer that is configured.
    #[schema(max_length = 16_384)]
    oidc_token: Option<String>,
    /// To come in as whoever logged in with a browser at an issuer.
    oidc_code: Option<OidcCode>,
}

impl std::fmt::Debug for AcceptedInvitation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AcceptedInvitation").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Which invitation.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Path)]
pub struct InvitationPath {
    invitation_id: InvitationId,
}

/// Invite a person
///
/// Give the secret to whoever is invited: it is shown this once, and makes one account.
#[utoipa::path(
    post, path = "/v1/invitations", tag = "users", security(("bearer" = [])),
    responses((status = 201, body = CreatedInvitation), WriteErrors)
)]
pub(crate) async fn create_invitation(
    State(state): State<ApiState>,
    caller: Caller,
    Json(new): Json<NewInvitation>,
) -> Result<(StatusCode, Json<CreatedInvitation>), Problem> {
    let NewInvitation { tenant_id, email, role, lifetime_s } = new;
    let new = invitation::NewInvitation { tenant_id, email, role, lifetime_s };
    let created = invitation::create(&state.app, &caller, new).await?;
    let created = CreatedInvitation { invitation: created.row.into(), secret: created.secret };
    Ok((StatusCode::CREATED, Json(created)))
}

/// List a tenant's invitations
///
/// For the platform's callers without `tenant_id`: the platform's own.
#[utoipa::path(
    get, path = "/v1/invitations", tag = "users", security(("bearer" = [])),
    params(TenantPaging),
    responses((status = 200, body = Page<Invitation>), ReadErrors)
)]
pub(crate) async fn list_invitations(
    State(state): State<ApiState>,
    caller: Caller,
    Query(paging): Query<TenantPaging>,
) -> Result<Json<Page<Invitation>>, Problem> {
    let after = paging.cursor.map(Cursor::id);
    let rows = invitation::list(&state.app, &caller, paging.tenant_id, after, paging.limit.and_one()).await?;
    Ok(Json(Page::from_rows(rows, paging.limit, |row| row.invitation_id.uuid())))
}

/// Revoke an invitation
///
/// One that nobody has accepted. Doing it again changes nothing.
#[utoipa::path(
    post, path = "/v1/invitations/{invitation_id}/revoke", tag = "users", security(("bearer" = [])),
    params(InvitationPath),
    responses((status = 200, body = Invitation), WriteErrors)
)]
pub(crate) async fn revoke_invitation(
    State(state): State<ApiState>,
    caller: Caller,
    Path(path): Path<InvitationPath>,
) -> Result<Json<Invitation>, Problem> {
    Ok(Json(invitation::revoke(&state.app, &caller, path.invitation_id).await?.into()))
}

/// Accept an invitation
///
/// Makes an account, once. The invitation is the credential. The account has the invitation's address and role; then log
/// in as you chose to.
#[utoipa::path(
    post, path = "/v1/invitations/accept", tag = "callers",
    responses((status = 201, body = User), WriteErrors)
)]
pub(crate) async fn accept_invitation(
    State(state): State<ApiState>,
    Extension(RequestId(request_id)): Extension<RequestId>,
    Json(accepted): Json<AcceptedInvitation>,
) -> Result<(StatusCode, Json<User>), Problem> {
    let proof = match (accepted.password, accepted.oidc_token, accepted.oidc_code) {
        (Some(password), None, None) => Proof::Password(password),
        (None, Some(token), None) => Proof::Token(token),
        (None, None, Some(code)) => Proof::Code(code.into()),
        _ => {
            let rule = "is needed, or oidc_token, or oidc_code: exactly one of them";
            return Err(AppError::invalid("password", rule).into());
        }
    };
    let row = invitation::accept(&state.app, Some(request_id), &accepted.secret, accepted.name, proof).await?;
    Ok((StatusCode::CREATED, Json(row.into())))
}
