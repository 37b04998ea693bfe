//! Whose rows a transaction may see.

use types::TenantId;

/// The tenants that a transaction works for. Row-level security shows it nothing else, and nothing at all without one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Scope {
    /// One tenant: every request made with a tenant's credential.
    Tenant(TenantId),
    /// The tenants of one batch of readings.
    Batch(Vec<TenantId>),
    /// Everyone: the operator's requests, the scheduler, recurring tasks.
    Operator,
}

impl Scope {
    /// The value of `app.tenants` for this scope: ids joined by commas, or `*`.
    pub(crate) fn setting(&self) -> String {
        match self {
            Self::Tenant(tenant) => tenant.to_string(),
            Self::Batch(tenants) => tenants.iter().map(ToString::to_string).collect::<Vec<_>>().join(","),
            Self::Operator => "*".to_owned(),
        }
    }
}
