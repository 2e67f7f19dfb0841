-- Version 1. The truth: the ops and the head.
CREATE TABLE head (
    one        INTEGER PRIMARY KEY CHECK (one = 1),
    wall       INTEGER NOT NULL,          -- the node's hybrid logical clock
    logical    INTEGER NOT NULL,
    seq        INTEGER NOT NULL,          -- how many ops there are
    chain      BLOB    NOT NULL,          -- the last link
    settled    INTEGER NOT NULL,          -- every op up to this one is folded and indexed
    unsettled  INTEGER NOT NULL,          -- how many behind it are not
    rebuilding BLOB                       -- HLC of the last op refolded, while a rebuild is under way
) STRICT;
INSERT INTO head VALUES (1, 0, 0, 0, zeroblob(32), 0, 0, NULL);

CREATE TABLE meta (key TEXT PRIMARY KEY, value BLOB NOT NULL) STRICT, WITHOUT ROWID;

CREATE TABLE ops (
    seq     INTEGER PRIMARY KEY,          -- order of arrival on this node
    id      BLOB    NOT NULL,             -- ULID
    hlc     BLOB    NOT NULL,             -- wall, logical, node: 20 bytes that sort as the HLC does
    variant INTEGER NOT NULL,
    job     BLOB,
    reason  INTEGER NOT NULL,             -- 0: it counts; else why it does not
    settled INTEGER NOT NULL,             -- 0: a plain submit that is not folded and indexed yet
    body    BLOB    NOT NULL,             -- the whole op as it was signed and travels
    chain   BLOB    NOT NULL              -- SHA3-256(previous link, body)
) STRICT;
CREATE UNIQUE INDEX ops_by_id ON ops (id) WHERE settled = 1;
CREATE INDEX ops_by_job ON ops (job, hlc) WHERE settled = 1 AND job IS NOT NULL;
CREATE INDEX ops_refused ON ops (seq) WHERE reason != 0;

CREATE TABLE refusals (
    number INTEGER PRIMARY KEY,
    op_id  BLOB NOT NULL,
    author BLOB NOT NULL,
    reason INTEGER NOT NULL,
    wall   INTEGER NOT NULL
) STRICT;

-- Derived from the ops.
CREATE TABLE jobs (
    id          BLOB PRIMARY KEY,
    kind        TEXT    NOT NULL,
    stage       INTEGER NOT NULL,         -- 0 ready, 1 delayed, 2 blocked, 3 claimed, 4 done
    priority    INTEGER NOT NULL,
    schedule_op BLOB    NOT NULL,
    scheduled   BLOB    NOT NULL,
    policy      BLOB    NOT NULL,
    last        BLOB    NOT NULL,
    outcome     INTEGER,
    fence       INTEGER NOT NULL,
    failures    INTEGER NOT NULL,
    returns     INTEGER NOT NULL,
    claimer     BLOB,
    claim_op    BLOB,
    deadline    INTEGER,
    ready_at    INTEGER NOT NULL,
    done        BLOB,
    artifacts   BLOB    NOT NULL,
    error_op    BLOB,
    progress    BLOB,
    unique_key  TEXT,
    worker      INTEGER                   -- which process of this node holds it; on no log
) STRICT, WITHOUT ROWID;
CREATE INDEX jobs_ready ON jobs (kind, priority DESC) WHERE stage = 0;
CREATE INDEX jobs_delayed ON jobs (ready_at) WHERE stage = 1;
CREATE INDEX jobs_blocked ON jobs (kind) WHERE stage = 2;
CREATE INDEX jobs_claimed ON jobs (kind, deadline) WHERE stage = 3;
CREATE INDEX jobs_unique ON jobs (unique_key) WHERE unique_key IS NOT NULL;

CREATE TABLE after (
    dependency BLOB NOT NULL,
    job        BLOB NOT NULL,
    PRIMARY KEY (dependency, job)
) STRICT, WITHOUT ROWID;

CREATE TABLE cites (                      -- citations across jobs: whose verdict hangs on whose
    dep BLOB NOT NULL,
    op  BLOB NOT NULL,
    PRIMARY KEY (dep, op)
) STRICT, WITHOUT ROWID;

CREATE TABLE nodes (
    node   BLOB PRIMARY KEY,
    public BLOB NOT NULL,
    issuer TEXT NOT NULL,
    hlc    BLOB NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE routes (
    kind TEXT NOT NULL,
    hlc  BLOB NOT NULL,
    node BLOB,
    PRIMARY KEY (kind, hlc)
) STRICT, WITHOUT ROWID;

CREATE TABLE schedules (
    name      TEXT PRIMARY KEY,
    hlc       BLOB NOT NULL,
    cron      TEXT,                       -- NULL: cleared
    timezone  TEXT NOT NULL,
    kind      TEXT NOT NULL,
    payload   BLOB NOT NULL,
    policy    BLOB NOT NULL,
    last_tick INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE artifacts (
    id         BLOB PRIMARY KEY,
    op_id      BLOB NOT NULL,
    type       TEXT NOT NULL,
    source_job BLOB
) STRICT, WITHOUT ROWID;

-- Data of this node alone.
CREATE TABLE workers (
    number  INTEGER PRIMARY KEY AUTOINCREMENT,
    name    TEXT NOT NULL UNIQUE,
    pid     INTEGER NOT NULL,
    started INTEGER NOT NULL
) STRICT;

CREATE TABLE rates (kind TEXT PRIMARY KEY, due INTEGER NOT NULL) STRICT, WITHOUT ROWID;
