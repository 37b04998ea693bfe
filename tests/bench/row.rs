//! What a bench found.

use serde::Serialize;

/// One figure.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    pub bench: &'static str,
    pub metric: String,
    /// The median of all turns.
    pub value: f64,
    /// The lowest and the highest of all turns.
    pub spread: (f64, f64),
    pub unit: &'static str,
    /// What it is measured by, with the median of its own turns.
    pub yardstick: Option<String>,
    /// The median of the turns' ratios to the yardstick.
    pub ratio: Option<f64>,
    pub goal: Option<&'static str>,
}

impl Row {
    /// A figure that stands for itself.
    pub fn new(bench: &'static str, metric: impl Into<String>, unit: &'static str, turns: &[f64]) -> Self {
        let (value, spread) = (median(turns), spread(turns));
        Self { bench, metric: metric.into(), value, spread, unit, yardstick: None, ratio: None, goal: None }
    }

    /// The same beside its yardstick, whose turns alternated with ours.
    #[must_use]
    pub fn beside(self, name: &str, ours: &[f64], theirs: &[f64]) -> Self {
        let ratios: Vec<f64> = ours.iter().zip(theirs).map(|(ours, theirs)| ours / theirs).collect();
        let yardstick = Some(format!("{name}: {} {}", figure(median(theirs)), self.unit));
        Self { yardstick, ratio: Some(median(&ratios)), ..self }
    }

    #[must_use]
    pub fn goal(self, goal: &'static str) -> Self {
        Self { goal: Some(goal), ..self }
    }
}

fn sorted(turns: &[f64]) -> Vec<f64> {
    let mut sorted = turns.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted
}

/// The middle one; of an even number the upper of both.
pub fn median(turns: &[f64]) -> f64 {
    sorted(turns).get(turns.len() / 2).copied().unwrap_or(f64::NAN)
}

fn spread(turns: &[f64]) -> (f64, f64) {
    let sorted = sorted(turns);
    (sorted.first().copied().unwrap_or(f64::NAN), sorted.last().copied().unwrap_or(f64::NAN))
}

/// A figure with as many places as it deserves.
fn figure(value: f64) -> String {
    match value.abs() {
        large if large >= 100.0 => format!("{value:.0}"),
        middle if middle >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

/// The rows as a table in Markdown.
pub fn table(rows: &[Row]) -> String {
    let mut table =
        "| bench | metric | value | spread | yardstick | ratio | goal |\n|---|---|---|---|---|---|---|".to_owned();
    for row in rows {
        let ratio = row.ratio.map(|ratio| format!("{ratio:.2}")).unwrap_or_default();
        table.push_str(&format!(
            "\n| {} | {} | {} {} | {}–{} | {} | {ratio} | {} |",
            row.bench,
            row.metric,
            figure(row.value),
            row.unit,
            figure(row.spread.0),
            figure(row.spread.1),
            row.yardstick.as_deref().unwrap_or_default(),
            row.goal.unwrap_or_default(),
        ));
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ratio_is_the_median_of_the_turns_own_ratios() {
        // the machine was twice as slow in the second turn, for both sides
        let (ours, theirs) = ([30.0, 10.0, 20.0], [10.0, 5.0, 10.0]);
        let row = Row::new("b", "m", "/s", &ours).beside("other", &ours, &theirs).goal("≥ 2");
        assert_eq!((row.value, row.spread, row.ratio), (20.0, (10.0, 30.0), Some(2.0)));
        assert_eq!(row.yardstick.as_deref(), Some("other: 10.0 /s"));
        assert!(table(&[row]).ends_with("| b | m | 20.0 /s | 10.0–30.0 | other: 10.0 /s | 2.00 | ≥ 2 |"));
    }

    #[test]
    fn json_has_every_field_also_of_a_figure_without_a_yardstick() {
        let json = serde_json::to_value([Row::new("b", "m", "MiB", &[1.5])]).unwrap();
        let fields = ["bench", "metric", "value", "spread", "unit", "yardstick", "ratio", "goal"];
        assert!(fields.iter().all(|field| json[0].get(field).is_some()), "{json}");
        assert!(json[0]["ratio"].is_null() && json[0]["value"] == 1.5);
    }
}
