-- Version 12: every op is linked when it is put on the log. Of its own log a node marks and signs the end; a log from
-- before has neither until its node writes to it (`log.sealing`).
ALTER TABLE head DROP COLUMN sealed;
ALTER TABLE head ADD COLUMN mark      BLOB    NOT NULL DEFAULT x'';   -- the node's, on the last op and its link
ALTER TABLE head ADD COLUMN signed    INTEGER NOT NULL DEFAULT 0;     -- the op up to which the chain is signed
ALTER TABLE head ADD COLUMN signature BLOB    NOT NULL DEFAULT x'';   -- on that op and its link

-- The newest progress note of each running job. It is on no log; it counts while the job has this fence.
CREATE TABLE progress (
    job   BLOB PRIMARY KEY,
    node  BLOB    NOT NULL,               -- of the worker that runs the job
    fence INTEGER NOT NULL,
    note  BLOB    NOT NULL
) STRICT, WITHOUT ROWID;
