\o
\set heard `cat "$AL_TOLD"`
SELECT * FROM t.told(:'heard');
