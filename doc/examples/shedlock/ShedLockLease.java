// A lease of atomic_lock for ShedLock: all SQL of AtomicLockProvider.java
//
// This class needs a JDBC driver, and nothing of ShedLock.

import java.sql.Connection;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.time.Duration;
import java.util.Optional;
import java.util.UUID;
import javax.sql.DataSource;

public class ShedLockLease {
	private final DataSource pool;
	private final String name;
	private final String owner;

	private ShedLockLease(DataSource pool, String name, String owner) {
		this.pool = pool;
		this.name = name;
		this.owner = owner;
	}

	// Each run has its own owner, so a suspended run that wakes up has no lock.
	public static Optional<ShedLockLease> acquire(DataSource pool, String name, String holder, Duration atMost) throws SQLException {
		ShedLockLease lease = new ShedLockLease(pool, name, UUID.randomUUID().toString());
		return lease.ask("SELECT acquired FROM lock_try_acquire(lock_key('shedlock', ?), owner => ?, ttl => ?::interval, holder => ?)",
			interval(atMost), holder) ? Optional.of(lease) : Optional.empty();
	}

	public boolean extend(Duration atMost) throws SQLException {
		return ask("SELECT lock_try_extend(lock_key('shedlock', ?), ?, ?::interval) IS NOT NULL", interval(atMost));
	}

	// The lease lasts for the rest of lockAtLeastFor.  False: the lock was lost.
	public boolean release(Duration atLeast) throws SQLException {
		if (atLeast.compareTo(Duration.ZERO) > 0)
			return extend(atLeast);
		return ask("SELECT lock_try_release(lock_key('shedlock', ?), ?) = 'released'");
	}

	// Rounded up, since a lease lasts at least a millisecond.
	private static String interval(Duration duration) {
		return duration.plusNanos(999_999).toMillis() + " ms";
	}

	private boolean ask(String sql, String... more) throws SQLException {
		try (Connection connection = pool.getConnection(); PreparedStatement statement = connection.prepareStatement(sql)) {
			connection.setAutoCommit(true);
			statement.setString(1, name);
			statement.setString(2, owner);
			for (int i = 0; i < more.length; i++)
				statement.setString(i + 3, more[i]);
			try (ResultSet rows = statement.executeQuery()) {
				rows.next();
				return rows.getBoolean(1);
			}
		}
	}
}
