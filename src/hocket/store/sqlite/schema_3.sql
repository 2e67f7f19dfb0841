-- Version 3: ids that are bound to their content, and proofs that a node has shown two histories.
ALTER TABLE head ADD COLUMN last BLOB NOT NULL DEFAULT x'00000000000000000000000000000000';  -- this node's own last op
ALTER TABLE coordinators ADD COLUMN pin BLOB;                 -- the last op of its predecessor that was known then

CREATE TABLE forks (
    op    BLOB PRIMARY KEY,
    node  BLOB NOT NULL,
    since BLOB NOT NULL                   -- HLC: from here on there are two histories
) STRICT, WITHOUT ROWID;

ALTER TABLE jobs ADD COLUMN settled INTEGER NOT NULL DEFAULT 0;       -- 1: the arbiter has accepted its completion

CREATE TABLE late (                       -- came long after its author's delegation had ended; on no log yet
    id       BLOB PRIMARY KEY,
    author   BLOB NOT NULL,
    hlc      BLOB NOT NULL,
    received INTEGER NOT NULL,
    body     BLOB NOT NULL
) STRICT, WITHOUT ROWID;

ALTER TABLE revocations ADD COLUMN root INTEGER NOT NULL DEFAULT 0;   -- 1: signed by the user's own key

-- An older log keeps its own rules, which bind no ids.
INSERT OR IGNORE INTO meta
    SELECT 'rules', x'03302e31060c736f757263655f74797065730a707265646963617465730b6b696e645f7072656669780a74696d655f72616e67650873616e6974697a650f61756469745f696e666572656e63650408537472697047656f125265646163745061727469636970616e74730f5472756e63617465436f6e74656e74135374726970437573746f6d4d65746164617461088008084661696c576f726b81080943616e63656c4a6f6282080852657472794a6f6283080e5265706f727450726f677265737384080b5365745363686564756c6585080d436c6561725363686564756c6586080a416363657074576f726b87080953616e69746973656401e0a7120000'
    FROM head WHERE seq > 0;

-- Schedules belong to the nodes that set them, so the whole history of each name is kept.
DROP TABLE schedules;
CREATE TABLE schedules (                  -- each op that sets or clears one
    name      TEXT NOT NULL,
    hlc       BLOB NOT NULL,
    cron      TEXT,                       -- NULL: cleared
    timezone  TEXT NOT NULL,
    kind      TEXT NOT NULL,
    payload   BLOB NOT NULL,
    policy    BLOB NOT NULL,
    last_tick INTEGER NOT NULL,           -- the newest that has a job; at first, when the schedule was set
    op        BLOB NOT NULL,
    counts    INTEGER NOT NULL,
    PRIMARY KEY (name, hlc, op)
) STRICT, WITHOUT ROWID;
CREATE INDEX schedules_that_count ON schedules (name, hlc) WHERE counts = 1;
CREATE UNIQUE INDEX schedules_by_op ON schedules (op);

-- The projections must be rebuilt: version 2 had fewer.
UPDATE head SET rebuilding = zeroblob(20) WHERE seq > 0;
