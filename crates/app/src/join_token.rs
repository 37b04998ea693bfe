//! One-time tokens with which nodes join a pool.

use crate::{
    App, Caller,
    audit::{self, Change},
    credential::{self, CredentialKind, Presented},
    error::AppError,
};
use serde_json::json;
use store::{Scope, Tx, join_token};
use types::{JoinTokenId, PoolId, Role};

pub use store::join_token::JoinTokenRow;

/// Seconds that a token may be good for: a minute to a week.
pub const LIFETIME_S: std::ops::RangeInclusive<u32> = 60..=604_800;

/// A token and its secret, which is shown this once.
#[derive(Debug)]
pub struct NewJoinToken {
    pub row: JoinTokenRow,
    pub secret: String,
}

/// Makes a token that lets one node join the pool.
///
/// # Errors
/// [`AppError::Forbidden`], [`AppError::Invalid`], [`AppError::NotFound`].
pub async fn create(app: &App, caller: &Caller, pool_id: PoolId, lifetime_s: u32) -> Result<NewJoinToken, AppError> {
    caller.require(&[Role::Operator])?;
    if !LIFETIME_S.contains(&lifetime_s) {
        let rule = format!("must be {} to {} seconds", LIFETIME_S.start(), LIFETIME_S.end());
        return Err(AppError::invalid("lifetime_s", rule));
    }
    let minted = credential::mint(CredentialKind::JoinToken);
    let now = app.clock.now();
    let row = JoinTokenRow {
        join_token_id: app.id(JoinTokenId::new),
        pool_id,
        prefix: minted.prefix,
        hash: minted.hash,
        created_at: now,
        expires_at: now.plus_secs(i64::from(lifetime_s)),
    };
    let mut tx = app.store.begin("join_token.create", Scope::Operator).await?;
    join_token::insert(&mut tx, &row).await.map_err(|error| match error {
        e if e.is_rule("join_token_of_pool") => AppError::NotFound("pool"),
        e => e.into(),
    })?;
    let change = Change {
        tenant: None,
        action: "join_token.create",
        object: row.join_token_id.to_string(),
        detail: json!({"pool_id": pool_id, "prefix": row.prefix, "expires_at": row.expires_at}),
    };
    audit::record(app, &mut tx, caller, change).await?;
    tx.commit().await?;
    Ok(NewJoinToken { row, secret: minted.text })
}

/// Uses a token up inside the caller's transaction, and says which pool it opens.
pub(crate) async fn redeem(app: &App, tx: &mut Tx, token: &str) -> Result<PoolId, AppError> {
    const REFUSED: AppError = AppError::Unauthenticated("the join token is unknown, expired or used");
    let presented = Presented::parse(token).filter(|p| p.kind == CredentialKind::JoinToken).ok_or(REFUSED)?;
    let now = app.clock.now();
    let row = join_token::lock_usable(tx, &presented.prefix, now).await?;
    let row = row.filter(|row| presented.matches(&row.hash)).ok_or(REFUSED)?;
    join_token::set_used(tx, row.join_token_id, now).await?;
    Ok(row.pool_id)
}
