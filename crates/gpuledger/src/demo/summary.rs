//! What the demo prints once it is ready.

use super::{Memory, live::socket_of, tenants};
use app::{App, AppError, Caller, invoice};
use std::{io::Write, path::Path};

/// Prints the address, two logins, and five things to try.
pub async fn print(app: &App, url: &str, memory: &Memory, data_dir: &Path) -> Result<(), AppError> {
    let invoices = invoice::list(app, &Caller::system(), None, None, 200).await?;
    let shown = tenants::find(app).await?.into_iter().find(|tenant| tenant.name == tenants::SHOWN);
    let theirs = invoices.iter().find(|i| shown.as_ref().is_some_and(|tenant| tenant.tenant_id == i.tenant_id));
    let node = memory.nodes.first();
    let socket =
        node.map(|n| socket_of(&data_dir.join("agents"), &n.hostname).display().to_string()).unwrap_or_default();
    let program = std::env::current_exe().map_or_else(|_| "gpuledger".into(), |p| p.display().to_string());
    let number = theirs.map_or("GL-000001", |i| i.number.as_str());
    let (operator, admin) = (tenants::OPERATOR, tenants::TENANT_ADMIN);
    let (operator_password, tenant_password) = (&memory.operator_password, &memory.tenant_password);
    let invoice_count = invoices.len();
    let tenant = tenants::SHOWN;
    let postgres = data_dir.join(&memory.postgres).display().to_string();
    let text = format!(
        "
Gpuledger's demo is ready: {url}
  the API, to browse and to try out   {url}/docs
  the operator logs in as             {operator}  {operator_password}
  the tenant {tenant} as         {admin}  {tenant_password}
{invoice_count} invoices are issued, and simulated nodes report. Ctrl-C stops all of it; the next start continues.

Five things to try, in another terminal:

  export GPULEDGER_SERVER={url}
  alias gpuledger={program}

  1. Log in as the tenant, and look at what runs:
       echo {tenant_password} | gpuledger login --email {admin} --password-stdin
       gpuledger list
  2. Ask for memory without taking it: where it would go, or every reason why not:
       gpuledger request --memory 20GiB --dry-run
       gpuledger request --memory 70GiB --gpus 8 --dry-run
  3. Run a command with memory held for it, metered while it runs and released at its end:
       gpuledger run --socket {socket} --memory 4GiB -- sh -c 'echo on $CUDA_VISIBLE_DEVICES; sleep 20'
  4. Recompute an invoice from its recorded facts:
       gpuledger verify-invoice {number}
  5. Have the deployment checked: rights, leases, months, chains, and every GPU's hours in balance:
       GPULEDGER_DATABASE__DATA_DIR={postgres} gpuledger doctor
"
    );
    let mut out = std::io::stdout();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    Ok(())
}
