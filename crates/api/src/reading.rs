//! `/v1/reading-batches`, and readings as invoices show them.

use crate::{
    extract::Json,
    problem::{Problem, WriteErrors},
    router::ApiState,
};
use app::{Caller, invoice::ReadingRow, reading};
use axum::extract::State;
use serde::Serialize;
use types::{
    AllocationId, ByteMillis, Bytes, GpuId, PartId, ProjectId, ReadingId, Span,
    wire::{BatchAck, Quality, ReadingBatch},
};

/// A reading that was accepted: what an agent measured for one part over one window.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct AcceptedReading {
    reading_id: ReadingId,
    part_id: PartId,
    allocation_id: AllocationId,
    project_id: ProjectId,
    gpu_id: GpuId,
    /// The window, in the server's time.
    span: Span,
    /// What the part was granted in the window, in bytes.
    granted: Bytes,
    /// ∫ memory used, in byte-milliseconds; absent when unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    used: Option<ByteMillis>,
    /// ∫ memory used above what was granted, in byte-milliseconds; absent when unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    above: Option<ByteMillis>,
    /// The highest that was seen, in bytes; absent when unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    peak: Option<Bytes>,
    /// Milliseconds of the window that samples cover.
    covered_ms: u32,
    quality: Quality,
    /// Milliseconds that were added to the node's times.
    skew_ms: i64,
}

impl From<ReadingRow> for AcceptedReading {
    fn from(row: ReadingRow) -> Self {
        Self {
            reading_id: row.reading_id,
            part_id: row.part_id,
            allocation_id: row.allocation_id,
            project_id: row.project_id,
            gpu_id: row.gpu_id,
            span: row.span,
            granted: row.granted,
            used: row.used,
            above: row.above,
            peak: row.peak,
            covered_ms: row.covered_ms,
            quality: row.quality,
            skew_ms: row.skew_ms,
        }
    }
}

/// Take a batch of readings
///
/// With a node's credential, in the order of the stream, plain or with `Content-Encoding` `zstd` or `gzip`. What the
/// answer says is durable. A batch that is known already changes nothing; one that comes too early gets 409 with code
/// `sequence_gap` and the sequence `expected`. Rows that cannot be true are set aside one by one.
#[utoipa::path(
    post, path = "/v1/reading-batches", tag = "readings", security(("bearer" = [])),
    responses((status = 200, body = BatchAck), WriteErrors)
)]
pub(crate) async fn take_reading_batch(
    State(state): State<ApiState>,
    caller: Caller,
    Json(batch): Json<ReadingBatch>,
) -> Result<Json<BatchAck>, Problem> {
    Ok(Json(reading::ingest(&state.app, &caller, &batch).await?))
}
