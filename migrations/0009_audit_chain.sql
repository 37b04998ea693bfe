-- Each tenant's audit log becomes a hash chain, the platform's under the nil id too; and the second wall loses the gaps
-- that tests of the catalogue found.

-- Control: how far a log counts, and the head of its chain. An entry is added under this row's lock, so numbers have no
-- gaps and no repeats. `origin` seals what was written before there were chains: it is what the first link follows.
create table audit_chain (
    tenant_id uuid not null,
    last_sequence bigint not null,
    head_hash text not null,
    origin text not null,
    constraint audit_chain_key primary key (tenant_id),
    constraint audit_chain_counts_up check (last_sequence >= 0),
    constraint audit_chain_hashes_are_sha256 check (head_hash ~ '^[0-9a-f]{64}$' and origin ~ '^[0-9a-f]{64}$')
);

alter table audit add column sequence bigint, add column hash text;
alter table audit add constraint audit_sequence_is_unique unique (tenant_id, sequence);

-- Entries of earlier schemas stay as they are, without a number. `store::audit::seal_of_unchained` computes the same.
insert into audit_chain (tenant_id, last_sequence, head_hash, origin)
select tenant_id, 0, seal, seal
  from (select tenant_id, encode(sha256(convert_to(string_agg(concat_ws('|', audit_id, extract(epoch from at), actor, action,
            object, detail, request_id), E'\n' order by audit_id), 'UTF8')), 'hex') as seal
          from audit group by tenant_id) old;

-- not valid: it binds what is written from now on
alter table audit add constraint audit_is_chained check (sequence > 0 and hash ~ '^[0-9a-f]{64}$' and sequence is not null
    and hash is not null) not valid;

grant select, insert, update on audit_chain to gpuledger_service;
alter table audit_chain enable row level security;
create policy tenant_wall on audit_chain to gpuledger_service
    using (current_setting('app.tenants', true) = '*'
        or tenant_id::text = any (string_to_array(current_setting('app.tenants', true), ',')));

-- What belongs to no tenant has a wall of its own. Secrets and journals are for the platform's transactions alone; what
-- tenants' transactions look at they cannot write.
do $$
declare
    platform_table text;
begin
    foreach platform_table in array array['signing_key', 'node_credential', 'join_token', 'pool_leadership', 'occupancy',
        'gpu_capacity', 'node_presence', 'task', 'gpu_model', 'plan', 'plan_version', 'plan_rate', 'pool', 'node', 'gpu',
        'partition']
    loop
        execute format('alter table %I enable row level security', platform_table);
        execute format($policy$
            create policy platform_wall on %I to gpuledger_service using (current_setting('app.tenants', true) = '*')
        $policy$, platform_table);
    end loop;
    foreach platform_table in array array['gpu_model', 'plan', 'plan_version', 'plan_rate', 'pool', 'node', 'gpu', 'partition']
    loop
        execute format('create policy read_by_all on %I for select to gpuledger_service using (true)', platform_table);
    end loop;
end
$$;

-- A ruling is its row's: whoever cannot see the row neither sees nor makes one.
alter table set_aside_ruling enable row level security;
create policy wall_of_row on set_aside_ruling to gpuledger_service
    using (exists (select from set_aside s where s.set_aside_id = set_aside_ruling.set_aside_id));

-- Without a mention, pg_temp is searched first for types and tables, and whoever may make temporary objects could put a
-- domain named `text` there, whose check would run with the owner's right. Everything the function names is qualified.
alter function make_reading_month(date) set search_path = pg_catalog, pg_temp;

-- The service has no use for objects of its own. (Rights on the database itself, temporary objects among them, are not
-- part of a dump: `store::migrate` takes them away at each start.)
revoke create on schema public from public, gpuledger_service;
