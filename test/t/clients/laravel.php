<?php

// The locks of Laravel, by its own classes, without an application around them.
//
//   php laravel.php database|atomic_lock FUNCTION HOST PORT DATABASE USER
//
// database is Laravel's own store, on the view; atomic_lock the one of
// doc/examples/laravel.  Prints "ok WHAT" or "not ok WHAT" for each thing.

foreach (['Illuminate/autoload.php', 'Illuminate/Support/helpers.php'] as $file) {
    if (stream_resolve_include_path($file)) {
        require_once $file;
    }
}
foreach (['AtomicLock', 'AtomicLockStore', 'AtomicLockProvider', 'deploy'] as $file) {
    require_once __DIR__."/../../../doc/examples/laravel/$file.php";
}

use App\Cache\AtomicLockProvider;
use Illuminate\Bus\UniqueLock;
use Illuminate\Cache\CacheManager;
use Illuminate\Config\Repository as Config;
use Illuminate\Console\Scheduling\CacheEventMutex;
use Illuminate\Console\Scheduling\Event;
use Illuminate\Container\Container;
use Illuminate\Contracts\Cache\LockTimeoutException;
use Illuminate\Contracts\Cache\Repository as Cache;
use Illuminate\Database\Capsule\Manager as Capsule;
use Illuminate\Database\QueryException;
use Illuminate\Queue\Middleware\WithoutOverlapping;

[, $driver, $what, $host, $port, $database, $user] = $argv;

$app = new Container;
Container::setInstance($app);
$app->instance('config', new Config(['cache' => [
    'default' => $driver,
    'prefix' => 'shop_cache_',
    'stores' => [
        // Each acquire prunes, not two in a hundred.
        'database' => ['driver' => 'database', 'table' => 'cache', 'lock_lottery' => [1, 1]],
        'atomic_lock' => ['driver' => 'atomic_lock'],
        'configured' => ['driver' => 'atomic_lock', 'connection' => 'second', 'lock_connection' => 'third', 'table' => 'second_cache',
            'prefix' => 'second_'],
        'unnamed' => ['driver' => 'atomic_lock', 'prefix' => ''],
    ],
]]));
$capsule = new Capsule($app);
foreach (['default' => 'shop', 'second' => 'second', 'third' => 'third'] as $name => $label) {
    $capsule->addConnection([
        'driver' => 'pgsql', 'host' => $host, 'port' => $port, 'database' => $database, 'username' => $user,
        'charset' => 'utf8', 'schema' => ['shop', 'public'], 'search_path' => ['shop', 'public'],
        'application_name' => $label,
    ], $name);
}
$app->instance('db', $capsule->getDatabaseManager());
$manager = new CacheManager($app);
$app->instance('cache', $manager);
(new AtomicLockProvider($app))->boot();
$cache = $manager->store();
$app->instance(Cache::class, $cache);
$db = $app['db']->connection();

// By a subclass, since older versions keep it protected
function owned($lock)
{
    return (function () { return $this->isOwnedByCurrentProcess(); })->call($lock);
}

function check($got, $what, $want = true)
{
    printf("%s %s%s\n", $got === $want ? 'ok' : 'not ok', $what, $got === $want ? '' : ': '.var_export($got, true));
}

function raised($call)
{
    try {
        $call();
    } catch (QueryException $error) {
        return $error->getCode();
    } catch (LockTimeoutException $error) {
        return 'timeout';
    }
}

function calls($cache, $driver, $db, $manager)
{
    $held = function ($key) use ($db) {
        return $db->selectOne('SELECT locked, holder, ttl_remaining FROM lock_status(?)', ["shop_cache_$key"]);
    };
    $lock = $cache->lock('a', 600);
    $other = $cache->lock('a', 600);

    check($lock->get(), 'get');
    check($held('a')->locked && $held('a')->holder === 'shop', 'the lease has the key with the prefix, and a label');
    check($other->get(), 'get, of a held lock', false);
    check($lock->get(), 'get again, by its owner');
    check([owned($lock), owned($other)], 'isOwnedByCurrentProcess', [true, false]);
    check($other->release(), 'release by another', false);
    check($held('a')->locked, 'it is still held');
    if (method_exists($lock, 'isLocked')) {
        check([$lock->isLocked(), $other->isLocked()], 'isLocked', [true, true]);
        check([$lock->isOwnedBy($lock->owner()), $lock->isOwnedBy('x')], 'isOwnedBy', [true, false]);
    }
    check(raised(function () use ($other) { $other->block(0); }), 'block, of a held lock', 'timeout');
    if ($driver === 'atomic_lock') {
        check([$lock->isOwnedBy(null), $cache->lock('free')->isOwnedBy(null)], 'isOwnedBy nobody', [false, true]);
        check($lock->getConnectionName(), 'getConnectionName', 'default');
        $db->select("SELECT lock_set_policy('shop_cache_a', max_wait => '10 ms')");
        check(raised(function () use ($other) { $other->block(86400); }), 'block, for longer than max_wait', 'timeout');
        $db->select("SELECT lock_drop_policy('shop_cache_a')");
    }
    check($lock->release(), 'release');
    check($held('a')->locked, 'it is free', false);
    check($lock->release(), 'release again', false);
    check(owned($lock), 'isOwnedByCurrentProcess, of a free lock', false);
    check($cache->lock('a', 600)->block(5, function () use ($held) { return $held('a')->locked ? 'inside' : 'free'; }), 'block', 'inside');
    check($cache->lock('a', 600)->get(function () { return 'inside'; }), 'get with a callback', 'inside');
    check($held('a')->locked, 'both have released it', false);

    check($cache->lock('day')->get(), 'get, without seconds');
    check($held('day')->ttl_remaining > '23:00', 'it has a day');
    check($cache->lock('a', 600)->get() && $cache->restoreLock('day', 'x')->release() === false, 'restoreLock with another owner');
    $restored = $cache->restoreLock('r', $cache->lock('r', 600, 'known')->get() ? 'known' : '');
    check(owned($restored) && $restored->release() && ! $held('r')->locked, 'restoreLock');
    // An error, which Laravel's own class takes for a refusal
    check(raised(function () use ($cache) { return $cache->lock('longer', 86400 * 30)->get() ?: throw new LockTimeoutException; }),
        'for a month', $driver === 'database' ? 'timeout' : '22023');

    $lock = $cache->lock('f', 600);
    check($lock->get() && $other->get() === false, 'get, to be forced');
    $cache->lock('f', 600)->forceRelease();
    check($held('f')->locked, 'forceRelease', false);
    $cache->lock('f', 600)->forceRelease();
    check($cache->lock('f', 600)->get() && ! $lock->release() && $held('f')->locked, 'whoever lost it cannot release that of the next');
    $cache->restoreLock('day', 'x')->forceRelease();
    check($held('day')->locked, 'forceRelease of a restored lock', false);

    if (method_exists($lock, 'refresh')) {
        $lock = $cache->lock('g', 600);
        check([$lock->refresh(), $lock->get(), $lock->refresh(1200), $held('g')->ttl_remaining > '00:15'], 'refresh', [false, true, true, true]);
        check($cache->lock('g', 600)->refresh(), 'refresh by another', false);
    }
    if (method_exists($cache->getStore(), 'flushLocks') && $driver === 'database') {
        check($cache->getStore()->flushLocks() && ! $held('a')->locked, 'flushLocks');
    }
}

// Only for the class: the store's configuration, and what ends all of its locks
function configured($cache, $driver, $db, $manager)
{
    $second = $manager->store('configured');
    $lock = $second->lock('c', 600);
    $count = function ($table) use ($db) { return $db->selectOne("SELECT count(*) AS n FROM $table WHERE key = 'second_v'")->n; };

    check($lock->get(), 'get, of a store with a configuration');
    check($db->selectOne("SELECT holder FROM lock_status('second_c')")->holder, 'its prefix and its lock_connection', 'third');
    check($lock->getConnectionName(), 'the name of that', 'third');
    $second->put('v', 7, 600);
    check([$second->get('v'), (int) $count('second_cache'), (int) $count('cache')], 'its table', [7, 1, 0]);
    check($second->getStore()->getConnection()->getName(), 'its connection', 'second');

    $cache->lock('kept', 600)->get();
    check([$second->getStore()->flushLocks(), $second->getStore()->hasSeparateLockStore()], 'flushLocks', [true, true]);
    check($db->selectOne("SELECT lock_holder('second_c') AS h")->h, 'it ended the locks of its store', null);
    check($db->selectOne("SELECT lock_holder('shop_cache_kept') AS h")->h, 'and no other', 'shop');
    $refused = false;
    try {
        $manager->store('unnamed')->getStore()->flushLocks();
    } catch (RuntimeException $error) {
        $refused = true;
    }
    check($refused, 'flushLocks, without a prefix');
    check($cache->lock('kept')->isOwnedBy(null), 'which ended nothing', false);
    $cache->lock('kept')->forceRelease();
}

// What Laravel builds on its locks
function uses($cache, $driver, $db, $manager)
{
    $job = new class { public $uniqueId = 7; public $back = 0; public function release($delay) { $this->back++; } };
    $ran = 0;
    $work = function () use (&$ran, $job) {
        $ran++;
        (new WithoutOverlapping('k'))->handle($job, function () use (&$ran) { $ran += 10; });
    };
    (new WithoutOverlapping('k'))->handle($job, $work);
    (new WithoutOverlapping('k'))->handle($job, $work);
    check([$ran, $job->back], 'WithoutOverlapping of a job, twice, and within itself', [2, 2]);

    $unique = new UniqueLock($cache);
    check([$unique->acquire($job), $unique->acquire($job)], 'unique job', [true, false]);
    if (method_exists($unique, 'release')) {
        $unique->release($job);
        check($unique->acquire($job), 'unique job, when it is done');
    }

    // In the cache, or by a lock, as the version has it
    $mutex = new CacheEventMutex($manager);
    $event = (new Event($mutex, 'report'))->withoutOverlapping(10);
    check([$mutex->exists($event), $mutex->create($event), $mutex->create($event), $mutex->exists($event)],
        'withoutOverlapping of a scheduled task', [false, true, false, true]);
    $mutex->forget($event);
    check([$mutex->exists($event), $mutex->create($event)], '... once it is over', [false, true]);
    $mutex->forget($event);

    if (method_exists($cache, 'funnel')) {
        $funnel = function ($then) use ($cache) {
            return $cache->funnel('f')->limit(2)->releaseAfter(600)->block(0)->then($then, function () { return 'full'; });
        };
        check($funnel(function () use ($funnel) {
            return [$funnel(function () use ($funnel) { return $funnel(function () { return 'third'; }); }), $funnel(function () { return 'second'; })];
        }), 'funnel', ['full', 'second']);
    }
}

function deploys($cache, $driver, $db)
{
    $queue = [];
    $dispatch = function (...$job) use (&$queue) { $queue[] = $job; };

    check([deploy($cache, 12345, $dispatch), deploy($cache, 12345, $dispatch), deploy($cache, 6, $dispatch)], 'two users, one site',
        ['deploying', 'Another user deploys the site at the moment.', 'deploying']);
    $db->reconnect();
    check([deployed($cache, ...$queue[0]), deployed($cache, ...$queue[0]), deployed($cache, 6, 'x')], 'the job has released it', [true, false, false]);
    check(deploy($cache, 12345, $dispatch), 'and the next may deploy', 'deploying');
}

function transaction($cache, $driver, $db)
{
    $lock = $cache->lock('t', 600);
    $lock->get();
    check(raised(function () use ($cache, $db) {
        $db->transaction(function () use ($cache, $db) {
            check($cache->lock('t', 600)->get(), 'a refusal in a transaction', false);
            check($db->selectOne('SELECT 1 AS n')->n, 'which goes on', 1);
        });
    }), 'in a transaction', $driver === 'database' ? '25P02' : null);
    check(owned($lock), 'the lock is still held');
    $lock->release();
    try {
        $db->transaction(function () use ($cache) {
            check($cache->lock('t', 600)->get(), 'get in a transaction');
            throw new Exception('never mind');
        });
    } catch (Exception $error) {
        check($error->getMessage(), 'the transaction is rolled back', 'never mind');
    }
    check($cache->lock('t', 600)->get(), 'and with it the lock');
}

// Without the level that lets it end the locks of others
function denied($cache)
{
    check($cache->lock('p', 600)->get(), 'get');
    check(raised(function () use ($cache) { $cache->lock('p')->forceRelease(); }), 'forceRelease needs level supervisor', '42501');
}

// Is one of many who add to a counter, read and written apart
function count_up($cache, $driver, $db)
{
    for ($i = 0; $i < 25; $i++) {
        $cache->lock('counter', 600)->betweenBlockedAttemptsSleepFor(1)->block(3000, function () use ($db) {
            $n = $db->selectOne('SELECT n FROM counter')->n;
            $db->update('UPDATE counter SET n = ?', [$n + 1]);
        });
    }
    check($i, 'counted', 25);
}

$db->enableQueryLog();
$what($cache, $driver, $db, $manager);
if ($driver === 'database') {
    $pruned = array_filter($db->getQueryLog(), function ($query) { return preg_match('/^delete from "cache_locks" where "expiration" <= \?$/', $query['query']); });
    check(count($pruned) > 0, 'it has pruned');
}
echo "end\n";
