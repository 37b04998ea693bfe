-- The servers that work on this database and where the others reach them, so that each can forward a change of a pool
-- to whoever leads it.

create table server (
    server_id uuid not null,
    url text not null,
    version text not null,
    started_at timestamptz not null,
    seen_at timestamptz not null,
    constraint server_key primary key (server_id),
    constraint server_url_is_short check (octet_length(url) between 1 and 500)
);

grant select, insert, update, delete on server to gpuledger_service;
