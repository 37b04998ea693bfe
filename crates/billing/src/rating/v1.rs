//! Engine v1: frozen once the first invoice is issued. A rate per GPU model and unit; calendar months.

use super::{Charge, ChargeKind, RatingError, Source, SourceKind};
use crate::{
    invoice::{Line, line_key},
    period::{Period, Zone, month_of},
    plan::{NoPlan, PlanVersion, Schedule},
    rounding::{self, TooLarge},
};
use types::{ByteMillis, Currency, Instant, Price, Span};

pub(super) fn rate(sources: &[Source], schedule: &Schedule, zone: &Zone) -> Result<Vec<Charge>, RatingError> {
    check_charged_once(sources)?;
    let calendar = Calendar::over(sources, zone);
    let mut charges = Vec::with_capacity(sources.len());
    for source in sources {
        match source.kind {
            SourceKind::Interval => rate_interval(source, schedule, &calendar, &mut charges)?,
            SourceKind::Reading => charges.extend(rate_reading(source, schedule, &calendar)?),
        }
    }
    charges.sort_unstable_by_key(Charge::key);
    Ok(charges)
}

/// No fact twice, and no two intervals over the same time of one part.
///
/// Readings are told apart by their ids alone: ingest takes each moment of a part once, by its node's clock, and their
/// windows here are that clock's, corrected by the skew that was measured with each batch. Where the skew wavers, the end
/// of one window may come to lie behind the start of the next.
fn check_charged_once(sources: &[Source]) -> Result<(), RatingError> {
    let mut order: Vec<&Source> = sources.iter().collect();
    order.sort_unstable_by_key(|s| (s.kind, s.id));
    if let Some(pair) = order.windows(2).find(|w| (w[0].kind, w[0].id) == (w[1].kind, w[1].id)) {
        return Err(RatingError::Repeated { kind: pair[0].kind, source_id: pair[0].id });
    }
    order.retain(|s| s.kind == SourceKind::Interval && !s.span.is_empty());
    order.sort_unstable_by_key(|s| (s.part_id, s.span));
    // in this order, where any two intervals of a part overlap, two neighbours do
    match order.windows(2).find(|w| w[0].part_id == w[1].part_id && w[1].span.start() < w[0].span.end()) {
        Some(pair) => Err(RatingError::Overlap { part_id: pair[0].part_id, first: pair[0].id, second: pair[1].id }),
        None => Ok(()),
    }
}

/// The months that facts lie in, worked out once.
struct Calendar(Vec<Period>);

impl Calendar {
    fn over(sources: &[Source], zone: &Zone) -> Self {
        let Some(first) = sources.iter().map(|s| s.span.start()).min() else {
            return Self(Vec::new());
        };
        let end = sources.iter().map(|s| s.span.end()).max().unwrap_or(first);
        let mut months = vec![month_of(first, zone)];
        while let Some(last) = months.last().filter(|p| p.span.end() <= end && p.span.end() < Instant::LAST) {
            months.push(last.next(zone));
        }
        Self(months)
    }

    /// The span cut at month edges, each piece with the label of its month.
    fn cut(&self, span: Span) -> impl Iterator<Item = (Span, &str)> {
        let first = self.0.partition_point(|p| p.span.end() <= span.start());
        self.0[first..].iter().map_while(move |p| Some((p.span.intersection(&span)?, p.label.as_str())))
    }

    fn label(&self, at: Instant) -> &str {
        let month = self.0.partition_point(|p| p.span.end() <= at);
        // a fact at the very end of time belongs to the last month
        self.0.get(month).or(self.0.last()).map_or("", |p| p.label.as_str())
    }
}

fn rate_interval(
    source: &Source,
    schedule: &Schedule,
    calendar: &Calendar,
    charges: &mut Vec<Charge>,
) -> Result<(), RatingError> {
    let mut segment = 0;
    for (span, plan) in schedule.segments(source.span).map_err(unpriced(source))? {
        let price = plan.rates.rate_for(&source.model).reserved;
        for (span, label) in calendar.cut(span) {
            charges.push(Charge {
                segment,
                span,
                quantity: span.of(source.bytes),
                ..charge(source, ChargeKind::Reserved, label, plan, price)
            });
            segment += 1;
        }
    }
    Ok(())
}

fn rate_reading(source: &Source, schedule: &Schedule, calendar: &Calendar) -> Result<Option<Charge>, RatingError> {
    let above = source.above.unwrap_or(ByteMillis::ZERO);
    if above < ByteMillis::ZERO {
        return Err(RatingError::Negative { source_id: source.id });
    }
    if above == ByteMillis::ZERO {
        return Ok(None);
    }
    let start = source.span.start();
    let plan = schedule.plan_at(start).map_err(unpriced(source))?;
    let price = plan.rates.rate_for(&source.model).above;
    Ok(price.map(|price| Charge {
        quantity: above,
        ..charge(source, ChargeKind::Above, calendar.label(start), plan, price)
    }))
}

fn unpriced(source: &Source) -> impl FnOnce(NoPlan) -> RatingError {
    let (kind, source_id) = (source.kind, source.id);
    move |NoPlan { at }| RatingError::NoPlan { kind, source_id, at }
}

/// A charge of nothing over the whole of a fact.
fn charge(source: &Source, kind: ChargeKind, period: &str, plan: &PlanVersion, price: Price) -> Charge {
    Charge {
        source_id: source.id,
        source_kind: source.kind,
        kind,
        segment: 0,
        span: source.span,
        allocation_id: source.allocation_id,
        project_id: source.project_id,
        model: source.model.clone(),
        period: period.to_owned(),
        plan_version_id: plan.plan_version_id,
        quantity: ByteMillis::ZERO,
        price,
        unit: plan.unit,
    }
}

/// One line for charges that share a [`line_key`], in its order: this period's first, then corrections from the earliest
/// period on.
pub(super) fn lines(charges: &[Charge], period: &Period, currency: Currency) -> Result<Vec<Line>, TooLarge> {
    let mut order: Vec<&Charge> = charges.iter().collect();
    order.sort_unstable_by_key(|charge| line_key(charge, period));
    (1..)
        .zip(order.chunk_by(|a, b| line_key(a, period) == line_key(b, period)))
        .map(|(number, group)| {
            let (first, quantity) = (group[0], sum(group)?);
            Ok(Line {
                number,
                kind: first.kind,
                correction_of: line_key(first, period).0.map(str::to_owned),
                project_id: first.project_id,
                model: first.model.clone(),
                plan_version_id: first.plan_version_id,
                unit: first.unit,
                price: first.price,
                quantity,
                amount: rounding::amount(quantity, first.price, first.unit, currency)?,
                charges: u32::try_from(group.len()).map_err(|_| TooLarge)?,
            })
        })
        .collect()
}

fn sum(charges: &[&Charge]) -> Result<ByteMillis, TooLarge> {
    charges.iter().try_fold(0_i128, |sum, charge| sum.checked_add(charge.quantity.0)).map(ByteMillis).ok_or(TooLarge)
}
