-- The cost of calling a function in FROM that returns a row: a built-in one, which reads a
-- cached catalog row.
SELECT start_value, minimum_value, maximum_value FROM pg_sequence_parameters('bench_sequence'::regclass);
