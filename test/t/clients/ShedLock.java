import java.time.Duration;
import java.util.Optional;
import net.javacrumbs.shedlock.core.ClockProvider;
import net.javacrumbs.shedlock.core.LockConfiguration;
import net.javacrumbs.shedlock.core.LockProvider;
import net.javacrumbs.shedlock.core.SimpleLock;
import org.postgresql.ds.PGSimpleDataSource;

/** What becomes of a task's lock on two hosts, by doc/examples/shedlock; shedlock.pl runs this. */
class ShedLock {
	static PGSimpleDataSource pool = new PGSimpleDataSource();

	static String acquire(String host, Duration atMost) throws Exception {
		Optional<ShedLockLease> lease = ShedLockLease.acquire(pool, "night:ly", host, atMost);
		return lease.isPresent() && lease.get().release(Duration.ZERO) ? "granted" : "refused";
	}

	public static void main(String[] arguments) throws Exception {
		Duration hour = Duration.ofHours(1);
		pool.setUrl(arguments[0]);

		ShedLockLease lease = ShedLockLease.acquire(pool, "night:ly", "one", hour).get();
		System.out.println("another host: " + acquire("two", hour));
		System.out.println("extended: " + lease.extend(Duration.ofHours(2)) + ", another host: " + acquire("two", hour));
		System.out.println("released: " + lease.release(Duration.ofMillis(-1)) + ", again: " + lease.release(Duration.ZERO));
		System.out.println("another host: " + acquire("two", hour));

		lease = ShedLockLease.acquire(pool, "night:ly", "one", Duration.ofMillis(1)).get();
		while (acquire("two", hour).equals("refused"))
			Thread.sleep(1);
		System.out.println("ran out, extended: " + lease.extend(hour) + ", released: " + lease.release(Duration.ZERO)
			+ ", with time left: " + lease.release(hour));

		lease = ShedLockLease.acquire(pool, "night:ly", "one", hour).get();
		System.out.println("released, to last 10 minutes: " + lease.release(Duration.ofMinutes(10)) + ", another host: " + acquire("two", hour));

		// A nanosecond is less than a lease can last.
		lease = ShedLockLease.acquire(pool, "short", "one", hour).get();
		System.out.println("for less than a millisecond: " + ShedLockLease.acquire(pool, "shorter", "one", Duration.ofNanos(1)).isPresent()
			+ ", extended: " + lease.extend(Duration.ofNanos(1)));

		LockProvider one = new AtomicLockProvider(pool, "one"), two = new AtomicLockProvider(pool, "two");
		LockConfiguration task = new LockConfiguration(ClockProvider.now(), "task", hour, Duration.ZERO);
		SimpleLock first = one.lock(task).get();
		boolean refused = two.lock(task).isPresent();
		SimpleLock extended = first.extend(hour, Duration.ZERO).get();
		System.out.println("the provider: another host: " + refused + ", extended, another host: " + two.lock(task).isPresent());
		extended.unlock();
		SimpleLock next = two.lock(task).get();
		System.out.println("unlocked, another host: granted, the first extends: " + first.extend(hour, Duration.ZERO).isPresent());
		next.unlock();
	}
}
