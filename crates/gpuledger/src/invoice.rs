//! `gpuledger invoices` and `gpuledger verify-invoice`.

use crate::{
    client::{Client, ServerArgs},
    config::Config,
    database,
    error::{CliError, exit},
    output,
};
use app::{Caller, invoice};
use serde_json::{Value, json};
use types::{InvoiceId, TenantId};

/// Which invoices.
#[derive(Debug, clap::Args)]
pub struct InvoicesArgs {
    /// Whose; everybody's for operators where not given
    #[arg(long, value_name = "ID")]
    tenant: Option<TenantId>,
    /// How many at most, the newest first
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    limit: u32,
    /// Print the answer as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    server: ServerArgs,
}

/// Which invoice to verify.
#[derive(Debug, clap::Args)]
pub struct VerifyArgs {
    /// Its number, such as GL-000001, or its id
    invoice: String,
    /// Print the answer as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    server: ServerArgs,
}

/// Prints the list.
pub(crate) async fn list(args: &InvoicesArgs) -> Result<(), CliError> {
    let query: Vec<_> = args.tenant.map(|tenant| ("tenant_id", tenant.to_string())).into_iter().collect();
    let most = usize::try_from(args.limit).unwrap_or(usize::MAX);
    let invoices = args.server.client()?.list("/v1/invoices", &query, most).await?;
    if args.json {
        return output::json(&Value::Array(invoices));
    }
    let fields = ["number", "period", "total", "currency", "issued_at", "invoice_id"];
    let rows: Vec<Vec<String>> =
        invoices.iter().map(|invoice| fields.iter().map(|field| output::text(&invoice[field])).collect()).collect();
    output::table(&["NUMBER", "PERIOD", "TOTAL", "CURRENCY", "ISSUED", "ID"], &rows)
}

/// Verifies one: by the server that is named, or else on the configured database. The exit status is 1 when it differs.
pub(crate) async fn verify(
    config: impl FnOnce() -> Result<Config, CliError>,
    args: &VerifyArgs,
) -> Result<u8, CliError> {
    let found = if args.server.server.is_some() {
        by_server(&args.server.client()?, &args.invoice).await?
    } else {
        on_database(&config()?, &args.invoice).await?
    };
    let differences: Vec<String> = found["differences"].as_array().into_iter().flatten().map(output::text).collect();
    if args.json {
        output::json(&found)?;
    } else if differences.is_empty() {
        output::line(format_args!(
            "{} is identical: recomputed from {} charges and {} facts",
            output::text(&found["number"]),
            found["charges"],
            found["facts"]
        ))?;
    } else {
        output::line(format_args!("{} differs:", output::text(&found["number"])))?;
        for difference in &differences {
            output::line(format_args!("  {difference}"))?;
        }
    }
    Ok(if differences.is_empty() { exit::DONE } else { exit::FAILED })
}

async fn by_server(client: &Client, wanted: &str) -> Result<Value, CliError> {
    let id = match wanted.parse::<InvoiceId>() {
        Ok(id) => id.to_string(),
        Err(_) => {
            let invoices = client.list("/v1/invoices", &[], 100_000).await?;
            let found = invoices.iter().find(|invoice| invoice["number"] == wanted);
            let id = found.and_then(|invoice| invoice["invoice_id"].as_str());
            id.ok_or_else(|| CliError::Failed(format!("there is no invoice {wanted}")))?.to_owned()
        }
    };
    Ok(client.get(&format!("/v1/invoices/{id}/verification"), &[]).await?)
}

async fn on_database(config: &Config, wanted: &str) -> Result<Value, CliError> {
    let running = database::find(config.postgres()).await?;
    output::note(running.describe());
    let app = database::app(config, running.url())?;
    let verified = async {
        store::migrate::check_schema(running.url()).await?;
        let caller = Caller::system();
        let id = match wanted.parse::<InvoiceId>() {
            Ok(id) => id,
            Err(_) => invoice::by_number(&app, &caller, wanted).await?.0.invoice_id,
        };
        Ok::<_, CliError>(invoice::verify(&app, &caller, id).await?)
    }
    .await;
    app.store.close().await;
    database::leave(running).await;
    let found = verified?;
    Ok(json!({
        "invoice_id": found.invoice.invoice_id,
        "number": found.invoice.number,
        "identical": found.differences.is_empty(),
        "differences": found.differences,
        "charges": found.charges,
        "facts": found.facts,
    }))
}
