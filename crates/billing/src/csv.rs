//! Invoices as CSV, for spreadsheets: text is made inert, numbers stay numbers.

use crate::{
    invoice::Document,
    number::InvoiceNumber,
    rounding::{self, TooLarge},
};
use std::borrow::Cow;

/// The columns of an invoice's CSV.
const COLUMNS: [&str; 16] = [
    "invoice",
    "tenant",
    "period",
    "line",
    "kind",
    "correction_of",
    "project_id",
    "gpu_model",
    "plan_version_id",
    "unit",
    "price_per_unit",
    "quantity_in_units",
    "quantity_byte_milliseconds",
    "charges",
    "amount",
    "currency",
];

/// Why no CSV can be written.
#[derive(Debug, thiserror::Error)]
pub enum CsvError {
    #[error(transparent)]
    TooLarge(#[from] TooLarge),
    #[error("the CSV could not be written: {0}")]
    Write(String),
}

/// A header and one row for each line. `number` is absent in a preview. `quantity_in_units` is rounded to six decimals of
/// the unit that its row names; `quantity_byte_milliseconds` is exact.
///
/// # Errors
/// A quantity that does not fit a decimal number.
pub fn invoice_csv(number: Option<&InvoiceNumber>, document: &Document) -> Result<String, CsvError> {
    let failed = |e: &dyn std::error::Error| CsvError::Write(e.to_string());
    let mut csv = csv::Writer::from_writer(Vec::new());
    csv.write_record(COLUMNS).map_err(|e| failed(&e))?;
    let invoice = number.map(ToString::to_string).unwrap_or_default();
    for line in &document.lines {
        let numeric = rounding::in_units(line.quantity, line.unit)?;
        csv.write_record([
            &*invoice,
            &*inert(document.tenant_name.as_str()),
            &document.period.label,
            &line.number.to_string(),
            line.kind.name(),
            line.correction_of.as_deref().unwrap_or_default(),
            &line.project_id.to_string(),
            &*inert(line.model.as_str()),
            &line.plan_version_id.to_string(),
            line.unit.name(),
            &line.price.to_string(),
            &numeric.to_string(),
            &line.quantity.to_string(),
            &line.charges.to_string(),
            &line.amount.to_string(),
            document.currency.code(),
        ])
        .map_err(|e| failed(&e))?;
    }
    let bytes = csv.into_inner().map_err(|e| failed(&e))?;
    String::from_utf8(bytes).map_err(|e| failed(&e))
}

/// A text cell that no spreadsheet takes for a formula: one that begins with `=`, `+`, `-`, `@`, a tab or a carriage
/// return gets a leading apostrophe. For text only; a number such as `-5.00` is written as it is.
#[must_use]
pub fn inert(text: &str) -> Cow<'_, str> {
    if text.starts_with(['=', '+', '-', '@', '\t', '\r']) {
        Cow::Owned(format!("'{text}"))
    } else {
        Cow::Borrowed(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{amount::Amount, fixture::golden};

    /// Public report 40 (Yuzu 4311, tableExport 230): names are inert text, and an amount of −5.00 stays a number.
    #[test]
    fn report_40_names_are_no_formulas_and_amounts_are_numbers() {
        for evil in ["=HYPERLINK(\"http://x\",\"y\")", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1"] {
            assert_eq!(inert(evil), format!("'{evil}"));
        }
        for harmless in ["", "vision-lab", "비전 연구실", "'=1", " =1"] {
            assert!(matches!(inert(harmless), Cow::Borrowed(_)), "{harmless:?}");
        }

        let mut document = golden().document;
        document.tenant_name = "=HYPERLINK(\"http://x\",\"y\")".parse().unwrap();
        document.lines[0].amount = Amount::new(document.currency, -500);
        let csv = invoice_csv(None, &document).unwrap();
        let mut rows = csv::Reader::from_reader(csv.as_bytes());
        let row = rows.records().next().unwrap().unwrap();
        assert_eq!(&row[0], "");
        assert_eq!(&row[1], "'=HYPERLINK(\"http://x\",\"y\")");
        assert_eq!(&row[14], "-5.00");
    }

    #[test]
    fn an_invoice_has_a_header_and_its_lines() {
        let number = InvoiceNumber::new("GL", 1).unwrap();
        let csv = invoice_csv(Some(&number), &golden().document).unwrap();
        assert_eq!(csv, include_str!("invoice/golden.csv"));
    }
}
