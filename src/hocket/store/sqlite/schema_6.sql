-- Version 6: ops are sealed after their commit. Ops after `sealed` have a number but no link yet, and those of
-- this node's own carry a mark instead of a signature.
ALTER TABLE head ADD COLUMN sealed INTEGER NOT NULL DEFAULT 0;    -- the chain reaches up to this op
UPDATE head SET sealed = seq;
