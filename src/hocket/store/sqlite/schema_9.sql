-- Version 9: jobs that end if no worker claims them in time.
ALTER TABLE jobs ADD COLUMN begin_by INTEGER;     -- until when a first claim counts; NULL: at any time
CREATE INDEX jobs_unbegun ON jobs (begin_by) WHERE begin_by IS NOT NULL;

-- Version 9: ended jobs are counted by kind, too.
DROP TABLE finished;
CREATE TABLE finished (
    kind    TEXT    NOT NULL,
    outcome INTEGER NOT NULL,
    jobs    INTEGER NOT NULL,
    PRIMARY KEY (kind, outcome)
) STRICT, WITHOUT ROWID;
INSERT INTO finished SELECT kind, outcome, count(*) FROM jobs WHERE outcome IS NOT NULL GROUP BY kind, outcome;
