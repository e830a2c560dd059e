-- storeAcquire() and storeRelease(), without the heartbeat, which would write once more
-- immediately after the acquire.
\set n random(0, :keys - 1) / :clients * :clients + :client_id
SELECT nextval('locks_rvn') AS rvn \gset
INSERT INTO locks ("name", "record_version_number", "data", "owner")
	VALUES ('order:' || :n, :rvn, NULL, 'client-' || :client_id)
	ON CONFLICT ("name") DO UPDATE SET
		"record_version_number" = CASE WHEN COALESCE(locks."record_version_number" = 0, TRUE)
			THEN :rvn ELSE locks."record_version_number" END,
		"data" = CASE WHEN COALESCE(locks."record_version_number" = 0, TRUE)
			THEN CASE WHEN FALSE THEN NULL ELSE locks."data" END ELSE locks."data" END,
		"owner" = CASE WHEN COALESCE(locks."record_version_number" = 0, TRUE)
			THEN 'client-' || :client_id ELSE locks."owner" END
	RETURNING "record_version_number", "data", "owner";
DELETE FROM locks WHERE "name" = 'order:' || :n AND "record_version_number" = :rvn;
