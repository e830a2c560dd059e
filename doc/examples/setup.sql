-- What the examples of doc/clients.md need
CREATE EXTENSION IF NOT EXISTS atomic_lock;
CREATE TABLE orders (id int PRIMARY KEY, note text);
INSERT INTO orders VALUES (42, 'new');
SELECT lock_protect('orders', 'order:{id}');
