\set n random(0, 9999)
SELECT lock_is_held('held:' || :n, 'holder:' || :n);
