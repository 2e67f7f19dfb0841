-- Version 10: jobs are stored in the order in which they came, and not by their ids. Ids of one millisecond are in random
-- order, so jobs that are claimed together were on many pages, and each commit wrote all of them.
ALTER TABLE jobs RENAME TO jobs_by_id;
CREATE TABLE jobs (
    id          BLOB    NOT NULL PRIMARY KEY,
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
    worker      INTEGER,                  -- which process of this node holds it; on no log
    settled     INTEGER NOT NULL,         -- 1: the arbiter has accepted its completion
    begin_by    INTEGER                   -- until when a first claim counts; NULL: at any time
) STRICT;
INSERT INTO jobs
SELECT id, kind, stage, priority, schedule_op, scheduled, policy, last, outcome, fence, failures, returns, claimer,
       claim_op, deadline, ready_at, done, artifacts, error_op, progress, unique_key, worker, settled, begin_by
FROM jobs_by_id ORDER BY scheduled;
DROP TABLE jobs_by_id;
CREATE INDEX jobs_ready ON jobs (kind, priority DESC, scheduled) WHERE stage = 0;
CREATE INDEX jobs_delayed ON jobs (ready_at) WHERE stage = 1;
CREATE INDEX jobs_blocked ON jobs (kind) WHERE stage = 2;
CREATE INDEX jobs_claimed ON jobs (kind, deadline) WHERE stage = 3;
CREATE INDEX jobs_unique ON jobs (unique_key) WHERE unique_key IS NOT NULL;
CREATE INDEX jobs_failed ON jobs (outcome) WHERE outcome > 0;
CREATE INDEX jobs_unbegun ON jobs (begin_by) WHERE begin_by IS NOT NULL;
