//! CSV that the product writes: it reads back to what was written, and no text of it begins a formula.

use crate::draw::Draw;
use api::usage::{By, usage_csv};
use app::usage::UsageRow;
use billing::{
    Amount, Document, Line,
    csv::{inert, invoice_csv},
    period,
};
use types::{BillingUnit, ByteMillis, Currency, GpuModel, Instant, Name, PlanVersionId, Price, ProjectId, TenantId};
use uuid::Uuid;

pub(crate) fn run(data: &[u8]) {
    let mut draw = Draw(data);
    usage(&mut draw);
    invoice(&mut draw);
}

fn usage(draw: &mut Draw<'_>) {
    let rows: Vec<UsageRow> = (0..draw.byte() % 4)
        .map(|_| UsageRow {
            key: draw.text(),
            reserved: quantity(draw),
            used: quantity(draw),
            above: quantity(draw),
            unknown_ms: draw.number(),
            peak: draw.flip().then(|| draw.bytes()),
        })
        .collect();
    let text = usage_csv(By::Model, &rows).unwrap();
    let read = read(&text);
    assert_eq!(read.len(), rows.len() + 1, "{text:?}");
    for (found, row) in read.iter().skip(1).zip(&rows) {
        is_inert(&found[0], &row.key);
        assert_eq!(found[1], row.reserved.to_string());
        assert_eq!(found[4], row.unknown_ms.to_string());
    }
}

fn invoice(draw: &mut Draw<'_>) {
    let Some(tenant_name) = name(draw) else { return };
    let currency: Currency = ["USD", "KRW", "KWD"][usize::from(draw.byte() % 3)].parse().unwrap();
    let at = draw.instant(Instant::from_millis(1_700_000_000_000).unwrap());
    let lines: Vec<Line> = (0..draw.byte() % 4).filter_map(|number| line(draw, number.into(), currency)).collect();
    let document = Document {
        engine: "v1".to_owned(),
        tenant_id: TenantId(Uuid::nil()),
        tenant_name,
        currency,
        zone: "UTC".parse().unwrap(),
        period: period::month_of(at, &"UTC".parse().unwrap()),
        lines,
        total: Amount::new(currency, draw.number()),
    };
    // a quantity that does not fit a decimal number is refused
    let Ok(text) = invoice_csv(None, &document) else { return };
    let read = read(text.as_bytes());
    assert_eq!(read.len(), document.lines.len() + 1, "{text:?}");
    for (found, line) in read.iter().skip(1).zip(&document.lines) {
        is_inert(&found[1], document.tenant_name.as_str());
        is_inert(&found[7], line.model.as_str());
        assert_eq!(found[12], line.quantity.to_string());
        assert_eq!(found[14], line.amount.to_string());
    }
}

fn line(draw: &mut Draw<'_>, number: u32, currency: Currency) -> Option<Line> {
    Some(Line {
        number,
        kind: if draw.flip() { billing::ChargeKind::Reserved } else { billing::ChargeKind::Above },
        correction_of: None,
        project_id: ProjectId(Uuid::nil()),
        model: GpuModel::from(name(draw)?),
        plan_version_id: PlanVersionId(Uuid::nil()),
        unit: BillingUnit::ALL[usize::from(draw.byte() % 3)],
        price: Price::from_nanos(i128::from(draw.number().unsigned_abs())).ok()?,
        quantity: quantity(draw),
        amount: Amount::new(currency, draw.number()),
        charges: u32::from(draw.byte()),
    })
}

fn name(draw: &mut Draw<'_>) -> Option<Name> {
    draw.text().parse().ok()
}

fn quantity(draw: &mut Draw<'_>) -> ByteMillis {
    ByteMillis(i128::from(draw.number()) * i128::from(draw.byte()))
}

/// Every record, all of one length.
fn read(text: &[u8]) -> Vec<csv::StringRecord> {
    let mut reader = csv::ReaderBuilder::new().has_headers(false).flexible(false).from_reader(text);
    reader.records().map(|record| record.unwrap()).collect()
}

/// A cell of text that no spreadsheet takes for a formula, and that still says what it said.
fn is_inert(cell: &str, text: &str) {
    assert!(!cell.starts_with(['=', '+', '-', '@', '\t', '\r']), "{cell:?}");
    assert!(cell == text || cell.strip_prefix('\'') == Some(text), "{text:?} became {cell:?}");
    assert_eq!(inert(cell), cell);
}
