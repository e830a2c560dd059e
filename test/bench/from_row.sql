-- What it costs to call a function in FROM that answers a row: a built-in one,
-- which reads a row of a catalog that is cached.
SELECT start_value, minimum_value, maximum_value FROM pg_sequence_parameters('bench_sequence'::regclass);
