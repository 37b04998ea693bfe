//! The hash chains of the audit logs: what an entry's hash covers, and what does not fit. Whoever changes, removes or adds
//! an entry behind the service has to make every later hash anew; whoever kept one of those sees it.

use crate::{App, error::AppError};
use serde_json::json;
use sha2::{Digest, Sha256};
use store::{
    Scope, Tx,
    audit::{self, AuditRow, Head, ORIGIN},
};
use types::TenantId;

/// Entries that are read at once.
const PAGE: i64 = 1_000;

/// The hash of an entry at a place: SHA-256 over the JSON array of all that it says, in this order, keys sorted.
pub(crate) fn hash(previous: &str, sequence: i64, entry: &AuditRow) -> String {
    let mut canonical = json!([
        previous,
        sequence,
        entry.tenant_id,
        entry.audit_id,
        entry.at.as_millis(),
        entry.actor,
        entry.action,
        entry.object,
        entry.detail,
        entry.request_id,
    ]);
    canonical.sort_all_objects();
    hex::encode(Sha256::digest(canonical.to_string()))
}

/// What a look at every chain found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chains {
    pub chains: usize,
    /// Entries whose hash was computed again.
    pub entries: i64,
    /// For each chain that does not fit, in words: the first entry that does not.
    pub faults: Vec<String>,
}

/// Computes every chain again, from its origin to its head.
///
/// # Errors
/// What the database says.
pub async fn verify(app: &App) -> Result<Chains, AppError> {
    let mut tx = app.store.begin_snapshot("audit.verify", Scope::Operator).await?;
    let chains = audit::chains(&mut tx).await?;
    let mut found = Chains { chains: chains.len(), entries: 0, faults: Vec::new() };
    for (tenant, head) in chains {
        let log = tenant.map_or_else(|| "the platform's log".to_owned(), |id| format!("the log of tenant {id}"));
        let fault = match head {
            None => Some("has entries and no chain".to_owned()),
            Some(head) => walk(&mut tx, tenant, &head, &mut found.entries).await?,
        };
        found.faults.extend(fault.map(|fault| format!("{log} {fault}")));
    }
    Ok(found)
}

/// The first thing that does not fit in one chain.
async fn walk(
    tx: &mut Tx,
    tenant: Option<TenantId>,
    head: &Head,
    entries: &mut i64,
) -> Result<Option<String>, AppError> {
    let seal = audit::seal_of_unchained(tx, tenant).await?;
    if seal.as_deref().unwrap_or(ORIGIN) != head.origin {
        return Ok(Some("has other entries from before its chain than those that were sealed".to_owned()));
    }
    let (mut last, mut previous) = (0, head.origin.clone());
    loop {
        let page = audit::links(tx, tenant, last, PAGE).await?;
        for entry in &page {
            match misfit(&previous, last + 1, entry) {
                Some(fault) => return Ok(Some(fault)),
                None => last += 1,
            }
            previous = entry.place.as_ref().map(|place| place.hash.clone()).unwrap_or_default();
            *entries += 1;
        }
        if page.is_empty() {
            break;
        }
    }
    Ok((last != head.last_sequence || previous != head.hash)
        .then(|| format!("counts to {}, its last entry is {last}, or its head is another's", head.last_sequence)))
}

/// Why an entry does not follow the hash before it at the next place.
fn misfit(previous: &str, next: i64, entry: &AuditRow) -> Option<String> {
    let Some(place) = &entry.place else { return Some(format!("has entry {} without a place", entry.audit_id)) };
    if place.sequence != next {
        return Some(format!("lacks entry {next}: entry {} ({}) follows", place.sequence, entry.audit_id));
    }
    (hash(previous, next, entry) != place.hash)
        .then(|| format!("does not fit at entry {next} ({}, {})", entry.audit_id, entry.action))
}

#[cfg(test)]
mod tests {
    use super::*;
    use store::audit::Place;
    use types::{AuditId, Instant};

    fn entry() -> AuditRow {
        AuditRow {
            tenant_id: None,
            audit_id: AuditId(uuid::Uuid::from_u128(1)),
            at: Instant::EPOCH,
            actor: "system".to_owned(),
            action: "pool.create".to_owned(),
            object: "1".to_owned(),
            detail: json!({"name": "a", "b": {"d": 1, "c": 2}}),
            request_id: None,
            place: None,
        }
    }

    /// The form of what is hashed is frozen: chains that stand were made with it.
    #[test]
    fn the_hash_of_an_entry_never_changes() {
        assert_eq!(hash(ORIGIN, 1, &entry()), "0b5e60de4d2d77c3820fff0f3806310fbe89e8e9728872421f96c83303bd845b");
    }

    #[test]
    fn every_part_of_an_entry_is_in_its_hash() {
        let known = hash(ORIGIN, 1, &entry());
        let changes: [fn(&mut AuditRow); 8] = [
            |e| e.tenant_id = Some(TenantId(uuid::Uuid::from_u128(2))),
            |e| e.audit_id = AuditId(uuid::Uuid::from_u128(2)),
            |e| e.at = Instant::EPOCH.plus_millis(1),
            |e| e.actor = "user:1".to_owned(),
            |e| e.action = "pool.update".to_owned(),
            |e| e.object = "2".to_owned(),
            |e| e.detail["b"]["c"] = json!(3),
            |e| e.request_id = Some(String::new()),
        ];
        for change in changes {
            let mut other = entry();
            change(&mut other);
            assert_ne!(hash(ORIGIN, 1, &other), known, "{other:?}");
        }
        assert_ne!(hash(ORIGIN, 2, &entry()), known);
        assert_ne!(hash(&known, 1, &entry()), known);
        let reordered = AuditRow { detail: json!({"b": {"c": 2, "d": 1}, "name": "a"}), ..entry() };
        assert_eq!(hash(ORIGIN, 1, &reordered), known, "as the database gives it back");
    }

    #[test]
    fn an_entry_fits_in_its_own_place_alone() {
        let hash = hash(ORIGIN, 1, &entry());
        let placed = AuditRow { place: Some(Place { sequence: 1, hash }), ..entry() };
        assert_eq!(misfit(ORIGIN, 1, &placed), None);
        assert!(misfit(&"1".repeat(64), 1, &placed).is_some_and(|f| f.contains("does not fit at entry 1")));
        assert!(misfit(ORIGIN, 2, &placed).is_some_and(|f| f.contains("lacks entry 2")));
        assert!(misfit(ORIGIN, 1, &entry()).is_some_and(|f| f.contains("without a place")));
    }
}
