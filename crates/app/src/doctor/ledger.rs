//! Whether the ledger is sound: what it says twice agrees, hours balance, numbers have no gaps, chains hold, and invoices
//! can be made again.

use super::{Depth, Finding};
use crate::{App, Caller, balance, error::AppError, invoice};
use billing::invoice::{CHAIN_START, chain};
use store::{
    Scope,
    doctor::{self, Series},
};
use types::Span;

/// Invoices that are made again where not all are.
const NEWEST: i64 = 100;
/// The hours that are balanced in one transaction where all are.
const STEP_MS: i64 = 7 * 86_400_000;
const TAMPERED: &str = "something changed the ledger behind the service: compare with a backup before issuing invoices";

pub(super) async fn quotas(app: &App) -> Result<Vec<Finding>, AppError> {
    const CHECK: &str = "quotas";
    let mut tx = app.store.begin_snapshot("doctor.quotas", Scope::Operator).await?;
    let wrong = doctor::ledger::quota_differences(&mut tx).await?;
    if wrong.is_empty() {
        return Ok(vec![Finding::good(CHECK, "what is used of each quota is what open allocations take")]);
    }
    Ok(wrong
        .into_iter()
        .map(|q| {
            let what = format!(
                "the {} {} of tenant {} counts {} bytes in {} allocations, its open ones take {} bytes in {}",
                q.level, q.scope_id, q.tenant_id, q.used_bytes, q.used_allocations, q.open_bytes, q.open_allocations
            );
            Finding::problem(CHECK, what, TAMPERED)
        })
        .collect())
}

pub(super) async fn grants(app: &App) -> Result<Vec<Finding>, AppError> {
    const CHECK: &str = "grants";
    let mut tx = app.store.begin_snapshot("doctor.grants", Scope::Operator).await?;
    let wrong = doctor::ledger::grant_differences(&mut tx).await?;
    if wrong.is_empty() {
        return Ok(vec![Finding::good(CHECK, "what is granted on each GPU is what its parts and its journal say")]);
    }
    Ok(wrong
        .into_iter()
        .map(|g| {
            let what = format!(
                "GPU {} counts {} bytes as granted, its parts take {}, and its journal says {}",
                g.gpu_id, g.granted, g.of_parts, g.in_journal
            );
            Finding::problem(CHECK, what, TAMPERED)
        })
        .collect())
}

/// The hours of the last day, or of all time, a week at a time.
pub(super) async fn hours(app: &App, depth: Depth) -> Result<Vec<Finding>, AppError> {
    let now = app.clock.now();
    let since = match depth {
        Depth::Recent => now.plus_secs(-86_400),
        Depth::Everything => {
            let mut tx = app.store.begin("doctor.first_hour", Scope::Operator).await?;
            doctor::ledger::first_capacity(&mut tx).await?.unwrap_or(now)
        }
    };
    let (mut wrong, mut gpus, mut hours) = (Vec::new(), 0, 0);
    let mut from = since;
    while from < now {
        let to = from.plus_millis(STEP_MS).min(now);
        let balanced = balance::of(app, &Caller::system(), None, Span::clamped(from, to)).await?;
        gpus = gpus.max(balanced.len());
        hours += balanced.iter().map(|gpu| gpu.hours.len()).sum::<usize>();
        for imbalance in balance::imbalances(&balanced) {
            // an hour in which two steps meet is in both
            if wrong.last() != Some(&imbalance) {
                wrong.push(imbalance);
            }
        }
        from = to;
    }
    if wrong.is_empty() {
        let what = format!("{hours} hours of {gpus} GPUs balance, from {since} on");
        return Ok(vec![Finding::good("balance", what)]);
    }
    let remedy = "invoices over these hours are refused until they balance or are waived; the hour's terms are at \
                  GET /v1/balance";
    Ok(wrong
        .into_iter()
        .map(|i| {
            let what =
                format!("GPU {} is off by {} byte-milliseconds in the hour of {}", i.gpu_id, i.difference, i.hour);
            Finding::problem("balance", what, remedy)
        })
        .collect())
}

pub(super) async fn numbers(app: &App) -> Result<Vec<Finding>, AppError> {
    let mut tx = app.store.begin_snapshot("doctor.numbers", Scope::Operator).await?;
    let all = doctor::series(&mut tx).await?;
    let faults: Vec<String> = all.iter().flat_map(series_faults).collect();
    if faults.is_empty() {
        let issued: usize = all.iter().map(|series| series.links.len()).sum();
        return Ok(vec![Finding::good("numbers", format!("{issued} numbers without a gap, their chain intact"))]);
    }
    let remedy = "something changed the ledger behind the service: compare with a backup before issuing more";
    Ok(faults.into_iter().map(|what| Finding::problem("numbers", what, remedy)).collect())
}

/// Gaps and breaks of one series, in words.
fn series_faults(series: &Series) -> Vec<String> {
    let mut faults = Vec::new();
    let mut previous = CHAIN_START.to_owned();
    let mut next = 1;
    for link in &series.links {
        if link.serial != next {
            faults.push(format!("series {}: {} follows {}", series.series, link.serial, next - 1));
        }
        next = link.serial + 1;
        let Some(invoice) = &link.invoice else {
            faults.push(format!("series {}: number {} has no invoice", series.series, link.serial));
            continue;
        };
        let serial = u64::try_from(link.serial).unwrap_or(0);
        if invoice.previous_hash != previous || chain(&invoice.previous_hash, serial, &invoice.digest) != invoice.hash {
            faults.push(format!("series {}: the chain breaks at {}", series.series, invoice.number));
        }
        previous.clone_from(&invoice.hash);
    }
    if next - 1 != series.last_serial {
        faults.push(format!(
            "series {} counts to {}, the last number is {}",
            series.series,
            series.last_serial,
            next - 1
        ));
    }
    if series.last_serial > 0 && previous != series.head_hash {
        faults.push(format!("series {}: the head of the chain is not its last invoice", series.series));
    }
    faults
}

/// Makes invoices again: the newest, or all.
pub(super) async fn invoices(app: &App, depth: Depth) -> Result<Vec<Finding>, AppError> {
    const CHECK: &str = "invoices";
    let limit = match depth {
        Depth::Recent => NEWEST,
        Depth::Everything => i64::MAX,
    };
    let mut tx = app.store.begin("doctor.invoices", Scope::Operator).await?;
    let newest = doctor::ledger::newest_invoices(&mut tx, limit).await?;
    drop(tx);
    let mut findings = Vec::new();
    for (id, number) in &newest {
        let verification = invoice::verify(app, &Caller::system(), *id).await?;
        if let Some(first) = verification.differences.first() {
            let more = match verification.differences.len() - 1 {
                0 => String::new(),
                more => format!(", and {more} more differences"),
            };
            let remedy = format!("`gpuledger verify-invoice {number}` shows every difference; {TAMPERED}");
            findings.push(Finding::problem(CHECK, format!("{number} cannot be made again: {first}{more}"), remedy));
        }
    }
    if findings.is_empty() {
        let which = if depth == Depth::Recent { "the newest " } else { "all " };
        findings.push(Finding::good(CHECK, format!("{which}{} are identical when made again", newest.len())));
    }
    Ok(findings)
}

#[cfg(test)]
mod tests {
    use super::*;
    use store::doctor::{Link, LinkedInvoice};

    fn series(count: i64) -> Series {
        let mut head_hash = String::new();
        let mut previous = CHAIN_START.to_owned();
        let links = (1..=count)
            .map(|serial| {
                let digest = format!("digest {serial}");
                let hash = chain(&previous, serial.try_into().unwrap(), &digest);
                let previous_hash = std::mem::replace(&mut previous, hash.clone());
                head_hash.clone_from(&hash);
                let number = format!("GL-{serial:06}");
                Link { serial, invoice: Some(LinkedInvoice { number, digest, previous_hash, hash }) }
            })
            .collect();
        Series { series: "GL".into(), last_serial: count, head_hash, links }
    }

    #[test]
    fn an_untouched_series_has_no_faults() {
        assert_eq!(series_faults(&series(0)), [] as [&str; 0]);
        assert_eq!(series_faults(&series(3)), [] as [&str; 0]);
    }

    #[test]
    fn every_way_to_tamper_with_a_series_is_seen() {
        let tampered = |tamper: fn(&mut Series)| {
            let mut series = series(3);
            tamper(&mut series);
            series_faults(&series).join("; ")
        };
        let removed = tampered(|s| drop(s.links.remove(1)));
        assert!(removed.contains("3 follows 1") && removed.contains("breaks at GL-000003"), "{removed}");
        let cut = tampered(|s| drop(s.links.pop()));
        assert!(cut.contains("counts to 3, the last number is 2") && cut.contains("head"), "{cut}");
        let emptied = tampered(|s| s.links[1].invoice = None);
        assert!(emptied.contains("number 2 has no invoice"), "{emptied}");
        let changed = tampered(|s| s.links[1].invoice.as_mut().unwrap().digest = "another".into());
        assert!(changed.contains("breaks at GL-000002"), "{changed}");
    }
}
