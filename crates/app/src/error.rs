//! Why a use case did not do what it was asked, told apart by who must react; free of any transport.

use placement::{Excluded, Nearest};
use quota::Violation;
use store::StoreError;

/// One thing that is wrong with what was asked: the field's name and the rule that it breaks.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Invalid {
    /// Path of the field, such as `memory` or `rates.default.reserved`.
    pub field: String,
    /// The rule and, where it helps, the value: a clause that follows the field's name.
    pub rule: String,
}

/// Why a request for memory is refused, kept with its key so that a repeat gets the same answer.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(tag = "code", rename_all = "snake_case")]
pub enum Refusal {
    /// One or more limits would be exceeded: all of them.
    QuotaExceeded { violations: Vec<Violation> },
    /// Not even an empty pool could hold it.
    Unsatisfiable { reasons: Vec<Excluded>, nearest: Option<Nearest> },
}

/// Why a use case failed.
#[derive(Debug, thiserror::Error)]
pub enum AppError {
    /// No credential, or one that does not hold. The text is for the caller and says no more than what kind of fault.
    #[error("not authenticated: {0}")]
    Unauthenticated(&'static str),
    /// The credential holds, and whoever it proves one to be has no account here.
    #[error("not a member: an invitation is needed")]
    InvitationNeeded,
    /// The caller may not do this.
    #[error("the caller's role does not allow this")]
    Forbidden,
    /// It does not exist, or is somebody else's.
    #[error("no such {0}")]
    NotFound(&'static str),
    /// What was asked breaks rules: all of them that were found.
    #[error("invalid: {}", .0.iter().map(|i| format!("{} {}", i.field, i.rule)).collect::<Vec<_>>().join("; "))]
    Invalid(Vec<Invalid>),
    /// The present state does not allow it. The code is stable, the text is for the caller.
    #[error("{code}: {detail}")]
    Conflict { code: &'static str, detail: String },
    /// A request for memory is refused.
    #[error("refused")]
    Refused(Refusal),
    /// The idempotency key was used before with another request.
    #[error("the key was used with another request")]
    KeyReused,
    /// A batch is out of sequence.
    #[error("batch out of sequence: expected {expected}")]
    SequenceGap { expected: u64 },
    /// The hours of some GPUs do not balance.
    #[error("hours do not balance")]
    OutOfBalance(Vec<Imbalance>),
    /// This server does not lead the pool; nothing was decided. Stays between servers: callers get the leader's answer.
    #[error("this server does not lead the pool")]
    NotLeading,
    /// It cannot be decided now; nothing was stored. The text is for operators.
    #[error("unavailable: {0}")]
    Unavailable(String),
    /// A defect, or a database that answers unexpectedly. The text is for operators.
    #[error("internal: {0}")]
    Internal(String),
}

/// A GPU's hour whose terms do not add up to its capacity.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Imbalance {
    pub gpu_id: types::GpuId,
    pub hour: types::Instant,
    /// Capacity less the sum of the terms, in byte-milliseconds: negative when more was recorded than there is.
    pub difference: types::ByteMillis,
}

impl AppError {
    /// One field that breaks one rule.
    #[must_use]
    pub fn invalid(field: impl Into<String>, rule: impl Into<String>) -> Self {
        Self::Invalid(vec![Invalid { field: field.into(), rule: rule.into() }])
    }

    /// A state that does not allow it.
    #[must_use]
    pub fn conflict(code: &'static str, detail: impl Into<String>) -> Self {
        Self::Conflict { code, detail: detail.into() }
    }
}

impl From<StoreError> for AppError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::LeaseLost => Self::NotLeading,
            StoreError::Unavailable(_)
            | StoreError::Collision(_)
            | StoreError::CommitUnknown(_)
            | StoreError::Schema(_) => Self::Unavailable(error.to_string()),
            StoreError::Rule(_)
            | StoreError::RowCount { .. }
            | StoreError::Corrupt { .. }
            | StoreError::Database(_) => Self::Internal(error.to_string()),
        }
    }
}
