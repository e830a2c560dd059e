// A LockProvider for ShedLock on the locks of atomic_lock; the SQL is in ShedLockLease.java

import java.sql.SQLException;
import java.time.Duration;
import java.util.Optional;
import javax.sql.DataSource;
import net.javacrumbs.shedlock.core.AbstractSimpleLock;
import net.javacrumbs.shedlock.core.ClockProvider;
import net.javacrumbs.shedlock.core.ExtensibleLockProvider;
import net.javacrumbs.shedlock.core.LockConfiguration;
import net.javacrumbs.shedlock.core.SimpleLock;
import net.javacrumbs.shedlock.support.LockException;

public class AtomicLockProvider implements ExtensibleLockProvider {
	private final DataSource pool;
	private final String holder;

	// "holder" is the label that others see, such as the name of the host.
	public AtomicLockProvider(DataSource pool, String holder) {
		this.pool = pool;
		this.holder = holder;
	}

	@Override
	public Optional<SimpleLock> lock(LockConfiguration task) {
		try {
			return ShedLockLease.acquire(pool, task.getName(), holder, task.getLockAtMostFor()).map(lease -> new Lock(task, lease));
		} catch (SQLException error) {
			throw new LockException("cannot lock " + task.getName(), error);
		}
	}

	private static class Lock extends AbstractSimpleLock {
		private final ShedLockLease lease;

		Lock(LockConfiguration task, ShedLockLease lease) {
			super(task);
			this.lease = lease;
		}

		@Override
		protected void doUnlock() {
			try {
				Duration left = Duration.between(ClockProvider.now(), lockConfiguration.getLockAtLeastUntil());
				if (!lease.release(left))
					System.getLogger("atomic_lock").log(System.Logger.Level.WARNING,
						"{0} has lost its lock before it ended", lockConfiguration.getName());
			} catch (SQLException error) {
				throw new LockException("cannot unlock " + lockConfiguration.getName(), error);
			}
		}

		@Override
		protected Optional<SimpleLock> doExtend(LockConfiguration task) {
			try {
				return lease.extend(task.getLockAtMostFor()) ? Optional.of(new Lock(task, lease)) : Optional.empty();
			} catch (SQLException error) {
				throw new LockException("cannot extend " + task.getName(), error);
			}
		}
	}
}
