-- Version 5: the newest progress note of each running job. It is on no log; it counts while the job has this fence.
CREATE TABLE progress (
    job   BYTEA  PRIMARY KEY,
    node  BYTEA  NOT NULL,                -- of the worker that runs the job
    fence BIGINT NOT NULL,
    note  BYTEA  NOT NULL
) WITH (fillfactor = 50);
