//! Whether the second wall stands: rights and row security.

use super::Finding;
use crate::{App, error::AppError};
use store::{Scope, doctor};

pub(super) async fn rights(app: &App) -> Result<Vec<Finding>, AppError> {
    let mut tx = app.store.begin("doctor.rights", Scope::Operator).await?;
    let excessive = doctor::excessive_rights(&mut tx).await?;
    let missing = doctor::missing_rights(&mut tx).await?;
    if excessive.is_empty() && missing.is_empty() {
        let what = "the service has the rights it needs, and cannot change or delete what is append-only";
        return Ok(vec![Finding::good("rights", what)]);
    }
    let missing = missing.into_iter().map(|(object, right)| {
        let kind = if right == "EXECUTE" { "function " } else { "" };
        Finding::problem(
            "rights",
            format!("gpuledger_service lacks the right {right} on {object}"),
            format!("grant {right} on {kind}{object} to gpuledger_service"),
        )
    });
    Ok(excessive
        .into_iter()
        .map(|(table, right)| match right.as_str() {
            "OWNER" => Finding::problem(
                "rights",
                format!("gpuledger_service owns {table}, so no right and no row security binds it there"),
                format!("alter table {table} owner to the schema's owner"),
            ),
            right => Finding::problem(
                "rights",
                format!("gpuledger_service has the right {right} on {table}, which is append-only"),
                format!("revoke {right} on {table} from gpuledger_service"),
            ),
        })
        .chain(missing)
        .collect())
}

pub(super) async fn walls(app: &App) -> Result<Vec<Finding>, AppError> {
    let mut tx = app.store.begin("doctor.walls", Scope::Operator).await?;
    let open = doctor::tables_without_wall(&mut tx).await?;
    if open.is_empty() {
        return Ok(vec![Finding::good("walls", "row security holds every table with tenants' rows")]);
    }
    Ok(open
        .into_iter()
        .map(|table| {
            Finding::problem(
                "walls",
                format!("row security does not hold {table}"),
                format!("alter table {table} enable row level security, with the policy tenant_wall"),
            )
        })
        .collect())
}
