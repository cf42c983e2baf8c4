-- +goose Up
-- The stamps ready_at and ended_at once more, in nanoseconds of the lease's boot: bills do not follow steps of the wall clock.
-- What was stamped before is reckoned from the wall clock, which is all there is. Stamps are microseconds.
ALTER TABLE sandboxes ADD COLUMN ready_boot BIGINT NOT NULL DEFAULT 0;
ALTER TABLE sandboxes ADD COLUMN ended_boot BIGINT NOT NULL DEFAULT 0;
UPDATE sandboxes SET ready_boot = lease_born + 1000 * (ready_at - created_at) WHERE ready_at <> 0;
UPDATE sandboxes SET ended_boot = lease_born + 1000 * (ended_at - created_at) WHERE ended_at <> 0;

-- +goose Down
ALTER TABLE sandboxes DROP COLUMN ended_boot;
ALTER TABLE sandboxes DROP COLUMN ready_boot;
