-- Set-up of the example; run it by psql as a superuser, in a new database
CREATE EXTENSION atomic_lock;
CREATE TABLE orders (id int PRIMARY KEY, note text NOT NULL);
INSERT INTO orders VALUES (41, 'two boxes'), (42, 'ring twice'), (43, 'back door');
SELECT lock_protect('orders', 'order:{id}');
-- Other pages hear when an order becomes free.
SELECT lock_set_policy('order:', notify => true);

SELECT 'CREATE ROLE shop LOGIN' WHERE to_regrole('shop') IS NULL \gexec
GRANT SELECT, UPDATE ON orders TO shop;
SELECT lock_grant_access('shop', 'user');
-- For the button "Take over"
GRANT EXECUTE ON FUNCTION lock_steal TO shop;
