//! The doctor's look at the audit logs.

use super::Finding;
use crate::{App, audit_chain, error::AppError};

pub(super) async fn audit(app: &App) -> Result<Vec<Finding>, AppError> {
    let found = audit_chain::verify(app).await?;
    if found.faults.is_empty() {
        let what = format!("{} entries in {} logs, their chains intact", found.entries, found.chains);
        return Ok(vec![Finding::good("audit", what)]);
    }
    let remedy = "something changed the log behind the service: compare it with a backup, from that entry on";
    Ok(found.faults.into_iter().map(|what| Finding::problem("audit", what, remedy)).collect())
}
