<?php

namespace App\Cache;

use Illuminate\Support\ServiceProvider;

class AtomicLockProvider extends ServiceProvider
{
    public function boot()
    {
        $this->app['cache']->extend('atomic_lock', function ($app, $config) {
            $connection = $config['connection'] ?? null;
            $store = new AtomicLockStore($app['db']->connection($connection), $config['table'] ?? 'cache', $this->getPrefix($config));
            $store->setLockConnection($app['db']->connection($config['lock_connection'] ?? $connection));

            return $this->repository($store, $config);
        });
    }
}
