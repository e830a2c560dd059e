// Work in a block that has a lock, with atomic_lock on JDBC
//
// java -cp postgresql.jar Block.java 'jdbc:postgresql://...' plays a job, Bob and a DBA.
// The database needs the extension and the role of setup.sql.

import java.nio.charset.StandardCharsets;
import java.security.GeneralSecurityException;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.util.HexFormat;
import java.util.UUID;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;
import javax.crypto.Mac;
import javax.crypto.spec.SecretKeySpec;
import org.postgresql.PGConnection;
import org.postgresql.util.PSQLException;

public class Block {
	// The block has ended without its lock.  The message is a word for the reason.
	static class Lost extends Exception {
		Lost(String answer) {
			super(answer);
		}
	}

	// The lock of `key` for a block, which works on the connection `work`
	static class Lock implements AutoCloseable {
		final String key, ttl, owner = "job/" + UUID.randomUUID(), token;
		final Connection connection;
		final PGConnection work;
		final ScheduledExecutorService heartbeat = Executors.newScheduledThreadPool(2);
		volatile boolean lost;
		volatile long until;

		Lock(String url, Connection work, String key, double ttl, String holder, double every, double wait) throws SQLException {
			this.key = key;
			this.ttl = ttl + " s";
			this.work = work.unwrap(PGConnection.class);
			connection = DriverManager.getConnection(url); // a second one, since the work keeps the other busy
			try {
				token = call("SELECT fencing_token, extract(epoch FROM waited + ttl_remaining)"
					+ " FROM lock_acquire(?, ?::interval, ?, holder => ?, wait => ?::interval)", key, this.ttl, owner, holder, wait + " s");
			} catch (SQLException refused) {
				heartbeat.shutdown();
				connection.close();
				throw refused;
			}
			long pause = (long) (every * 1000);
			heartbeat.scheduleWithFixedDelay(this::beat, pause, pause, TimeUnit.MILLISECONDS);
			heartbeat.scheduleWithFixedDelay(this::watch, 200, 200, TimeUnit.MILLISECONDS);
		}

		// A call that returns the state of the lock, and the seconds that we still have it
		String call(String sql, Object... values) throws SQLException {
			long asked = System.nanoTime();
			String[] answer = row(connection, sql, values);
			until = asked + (long) (answer[1] == null ? 0 : Double.parseDouble(answer[1]) * 1e9); // from before the call
			return answer[0];
		}

		void beat() {
			try {
				lost = lost || !"extended".equals(call("SELECT status, extract(epoch FROM ttl_remaining)"
					+ " FROM lock_heartbeat(ARRAY[?], ?, ?::interval)", key, owner, ttl));
			} catch (SQLException error) {
				lost = true;
			}
		}

		// Separate from the heartbeat, which may get no answer
		void watch() {
			try {
				if (!isOurs()) // Repeatedly: the work may be between two statements.
					work.cancelQuery();
			} catch (SQLException error) {
				// Then the next heartbeat, or isOurs(), notices.
			}
		}

		// Call this before each step.  It uses our own clock, so no server can make us wait
		boolean isOurs() {
			return !lost && System.nanoTime() - until < 0;
		}

		@Override
		public void close() throws SQLException, Lost {
			try (connection) {
				heartbeat.shutdownNow();
				heartbeat.awaitTermination(1, TimeUnit.MINUTES);
				String answer = one(connection, "SELECT lock_try_release(?, ?)", key, owner);
				if (!answer.equals("released"))
					throw new Lost(answer);
			} catch (InterruptedException error) {
				Thread.currentThread().interrupt();
			}
		}
	}

	// A key that does not show its name to readers without the secret
	static String hiddenKey(byte[] secret, String name) throws GeneralSecurityException {
		if (secret.length < 16)
			throw new IllegalArgumentException("the secret is shorter than 16 bytes");
		Mac mac = Mac.getInstance("HmacSHA256");
		mac.init(new SecretKeySpec(secret, "HmacSHA256"));
		return HexFormat.of().formatHex(mac.doFinal(name.getBytes(StandardCharsets.UTF_8)));
	}

	static String[] row(Connection connection, String sql, Object... values) throws SQLException {
		try (PreparedStatement statement = connection.prepareStatement(sql)) {
			return row(statement, values);
		}
	}

	static String[] row(PreparedStatement statement, Object... values) throws SQLException {
		for (int i = 0; i < values.length; i++)
			statement.setObject(i + 1, values[i]);
		try (ResultSet rows = statement.executeQuery()) {
			String[] row = new String[rows.getMetaData().getColumnCount()];
			rows.next();
			for (int i = 0; i < row.length; i++)
				row[i] = rows.getString(i + 1);
			return row;
		}
	}

	static String one(Connection connection, String sql, Object... values) throws SQLException {
		return row(connection, sql, values)[0];
	}

	static void until(Connection connection, String sql, Object... values) throws SQLException, InterruptedException {
		while (!"t".equals(one(connection, sql, values)))
			Thread.sleep(20);
	}

	// Another thread cancels a call that waits.  The call has not acquired the lock then.
	static String waitAndGiveUp(Connection connection, Connection other, String key) throws SQLException {
		try (PreparedStatement call = connection.prepareStatement("SELECT lock_acquire(?, wait => '1 min')")) {
			CompletableFuture.runAsync(() -> {
				try {
					until(other, "SELECT waiters > 0 FROM lock_status(?)", key);
					call.cancel();
				} catch (SQLException | InterruptedException error) {
					throw new IllegalStateException(error);
				}
			});
			row(call, key);
			return "acquired";
		} catch (SQLException error) {
			if (!"57014".equals(error.getSQLState()))
				throw error;
			return "cancelled";
		}
	}

	static void say(String what, String answer) {
		System.out.println(what + ": " + answer);
	}

	// What happens in a night
	public static void main(String[] args) throws Exception {
		String url = args[0], key = "import:7";
		Connection work = DriverManager.getConnection(url), bob = DriverManager.getConnection(url);
		Connection other = DriverManager.getConnection(url);

		try (Lock lock = new Lock(url, work, key, 600, "nightly import", .2, 0)) {
			say("The job has the lock", lock.isOurs() ? "go on" : "stop");
			String first = one(other, "SELECT expires_at FROM lock_status(?)", key);
			until(other, "SELECT expires_at > ?::timestamptz FROM lock_status(?)", first, key);
			say("Its heartbeat", "the lease ends later");
			try {
				one(bob, "SELECT lock_acquire(?)", key);
			} catch (PSQLException error) {
				say("Bob", error.getSQLState() + " " + error.getServerErrorMessage().getMessage());
			}
			say("Bob waits, and gives up", waitAndGiveUp(bob, other, key));
		}

		try (Lock lock = new Lock(url, work, key, 600, "nightly import", 10, 0)) {
			one(work, "SELECT 1 / 0");
		} catch (SQLException error) {
			say("The work fails", error.getSQLState());
		}
		say("Its lock", one(other, "SELECT locked FROM lock_status(?)", key).equals("t") ? "held" : "free");

		// The exception of the block comes first; that of close() is suppressed.
		try (Lock lock = new Lock(url, work, key, 600, "nightly import", .2, 0)) {
			one(other, "SELECT force_release(?, 'it takes too long')", key);
			one(work, "SELECT pg_sleep(600)");
		} catch (SQLException stopped) {
			say("A DBA ends the lease, and the work is stopped", stopped.getSuppressed()[0].getMessage());
		}

		// Heartbeats that come too late, as after the sleep of a laptop
		String take = "SELECT lock_acquire(?, owner => 'bob')", drop = "SELECT lock_release(?, 'bob')";
		String[][] overruns = {{"import:8"}, {"import:9", take}, {"import:10", take, drop}};
		for (String[] overrun : overruns) {
			try (Lock lock = new Lock(url, work, overrun[0], .01, "nightly import", 3600, 0)) {
				until(other, "SELECT NOT locked FROM lock_status(?)", overrun[0]);
				for (int i = 1; i < overrun.length; i++)
					one(bob, overrun[i], overrun[0]);
				say("Overrun", lock.isOurs() ? "go on" : "stop");
			} catch (Lost lost) {
				say("At release", lost.getMessage());
			}
		}

		say("Hidden key", hiddenKey("0123456789abcdef".getBytes(), "patient:M\u00fcller"));
		try {
			hiddenKey("0123456789abcde".getBytes(), "patient:M\u00fcller");
		} catch (IllegalArgumentException error) {
			say("Hidden key", error.getMessage());
		}
		for (Connection connection : new Connection[] {work, bob, other})
			connection.close();
	}
}
