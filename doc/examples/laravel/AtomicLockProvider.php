<?php

namespace App\Cache;

use Illuminate\Support\ServiceProvider;

class AtomicLockProvider extends ServiceProvider
{
    public function boot()
    {
        $this->app['cache']->extend('atomic_lock', function ($app) {
            return $this->repository(new AtomicLockStore($app['db']->connection(), 'cache', $app['config']['cache.prefix']));
        });
    }
}
