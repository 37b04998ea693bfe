//! Who may do what.

use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};

/// What a person or key may do. The first two belong to the platform, the others to one tenant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Runs the platform: everything.
    Operator,
    /// Reads everything of every tenant, sets plans and subscriptions, and issues invoices.
    BillingClerk,
    /// Manages one tenant's projects, users, keys and project quotas, and all that a member does.
    TenantAdmin,
    /// Requests, renews and releases memory for one tenant.
    Member,
    /// Reads one tenant.
    Viewer,
}

impl Role {
    /// Every role.
    pub const ALL: [Self; 5] = [Self::Operator, Self::BillingClerk, Self::TenantAdmin, Self::Member, Self::Viewer];

    /// As stored and shown.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Operator => "operator",
            Self::BillingClerk => "billing_clerk",
            Self::TenantAdmin => "tenant_admin",
            Self::Member => "member",
            Self::Viewer => "viewer",
        }
    }

    /// Whether it belongs to the platform rather than to a tenant.
    #[must_use]
    pub const fn is_platform(self) -> bool {
        matches!(self, Self::Operator | Self::BillingClerk)
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The text names no role.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("is not one of operator, billing_clerk, tenant_admin, member, viewer")]
pub struct RoleError;

impl FromStr for Role {
    type Err = RoleError;
    fn from_str(s: &str) -> Result<Self, RoleError> {
        Self::ALL.into_iter().find(|r| r.name() == s).ok_or(RoleError)
    }
}
