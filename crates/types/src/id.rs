//! One newtype per kind of id, so that a project's id can never stand where a tenant's is wanted. All are UUID
//! version 7: made in Rust from the time and random bytes that the caller passes in, and ordered by time.

use crate::span::Instant;
use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};
use uuid::Uuid;

/// A source of the random part of new ids. Production uses the operating system's; tests pass a seeded one.
pub trait IdBytes {
    /// Ten random bytes.
    fn ten(&mut self) -> [u8; 10];
}

impl<F: FnMut() -> [u8; 10]> IdBytes for F {
    fn ten(&mut self) -> [u8; 10] {
        self()
    }
}

macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, utoipa::ToSchema)]
        #[serde(transparent)]
        #[schema(value_type = String, format = Uuid)]
        pub struct $name(pub Uuid);

        impl $name {
            /// A new id of version 7 for an instant and ten random bytes.
            #[must_use]
            pub fn new(at: Instant, random: [u8; 10]) -> Self {
                let millis = u64::try_from(at.as_millis()).unwrap_or(0);
                Self(uuid::Builder::from_unix_timestamp_millis(millis, &random).into_uuid())
            }

            /// The UUID itself, for storage.
            #[must_use]
            pub const fn uuid(self) -> Uuid {
                self.0
            }
        }

        impl From<Uuid> for $name {
            fn from(id: Uuid) -> Self {
                Self(id)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl FromStr for $name {
            type Err = uuid::Error;
            fn from_str(s: &str) -> Result<Self, Self::Err> {
                Uuid::parse_str(s).map(Self)
            }
        }
    )*};
}

ids! {
    /// Who is billed.
    TenantId,
    /// A subdivision of a tenant.
    ProjectId,
    /// A person who logs in.
    UserId,
    /// An API key of a machine.
    KeyId,
    /// A login of a person.
    SessionId,
    /// Nodes with one scheduler.
    PoolId,
    /// A host.
    NodeId,
    /// A card, as this ledger knows it; the card's own name is [`crate::GpuUuid`].
    GpuId,
    /// Lets one person make one account.
    InvitationId,
    /// A one-time token with which a node joins.
    JoinTokenId,
    /// What a node proves itself with.
    CredentialId,
    /// A granted request.
    AllocationId,
    /// One device of an allocation.
    PartId,
    /// A final span in which a part held bytes while confirmed.
    IntervalId,
    /// A span in which memory was kept but is not billed: held before confirmation, or unconfirmed.
    UnbilledSpanId,
    /// A change in the life of an allocation.
    HistoryId,
    /// What an agent measured for one part over one window.
    ReadingId,
    /// The ordered sequence of batches of one agent spool.
    StreamId,
    /// A row of a batch that could not be accepted.
    SetAsideId,
    /// A price list.
    PlanId,
    /// One frozen version of a price list.
    PlanVersionId,
    /// A tenant's use of a plan over a span of time.
    SubscriptionId,
    /// One rated fact.
    ChargeId,
    /// A bill.
    InvoiceId,
    /// An entry of the audit log.
    AuditId,
    /// One run of the server process.
    ServerId,
    /// One run of a node's agent.
    RunId,
}
