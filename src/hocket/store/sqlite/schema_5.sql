-- Version 5: subjects and counters.

-- An op has a subject: a family and a key. Before this version every subject was a job.
DROP INDEX ops_by_job;
ALTER TABLE ops RENAME COLUMN job TO key;
ALTER TABLE ops ADD COLUMN family TEXT NOT NULL DEFAULT 'job';
CREATE INDEX ops_by_subject ON ops (key, hlc) WHERE settled = 1 AND key IS NOT NULL;

CREATE TABLE subjects (                   -- the states of families that have no table of their own
    family TEXT NOT NULL,
    key    BLOB NOT NULL,
    last   BLOB NOT NULL,                 -- HLC of the latest op about it
    state  BLOB NOT NULL,
    PRIMARY KEY (family, key)
) STRICT, WITHOUT ROWID;

-- Lists and counts that do not grow with the number of finished jobs.
CREATE TABLE finished (outcome INTEGER PRIMARY KEY, jobs INTEGER NOT NULL) STRICT;   -- ended jobs by outcome
INSERT INTO finished VALUES (0, 0), (1, 0), (2, 0);
UPDATE finished SET jobs = (SELECT count(*) FROM jobs WHERE jobs.outcome = finished.outcome);

-- Few jobs fail or are cancelled, and people ask for those.
CREATE INDEX jobs_failed ON jobs (outcome) WHERE outcome > 0;
