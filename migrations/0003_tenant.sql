-- Tenant tables: facts of one tenant, inserted once and never changed; tenant_id leads every key, and no foreign key
-- leaves a tenant. A correction is a new row that names what it corrects.

create table history (
    tenant_id uuid not null,
    history_id uuid not null,
    allocation_id uuid not null,
    at timestamptz not null,
    from_state text,
    to_state text not null,
    cause text not null,
    actor text not null,
    detail jsonb not null,
    constraint history_key primary key (tenant_id, history_id)
);
create index history_of_allocation on history (tenant_id, allocation_id, history_id);

-- A final span in which a part held given bytes while confirmed: the fact that is billed as reserved.
create table interval (
    tenant_id uuid not null,
    interval_id uuid not null,
    allocation_id uuid not null,
    part_id uuid not null,
    project_id uuid not null,
    gpu_id uuid not null,
    model text not null,
    bytes bigint not null,
    starts_at timestamptz not null,
    ends_at timestamptz not null,
    attested boolean not null,
    inserted_at timestamptz not null,
    constraint interval_key primary key (tenant_id, interval_id),
    -- a part's intervals follow one another, so two never begin at one instant
    constraint interval_starts_once unique (tenant_id, part_id, starts_at),
    constraint interval_is_not_empty check (ends_at > starts_at and bytes > 0)
);
create index interval_by_time on interval (tenant_id, ends_at);
create index interval_by_gpu on interval (gpu_id, ends_at);

-- Memory that was kept but is not billed: held before confirmation, or unconfirmed.
create table unbilled_span (
    tenant_id uuid not null,
    unbilled_span_id uuid not null,
    allocation_id uuid not null,
    part_id uuid not null,
    gpu_id uuid not null,
    kind text not null,
    bytes bigint not null,
    starts_at timestamptz not null,
    ends_at timestamptz not null,
    constraint unbilled_span_key primary key (tenant_id, unbilled_span_id),
    constraint unbilled_span_kind_is_known check (kind in ('held', 'unconfirmed')),
    constraint unbilled_span_is_not_empty check (ends_at > starts_at and bytes > 0)
);
create index unbilled_span_by_gpu on unbilled_span (gpu_id, ends_at);

-- What agents measured, one table per UTC month of the window's start.
create table reading (
    tenant_id uuid not null,
    starts_at timestamptz not null,
    part_id uuid not null,
    ends_at timestamptz not null,
    allocation_id uuid not null,
    project_id uuid not null,
    gpu_id uuid not null,
    reading_id uuid not null,
    granted bigint not null,
    used numeric(28, 0),
    above numeric(28, 0),
    peak bigint,
    covered_ms integer not null,
    quality text not null,
    skew_ms bigint not null,
    stream_id uuid not null,
    sequence bigint not null,
    received_at timestamptz not null,
    constraint reading_once_per_window primary key (tenant_id, starts_at, part_id),
    constraint reading_is_not_empty check (ends_at > starts_at),
    constraint reading_unknown_is_absent check ((quality = 'unknown') = (used is null)),
    constraint reading_is_not_negative check (coalesce(used, 0) >= 0 and coalesce(above, 0) >= 0 and coalesce(peak, 0) >= 0)
) partition by range (starts_at);

create table charge (
    tenant_id uuid not null,
    charge_id uuid not null,
    invoice_id uuid not null,
    line_number integer not null,
    source_kind text not null,
    source_id uuid not null,
    kind text not null,
    segment integer not null,
    starts_at timestamptz not null,
    ends_at timestamptz not null,
    allocation_id uuid not null,
    project_id uuid not null,
    model text not null,
    period text not null,
    plan_version_id uuid not null,
    quantity numeric(28, 0) not null,
    price numeric(28, 9) not null,
    unit text not null,
    constraint charge_key primary key (tenant_id, charge_id),
    constraint charge_is_billed_once unique (tenant_id, source_id, kind, segment),
    constraint charge_is_not_negative check (quantity >= 0 and price >= 0)
);
create index charge_of_invoice on charge (tenant_id, invoice_id, line_number);

create table invoice (
    tenant_id uuid not null,
    invoice_id uuid not null,
    number text not null,
    series text not null,
    serial bigint not null,
    period text not null,
    starts_at timestamptz not null,
    ends_at timestamptz not null,
    currency text not null,
    total_minor bigint not null,
    engine text not null,
    document text not null,
    digest text not null,
    previous_hash text not null,
    hash text not null,
    issued_at timestamptz not null,
    issued_by text not null,
    waiver text,
    constraint invoice_key primary key (tenant_id, invoice_id),
    constraint invoice_once_per_period unique (tenant_id, period)
);

create table audit (
    tenant_id uuid not null,
    audit_id uuid not null,
    at timestamptz not null,
    actor text not null,
    action text not null,
    object text not null,
    detail jsonb not null,
    request_id text,
    constraint audit_key primary key (tenant_id, audit_id)
);
