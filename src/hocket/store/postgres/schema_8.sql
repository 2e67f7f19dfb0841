-- Version 8: the arguments by which jobs are found, of the kinds that name some.
CREATE TABLE arguments (
    job   BYTEA NOT NULL,
    path  TEXT COLLATE "C" NOT NULL,       -- of a member of the payload, like camera.name
    value TEXT COLLATE "C" NOT NULL,
    PRIMARY KEY (job, path)
);
CREATE INDEX arguments_found ON arguments (path, value, job);
