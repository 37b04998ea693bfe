//! Why a GPU does not serve a request.

use crate::gpu::{Gpu, Service};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeSet, fmt};
use types::{GpuId, Request};

/// Why a GPU does not serve a request, in the order in which the reasons are tried: a GPU counts under its first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// Another model was asked.
    Model,
    /// Another node was asked.
    Node,
    /// It could not give so much memory even when empty.
    TooSmall,
    /// An operator keeps new parts away.
    Cordoned,
    /// Its node is silent.
    Silent,
    /// Its node has not yet reported to the pool's present leader.
    NotYetReported,
    /// It left the pool.
    Removed,
    /// It is kept for a request that came earlier and still waits.
    EarlierRequest,
    /// Too little of it is free.
    Full,
    /// Enough of it is free, but too few GPUs of its node can say that.
    Siblings,
}

impl Reason {
    /// As stored and shown.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Model => "model",
            Self::Node => "node",
            Self::TooSmall => "too_small",
            Self::Cordoned => "cordoned",
            Self::Silent => "silent",
            Self::NotYetReported => "not_yet_reported",
            Self::Removed => "removed",
            Self::EarlierRequest => "earlier_request",
            Self::Full => "full",
            Self::Siblings => "siblings",
        }
    }

    /// The same for people, to stand after a GPU or a number of GPUs.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Self::Model => "not of the model that was asked",
            Self::Node => "not on the node that was asked",
            Self::TooSmall => "too small even when empty",
            Self::Cordoned => "cordoned by an operator",
            Self::Silent => "on a node that has fallen silent",
            Self::NotYetReported => "on a node that has not yet reported",
            Self::Removed => "no longer in the pool",
            Self::EarlierRequest => "reserved for an earlier request",
            Self::Full => "without enough free memory",
            Self::Siblings => "with room, but with too few such GPUs beside it on its node",
        }
    }
}

/// How many GPUs a reason excluded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Excluded {
    pub reason: Reason,
    /// More than 0. Every GPU of the pool is counted under one reason.
    pub gpus: u32,
}

impl fmt::Display for Excluded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let noun = if self.gpus == 1 { "GPU" } else { "GPUs" };
        write!(f, "{} {noun} {}", self.gpus, self.reason.text())
    }
}

/// Why a GPU would not serve the request even when empty and in service.
pub(crate) fn unsuited(gpu: &Gpu, request: &Request) -> Option<Reason> {
    if request.model.as_ref().is_some_and(|m| *m != gpu.model) {
        Some(Reason::Model)
    } else if request.node_id.is_some_and(|node| node != gpu.node) {
        Some(Reason::Node)
    } else if gpu.allocatable < request.memory {
        Some(Reason::TooSmall)
    } else {
        None
    }
}

/// Why a GPU takes no new parts now, whatever they are.
pub(crate) const fn out_of_service(gpu: &Gpu) -> Option<Reason> {
    match gpu.service {
        Service::InService => None,
        Service::Cordoned => Some(Reason::Cordoned),
        Service::Silent => Some(Reason::Silent),
        Service::NotYetReported => Some(Reason::NotYetReported),
        Service::Removed => Some(Reason::Removed),
    }
}

/// Why one GPU, looked at by itself, does not serve one part of the request now.
pub(crate) fn why_not(gpu: &Gpu, request: &Request, closed: &BTreeSet<GpuId>) -> Option<Reason> {
    unsuited(gpu, request)
        .or_else(|| out_of_service(gpu))
        .or_else(|| closed.contains(&gpu.id).then_some(Reason::EarlierRequest))
        .or_else(|| (gpu.free() < request.memory).then_some(Reason::Full))
}

/// How many GPUs of one node the request needs. [`validate`](crate::validate) refuses 0; should one come by, it counts
/// as 1.
pub(crate) fn gpus_needed(request: &Request) -> usize {
    usize::try_from(request.gpus.max(1)).unwrap_or(usize::MAX)
}
