//! Who calls, and what a call may see.

use crate::error::AppError;
use store::Scope;
use types::{KeyId, NodeId, PoolId, Role, TenantId, UserId};

/// Who did something, as history and audit name it.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Actor {
    /// A person, by their user id.
    User(UserId),
    /// A machine, by its API key.
    Key(KeyId),
    /// A node, by its credential.
    Node(NodeId),
    /// The service itself.
    System,
}

impl std::fmt::Display for Actor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::User(id) => write!(f, "user:{id}"),
            Self::Key(id) => write!(f, "key:{id}"),
            Self::Node(id) => write!(f, "node:{id}"),
            Self::System => f.write_str("system"),
        }
    }
}

/// A caller whose credential was checked.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Principal {
    /// A person or key of the platform.
    Platform { actor: Actor, role: Role },
    /// A person or key of one tenant.
    Tenant { actor: Actor, role: Role, tenant: TenantId },
    /// A node, which speaks for itself alone.
    Node { node: NodeId, pool: PoolId },
}

impl Principal {
    /// Who it is.
    #[must_use]
    pub fn actor(&self) -> Actor {
        match self {
            Self::Platform { actor, .. } | Self::Tenant { actor, .. } => actor.clone(),
            Self::Node { node, .. } => Actor::Node(*node),
        }
    }

    /// Its role; a node has none.
    #[must_use]
    pub const fn role(&self) -> Option<Role> {
        match self {
            Self::Platform { role, .. } | Self::Tenant { role, .. } => Some(*role),
            Self::Node { .. } => None,
        }
    }

    /// What it may see: everything for the platform, its own tenant for others.
    ///
    /// # Errors
    /// [`AppError::Forbidden`] for a node, which reads no tenant's data.
    pub fn scope(&self) -> Result<Scope, AppError> {
        match self {
            Self::Platform { .. } => Ok(Scope::Operator),
            Self::Tenant { tenant, .. } => Ok(Scope::Tenant(*tenant)),
            Self::Node { .. } => Err(AppError::Forbidden),
        }
    }

    /// The tenant that a call is about: its own for a tenant's credential (naming another is "not found"), the named
    /// one for the platform's.
    ///
    /// # Errors
    /// [`AppError::NotFound`] for another tenant, [`AppError::Invalid`] when the platform names none,
    /// [`AppError::Forbidden`] for a node.
    pub fn tenant(&self, named: Option<TenantId>) -> Result<TenantId, AppError> {
        match (self, named) {
            (Self::Tenant { tenant, .. }, None) => Ok(*tenant),
            (Self::Tenant { tenant, .. }, Some(named)) if named == *tenant => Ok(named),
            (Self::Tenant { .. }, Some(_)) => Err(AppError::NotFound("tenant")),
            (Self::Platform { .. }, Some(named)) => Ok(named),
            (Self::Platform { .. }, None) => {
                Err(AppError::invalid("tenant_id", "is needed when the caller belongs to the platform"))
            }
            (Self::Node { .. }, _) => Err(AppError::Forbidden),
        }
    }

    /// Passes only callers whose role is one of `roles`.
    ///
    /// # Errors
    /// [`AppError::Forbidden`] for every other.
    pub fn require(&self, roles: &[Role]) -> Result<(), AppError> {
        match self.role() {
            Some(role) if roles.contains(&role) => Ok(()),
            _ => Err(AppError::Forbidden),
        }
    }
}
