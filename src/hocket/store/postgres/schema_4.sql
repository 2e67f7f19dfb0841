-- Version 4. Rows beside the log have a node and its MAC (`store.row_macs`). Nobody can tell whose the rows from before
-- were, so no node believes them, and `hocket doctor` names them. A program of version 3 cannot write these tables.
ALTER TABLE tokens ADD COLUMN of_node BYTEA NOT NULL DEFAULT '', ADD COLUMN mac BYTEA NOT NULL DEFAULT '';
ALTER TABLE tokens ALTER COLUMN of_node DROP DEFAULT, ALTER COLUMN mac DROP DEFAULT;
ALTER TABLE tokens DROP CONSTRAINT tokens_pkey, DROP CONSTRAINT tokens_id_key;
ALTER TABLE tokens ADD PRIMARY KEY (of_node, name), ADD UNIQUE (of_node, id);

ALTER TABLE answers ADD COLUMN of_node BYTEA NOT NULL DEFAULT '', ADD COLUMN mac BYTEA NOT NULL DEFAULT '';
ALTER TABLE answers ALTER COLUMN of_node DROP DEFAULT, ALTER COLUMN mac DROP DEFAULT;
ALTER TABLE answers DROP CONSTRAINT answers_pkey, ADD PRIMARY KEY (of_node, token, key);
DROP INDEX answers_by_age;
CREATE INDEX answers_by_age ON answers (of_node, made);

ALTER TABLE invitations ADD COLUMN of_node BYTEA NOT NULL DEFAULT '', ADD COLUMN mac BYTEA NOT NULL DEFAULT '';
ALTER TABLE invitations ALTER COLUMN of_node DROP DEFAULT, ALTER COLUMN mac DROP DEFAULT;
ALTER TABLE invitations DROP CONSTRAINT invitations_pkey, ADD PRIMARY KEY (of_node, secret_hash);

ALTER TABLE peers ADD COLUMN of_node BYTEA NOT NULL DEFAULT '', ADD COLUMN mac BYTEA NOT NULL DEFAULT '';
ALTER TABLE peers ALTER COLUMN of_node DROP DEFAULT, ALTER COLUMN mac DROP DEFAULT;
ALTER TABLE peers DROP CONSTRAINT peers_pkey, ADD PRIMARY KEY (of_node, address);

ALTER TABLE held ADD COLUMN of_node BYTEA NOT NULL DEFAULT '', ADD COLUMN mac BYTEA NOT NULL DEFAULT '';
ALTER TABLE held ALTER COLUMN of_node DROP DEFAULT, ALTER COLUMN mac DROP DEFAULT;
ALTER TABLE held DROP CONSTRAINT held_pkey, ADD PRIMARY KEY (of_node, id);
DROP INDEX held_by_wall, held_by_author;
CREATE INDEX held_by_wall ON held (of_node, wall);
CREATE INDEX held_by_author ON held (of_node, author);

-- These end with the processes that wrote them.
DELETE FROM workers;
DELETE FROM lock_requests;
ALTER TABLE workers ADD COLUMN mac BYTEA NOT NULL;
ALTER TABLE lock_requests ADD COLUMN mac BYTEA NOT NULL;

-- The newest progress note of each running job. It is on no log; it counts while the job has this fence.
CREATE TABLE progress (
    job   BYTEA  PRIMARY KEY,
    node  BYTEA  NOT NULL,                -- of the worker that runs the job
    fence BIGINT NOT NULL,
    note  BYTEA  NOT NULL
) WITH (fillfactor = 50);
