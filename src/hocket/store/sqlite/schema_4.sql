-- Version 4: where each worker runs, and its last sign of life.
ALTER TABLE workers ADD COLUMN node      BLOB    NOT NULL DEFAULT x'';    -- empty in rows from before: the store's one node
ALTER TABLE workers ADD COLUMN host      TEXT    NOT NULL DEFAULT '';     -- hash of the machine id; empty: unknown, as below
ALTER TABLE workers ADD COLUMN boot      TEXT    NOT NULL DEFAULT '';
ALTER TABLE workers ADD COLUMN namespace TEXT    NOT NULL DEFAULT '';     -- of process ids: containers have their own
ALTER TABLE workers ADD COLUMN locks     TEXT    NOT NULL DEFAULT '';     -- the directory that holds its lock
ALTER TABLE workers ADD COLUMN beat      INTEGER NOT NULL DEFAULT 0;
UPDATE workers SET beat = started;

-- Ids of one millisecond have no order, so the queue uses the time of the ops.
DROP INDEX jobs_ready;
CREATE INDEX jobs_ready ON jobs (kind, priority DESC, scheduled) WHERE stage = 0;

ALTER TABLE artifacts ADD COLUMN made BLOB NOT NULL DEFAULT x'';      -- HLC of the op that made it
UPDATE artifacts SET made = coalesce((SELECT hlc FROM ops WHERE ops.id = artifacts.op_id AND settled = 1), x'');

CREATE TABLE programs (                   -- what the programs of other nodes know, as each last said
    node  BLOB PRIMARY KEY,
    knows TEXT NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE written (                    -- how much of each other author is on the log
    node  BLOB PRIMARY KEY,
    ops   INTEGER NOT NULL,
    bytes INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
INSERT INTO written
    SELECT substr(hlc, 13), count(*), sum(length(body)) FROM ops
    WHERE substr(hlc, 13) IS NOT (SELECT substr(own.hlc, 13) FROM ops AS own, head WHERE own.id = head.last)
    GROUP BY substr(hlc, 13);

CREATE TABLE over_quota (                 -- nodes of which more came than they may store; on no log
    node  BLOB PRIMARY KEY,
    wall  INTEGER NOT NULL,               -- when that was last noted
    ops   INTEGER NOT NULL                -- so many were refused
) STRICT, WITHOUT ROWID;

ALTER TABLE held ADD COLUMN author BLOB NOT NULL DEFAULT x'';
CREATE INDEX held_by_author ON held (author);
