//! `gpuledger usage`: what a tenant reserved and used.

use crate::{
    client::{ClientError, ServerArgs},
    error::CliError,
    output,
};
use jiff::{Timestamp, tz::TimeZone};
use serde_json::Value;
use types::{ByteMillis, Clock, Instant, TenantId};

/// What to sum, and over which time.
#[derive(Debug, clap::Args)]
pub struct UsageArgs {
    /// What usage is summed by
    #[arg(long, value_enum, default_value_t = By::Project)]
    by: By,
    /// The first instant, such as 2026-11-01T00:00:00Z [default: the start of this UTC month]
    #[arg(long, value_name = "INSTANT")]
    from: Option<Instant>,
    /// The instant behind the last [default: now]
    #[arg(long, value_name = "INSTANT")]
    to: Option<Instant>,
    /// Whose usage; needed by operators alone
    #[arg(long, value_name = "ID")]
    tenant: Option<TenantId>,
    /// Print the answer as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    server: ServerArgs,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum By {
    Project,
    Model,
    /// Hours of the tenant's clock
    Hour,
    /// Days of the tenant's calendar
    Day,
}

/// Prints it. Memory over time is shown in GiB-hours, cut off behind the third decimal; JSON has it exactly.
pub(crate) async fn run(args: &UsageArgs) -> Result<(), CliError> {
    let now = Clock::System.now();
    let by = match args.by {
        By::Project => "project",
        By::Model => "model",
        By::Hour => "hour",
        By::Day => "day",
    };
    let (from, to) = (args.from.unwrap_or_else(|| month_start(now)), args.to.unwrap_or(now));
    let mut query = vec![("by", by.to_owned()), ("from", from.to_string()), ("to", to.to_string())];
    query.extend(args.tenant.map(|tenant| ("tenant_id", tenant.to_string())));
    let client = args.server.client()?;
    let usage = client.get("/v1/usage", &query).await?;
    if args.json {
        return output::json(&usage);
    }
    let rows = usage["rows"].as_array().ok_or_else(|| ClientError::Answer("no rows".into()))?;
    let names = if matches!(args.by, By::Project) { projects(&client, args.tenant).await? } else { Vec::new() };
    let rows: Vec<Vec<String>> = rows
        .iter()
        .map(|row| {
            let key = output::text(&row["key"]);
            let name = names.iter().find(|(id, _)| *id == key).map_or(key.as_str(), |(_, name)| name.as_str());
            let mut cells = vec![name.to_owned()];
            cells.extend(["reserved", "used", "above"].map(|field| gib_hours(&row[field])));
            cells
        })
        .collect();
    output::note(format_args!("from {from} to {to}"));
    output::table(&[&by.to_uppercase(), "RESERVED GiB-h", "USED GiB-h", "ABOVE GiB-h"], &rows)
}

/// Ids and names of a tenant's projects.
pub(crate) async fn projects(
    client: &crate::client::Client,
    tenant: Option<TenantId>,
) -> Result<Vec<(String, String)>, ClientError> {
    let query: Vec<_> = tenant.map(|tenant| ("tenant_id", tenant.to_string())).into_iter().collect();
    let projects = client.list("/v1/projects", &query, 10_000).await?;
    Ok(projects.iter().map(|p| (output::text(&p["project_id"]), output::text(&p["name"]))).collect())
}

fn month_start(now: Instant) -> Instant {
    let first = now.to_jiff().to_zoned(TimeZone::UTC).date().first_of_month();
    first
        .to_zoned(TimeZone::UTC)
        .ok()
        .map(|t| t.timestamp())
        .and_then(|t: Timestamp| Instant::from_jiff(t).ok())
        .unwrap_or(now)
}

/// Byte-milliseconds in GiB-hours.
fn gib_hours(value: &Value) -> String {
    const GIB_HOUR: i128 = (1 << 30) * 3_600_000;
    let Some(ByteMillis(exact)) = value.as_str().and_then(|text| text.parse().ok()) else {
        return "-".to_owned();
    };
    let thousandths = exact * 1000 / GIB_HOUR;
    format!("{}.{:03}", thousandths / 1000, thousandths % 1000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gib_hours_are_cut_and_never_rounded_up() {
        let shown = |byte_ms: i128| gib_hours(&Value::String(byte_ms.to_string()));
        assert_eq!(shown(0), "0.000");
        assert_eq!(shown((1 << 30) * 3_600_000), "1.000");
        assert_eq!(shown((1 << 30) * 3_599_999), "0.999");
        assert_eq!(shown(20 * (1 << 30) * 90 * 60_000), "30.000");
        assert_eq!(gib_hours(&Value::Null), "-");
    }

    #[test]
    fn a_month_begins_at_midnight_of_its_first() {
        let now: Instant = "2026-12-17T08:15:00.123Z".parse().unwrap();
        assert_eq!(month_start(now).to_string(), "2026-12-01T00:00:00Z");
    }
}
