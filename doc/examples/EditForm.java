// An edit form with atomic_lock, on JDBC
//
// java -cp postgresql.jar EditForm.java 'jdbc:postgresql://...' plays Alice, Bob and
// a job.  The database needs the extension and the table of setup.sql.

import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;

public class EditForm {
	interface Work<T> {
		T with(Connection connection) throws SQLException;
	}

	// One request: a connection of a pool, and a transaction in which we are `owner`
	static <T> T request(Connection connection, String owner, Work<T> work) throws SQLException {
		connection.setAutoCommit(false);
		try {
			ask(connection, "SELECT set_config('atomic_lock.owner', ?, true)", owner);
			T answer = work.with(connection);
			connection.commit();
			return answer;
		} catch (SQLException | RuntimeException error) {
			connection.rollback();
			throw error;
		}
	}

	// The first row, its columns with a blank between them
	static String ask(Connection connection, String sql, Object... values) throws SQLException {
		try (PreparedStatement statement = connection.prepareStatement(sql)) {
			for (int i = 0; i < values.length; i++)
				statement.setObject(i + 1, values[i]);
			try (ResultSet rows = statement.executeQuery()) {
				StringBuilder answer = new StringBuilder();
				rows.next();
				for (int i = 1; i <= rows.getMetaData().getColumnCount(); i++)
					answer.append(i > 1 ? " " : "").append(rows.getString(i));
				return answer.toString();
			}
		}
	}

	// Take the lock, then read.  Without the lock, show the form for reading only.
	// Strings are sent as varchar, so an interval needs the cast.
	static String openForm(Connection connection, String owner, int order, String user, String ttl) throws SQLException {
		return request(connection, owner, c -> ask(c,
			"SELECT status, holder FROM lock_try_acquire(lock_key('order', ?::text), ttl => ?::interval, holder => ?)",
			order, ttl, user));
	}

	// The page calls this every 100 seconds, a third of the lease.
	static String keepOpen(Connection connection, String owner, int order) throws SQLException {
		return request(connection, owner, c -> ask(c,
			"SELECT CASE WHEN lock_try_extend(lock_key('order', ?::text)) IS NULL THEN 'lost' ELSE 'extended' END",
			order));
	}

	// The guard of the table refuses this without the lock.
	static String save(Connection connection, String owner, int order, String note) throws SQLException {
		try {
			return request(connection, owner, c -> {
				try (PreparedStatement update = c.prepareStatement("UPDATE orders SET note = ? WHERE id = ?")) {
					update.setString(1, note);
					update.setInt(2, order);
					update.executeUpdate();
					return "saved";
				}
			});
		} catch (SQLException error) {
			if (!"LK006".equals(error.getSQLState()))
				throw error;
			return "refused: " + ((org.postgresql.util.PSQLException) error).getServerErrorMessage().getMessage();
		}
	}

	// The answer is a word for the result.
	static String closeForm(Connection connection, String owner, int order) throws SQLException {
		return request(connection, owner, c -> ask(c, "SELECT lock_try_release(lock_key('order', ?::text))", order));
	}

	// From the form to a job.  The job has its own owner, and the form no longer has the lock.
	static String handOver(Connection connection, String owner, int order, String job) throws SQLException {
		return request(connection, owner, c -> ask(c,
			"SELECT status FROM lock_transfer(lock_key('order', ?::text), owner => ?, new_owner => ?,"
			+ " holder => 'nightly export', ttl => '10 min')",
			order, owner, job));
	}

	static void say(String what, String answer) {
		System.out.println(what + ": " + answer);
	}

	// What happens in an afternoon
	public static void main(String[] args) throws SQLException {
		String alice = "session-8f14e45f/tab-1", tab2 = "session-8f14e45f/tab-2", bob = "session-c9f0f895/tab-1";
		Connection pool = DriverManager.getConnection(args[0]);

		say("Alice opens 42", openForm(pool, alice, 42, "Alice", "5 min").split(" ")[0]);
		say("Alice opens 42 in another tab", openForm(pool, tab2, 42, "Alice", "5 min"));
		say("Bob opens 42", openForm(pool, bob, 42, "Bob", "5 min"));
		say("Bob saves", save(pool, bob, 42, "of Bob"));
		say("Alice goes on", keepOpen(pool, alice, 42));
		say("Alice saves", save(pool, alice, 42, "of Alice"));

		// The owner comes with each request, so the application may forget everything.
		pool.close();
		pool = DriverManager.getConnection(args[0]);
		say("After a restart, Alice goes on", keepOpen(pool, alice, 42));
		say("Alice reloads the page", openForm(pool, alice, 42, "Alice", "5 min").split(" ")[0]);

		say("Alice hands 42 to a job", handOver(pool, alice, 42, "job-17"));
		say("Alice saves", save(pool, alice, 42, "of Alice, too late"));
		say("The job saves", save(pool, "job-17", 42, "exported"));
		say("The job ends", closeForm(pool, "job-17", 42));

		// Alice goes to lunch; a colleague has her lock ended, and Bob takes it.
		say("Alice opens 42", openForm(pool, alice, 42, "Alice", "5 min").split(" ")[0]);
		request(pool, "", c -> ask(c, "SELECT force_release('order:42', 'Alice is at lunch')"));
		say("Bob opens 42", openForm(pool, bob, 42, "Bob", "5 min").split(" ")[0]);
		say("Alice goes on", keepOpen(pool, alice, 42));
		say("Alice saves", save(pool, alice, 42, "of Alice, after lunch"));
		say("Alice closes", closeForm(pool, alice, 42));
		say("Bob closes", closeForm(pool, bob, 42));

		say("The order is now", request(pool, "", c -> ask(c, "SELECT note FROM orders WHERE id = 42")));
		pool.close();
	}
}
