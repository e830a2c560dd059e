-- The objects that the programs here need; run this by psql as a superuser, in a new database
CREATE EXTENSION atomic_lock;
CREATE TABLE orders (id int PRIMARY KEY, note text);
INSERT INTO orders VALUES (42, 'new'), (43, 'new');
SELECT lock_protect('orders', 'order:{id}');

-- The application's role.  To lock, it needs level user.  In the programs a
-- colleague ends a lock of Alice, or of a job, which needs only this function, not level admin.
SELECT 'CREATE ROLE order_desk LOGIN' WHERE to_regrole('order_desk') IS NULL \gexec
GRANT SELECT, UPDATE ON orders TO order_desk;
SELECT lock_grant_access('order_desk', 'user');
GRANT EXECUTE ON FUNCTION force_release TO order_desk;
