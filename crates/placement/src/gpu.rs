//! A card that several parts share, and how much of it is free.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use types::{Bytes, GpuId, GpuModel, GpuUuid, NodeId, PartId};

/// Whether a GPU takes new parts. The parts that it has stay, whatever this says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Service {
    /// Takes new parts.
    InService,
    /// An operator keeps new parts away, until he says otherwise.
    Cordoned,
    /// Its node has not reported for `silence_grace`.
    Silent,
    /// Its node has not yet reported to the pool's present leader.
    NotYetReported,
    /// It left the pool for good; it stays known until its parts have ended.
    Removed,
}

impl Service {
    /// As stored and shown.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::InService => "in_service",
            Self::Cordoned => "cordoned",
            Self::Silent => "silent",
            Self::NotYetReported => "not_yet_reported",
            Self::Removed => "removed",
        }
    }
}

/// What one part takes of its GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PartUse {
    /// What the ledger granted.
    pub granted: Bytes,
    /// What its node last measured; absent when unknown or stale.
    pub measured: Option<Bytes>,
}

impl PartUse {
    /// What nobody else can have: whichever is more; the grant alone where the measurement is unknown.
    #[must_use]
    pub fn occupied(&self) -> Bytes {
        self.measured.map_or(self.granted, |m| m.max(self.granted))
    }
}

/// The parts of one card, and their sums: every decision asks every card for them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Parts {
    by_id: BTreeMap<PartId, PartUse>,
    /// Σ of what was granted, in bytes.
    granted: u128,
    /// Σ of what nobody else can have, in bytes.
    occupied: u128,
}

impl Parts {
    pub(crate) const fn none() -> Self {
        Self { by_id: BTreeMap::new(), granted: 0, occupied: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.by_id.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }

    pub(crate) fn get(&self, part: PartId) -> Option<PartUse> {
        self.by_id.get(&part).copied()
    }

    /// Takes in a part, or another use by a known one.
    pub(crate) fn put(&mut self, part: PartId, used: PartUse) {
        self.remove(part);
        self.granted += u128::from(used.granted.0);
        self.occupied += u128::from(used.occupied().0);
        self.by_id.insert(part, used);
    }

    pub(crate) fn remove(&mut self, part: PartId) -> Option<PartUse> {
        let used = self.by_id.remove(&part)?;
        self.granted -= u128::from(used.granted.0);
        self.occupied -= u128::from(used.occupied().0);
        Some(used)
    }
}

/// A sum of bytes, or [`Bytes::MAX`] where it is more.
fn bounded(sum: u128) -> Bytes {
    u64::try_from(sum).map_or(Bytes::MAX, |sum| Bytes(sum).min(Bytes::MAX))
}

/// A shared card. Its parts change only through the [`Inventory`](crate::Inventory), which keeps their sum within
/// `allocatable`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gpu {
    pub id: GpuId,
    pub uuid: GpuUuid,
    pub node: NodeId,
    pub model: GpuModel,
    /// Total memory less what the driver keeps.
    pub allocatable: Bytes,
    pub service: Service,
    pub(crate) parts: Parts,
    pub(crate) unattributed: Option<Bytes>,
}

impl Gpu {
    /// A card without parts, of which nothing is measured.
    #[must_use]
    pub const fn new(
        id: GpuId,
        uuid: GpuUuid,
        node: NodeId,
        model: GpuModel,
        allocatable: Bytes,
        service: Service,
    ) -> Self {
        Self { id, uuid, node, model, allocatable, service, parts: Parts::none(), unattributed: None }
    }

    /// Its parts, in order of their ids.
    pub fn parts(&self) -> impl Iterator<Item = (PartId, PartUse)> {
        self.parts.by_id.iter().map(|(id, part)| (*id, *part))
    }

    /// One of its parts.
    #[must_use]
    pub fn part(&self, part: PartId) -> Option<PartUse> {
        self.parts.get(part)
    }

    /// Memory in use that belongs to no part; absent when unknown or stale.
    #[must_use]
    pub const fn unattributed(&self) -> Option<Bytes> {
        self.unattributed
    }

    /// Σ over parts of what was granted: at most `allocatable`.
    #[must_use]
    pub fn granted(&self) -> Bytes {
        bounded(self.parts.granted)
    }

    /// What the ledger alone has not granted: allocatable − Σ granted.
    #[must_use]
    pub fn ledger_free(&self) -> Bytes {
        self.allocatable.less(self.granted())
    }

    /// Σ over parts of max(granted, measured) + unattributed; more than `allocatable` where somebody uses more than
    /// was granted.
    #[must_use]
    pub fn occupied(&self) -> Bytes {
        self.unattributed.unwrap_or(Bytes::ZERO).plus(bounded(self.parts.occupied))
    }

    /// What a new part may have: max(0, allocatable − Σ over parts of max(granted, measured) − unattributed). Where a
    /// measurement is unknown the ledger alone decides. Never more than [`Gpu::ledger_free`].
    #[must_use]
    pub fn free(&self) -> Bytes {
        self.allocatable.less(self.occupied())
    }

    /// Whether [`Gpu::free`] rests on measurements of all that is on the card, and not on the ledger alone.
    #[must_use]
    pub fn is_measured(&self) -> bool {
        self.unattributed.is_some() && self.parts.by_id.values().all(|part| part.measured.is_some())
    }
}
