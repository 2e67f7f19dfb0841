-- Version 15: the arguments by which jobs are found, of the kinds that name some.
CREATE TABLE arguments (
    job   BLOB NOT NULL,
    path  TEXT NOT NULL,                   -- of a member of the payload, like camera.name
    value TEXT NOT NULL,
    PRIMARY KEY (job, path)
) STRICT, WITHOUT ROWID;
CREATE INDEX arguments_found ON arguments (path, value, job);
