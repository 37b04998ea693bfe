//! What must hold at the end: every millisecond of every card is accounted for, and charged once.

use super::{
    history::{History, LABELS, START},
    ledger::{Kind, Piece},
};
use crate::world::{at, operator};
use app::{AppError, invoice};
use sha2::{Digest, Sha256};
use sqlx::Row;
use std::collections::{BTreeMap, BTreeSet};
use store::time::At;
use types::{AllocationId, AllocationState as S, BillingUnit, GpuId, Instant, PartId, Span, TenantId};
use uuid::Uuid;

/// Milliseconds that two spans share.
fn shared(a: (Instant, Instant), b: (Instant, Instant)) -> i128 {
    i128::from(a.1.min(b.1).since(a.0.max(b.0)).max(0))
}

/// Adjoining spans made one. Panics where two overlap.
fn joined(mut spans: Vec<(Instant, Instant)>) -> Vec<(Instant, Instant)> {
    spans.sort_unstable();
    let mut whole: Vec<(Instant, Instant)> = Vec::new();
    for (start, end) in spans {
        match whole.last_mut() {
            Some(last) if start < last.1 => panic!("{start} lies before {}", last.1),
            Some(last) if start == last.1 => last.1 = end,
            _ => whole.push((start, end)),
        }
    }
    whole
}

const fn is_metered(piece: &Piece) -> bool {
    matches!(piece.kind, Kind::Metered | Kind::Attested)
}

impl History {
    /// The balance of every card and hour so far: it holds, and says what the model says.
    pub async fn check_balance(&mut self) {
        let now = self.now();
        let over = Span::new(at(START), now).unwrap();
        let gpus = app::balance::of(&self.world.app, &operator(), None, over).await.unwrap();
        assert_eq!(app::balance::imbalances(&gpus), []);
        let pieces: Vec<(&Vec<GpuId>, u64, Vec<Piece>)> =
            self.ledger.allocations.values().map(|a| (&a.cards, a.request.memory.0, a.pieces(now))).collect();
        let hours = now.hour_start().since(at(START)) / 3_600_000;
        assert_eq!(gpus.len(), self.ledger.cards.len());
        for gpu in gpus {
            let card = &self.ledger.cards[&gpu.gpu_id];
            assert_eq!(i64::try_from(gpu.hours.len()).unwrap(), hours);
            let on_card: Vec<(u64, Piece)> = pieces
                .iter()
                .filter(|(cards, ..)| cards.contains(&gpu.gpu_id))
                .flat_map(|(_, bytes, pieces)| pieces.iter().map(|piece| (*bytes, *piece)))
                .collect();
            for hour in gpu.hours {
                let whole = (hour.hour, hour.hour.plus_secs(3600));
                let sum = |pass: fn(&Piece) -> bool| -> i128 {
                    let passing = on_card.iter().filter(|(_, piece)| pass(piece));
                    passing.map(|(bytes, piece)| i128::from(*bytes) * shared((piece.start, piece.end), whole)).sum()
                };
                let found = (hour.metered.0, hour.held.0, hour.unconfirmed.0, hour.capacity.0);
                let expected = (
                    sum(is_metered),
                    sum(|piece| piece.kind == Kind::Held),
                    sum(|piece| piece.kind == Kind::Unconfirmed),
                    i128::from(card.allocatable.0) * shared((card.since, now), whole),
                );
                assert_eq!(found, expected, "{} at {}", gpu.gpu_id, hour.hour);
                assert!(hour.idle.0 >= 0 && hour.out_of_service.0 >= 0 && hour.slack.0 == 0);
            }
        }
    }

    /// Issues each member's next month once it is over, as far as it can be issued yet.
    pub async fn issue_what_is_over(&mut self) {
        for n in 0..self.members.len() {
            let (tenant, month) = (self.members[n].tenant, self.members[n].issued);
            if month >= LABELS.len() || self.now() < self.members[n].month_ends[month] {
                continue;
            }
            self.issue(n, tenant, month).await;
        }
    }

    async fn issue(&mut self, n: usize, tenant: TenantId, month: usize) {
        let end = self.members[n].month_ends[month];
        let start = if month == 0 { Instant::EPOCH } else { self.members[n].month_ends[month - 1] };
        let not_final = self.ledger.allocations.values().any(|a| {
            a.tenant == tenant
                && a.state == S::Active
                && a.unconfirmed_since.is_none()
                && a.open_from < end
                && a.last_sign < end
        });
        let stands_aside =
            |a: &super::history::Aside| a.tenant == Some(tenant) && start <= a.row.start && a.row.start < end;
        let aside = self.aside.values().any(stands_aside);
        let issued = invoice::issue(&self.world.app, &operator(), tenant, LABELS[month], None).await;
        self.note(format!("issue {} of {tenant}: not final {not_final}, rows aside {aside}", LABELS[month]));
        match issued {
            Err(AppError::Conflict { code: "not_final", .. }) => return assert!(not_final),
            _ if not_final => panic!("issued, or {issued:?}"),
            Err(AppError::Conflict { code: "rows_set_aside", .. }) => {
                assert!(aside);
                let open: Vec<_> = self.aside.iter().filter(|(_, a)| stands_aside(a)).map(|(id, _)| *id).collect();
                for (accept, id) in [true, false].into_iter().cycle().zip(open) {
                    self.rule(id, accept).await;
                    if self.aside.contains_key(&id) {
                        self.rule(id, false).await;
                    }
                }
                return;
            }
            _ if aside => panic!("issued, or {issued:?}"),
            Ok((_, _, made)) => assert!(made),
            Err(other) => panic!("{other:?}"),
        }
        self.members[n].issued += 1;
        // nothing that began before the end of the month is left over
        let left: i64 = sqlx::query_scalar(
            "select count(*) from interval i where tenant_id = $1 and starts_at < $2
                and not exists (select 1 from charge c where c.tenant_id = i.tenant_id and c.source_id = i.interval_id)",
        )
        .bind(tenant.uuid())
        .bind(At(end))
        .fetch_one(&mut self.owner)
        .await
        .unwrap();
        assert_eq!(left, 0);
    }

    /// The end of a history: its months are issued, and everything is added up.
    pub async fn close(mut self) {
        self.learn_parts().await;
        for month_end in ["2026-12-02T00:00:00Z", "2027-01-02T00:00:00Z"] {
            let seconds = (at(month_end).since(self.now()) / 1000 + 1).max(1);
            self.pass(seconds, true).await;
            for _ in 0..8 {
                for host in 0..self.hosts.len() {
                    self.report(host, true).await;
                }
                for pool in self.pools.clone() {
                    self.world.app.tick(pool).await.unwrap();
                    self.ledger.tick(pool, self.now());
                }
                self.issue_what_is_over().await;
                self.agree().await;
            }
        }
        assert!(self.members.iter().all(|member| member.issued == LABELS.len()), "{:?}", self.members);
        self.learn_parts().await;
        self.check_balance().await;
        self.check_charges().await;
        self.check_above().await;
        self.check_invoices().await;
        self.check_usage().await;
    }

    /// Of each part: what is charged, what is final and what is open make up exactly what was metered.
    async fn check_charges(&mut self) {
        let mut spans: BTreeMap<PartId, Vec<(Instant, Instant)>> = BTreeMap::new();
        let mut attested: BTreeMap<PartId, i64> = BTreeMap::new();
        let mut bytes: BTreeMap<Uuid, (PartId, i64)> = BTreeMap::new();
        for row in sqlx::query("select interval_id, part_id, bytes, starts_at, ends_at, attested from interval")
            .fetch_all(&mut self.owner)
            .await
            .unwrap()
        {
            let part = PartId(row.get(1));
            let (start, end) = (row.get::<At, _>(3).0, row.get::<At, _>(4).0);
            spans.entry(part).or_default().push((start, end));
            if row.get(5) {
                *attested.entry(part).or_default() += end.since(start);
            }
            bytes.insert(row.get(0), (part, row.get(2)));
        }
        let mut charged = self.check_each_charge(&bytes).await;
        // each interval is charged whole, or not yet
        for (part, list) in &spans {
            joined(list.clone());
            assert!(self.parts.contains_key(part));
        }
        let mut intervals: BTreeMap<PartId, Vec<(Instant, Instant)>> = BTreeMap::new();
        for (id, (part, _)) in &bytes {
            if let Some(pieces) = charged.remove(id) {
                intervals.entry(*part).or_default().extend(pieces);
            }
        }
        assert!(charged.is_empty(), "charges for nothing: {charged:?}");
        let uncharged = sqlx::query(
            "select part_id, starts_at, ends_at from interval i
              where not exists (select 1 from charge c where c.tenant_id = i.tenant_id and c.source_id = i.interval_id)",
        )
        .fetch_all(&mut self.owner)
        .await
        .unwrap();
        for row in uncharged {
            let span = (row.get::<At, _>(1).0, row.get::<At, _>(2).0);
            intervals.entry(PartId(row.get(0))).or_default().push(span);
        }
        let now = self.now();
        for row in sqlx::query(
            "select part_id, metered_to, unconfirmed_since from part where ended_at is null and metered_to is not null",
        )
        .fetch_all(&mut self.owner)
        .await
        .unwrap()
        {
            let open_to = row.get::<Option<At>, _>(2).map_or(now, |since| since.0);
            let span = (row.get::<At, _>(1).0, open_to);
            if span.0 < span.1 {
                intervals.entry(PartId(row.get(0))).or_default().push(span);
            }
        }
        for (part, (allocation, _)) in &self.parts {
            let a = &self.ledger.allocations[allocation];
            let pieces = a.pieces(now);
            let metered = pieces.iter().filter(|p| is_metered(p)).map(|p| (p.start, p.end)).collect();
            let found = joined(intervals.remove(part).unwrap_or_default());
            assert_eq!(found, joined(metered), "{part} of {allocation}: {a:#?}");
            let marked: i64 = pieces.iter().filter(|p| p.kind == Kind::Attested).map(|p| p.end.since(p.start)).sum();
            assert_eq!(attested.get(part).copied().unwrap_or(0), marked, "{part} of {allocation}: {a:#?}");
        }
        assert!(intervals.is_empty());
    }

    /// Each charge for what was reserved lies in one month, has the price of its time, and counts its interval's bytes. The
    /// spans that each interval is charged for.
    async fn check_each_charge(
        &mut self,
        bytes: &BTreeMap<Uuid, (PartId, i64)>,
    ) -> BTreeMap<Uuid, Vec<(Instant, Instant)>> {
        let mut charged: BTreeMap<Uuid, Vec<(Instant, Instant)>> = BTreeMap::new();
        for row in sqlx::query(
            "select tenant_id, source_id, starts_at, ends_at, period, quantity::text, (price * 1000000000)::bigint, unit
               from charge where kind = 'reserved'",
        )
        .fetch_all(&mut self.owner)
        .await
        .unwrap()
        {
            let member = self.members.iter().find(|m| m.tenant.uuid() == row.get::<Uuid, _>(0)).unwrap();
            let (start, end) = (row.get::<At, _>(2).0, row.get::<At, _>(3).0);
            charged.entry(row.get(1)).or_default().push((start, end));
            let (_, part_bytes) = bytes[&row.get::<Uuid, _>(1)];
            let quantity: i128 = row.get::<String, _>(5).parse().unwrap();
            assert_eq!(quantity, i128::from(part_bytes) * i128::from(end.since(start)));
            let month = member.month(start);
            assert_eq!(row.get::<String, _>(4), LABELS[month]);
            assert!(end <= member.month_ends[month], "a charge over the end of its month");
            let last = end.plus_millis(-1);
            assert_eq!(member.price(start), member.price(last), "a charge over a change of price");
            assert_eq!(i128::from(row.get::<i64, _>(6)), member.price(start).0);
            assert_eq!(row.get::<String, _>(7), member.unit);
        }
        charged
    }

    /// Use above what was granted: each reading that was taken, by a batch or a ruling, is charged once where its time has
    /// a price for it.
    async fn check_above(&mut self) {
        let mut expected: BTreeMap<(PartId, Instant), i128> = BTreeMap::new();
        for (part, taken) in &self.meters.read {
            let tenant = self.ledger.allocations[&self.parts[part].0].tenant;
            let member = self.members.iter().find(|m| m.tenant == tenant).unwrap();
            for taken in taken {
                let above = taken.above.map_or(0, |above| above.0);
                // what begins after the last issued month waits for its own
                let is_due = taken.start < member.month_ends[member.issued - 1];
                if above > 0 && is_due && member.price(taken.start).1.is_some() {
                    let before = expected.insert((*part, taken.start), above);
                    assert_eq!(before, None, "the history read one window twice");
                }
            }
        }
        let rows = sqlx::query(
            "select r.part_id, c.starts_at, c.quantity::text, (c.price * 1000000000)::bigint, c.period, c.tenant_id, c.segment
               from charge c left join reading r on r.tenant_id = c.tenant_id and r.reading_id = c.source_id
              where c.kind = 'above'",
        )
        .fetch_all(&mut self.owner)
        .await
        .unwrap();
        let mut charged = BTreeMap::new();
        for row in rows {
            let start = row.get::<At, _>(1).0;
            let quantity: i128 = row.get::<String, _>(2).parse().unwrap();
            let before = charged.insert((PartId(row.get(0)), start), quantity);
            assert_eq!(before, None, "charged twice");
            let member = self.members.iter().find(|m| m.tenant.uuid() == row.get::<Uuid, _>(5)).unwrap();
            assert_eq!(Some(i128::from(row.get::<i64, _>(3))), member.price(start).1);
            assert_eq!(row.get::<String, _>(4), LABELS[member.month(start)]);
            assert_eq!(row.get::<i32, _>(6), 0);
        }
        assert_eq!(charged, expected);
    }

    /// Every invoice is made again identically, its amounts are those of plain arithmetic, and the numbers have no gap.
    async fn check_invoices(&mut self) {
        let rows = sqlx::query("select tenant_id, invoice_id, serial, previous_hash, digest, hash, total_minor from invoice order by serial")
            .fetch_all(&mut self.owner)
            .await
            .unwrap();
        assert_eq!(rows.len(), self.members.len() * LABELS.len());
        let mut head = "0".repeat(64);
        for (serial, row) in (1_i64..).zip(rows) {
            assert_eq!(row.get::<i64, _>(2), serial);
            assert_eq!(row.get::<String, _>(3), head);
            head = hex::encode(Sha256::digest(format!("{head}\n{serial}\n{}\n", row.get::<String, _>(4))));
            assert_eq!(row.get::<String, _>(5), head);
            let id = row.get::<Uuid, _>(1).into();
            let verified = invoice::verify(&self.world.app, &operator(), id).await.unwrap();
            assert_eq!(verified.differences, [""; 0]);
            let member = self.members.iter().find(|m| m.tenant.uuid() == row.get::<Uuid, _>(0)).unwrap();
            let (unit, digits) = (member.unit, member.digits);
            assert_eq!(self.plain_total(id, unit, digits).await, i128::from(row.get::<i64, _>(6)));
        }
    }

    /// The sum of an invoice's lines: each the sum of its charges, divided and rounded once.
    async fn plain_total(&mut self, id: types::InvoiceId, unit: &str, digits: u32) -> i128 {
        let lines = sqlx::query(
            "select sum(quantity)::text, (price * 1000000000)::bigint from charge where invoice_id = $1
              group by kind, period, project_id, model, plan_version_id, price",
        )
        .bind(id.uuid())
        .fetch_all(&mut self.owner)
        .await
        .unwrap();
        let unit = unit.parse::<BillingUnit>().unwrap().byte_millis() * 1_000_000_000;
        lines
            .iter()
            .map(|line| {
                let quantity: i128 = line.get::<String, _>(0).parse().unwrap();
                let exact = quantity * i128::from(line.get::<i64, _>(1)) * 10_i128.pow(digits);
                (exact + unit / 2) / unit
            })
            .sum()
    }

    /// What a tenant sees of its days adds up to what was metered.
    async fn check_usage(&mut self) {
        let now = self.now();
        for member in &self.members {
            let span = Span::new(at(START), now).unwrap();
            let caller = crate::world::member(member.tenant);
            let usage = app::usage::usage(&self.world.app, &caller, None, span, app::usage::By::Day).await.unwrap();
            let reserved: i128 = usage.rows.iter().map(|row| row.reserved.0).sum();
            let ids: BTreeSet<AllocationId> =
                self.ledger.allocations.iter().filter(|(_, a)| a.tenant == member.tenant).map(|(id, _)| *id).collect();
            let expected: i128 = ids
                .iter()
                .map(|id| {
                    let a = &self.ledger.allocations[id];
                    let metered = a.pieces(now).into_iter().filter(is_metered);
                    let millis: i128 = metered.map(|p| shared((p.start, p.end), (at(START), now))).sum();
                    i128::from(a.request.total().0) * millis
                })
                .sum();
            assert_eq!(reserved, expected);
        }
    }
}
