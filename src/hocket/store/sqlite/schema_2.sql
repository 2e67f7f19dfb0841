-- Version 2: the mesh. The law is everything that says who may do what: delegations, revocations, coordinators.
ALTER TABLE head ADD COLUMN law INTEGER NOT NULL DEFAULT 0;   -- the number of the law, which changes with it

-- Derived from the ops.
CREATE TABLE delegations (
    op    BLOB PRIMARY KEY,
    cid   BLOB NOT NULL,
    hlc   BLOB NOT NULL,
    token BLOB NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE revocations (
    op  BLOB PRIMARY KEY,
    cid BLOB NOT NULL,
    hlc BLOB NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE coordinators (hlc BLOB PRIMARY KEY, op BLOB NOT NULL, node BLOB NOT NULL) STRICT, WITHOUT ROWID;

DROP TABLE artifacts;
CREATE TABLE artifacts (
    id         BLOB PRIMARY KEY,
    op_id      BLOB NOT NULL,
    type       TEXT NOT NULL,
    source_job BLOB,
    hash       BLOB NOT NULL,
    size       INTEGER NOT NULL,
    expires    INTEGER,                   -- when it may be evicted, by the HLC's wall; NULL: never
    inline     INTEGER NOT NULL           -- 1: its content is in its op, and no blob is needed
) STRICT, WITHOUT ROWID;
-- Most artifacts are small results of jobs and found from the job; they need no index.
CREATE INDEX artifacts_by_job ON artifacts (source_job) WHERE type <> 'hocket.result' AND source_job IS NOT NULL;
CREATE INDEX artifacts_by_expiry ON artifacts (expires) WHERE expires IS NOT NULL;
CREATE INDEX artifacts_by_hash ON artifacts (hash) WHERE inline = 0;

CREATE TABLE evictions (op BLOB PRIMARY KEY, artifact BLOB NOT NULL) STRICT, WITHOUT ROWID;
CREATE INDEX evictions_by_artifact ON evictions (artifact);

-- Ops from a clock that is too far ahead; they are on no log yet.
CREATE TABLE held (
    id   BLOB PRIMARY KEY,
    wall INTEGER NOT NULL,
    body BLOB NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX held_by_wall ON held (wall);

-- Data of this node alone.
CREATE TABLE offers (                     -- claims that wait for the arbiter, and the process that wants them
    op     BLOB PRIMARY KEY,
    job    BLOB NOT NULL,
    worker INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE peers (
    address TEXT PRIMARY KEY,
    node    BLOB,                         -- known from the first exchange on
    pulled  BLOB NOT NULL,                -- the frontier that its last answer ended with
    state   TEXT NOT NULL,
    detail  TEXT NOT NULL,
    seen    INTEGER NOT NULL,             -- when the last exchange went well; 0: never
    added   INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE invitations (
    secret_hash BLOB PRIMARY KEY,
    name        TEXT NOT NULL,
    grants      BLOB NOT NULL,
    expires     INTEGER NOT NULL,
    used_by     BLOB,
    made        INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- The projections must be rebuilt: version 1 had fewer.
UPDATE head SET rebuilding = zeroblob(20) WHERE seq > 0;
