-- Control tables: present state, one writer each, and everything that must be unique across tenants.

create table tenant (
    tenant_id uuid not null,
    name text not null,
    zone text not null,
    currency text not null,
    created_at timestamptz not null,
    constraint tenant_key primary key (tenant_id),
    constraint tenant_name_is_unique unique (name),
    constraint tenant_name_is_short check (octet_length(name) between 1 and 200),
    constraint tenant_currency_is_a_code check (currency ~ '^[A-Z]{3}$')
);

create table project (
    tenant_id uuid not null,
    project_id uuid not null,
    name text not null,
    created_at timestamptz not null,
    constraint project_key primary key (tenant_id, project_id),
    constraint project_of_tenant foreign key (tenant_id) references tenant (tenant_id),
    constraint project_name_is_unique unique (tenant_id, name),
    constraint project_name_is_short check (octet_length(name) between 1 and 200)
);

-- People. Those of the platform belong to no tenant.
create table user_account (
    user_id uuid not null,
    tenant_id uuid,
    email text not null,
    name text not null,
    role text not null,
    password_hash text not null,
    created_at timestamptz not null,
    disabled_at timestamptz,
    constraint user_account_key primary key (user_id),
    constraint user_account_of_tenant foreign key (tenant_id) references tenant (tenant_id),
    constraint user_email_is_unique unique (email),
    constraint user_email_is_lower_case check (email = lower(email) and octet_length(email) between 3 and 254),
    constraint user_role_fits_tenant check (
        (tenant_id is null and role in ('operator', 'billing_clerk'))
        or (tenant_id is not null and role in ('tenant_admin', 'member', 'viewer')))
);

-- Machines. The key itself is shown once; only the SHA-256 of its 256 random bits is kept, found by its prefix.
create table api_key (
    key_id uuid not null,
    tenant_id uuid,
    name text not null,
    role text not null,
    prefix text not null,
    hash bytea not null,
    created_at timestamptz not null,
    revoked_at timestamptz,
    constraint api_key_key primary key (key_id),
    constraint api_key_of_tenant foreign key (tenant_id) references tenant (tenant_id),
    constraint api_key_prefix_is_unique unique (prefix),
    constraint api_key_hash_is_sha256 check (octet_length(hash) = 32),
    constraint api_key_role_fits_tenant check (
        (tenant_id is null and role in ('operator', 'billing_clerk'))
        or (tenant_id is not null and role in ('tenant_admin', 'member', 'viewer')))
);

-- Key pairs of the built-in token issuer (PKCS#8). Every server signs with the newest and accepts those not retired.
create table signing_key (
    kid text not null,
    private_key bytea not null,
    public_key bytea not null,
    created_at timestamptz not null,
    retired_at timestamptz,
    constraint signing_key_key primary key (kid)
);

create table pool (
    pool_id uuid not null,
    name text not null,
    hold_grace_s integer not null,
    silence_grace_s integer not null,
    lost_after_s integer not null,
    created_at timestamptz not null,
    constraint pool_key primary key (pool_id),
    constraint pool_name_is_unique unique (name),
    constraint pool_name_is_short check (octet_length(name) between 1 and 200),
    constraint pool_graces_are_positive check (hold_grace_s > 0 and silence_grace_s > 0 and lost_after_s >= silence_grace_s)
);

-- The lease of a pool's leader. (pool_id, term) is a key, so a take-over, which changes the term, waits for every
-- transaction of the former leader that holds this row FOR KEY SHARE; a renewal does not.
create table pool_leadership (
    pool_id uuid not null,
    term bigint not null,
    holder uuid not null,
    expires_at timestamptz not null,
    pool_time timestamptz not null,
    constraint pool_leadership_key primary key (pool_id),
    constraint pool_leadership_of_pool foreign key (pool_id) references pool (pool_id),
    constraint pool_leadership_term_is_unique unique (pool_id, term)
);

create table node (
    node_id uuid not null,
    pool_id uuid not null,
    hostname text not null,
    machine_id text not null,
    state text not null,
    boot_id text,
    last_heard timestamptz,
    joined_at timestamptz not null,
    constraint node_key primary key (node_id),
    constraint node_of_pool foreign key (pool_id) references pool (pool_id),
    constraint node_machine_is_unique unique (machine_id),
    constraint node_state_is_known check (state in ('active', 'cordoned', 'removed'))
);

create table node_credential (
    credential_id uuid not null,
    node_id uuid not null,
    prefix text not null,
    hash bytea not null,
    created_at timestamptz not null,
    revoked_at timestamptz,
    constraint node_credential_key primary key (credential_id),
    constraint node_credential_of_node foreign key (node_id) references node (node_id),
    constraint node_credential_prefix_is_unique unique (prefix),
    constraint node_credential_hash_is_sha256 check (octet_length(hash) = 32)
);

create table join_token (
    join_token_id uuid not null,
    pool_id uuid not null,
    prefix text not null,
    hash bytea not null,
    created_at timestamptz not null,
    expires_at timestamptz not null,
    used_at timestamptz,
    constraint join_token_key primary key (join_token_id),
    constraint join_token_of_pool foreign key (pool_id) references pool (pool_id),
    constraint join_token_prefix_is_unique unique (prefix),
    constraint join_token_hash_is_sha256 check (octet_length(hash) = 32)
);

create table gpu (
    gpu_id uuid not null,
    node_id uuid not null,
    pool_id uuid not null,
    uuid text not null,
    model text not null,
    memory_total bigint not null,
    driver_overhead bigint,
    allocatable bigint not null,
    granted bigint not null,
    removed_at timestamptz,
    created_at timestamptz not null,
    constraint gpu_key primary key (gpu_id),
    constraint gpu_of_node foreign key (node_id) references node (node_id),
    constraint gpu_of_model foreign key (model) references gpu_model (model),
    constraint gpu_uuid_is_unique unique (uuid),
    constraint gpu_overhead_fits check (memory_total > 0 and coalesce(driver_overhead, 0) >= 0
        and allocatable >= 0 and allocatable <= memory_total),
    -- the second wall of "never over": whatever the scheduler believes, more than a GPU has is never granted
    constraint gpu_never_over check (granted >= 0 and granted <= allocatable)
);

-- One row for the tenant (scope_id = tenant_id) and one for each project. Absent is unlimited, 0 is nothing.
-- What is used stands in the same row that admission locks, so limit and use are never read apart.
create table quota (
    tenant_id uuid not null,
    scope_id uuid not null,
    level text not null,
    limit_bytes bigint,
    limit_workload_bytes bigint,
    limit_allocations integer,
    used_bytes bigint not null default 0,
    used_allocations integer not null default 0,
    updated_at timestamptz not null,
    constraint quota_key primary key (tenant_id, scope_id),
    constraint quota_of_tenant foreign key (tenant_id) references tenant (tenant_id),
    constraint quota_level_fits_scope check ((level = 'tenant' and scope_id = tenant_id) or (level = 'project' and scope_id <> tenant_id)),
    constraint quota_limits_are_not_negative check (coalesce(limit_bytes, 0) >= 0
        and coalesce(limit_workload_bytes, 0) >= 0 and coalesce(limit_allocations, 0) >= 0),
    constraint quota_use_is_not_negative check (used_bytes >= 0 and used_allocations >= 0)
);

create table subscription (
    tenant_id uuid not null,
    subscription_id uuid not null,
    plan_id uuid not null,
    starts_at timestamptz not null,
    ends_at timestamptz,
    created_at timestamptz not null,
    constraint subscription_key primary key (tenant_id, subscription_id),
    constraint subscription_of_tenant foreign key (tenant_id) references tenant (tenant_id),
    constraint subscription_of_plan foreign key (plan_id) references plan (plan_id),
    constraint subscription_is_not_empty check (ends_at is null or ends_at > starts_at),
    constraint subscription_has_no_overlap exclude using gist (tenant_id with =, tstzrange(starts_at, ends_at) with &&)
);

-- An allocation as it stands; its past is in history.
create table allocation (
    tenant_id uuid not null,
    allocation_id uuid not null,
    project_id uuid not null,
    pool_id uuid not null,
    state text not null,
    memory bigint not null,
    gpus integer not null,
    model text,
    on_node uuid,
    max_duration_s integer,
    requested_by text not null,
    requested_at timestamptz not null,
    queue_number bigint not null,
    queue_reasons jsonb,
    hold_until timestamptz,
    active_since timestamptz,
    ends_by timestamptz,
    last_sign timestamptz,
    unconfirmed_since timestamptz,
    lost_by timestamptz,
    ended_at timestamptz,
    cause text not null,
    constraint allocation_key primary key (tenant_id, allocation_id),
    constraint allocation_of_project foreign key (tenant_id, project_id) references project (tenant_id, project_id),
    constraint allocation_asks_for_something check (memory > 0 and gpus between 1 and 64),
    constraint allocation_state_is_known check (state in
        ('queued', 'held', 'active', 'released', 'expired', 'cancelled', 'preempted', 'lost')),
    constraint allocation_held_has_deadline check (state <> 'held' or hold_until is not null),
    constraint allocation_active_has_start check (state not in ('active', 'released', 'lost') or active_since is not null),
    constraint allocation_unconfirmed_has_deadline check ((unconfirmed_since is null) = (lost_by is null)),
    constraint allocation_ended_has_end check ((ended_at is not null) = (state not in ('queued', 'held', 'active')))
);
create index allocation_by_id on allocation (allocation_id);
create index allocation_open on allocation (pool_id) where ended_at is null;

-- One device of an allocation. The open state of its meter: metered from active_from, final up to metered_to.
create table part (
    tenant_id uuid not null,
    part_id uuid not null,
    allocation_id uuid not null,
    project_id uuid not null,
    pool_id uuid not null,
    node_id uuid not null,
    gpu_id uuid not null,
    model text not null,
    bytes bigint not null,
    held_from timestamptz not null,
    active_from timestamptz,
    metered_to timestamptz,
    unconfirmed_since timestamptz,
    read_to timestamptz,
    ended_at timestamptz,
    constraint part_key primary key (tenant_id, part_id),
    constraint part_of_allocation foreign key (tenant_id, allocation_id) references allocation (tenant_id, allocation_id),
    constraint part_once_per_gpu unique (tenant_id, allocation_id, gpu_id),
    constraint part_has_bytes check (bytes > 0),
    constraint part_meter_runs_forward check ((active_from is null) = (metered_to is null)
        and (active_from is null or (active_from >= held_from and metered_to >= active_from))),
    constraint part_gap_lies_after_meter check (unconfirmed_since is null or unconfirmed_since >= metered_to)
);
create index part_open on part (pool_id) where ended_at is null;
create index part_of_node on part (node_id, ended_at);
create index part_by_gpu on part (gpu_id, held_from);
create index part_by_id on part (part_id);
create index part_of_allocation on part (allocation_id);

-- A request's key: claimed before deciding, kept seven days with what was decided.
create table request_key (
    tenant_id uuid not null,
    key text not null,
    body_hash bytea not null,
    allocation_id uuid,
    refusal jsonb,
    created_at timestamptz not null,
    constraint request_key_key primary key (tenant_id, key),
    constraint request_key_is_short check (octet_length(key) between 1 and 200),
    constraint request_key_has_one_answer check ((allocation_id is null) <> (refusal is null))
);
create index request_key_age on request_key (created_at);

-- The scheduler's record of each GPU's bytes at each change: the journal that the balance takes "free" from.
create table occupancy (
    gpu_id uuid not null,
    sequence bigint not null,
    at timestamptz not null,
    held bigint not null,
    granted bigint not null,
    slack bigint not null,
    free bigint not null,
    constraint occupancy_key primary key (gpu_id, sequence),
    constraint occupancy_is_not_negative check (held >= 0 and granted >= 0 and slack >= 0 and free >= 0)
);
create index occupancy_by_time on occupancy (gpu_id, at, sequence);

-- What a GPU could give, and whether it was in service, from when.
create table gpu_capacity (
    gpu_id uuid not null,
    sequence bigint not null,
    at timestamptz not null,
    allocatable bigint not null,
    in_service boolean not null,
    constraint gpu_capacity_key primary key (gpu_id, sequence),
    constraint gpu_capacity_is_not_negative check (allocatable >= 0)
);

-- Whether a node was heard from, from when.
create table node_presence (
    node_id uuid not null,
    sequence bigint not null,
    at timestamptz not null,
    present boolean not null,
    constraint node_presence_key primary key (node_id, sequence)
);

-- The mark of an agent's stream: the highest batch that is durable, and the head of its hash chain.
create table stream (
    stream_id uuid not null,
    node_id uuid not null,
    sequence bigint not null,
    head_hash bytea not null,
    updated_at timestamptz not null,
    constraint stream_key primary key (stream_id),
    constraint stream_of_node foreign key (node_id) references node (node_id),
    constraint stream_sequence_is_not_negative check (sequence >= 0)
);

-- Rows of batches that could not be accepted, each with its reason; an operator rules on them.
create table set_aside (
    set_aside_id uuid not null,
    node_id uuid not null,
    stream_id uuid not null,
    sequence bigint not null,
    row_number integer not null,
    tenant_id uuid,
    part_id uuid not null,
    starts_at timestamptz not null,
    reason text not null,
    reading jsonb not null,
    skew_ms bigint not null,
    received_at timestamptz not null,
    constraint set_aside_key primary key (set_aside_id),
    constraint set_aside_once unique (stream_id, sequence, row_number)
);

create table set_aside_ruling (
    set_aside_id uuid not null,
    ruling text not null,
    ruled_by text not null,
    ruled_at timestamptz not null,
    note text,
    constraint set_aside_ruled_once primary key (set_aside_id),
    constraint set_aside_ruling_of_row foreign key (set_aside_id) references set_aside (set_aside_id),
    constraint set_aside_ruling_is_known check (ruling in ('accepted', 'rejected'))
);

-- Inserts of intervals and readings take their tenant's period FOR SHARE, issue takes it FOR UPDATE.
create table period (
    tenant_id uuid not null,
    label text not null,
    starts_at timestamptz not null,
    ends_at timestamptz not null,
    invoice_id uuid,
    constraint period_key primary key (tenant_id, label),
    constraint period_of_tenant foreign key (tenant_id) references tenant (tenant_id),
    constraint period_is_not_empty check (ends_at > starts_at)
);

-- Number and hash head of an invoice series in one row: numbers have no gaps and no repeats.
create table invoice_series (
    series text not null,
    last_serial bigint not null,
    head_hash text not null,
    constraint invoice_series_key primary key (series),
    constraint invoice_series_counts_up check (last_serial >= 0)
);

create table invoice_number (
    series text not null,
    serial bigint not null,
    tenant_id uuid not null,
    invoice_id uuid not null,
    constraint invoice_number_is_unique primary key (series, serial)
);

-- Recurring work: when it is due next, and how it went.
create table task (
    name text not null,
    due_at timestamptz not null,
    last_run_at timestamptz,
    last_error text,
    constraint task_key primary key (name)
);
