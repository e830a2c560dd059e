import java.sql.*;
import java.time.*;
import java.util.*;

/**
 * The statements of Spring Integration's DefaultLockRepository, in its transactions, as of
 * versions 5.5.20, 6.5.10 and 7.1.1: spring-integration-jdbc, package
 * org.springframework.integration.jdbc.lock.  The texts of statements are from there, and so
 * are their order, how values are bound, and what an answer means.  spring.pl runs this.
 */
class Spring {

	/** What a version of DefaultLockRepository does */
	static class Repository {
		static final String REGION = "DEFAULT";
		final Connection connection;
		final int version;
		final String prefix, id, time;
		final Duration ttl;

		Repository(String url, int version, String prefix, String id, Duration ttl) throws SQLException {
			this.connection = DriverManager.getConnection(url);
			this.version = version;
			this.prefix = prefix;
			this.id = id;
			this.ttl = ttl;
			this.time = version < 7 ? "CREATED_DATE" : "EXPIRED_AFTER";
		}

		boolean acquire(String lock) throws SQLException {
			// Version 5: @Transactional(isolation = Isolation.SERIALIZABLE)
			return transaction(version < 6 ? Connection.TRANSACTION_SERIALIZABLE : Connection.TRANSACTION_READ_COMMITTED, false, () -> {
				if (update("UPDATE %sLOCK SET CLIENT_ID=?, " + time + "=? WHERE REGION=? AND LOCK_KEY=? AND (CLIENT_ID=? OR " + time + "<?)",
					id, end(), REGION, lock, id, over()) > 0)
					return true;
				try {
					if (version < 7)
						return update("INSERT INTO %sLOCK (REGION, LOCK_KEY, CLIENT_ID, CREATED_DATE) VALUES (?, ?, ?, ?)",
							REGION, lock, id, end()) > 0;
					LocalDateTime now = now();
					return update("INSERT INTO %sLOCK (REGION, LOCK_KEY, CLIENT_ID, CREATED_DATE, EXPIRED_AFTER) VALUES (?, ?, ?, ?, ?)",
						REGION, lock, id, now, now.plus(ttl)) > 0;
				} catch (SQLException error) {
					// DuplicateKeyException, from version 6 on DataIntegrityViolationException
					if (error.getSQLState().equals("23505") || version > 5 && error.getSQLState().matches("2[23].*"))
						return false;
					throw error;
				}
			});
		}

		boolean isAcquired(String lock) throws SQLException {
			return transaction(0, true, () -> {
				try (PreparedStatement count = bind("SELECT COUNT(REGION) FROM %sLOCK WHERE REGION=? AND LOCK_KEY=? AND CLIENT_ID=? AND " + time + ">=?",
					REGION, lock, id, over()); ResultSet rows = count.executeQuery()) {
					rows.next();
					return rows.getInt(1) == 1;
				}
			});
		}

		boolean renew(String lock) throws SQLException {
			return transaction(0, false, () ->
				update("UPDATE %sLOCK SET " + time + "=? WHERE REGION=? AND LOCK_KEY=? AND CLIENT_ID=?", end(), REGION, lock, id) == 1);
		}

		/** Before version 6.5, Spring ignores the answer. */
		boolean delete(String lock) throws SQLException {
			return transaction(0, false, () ->
				update("DELETE FROM %sLOCK WHERE REGION=? AND LOCK_KEY=? AND CLIENT_ID=?", REGION, lock, id) == 1);
		}

		boolean deleteExpired() throws SQLException {
			return transaction(0, false, () ->
				update("DELETE FROM %sLOCK WHERE REGION=? AND " + time + "<?", REGION, over()) > 0);
		}

		boolean close() throws SQLException {
			return transaction(0, false, () ->
				update("DELETE FROM %sLOCK WHERE REGION=? AND CLIENT_ID=?", REGION, id) > 0);
		}

		private LocalDateTime now() {
			return LocalDateTime.now(ZoneOffset.UTC);
		}

		private Object end() {
			return version < 6 ? new java.util.Date() : version < 7 ? now() : now().plus(ttl);
		}

		private Object over() {
			return version < 6 ? new java.util.Date(System.currentTimeMillis() - ttl.toMillis())
				: version < 7 ? now().minus(ttl) : now();
		}

		/** As JdbcTemplate binds arguments */
		private PreparedStatement bind(String sql, Object... values) throws SQLException {
			PreparedStatement statement = connection.prepareStatement(String.format(sql, prefix));
			for (int i = 0; i < values.length; i++) {
				if (values[i] instanceof String)
					statement.setString(i + 1, (String) values[i]);
				else if (values[i] instanceof java.util.Date)
					statement.setTimestamp(i + 1, new Timestamp(((java.util.Date) values[i]).getTime()));
				else
					statement.setObject(i + 1, values[i]);
			}
			return statement;
		}

		private int update(String sql, Object... values) throws SQLException {
			try (PreparedStatement statement = bind(sql, values)) {
				return statement.executeUpdate();
			}
		}

		/** A new transaction, and again after an error that passes, as in JdbcLock */
		private boolean transaction(int isolation, boolean readOnly, Work work) throws SQLException {
			for (;;) {
				connection.setReadOnly(readOnly);
				if (isolation != 0)
					connection.setTransactionIsolation(isolation);
				connection.setAutoCommit(false);
				try {
					boolean answer = work.answer();
					connection.commit();
					return answer;
				} catch (SQLException error) {
					connection.rollback();
					if (!error.getSQLState().startsWith("40"))
						throw error;
				} finally {
					connection.setAutoCommit(true);
					connection.setTransactionIsolation(Connection.TRANSACTION_READ_COMMITTED);
				}
			}
		}
	}

	interface Work {
		boolean answer() throws SQLException;
	}

	static String url, direct;

	/** A statement of a caller who does without Spring */
	static String ask(String sql) throws SQLException {
		try (Connection connection = DriverManager.getConnection(direct);
			ResultSet rows = connection.createStatement().executeQuery(sql)) {
			rows.next();
			return rows.getString(1);
		}
	}

	/** What becomes of a lock, for two clients of a version and a direct caller */
	static void day(int version) throws Exception {
		String lock = UUID.nameUUIDFromBytes("orders".getBytes()).toString();
		Duration ttl = Duration.ofMinutes(10);
		Repository a = new Repository(url, version, "INT_", UUID.randomUUID().toString(), ttl);
		Repository b = new Repository(url, version, "INT_", UUID.randomUUID().toString(), ttl);
		String acquire = "SELECT status FROM lock_try_acquire(shop.int_lock_key('orders'), owner => 'direct')";

		System.out.println("version " + version);
		System.out.println("A acquires: " + a.acquire(lock) + ", again: " + a.acquire(lock));
		System.out.println("B acquires: " + b.acquire(lock) + ", directly: " + ask(acquire));
		System.out.println("is acquired by A: " + a.isAcquired(lock) + ", by B: " + b.isAcquired(lock));
		System.out.println("A renews: " + a.renew(lock) + ", B: " + b.renew(lock));
		System.out.println("B deletes: " + b.delete(lock) + ", what is expired: " + b.deleteExpired() + ", all: " + b.close());
		System.out.println("A deletes: " + a.delete(lock) + ", again: " + a.delete(lock));
		System.out.println("directly: " + ask(acquire));
		System.out.println("A acquires: " + a.acquire(lock) + ", is acquired: " + a.isAcquired(lock) + ", renews: " + a.renew(lock) + ", deletes: " + a.delete(lock));
		System.out.println("directly: " + ask("SELECT lock_try_release(shop.int_lock_key('orders'), 'direct')"));
		System.out.println("A acquires: " + a.acquire(lock) + ", another: " + a.acquire("k"));
		System.out.println("A closes: " + a.close() + ", B acquires: " + b.acquire(lock) + ", " + b.acquire("k") + ", closes: " + b.close());

		// Its leases last a millisecond.
		Repository brief = new Repository(url, version, "brief.INT_", UUID.randomUUID().toString(), Duration.ofMillis(1));
		System.out.println("C acquires: " + brief.acquire(lock));
		while (!"f".equals(ask("SELECT locked FROM lock_status(shop.int_lock_key('orders'))")))
			Thread.sleep(1);
		System.out.println("is acquired: " + brief.isAcquired(lock) + ", renews: " + brief.renew(lock) + ", deletes: " + brief.delete(lock));
		System.out.println("B acquires: " + b.acquire(lock) + ", deletes: " + b.delete(lock));
	}

	/** Clients of all versions, and direct callers, count under one lock */
	static void count(int threads, int times) throws Exception {
		String lock = UUID.nameUUIDFromBytes("counter".getBytes()).toString();
		List<Thread> running = new ArrayList<>();
		List<Throwable> failed = Collections.synchronizedList(new ArrayList<>());

		for (int i = 0; i < threads; i++) {
			int version = 4 + i % 4;
			String id = "client " + i;
			Thread thread = new Thread(() -> {
				try (Connection counter = DriverManager.getConnection(direct)) {
					Repository repository = new Repository(url, version, "INT_", id, Duration.ofMinutes(10));
					PreparedStatement acquire = counter.prepareStatement("SELECT acquired FROM lock_try_acquire(shop.int_lock_key('counter'), owner => ?)");
					PreparedStatement release = counter.prepareStatement("SELECT lock_try_release(shop.int_lock_key('counter'), ?) = 'released'");
					acquire.setString(1, id);
					release.setString(1, id);
					for (int n = 0; n < times; n++) {
						while (!(version == 4 ? yes(acquire) : repository.acquire(lock)))
							Thread.sleep(1);
						ResultSet value = counter.createStatement().executeQuery("SELECT value FROM counter");
						value.next();
						int next = value.getInt(1) + 1;
						Thread.yield();
						counter.createStatement().executeUpdate("UPDATE counter SET value = " + next);
						if (!(version == 4 ? yes(release) : repository.delete(lock)))
							throw new IllegalStateException(id + " has lost the lock");
					}
				} catch (Throwable error) {
					failed.add(error);
				}
			});
			thread.start();
			running.add(thread);
		}
		for (Thread thread : running)
			thread.join();
		for (Throwable error : failed)
			error.printStackTrace();
		System.out.println("counted: " + ask("SELECT value FROM counter") + ", failed: " + failed.size());
	}

	static boolean yes(PreparedStatement statement) throws SQLException {
		try (ResultSet rows = statement.executeQuery()) {
			rows.next();
			return rows.getBoolean(1);
		}
	}

	public static void main(String[] arguments) throws Exception {
		url = arguments[0];
		direct = arguments[1];
		for (int version = 5; version <= 7; version++)
			day(version);
		count(8, 25);
	}
}
