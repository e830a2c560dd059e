-- Tables of the guard section of test/bench/run: 100000 rows like those of an order, with one
-- lock for all or one for each, in the order in which the locks were acquired or in another.

\set rows 100000

CREATE TABLE plain_line (
	id integer PRIMARY KEY,
	order_id integer NOT NULL,
	product text NOT NULL,
	qty integer NOT NULL,
	price numeric NOT NULL,
	updated timestamptz NOT NULL
);
CREATE INDEX ON plain_line (order_id);
CREATE TABLE guarded_line (LIKE plain_line INCLUDING ALL);
CREATE TABLE plain_item (LIKE plain_line INCLUDING ALL);
CREATE TABLE guarded_item (LIKE plain_line INCLUDING ALL);
CREATE TABLE plain_mixed (LIKE plain_line INCLUDING ALL);
CREATE TABLE guarded_mixed (LIKE plain_line INCLUDING ALL);
CREATE TABLE plain_row (LIKE plain_line INCLUDING ALL);
CREATE TABLE guarded_row (LIKE plain_line INCLUDING ALL);

INSERT INTO plain_line
	SELECT n, 1, 'product ' || n, n % 10, n % 1000 / 10.0, now() FROM generate_series(1, :rows) n;
INSERT INTO guarded_line TABLE plain_line;
INSERT INTO plain_item SELECT id, id, product, qty, price, updated FROM plain_line;
INSERT INTO guarded_item TABLE plain_item;
INSERT INTO plain_row TABLE plain_item;
INSERT INTO guarded_row TABLE plain_item;
INSERT INTO plain_mixed SELECT * FROM plain_item ORDER BY md5(id::text);
INSERT INTO guarded_mixed TABLE plain_mixed;

SELECT lock_protect('guarded_line', 'line:{order_id}'), lock_protect('guarded_item', 'item:{order_id}'),
	lock_protect('guarded_mixed', 'item:{order_id}'), lock_protect('guarded_row', 'item:{order_id}') \g /dev/null
GRANT SELECT, UPDATE ON plain_row, guarded_row TO app;

-- The session's owner, "bench", holds all locks of the guarded rows.
\o /dev/null
SELECT lock_acquire('line:1', '24 hours', 'bench');
SELECT format('SELECT count(*) FROM lock_acquire_all(ARRAY(SELECT ''item:'' || n FROM generate_series(%s, %s) n), ''24 hours'', ''bench'')',
			  n, n + 999)
	FROM generate_series(1, :rows, 1000) n
\gexec
\o

VACUUM ANALYZE;
