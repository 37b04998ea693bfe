//! Pools: nodes with one scheduler.

use crate::{
    App, Caller, Invalid,
    audit::{self, Change},
    error::AppError,
};
use serde_json::json;
use store::{Scope, pool};
use types::{Name, PoolId, Role};

pub use store::pool::{Graces, PoolRow};

/// The longest grace: 30 days.
const LONGEST_S: u32 = 2_592_000;

/// Graces of a pool for which none are given: a hold waits two minutes, a node is silent after 90 seconds, and what ran
/// on it is lost after a day.
pub const DEFAULT_GRACES: Graces = Graces { hold_grace_s: 120, silence_grace_s: 90, lost_after_s: 86_400 };

/// Graces to change; absent ones stay.
#[derive(Debug, Clone, Copy, Default)]
pub struct GracesChange {
    pub hold_grace_s: Option<u32>,
    pub silence_grace_s: Option<u32>,
    pub lost_after_s: Option<u32>,
}

impl GracesChange {
    /// What `graces` become.
    #[must_use]
    pub fn applied_to(&self, graces: Graces) -> Graces {
        Graces {
            hold_grace_s: self.hold_grace_s.unwrap_or(graces.hold_grace_s),
            silence_grace_s: self.silence_grace_s.unwrap_or(graces.silence_grace_s),
            lost_after_s: self.lost_after_s.unwrap_or(graces.lost_after_s),
        }
    }
}

fn check(graces: Graces) -> Result<(), AppError> {
    let mut faults = Vec::new();
    for (field, seconds) in [
        ("hold_grace_s", graces.hold_grace_s),
        ("silence_grace_s", graces.silence_grace_s),
        ("lost_after_s", graces.lost_after_s),
    ] {
        if !(1..=LONGEST_S).contains(&seconds) {
            faults.push(Invalid { field: field.to_owned(), rule: format!("must be 1 to {LONGEST_S} seconds") });
        }
    }
    if graces.lost_after_s < graces.silence_grace_s {
        let rule = format!("must not be less than silence_grace_s, which is {}", graces.silence_grace_s);
        faults.push(Invalid { field: "lost_after_s".to_owned(), rule });
    }
    if faults.is_empty() { Ok(()) } else { Err(AppError::Invalid(faults)) }
}

fn described(graces: Graces) -> serde_json::Value {
    json!({
        "hold_grace_s": graces.hold_grace_s,
        "silence_grace_s": graces.silence_grace_s,
        "lost_after_s": graces.lost_after_s,
    })
}

/// Makes a pool.
///
/// # Errors
/// [`AppError::Forbidden`], [`AppError::Invalid`], [`AppError::Conflict`] `name_taken`.
pub async fn create(app: &App, caller: &Caller, name: Name, graces: Graces) -> Result<PoolRow, AppError> {
    caller.require(&[Role::Operator])?;
    check(graces)?;
    let row = PoolRow { pool_id: app.id(PoolId::new), name, graces, created_at: app.clock.now() };
    let mut tx = app.store.begin("pool.create", Scope::Operator).await?;
    pool::insert(&mut tx, &row).await.map_err(|error| match error {
        e if e.is_rule("pool_name_is_unique") => {
            AppError::conflict("name_taken", format!("there is a pool named {} already", row.name))
        }
        e => e.into(),
    })?;
    let change = Change {
        tenant: None,
        action: "pool.create",
        object: row.pool_id.to_string(),
        detail: json!({"name": row.name, "graces": described(graces)}),
    };
    audit::record(app, &mut tx, caller, change).await?;
    tx.commit().await?;
    // what was asked for without a pool went to the only one
    app.resolved.forget_all();
    app.schedule_pool(row.pool_id);
    Ok(row)
}

/// A page of pools.
///
/// # Errors
/// [`AppError::Forbidden`] for a node.
pub async fn list(app: &App, caller: &Caller, after: Option<PoolId>, limit: i64) -> Result<Vec<PoolRow>, AppError> {
    caller.require(&Role::ALL)?;
    let mut tx = app.store.begin("pool.list", caller.scope()?).await?;
    Ok(pool::page(&mut tx, after, limit).await?)
}

/// One pool.
///
/// # Errors
/// [`AppError::NotFound`].
pub async fn get(app: &App, caller: &Caller, pool_id: PoolId) -> Result<PoolRow, AppError> {
    caller.require(&Role::ALL)?;
    let mut tx = app.store.begin("pool.get", caller.scope()?).await?;
    pool::get(&mut tx, pool_id).await?.ok_or(AppError::NotFound("pool"))
}

/// Changes a pool's graces.
///
/// # Errors
/// [`AppError::Forbidden`], [`AppError::Invalid`], [`AppError::NotFound`].
pub async fn update(app: &App, caller: &Caller, pool_id: PoolId, change: GracesChange) -> Result<PoolRow, AppError> {
    caller.require(&[Role::Operator])?;
    let mut tx = app.store.begin("pool.update", Scope::Operator).await?;
    let row = pool::lock(&mut tx, pool_id).await?.ok_or(AppError::NotFound("pool"))?;
    let graces = change.applied_to(row.graces);
    check(graces)?;
    pool::set_graces(&mut tx, pool_id, graces).await?;
    let detail = json!({"from": described(row.graces), "to": described(graces)});
    let change = Change { tenant: None, action: "pool.update", object: pool_id.to_string(), detail };
    audit::record(app, &mut tx, caller, change).await?;
    tx.commit().await?;
    app.reconsider_queues().await;
    Ok(PoolRow { graces, ..row })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fault_is_named() {
        assert!(check(DEFAULT_GRACES).is_ok());
        let bad = Graces { hold_grace_s: 0, silence_grace_s: LONGEST_S + 1, lost_after_s: 5 };
        let Err(AppError::Invalid(faults)) = check(bad) else { panic!("accepted") };
        let fields: Vec<_> = faults.iter().map(|fault| fault.field.as_str()).collect();
        assert_eq!(fields, ["hold_grace_s", "silence_grace_s", "lost_after_s"]);
    }
}
