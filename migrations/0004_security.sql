-- The second wall. The service works as gpuledger_service: it owns nothing, cannot bypass row security, and has no
-- right to change or remove what is append-only. A transaction names the tenants it works for in app.tenants ('*' for
-- the operator); unset, it sees nothing.

do $$
begin
    create role gpuledger_service nologin noinherit nobypassrls nosuperuser nocreatedb nocreaterole;
exception when duplicate_object or unique_violation then
    null; -- roles belong to the whole server: another database made it
end
$$;

do $$
begin
    execute format('grant gpuledger_service to %I', current_user);
exception when others then
    null; -- a superuser needs no membership; concurrent grants may collide
end
$$;

grant usage on schema public to gpuledger_service;
grant select on all tables in schema public to gpuledger_service;

-- control tables: present state may change
grant insert, update on tenant, project, user_account, api_key, signing_key, pool, pool_leadership, node,
    node_credential, join_token, gpu, quota, subscription, allocation, part, stream, period, invoice_series, task
    to gpuledger_service;
grant insert, update, delete on request_key to gpuledger_service;

-- journals, reference data and tenant facts: inserted once
grant insert on gpu_model, plan, plan_version, plan_rate, occupancy, gpu_capacity, node_presence, set_aside,
    set_aside_ruling, invoice_number, history, interval, unbilled_span, reading, charge, invoice, audit
    to gpuledger_service;

do $$
declare
    tenant_table text;
begin
    foreach tenant_table in array array['tenant', 'project', 'user_account', 'api_key', 'quota', 'subscription',
        'allocation', 'part', 'request_key', 'period', 'invoice_number', 'set_aside',
        'history', 'interval', 'unbilled_span', 'reading', 'charge', 'invoice', 'audit']
    loop
        execute format('alter table %I enable row level security', tenant_table);
        execute format($policy$
            create policy tenant_wall on %I to gpuledger_service
            using (current_setting('app.tenants', true) = '*'
                or tenant_id::text = any (string_to_array(current_setting('app.tenants', true), ',')))
        $policy$, tenant_table);
    end loop;
end
$$;

-- A node may send rows of parts that nobody knows; they are set aside like others, and only an operator sees them.
create policy nobodys_rows on set_aside for insert to gpuledger_service with check (tenant_id is null);

-- Months of readings are separate tables, made ahead by the owner's right and for the service's use.
-- Only the month is an argument, so the right to make tables reaches no further.
create function make_reading_month(month date) returns void
    language plpgsql security definer set search_path = pg_catalog, public
as $$
declare
    first date := date_trunc('month', month)::date;
    next date := (date_trunc('month', month) + interval '1 month')::date;
    child text := format('reading_%s', to_char(first, 'YYYY_MM'));
begin
    if to_regclass('public.' || child) is not null then
        return;
    end if;
    execute format('create table public.%I partition of public.reading for values from (%L) to (%L)',
        child, first::text || ' 00:00:00+00', next::text || ' 00:00:00+00');
    execute format('alter table public.%I enable row level security', child);
    execute format($policy$
        create policy tenant_wall on public.%I to gpuledger_service
        using (current_setting('app.tenants', true) = '*'
            or tenant_id::text = any (string_to_array(current_setting('app.tenants', true), ',')))
    $policy$, child);
    execute format('grant select, insert on public.%I to gpuledger_service', child);
exception when duplicate_table then
    null; -- another server made it first
end
$$;
revoke all on function make_reading_month(date) from public;
grant execute on function make_reading_month(date) to gpuledger_service;
