-- What the programs here need; to be run by psql as a superuser, in a new database
CREATE EXTENSION atomic_lock;
CREATE TABLE orders (id int PRIMARY KEY, note text);
INSERT INTO orders VALUES (42, 'new'), (43, 'new');
SELECT lock_protect('orders', 'order:{id}');

-- The application's role.  Levels monitor and admin are for the DBA, whom the programs play, too.
SELECT 'CREATE ROLE order_desk LOGIN' WHERE to_regrole('order_desk') IS NULL \gexec
GRANT SELECT, UPDATE ON orders TO order_desk;
SELECT lock_grant_access('order_desk', level) FROM unnest('{user,monitor,admin}'::text[]) AS level;
