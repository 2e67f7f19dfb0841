-- Version 7: lists of ended jobs by kind, in the order of ids. A store of version 6 can have the index already.
CREATE INDEX IF NOT EXISTS jobs_done ON jobs (kind, id) WHERE stage = 4;
