-- Version 3: schedules belong to the nodes that set them, so the whole history of each name is kept.
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

-- What is derived must be derived anew: version 2 had less of it.
UPDATE head SET rebuilding = zeroblob(20) WHERE seq > 0;
