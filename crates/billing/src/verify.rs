//! Verification: an issued invoice is made again from the recorded facts, and what differs is listed.

use crate::{
    invoice::{self, Document, Header},
    period::month,
    plan::{PlanVersion, Schedule},
    rating::{self, Charge, ChargeKey, ChargeKind, Source, SourceKind},
};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::{collections::BTreeMap, fmt};
use uuid::Uuid;

/// What was stored when the invoice was issued.
#[derive(Debug, Clone)]
pub struct Stored {
    pub document: Document,
    /// The charges linked to the invoice.
    pub charges: Vec<Charge>,
    pub digest: String,
}

/// What the invoice is made again from.
#[derive(Debug, Clone)]
pub struct Facts {
    /// Exactly the intervals and readings that the stored charges name.
    pub sources: Vec<Source>,
    /// Of the tenant; it covers the sources.
    pub schedule: Schedule,
}

/// What a difference is about.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case", tag = "of")]
pub enum Subject {
    Invoice,
    Line { number: u32 },
    Charge { source_kind: SourceKind, source_id: Uuid, kind: ChargeKind, segment: u32 },
}

/// One difference between what is stored and what is recomputed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Difference {
    pub subject: Subject,
    /// The field that differs.
    pub field: String,
    /// As stored; absent when it is not stored.
    pub stored: Option<String>,
    /// As recomputed, or why it cannot be; absent when it does not come out.
    pub recomputed: Option<String>,
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Invoice => f.write_str("invoice"),
            Self::Line { number } => write!(f, "line {number}"),
            Self::Charge { source_kind, source_id, kind, segment } => {
                write!(f, "charge of {source_kind} {source_id}, {kind}, segment {segment}")
            }
        }
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}: {} is stored as {}, recomputed as {}",
            self.subject,
            self.field,
            self.stored.as_deref().unwrap_or("nothing"),
            self.recomputed.as_deref().unwrap_or("nothing"),
        )
    }
}

/// Makes an issued invoice again and lists what differs; nothing when it comes out identical.
///
/// Verification follows the charges linked to the invoice, never a range of time: facts that came late belong to later
/// invoices. Every linked charge must come out equal; and of the facts named, every charge of the invoice's own period
/// must be linked, because such a charge can stand on no other invoice.
#[must_use]
pub fn verify(stored: &Stored, facts: &Facts) -> Vec<Difference> {
    let mut found = Vec::new();
    let document = &stored.document;
    compare_header(document, facts, &mut found);
    let recomputed = match rating::rate(&document.engine, &facts.sources, &facts.schedule, &document.zone) {
        Ok(charges) => linked(stored, charges, &mut found),
        Err(error) => {
            found.push(difference(Subject::Invoice, "charges", None, Some(error.to_string())));
            return found;
        }
    };
    let header = Header {
        tenant_id: document.tenant_id,
        tenant_name: document.tenant_name.clone(),
        currency: document.currency,
        zone: document.zone.clone(),
        period: document.period.clone(),
    };
    match invoice::assemble(&document.engine, header, &recomputed) {
        Ok(again) => {
            compare_lines(document, &again, &mut found);
            let plans: Vec<PlanVersion> = facts.schedule.plans().cloned().collect();
            let digest = invoice::digest(&again, &recomputed, &plans);
            compare_text("digest", &stored.digest, &digest, &mut found);
        }
        Err(error) => {
            found.push(difference(Subject::Invoice, "lines", None, Some(error.to_string())));
        }
    }
    found
}

/// The recomputed charges that belong to the invoice; differences to the stored ones are listed.
fn linked(stored: &Stored, recomputed: Vec<Charge>, found: &mut Vec<Difference>) -> Vec<Charge> {
    let mut open: BTreeMap<ChargeKey, &Charge> = BTreeMap::new();
    for charge in &stored.charges {
        if open.insert(charge.key(), charge).is_some() {
            let twice = Some("twice".to_owned());
            found.push(difference(subject(charge), "charge", twice, Some("once".to_owned())));
        }
    }
    let own = &stored.document.period.label;
    let mut linked = Vec::with_capacity(recomputed.len());
    for charge in recomputed {
        match open.remove(&charge.key()) {
            Some(stored) => {
                compare(&subject(&charge), stored, &charge, found);
                linked.push(charge);
            }
            None if charge.period == *own => {
                let text = Some(charge.quantity.to_string());
                found.push(difference(subject(&charge), "quantity", None, text));
                linked.push(charge);
            }
            // of an earlier period: on an earlier invoice; of a later one: on a later invoice
            None => {}
        }
    }
    for charge in open.into_values() {
        let text = Some(charge.quantity.to_string());
        found.push(difference(subject(charge), "quantity", text, None));
    }
    linked
}

/// What the document states and no charge decides: its currency, its period and the tenant's facts.
fn compare_header(document: &Document, facts: &Facts, found: &mut Vec<Difference>) {
    let currency = facts.schedule.currency();
    compare_text("currency", document.currency.code(), currency.code(), found);
    let period = match month(&document.period.label, &document.zone) {
        Ok(period) => period.span.to_string(),
        Err(error) => error.to_string(),
    };
    compare_text("period", &document.period.span.to_string(), &period, found);
}

fn compare_lines(stored: &Document, again: &Document, found: &mut Vec<Difference>) {
    for index in 0..stored.lines.len().max(again.lines.len()) {
        let (old, new) = (stored.lines.get(index), again.lines.get(index));
        let Some(number) = new.or(old).map(|line| line.number) else {
            continue;
        };
        let subject = Subject::Line { number };
        match (old, new) {
            (Some(old), Some(new)) => compare(&subject, old, new, found),
            _ => found.push(difference(
                subject,
                "amount",
                old.map(|line| line.amount.to_string()),
                new.map(|line| line.amount.to_string()),
            )),
        }
    }
    compare_text("total", &stored.total.to_string(), &again.total.to_string(), found);
}

/// Lists each field whose JSON differs, so that no field can be forgotten here.
fn compare<T: Serialize + PartialEq>(subject: &Subject, stored: &T, recomputed: &T, found: &mut Vec<Difference>) {
    let (stored, recomputed) = (fields(stored), fields(recomputed));
    let mut names: Vec<&String> = stored.keys().chain(recomputed.keys()).collect();
    names.sort_unstable();
    names.dedup();
    for name in names {
        let (old, new) = (stored.get(name), recomputed.get(name));
        if old != new {
            found.push(difference(subject.clone(), name, old.map(text), new.map(text)));
        }
    }
}

fn fields(value: &impl Serialize) -> Map<String, Value> {
    match serde_json::to_value(value) {
        Ok(Value::Object(fields)) => fields,
        // charges and lines are objects
        _ => Map::new(),
    }
}

fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

fn compare_text(field: &str, stored: &str, recomputed: &str, found: &mut Vec<Difference>) {
    if stored != recomputed {
        found.push(difference(Subject::Invoice, field, Some(stored.to_owned()), Some(recomputed.to_owned())));
    }
}

fn subject(charge: &Charge) -> Subject {
    Subject::Charge {
        source_kind: charge.source_kind,
        source_id: charge.source_id,
        kind: charge.kind,
        segment: charge.segment,
    }
}

fn difference(subject: Subject, field: &str, stored: Option<String>, recomputed: Option<String>) -> Difference {
    Difference { subject, field: field.to_owned(), stored, recomputed }
}

#[cfg(test)]
mod tests;
