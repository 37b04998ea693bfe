//! A principal on one request.

use crate::{
    error::AppError,
    principal::{Actor, Principal},
};
use store::Scope;
use types::{Role, TenantId};

/// Who calls, and in which request, so that the audit log can name both. It stands for its [`Principal`] wherever one
/// is wanted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    pub principal: Principal,
    /// What the answer's `x-request-id` says; absent for what no request asked for.
    pub request_id: Option<String>,
}

impl Caller {
    /// The service itself, with every right: for set-up and replay, never for a request.
    #[must_use]
    pub const fn system() -> Self {
        Self { principal: Principal::Platform { actor: Actor::System, role: Role::Operator }, request_id: None }
    }

    /// Whom a call is about: its own tenant for a tenant's credential (naming another is "not found"); for the
    /// platform's, the one named, or the platform itself.
    ///
    /// # Errors
    /// [`AppError::NotFound`] for another tenant, [`AppError::Forbidden`] for a node.
    pub fn tenant_or_platform(&self, named: Option<TenantId>) -> Result<Option<TenantId>, AppError> {
        match (&self.principal, named) {
            (Principal::Platform { .. }, None) => Ok(None),
            _ => self.principal.tenant(named).map(Some),
        }
    }
}

impl std::ops::Deref for Caller {
    type Target = Principal;
    fn deref(&self) -> &Principal {
        &self.principal
    }
}

/// The narrowest scope for the rows of one tenant, or of the platform.
pub(crate) fn scope_of(tenant: Option<TenantId>) -> Scope {
    tenant.map_or(Scope::Operator, Scope::Tenant)
}

/// A role that belongs to the platform fits no tenant, and the other way round.
pub(crate) fn role_fault(tenant: Option<TenantId>, role: Role) -> Option<&'static str> {
    match (tenant, role.is_platform()) {
        (None, false) => Some("belongs to a tenant: name the tenant in tenant_id"),
        (Some(_), true) => Some("belongs to the platform and cannot be given inside a tenant"),
        _ => None,
    }
}
