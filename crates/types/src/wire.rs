//! What an agent and the server say to each other. Both sides compile these types; unknown fields are refused.

use crate::{
    bytes::{ByteMillis, Bytes, BytesGiven},
    gpu::{GpuModel, GpuUuid},
    id::{AllocationId, GpuId, NodeId, PartId, PoolId, ProjectId, RunId, StreamId, TenantId},
    list::at_most,
    name::Name,
    span::Instant,
};
use serde::{Deserialize, Serialize};

/// A card as its node reports it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct GpuReport {
    pub uuid: GpuUuid,
    pub model: GpuModel,
    /// All of the card's memory, in bytes.
    #[schema(value_type = BytesGiven)]
    pub memory_total: Bytes,
    /// What the driver keeps for itself; absent when the driver cannot tell it apart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<BytesGiven>)]
    pub driver_overhead: Option<Bytes>,
    /// What the card says is in use without the driver's share; absent when unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<BytesGiven>)]
    pub memory_used: Option<Bytes>,
}

/// A node asks to join a pool with a one-time token.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Join {
    /// The one-time token that an operator made.
    #[schema(max_length = 4096)]
    pub token: String,
    /// The host's name, for people; it may change.
    pub hostname: Name,
    /// What names the host for ever: the text of /etc/machine-id.
    pub machine_id: Name,
}

/// What a node gets when it joined.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Joined {
    pub node_id: NodeId,
    pub pool_id: PoolId,
    /// The node's own credential: shown once.
    pub credential: String,
}

/// A node's new credential. The one that asked for it stays good until this one is first used.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct RotatedCredential {
    /// Shown once.
    pub credential: String,
}

impl std::fmt::Debug for RotatedCredential {
    /// Without the credential.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RotatedCredential").finish_non_exhaustive()
    }
}

/// One run of a node's agent, by which two that run at once are told apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AgentRun {
    /// Made anew each time the agent starts.
    pub run_id: RunId,
    /// The run that had the agent's state before, which is locked while a run lives; absent at the first start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub follows: Option<RunId>,
    /// How long this run waits between two reports at most, in milliseconds: 100 to 60,000.
    #[schema(minimum = 100, maximum = 60_000)]
    pub report_interval_ms: u32,
}

/// A sign of life of a node, sent every few seconds and at once after each change that it saw.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NodeReport {
    /// Differs after each boot of the host: the text of /proc/sys/kernel/random/boot_id.
    pub boot_id: Name,
    /// Which run of the agent sends this; agents older than this field send none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<AgentRun>,
    /// The node's clock when it sent this.
    pub sent_at: Instant,
    /// Every card of the node.
    #[serde(deserialize_with = "at_most::<64, _, _>")]
    #[schema(max_items = 64)]
    pub gpus: Vec<GpuReport>,
    /// Allocations whose workload the agent sees living.
    #[serde(deserialize_with = "at_most::<4096, _, _>")]
    #[schema(max_items = 4096)]
    pub alive: Vec<AllocationId>,
    /// Workloads that the agent saw end.
    #[serde(default, deserialize_with = "at_most::<4096, _, _>")]
    #[schema(max_items = 4096)]
    pub exited: Vec<Exit>,
}

/// The end of a workload, as its agent saw it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Exit {
    pub allocation_id: AllocationId,
    /// By the node's clock, corrected by the skew that the server told.
    pub at: Instant,
}

/// The server's answer to a report: what this node is to meter.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct NodeOrders {
    pub node_id: NodeId,
    /// The server's clock, to measure the node's skew against.
    pub server_time: Instant,
    /// Held and active parts on this node.
    pub parts: Vec<PartOrder>,
    /// Whether the node is to get itself a new credential now.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    #[schema(required = false)]
    pub rotate_credential: bool,
}

/// One part that lives on the node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct PartOrder {
    pub tenant_id: TenantId,
    pub project_id: ProjectId,
    pub allocation_id: AllocationId,
    pub part_id: PartId,
    pub gpu_id: GpuId,
    pub gpu_uuid: GpuUuid,
    pub bytes: Bytes,
    /// When metering began; absent while held.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub active_since: Option<Instant>,
    /// When it must end, where the request set `max_duration_s`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ends_by: Option<Instant>,
}

/// How far a reading can be relied on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Quality {
    /// Sampled over the whole covered time.
    Measured,
    /// Bounded from what the driver accounts, not sampled.
    Estimated,
    /// The source could not tell; quantities are absent.
    Unknown,
}

impl Quality {
    /// As stored and shown.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Measured => "measured",
            Self::Estimated => "estimated",
            Self::Unknown => "unknown",
        }
    }

    /// The one of this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::Measured, Self::Estimated, Self::Unknown].into_iter().find(|q| q.name() == name)
    }
}

/// What an agent measured for one part over one window.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Reading {
    pub part_id: PartId,
    /// Start of the window, by the node's clock.
    pub start: Instant,
    /// End of the window: later than its start, at most an hour.
    pub end: Instant,
    /// What the part was granted in the window.
    #[schema(value_type = BytesGiven)]
    pub granted: Bytes,
    /// ∫ memory used, in byte-milliseconds; absent when unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub used: Option<ByteMillis>,
    /// ∫ memory used above what was granted; absent when unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub above: Option<ByteMillis>,
    /// The highest that was seen; absent when unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<BytesGiven>)]
    pub peak: Option<Bytes>,
    /// Milliseconds of the window that samples cover.
    #[schema(maximum = 4_294_967_295_u64)]
    pub covered_ms: u32,
    pub quality: Quality,
}

/// A batch of readings: the unit of the spool, of the upload and of the acknowledgement.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ReadingBatch {
    pub stream_id: StreamId,
    /// Which run of the agent sends this; agents older than this field send none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_id: Option<RunId>,
    /// 1 for the first batch of a stream, then each one more.
    #[schema(minimum = 1, maximum = 9_223_372_036_854_775_807_u64)]
    pub sequence: u64,
    /// The node's clock when it sent this.
    pub sent_at: Instant,
    /// At most 10,000.
    #[serde(deserialize_with = "at_most::<{ ReadingBatch::MAX_READINGS }, _, _>")]
    #[schema(max_items = 10_000)]
    pub readings: Vec<Reading>,
}

impl ReadingBatch {
    /// The most readings that one batch may carry.
    pub const MAX_READINGS: usize = 10_000;
}

/// The acknowledgement of a batch: it is durable, and the agent may forget it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct BatchAck {
    /// The highest sequence that the server holds of this stream.
    pub sequence: u64,
    /// Rows accepted by this call; 0 when the batch was known already.
    pub accepted: u32,
    /// Rows set aside by this call.
    pub set_aside: u32,
    /// The server's clock less the node's, in milliseconds.
    pub skew_ms: i64,
}
