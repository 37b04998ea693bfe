//! One newtype per kind of id, so that a project's id can never stand where a tenant's is wanted. All are UUID
//! version 7: made in Rust from the time and random bytes that the caller passes in, and ordered by time.

use crate::span::Instant;
use serde::{Deserialize, Deserializer, Serialize, de};
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

/// A UUID in its usual form of 36 characters. Other forms name the same bits, but one id has one text here.
pub(crate) fn hyphenated(text: &str) -> Option<Uuid> {
    if text.len() == 36 { Uuid::try_parse(text).ok() } else { None }
}

/// The text is no id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a UUID such as 01980000-0000-7000-8000-000000000001")]
pub struct IdError(String);

/// Reads a UUID where it stands, so that whoever gave the text learns where it is.
struct Text;

impl de::Visitor<'_> for Text {
    type Value = Uuid;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a UUID")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Uuid, E> {
        hyphenated(text).ok_or_else(|| E::custom(IdError(text.chars().take(40).collect())))
    }
}

macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, utoipa::ToSchema)]
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
            type Err = IdError;
            fn from_str(s: &str) -> Result<Self, IdError> {
                hyphenated(s).map(Self).ok_or_else(|| IdError(s.chars().take(40).collect()))
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
                d.deserialize_str(Text).map(Self)
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
    /// A card, as this ledger knows it; the card's own name is its `gpu_uuid`.
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
