//! Intervals, as histories and invoices show them.

use app::allocation::IntervalRow;
use serde::Serialize;
use types::{AllocationId, Bytes, GpuId, GpuModel, IntervalId, PartId, ProjectId, Span};

/// A final span in which a part held bytes while confirmed: the fact that is billed as reserved.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct Interval {
    interval_id: IntervalId,
    allocation_id: AllocationId,
    part_id: PartId,
    project_id: ProjectId,
    gpu_id: GpuId,
    model: GpuModel,
    /// Held all through it.
    bytes: Bytes,
    span: Span,
    /// Whether it is a gap in the reports of its node that the node attested afterwards.
    attested: bool,
}

impl From<IntervalRow> for Interval {
    fn from(row: IntervalRow) -> Self {
        Self {
            interval_id: row.interval_id,
            allocation_id: row.allocation_id,
            part_id: row.part_id,
            project_id: row.project_id,
            gpu_id: row.gpu_id,
            model: row.model,
            bytes: row.bytes,
            span: row.span,
            attested: row.attested,
        }
    }
}
