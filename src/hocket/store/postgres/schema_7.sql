-- Version 7: lists of ended jobs by kind, in the order of ids.
CREATE INDEX jobs_done ON jobs (kind, id) WHERE stage = 4;
