-- Version 14: lists of ended jobs by kind, and of failed ones, in the order of ids.
DROP INDEX jobs_failed;
CREATE INDEX jobs_failed ON jobs (outcome, id) WHERE outcome > 0;
CREATE INDEX jobs_done ON jobs (kind, id) WHERE stage = 4;
