//! Agents' streams: their marks, and every row that came in them, in order.

use crate::{error::StoreError, reading::byte_millis, time::At, tx::Tx};
use sqlx::Row;
use types::{
    Bytes, NodeId, PartId, StreamId,
    wire::{Quality, Reading},
};

/// Rows that are read at once.
const ROWS: i64 = 10_000;

/// The mark of a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamMark {
    pub stream_id: StreamId,
    pub node_id: NodeId,
    pub sequence: i64,
    pub head_hash: Vec<u8>,
}

/// Every stream's mark, in the order of their ids.
///
/// # Errors
/// What the database says.
pub async fn marks(tx: &mut Tx) -> Result<Vec<StreamMark>, StoreError> {
    let rows = sqlx::query!("select stream_id, node_id, sequence, head_hash from stream order by stream_id")
        .fetch_all(tx.connection())
        .await?;
    Ok(rows
        .into_iter()
        .map(|r| StreamMark {
            stream_id: r.stream_id.into(),
            node_id: r.node_id.into(),
            sequence: r.sequence,
            head_hash: r.head_hash,
        })
        .collect())
}

/// A row of a batch, as its agent sent it.
#[derive(Debug, Clone, PartialEq)]
pub struct SentRow {
    pub stream_id: StreamId,
    pub sequence: i64,
    /// Its place in the batch, from 0, where it was set aside. Accepted rows fill the other places, in order.
    pub row_number: Option<i32>,
    pub reading: Reading,
}

/// Begins to read every row that came in a stream, in the order of streams, sequences and, among the accepted ones, of the
/// batch; [`next_rows`] gives them. The transaction must see one instant's state.
///
/// # Errors
/// What the database says.
pub async fn begin_rows(tx: &mut Tx) -> Result<(), StoreError> {
    // a reading that an operator accepted stands beside its row set aside, which is the one that was sent
    sqlx::query(
        "declare sent_rows no scroll cursor for
         select r.stream_id, r.sequence, null::integer as row_number, r.reading_id as id, r.part_id,
            r.starts_at - r.skew_ms * interval '1 millisecond' as starts_at,
            r.ends_at - r.skew_ms * interval '1 millisecond' as ends_at,
            r.granted, r.used, r.above, r.peak, r.covered_ms, r.quality, null::jsonb as reading
           from reading r
          where not exists (select 1 from set_aside s join set_aside_ruling u using (set_aside_id)
              where u.ruling = 'accepted' and s.stream_id = r.stream_id and s.sequence = r.sequence
                and s.part_id = r.part_id and s.starts_at = r.starts_at - r.skew_ms * interval '1 millisecond')
         union all
         select stream_id, sequence, row_number, set_aside_id, part_id, null, null, null, null, null, null, null, null, reading
           from set_aside
         order by stream_id, sequence, row_number, id",
    )
    .execute(tx.connection())
    .await?;
    Ok(())
}

/// The next rows, none at the end.
///
/// # Errors
/// What the database says, or a row that does not parse.
pub async fn next_rows(tx: &mut Tx) -> Result<Vec<SentRow>, StoreError> {
    let fetch = sqlx::AssertSqlSafe(format!("fetch forward {ROWS} from sent_rows"));
    let rows = sqlx::query(fetch).fetch_all(tx.connection()).await?;
    rows.iter()
        .map(|row| {
            let reading = match row.try_get::<Option<serde_json::Value>, _>("reading")? {
                Some(sent) => {
                    serde_json::from_value(sent).map_err(|e| StoreError::corrupt("set_aside", "reading", e))?
                }
                None => accepted(row)?,
            };
            Ok(SentRow {
                stream_id: row.try_get::<uuid::Uuid, _>("stream_id")?.into(),
                sequence: row.try_get("sequence")?,
                row_number: row.try_get("row_number")?,
                reading,
            })
        })
        .collect()
}

fn accepted(row: &sqlx::postgres::PgRow) -> Result<Reading, StoreError> {
    let quality: String = row.try_get("quality")?;
    Ok(Reading {
        part_id: PartId(row.try_get("part_id")?),
        start: row.try_get::<At, _>("starts_at")?.0,
        end: row.try_get::<At, _>("ends_at")?.0,
        granted: Bytes::from_i64(row.try_get("granted")?),
        used: row.try_get::<Option<_>, _>("used")?.map(byte_millis),
        above: row.try_get::<Option<_>, _>("above")?.map(byte_millis),
        peak: row.try_get::<Option<_>, _>("peak")?.map(Bytes::from_i64),
        covered_ms: u32::try_from(row.try_get::<i32, _>("covered_ms")?).unwrap_or(0),
        quality: Quality::from_name(&quality).ok_or_else(|| StoreError::corrupt("reading", "quality", &quality))?,
    })
}
