-- The nouns that the ledger will write once cards are divided and bills are corrected and prepaid: their rows have a
-- place and rules before any code makes one, so that what is built on them starts from one shape.

-- Control: a MIG instance on a card. A card that boots anew may give the same name to the same shape again, so an
-- instance is known by its name and generation; its bytes are what the driver realised, not what its profile promises.
create table partition (
    partition_id uuid not null,
    gpu_id uuid not null,
    uuid text not null,
    generation bigint not null,
    profile_id integer not null,
    profile_name text not null,
    first_slice integer not null,
    slices integer not null,
    bytes bigint not null,
    created_at timestamptz not null,
    removed_at timestamptz,
    constraint partition_key primary key (partition_id),
    constraint partition_of_gpu foreign key (gpu_id) references gpu (gpu_id),
    constraint partition_is_known_by_name_and_generation unique (uuid, generation),
    constraint partition_has_bytes_and_slices check (bytes > 0 and slices > 0 and first_slice >= 0),
    constraint partition_ends_after_it_begins check (removed_at is null or removed_at >= created_at),
    -- two instances that live at once never share a slice
    constraint partition_shares_no_slice exclude using gist (gpu_id with =,
        int4range(first_slice, first_slice + slices) with &&, tstzrange(created_at, removed_at) with &&)
);

-- Tenant: a credit or debit note corrects an issued invoice; the invoice itself never changes.
create table note (
    tenant_id uuid not null,
    note_id uuid not null,
    invoice_id uuid not null,
    number text not null,
    kind text not null,
    currency text not null,
    amount_minor bigint not null,
    reason text not null,
    document text not null,
    digest text not null,
    previous_hash text not null,
    hash text not null,
    issued_at timestamptz not null,
    issued_by text not null,
    constraint note_key primary key (tenant_id, note_id),
    constraint note_number_is_unique unique (tenant_id, number),
    constraint note_kind_is_known check (kind in ('credit', 'debit')),
    constraint note_amount_is_positive check (amount_minor > 0),
    constraint note_has_a_reason check (octet_length(reason) between 1 and 2000)
);
create index note_of_invoice on note (tenant_id, invoice_id);

-- Tenant: money paid or given ahead, and what invoices took of it. What is left is the one less the sum of the others.
create table credit (
    tenant_id uuid not null,
    credit_id uuid not null,
    currency text not null,
    amount_minor bigint not null,
    reason text not null,
    granted_at timestamptz not null,
    granted_by text not null,
    expires_at timestamptz,
    constraint credit_key primary key (tenant_id, credit_id),
    constraint credit_amount_is_positive check (amount_minor > 0),
    constraint credit_expires_after_it_is_granted check (expires_at is null or expires_at > granted_at)
);

create table credit_use (
    tenant_id uuid not null,
    credit_id uuid not null,
    invoice_id uuid not null,
    amount_minor bigint not null,
    used_at timestamptz not null,
    constraint credit_used_once_per_invoice primary key (tenant_id, credit_id, invoice_id),
    constraint credit_use_is_positive check (amount_minor > 0)
);

grant select on partition, note, credit, credit_use to gpuledger_service;
grant insert, update on partition to gpuledger_service;
grant insert on note, credit, credit_use to gpuledger_service;

do $$
declare
    tenant_table text;
begin
    foreach tenant_table in array array['note', 'credit', 'credit_use']
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
