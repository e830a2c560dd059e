<?php

// A site is deployed by one job at a time.  In the controller:
function deploy($cache, $site, $dispatch)
{
    $lock = $cache->lock("site_deploy_$site", 60 * 5);
    if (! $lock->get()) {
        return 'Another user deploys the site at the moment.';
    }
    $dispatch($site, $lock->owner());

    return 'deploying';
}

// In the job, on another connection.  False: it took longer than five minutes.
function deployed($cache, $site, $owner)
{
    return $cache->restoreLock("site_deploy_$site", $owner)->release();
}
