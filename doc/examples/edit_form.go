// An edit form with atomic_lock, on pgx and its pool
//
// edit_form postgresql://... plays Alice, Bob and a job.  The database needs the
// extension and the table of setup.sql.  For pgx 5, the imports are
// github.com/jackc/pgx/v5, .../pgx/v5/pgconn and .../pgx/v5/pgxpool, and Connect is New.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/jackc/pgconn"
	"github.com/jackc/pgx/v4"
	"github.com/jackc/pgx/v4/pgxpool"
)

var ctx = context.Background() // of each request, in an application

// Request is one request: a connection of the pool, and a transaction in which we are owner.
func request(pool *pgxpool.Pool, owner string, work func(pgx.Tx) error) error {
	tx, err := pool.Begin(ctx)
	if err != nil {
		return err
	}
	defer tx.Rollback(ctx) // does nothing after a commit
	if _, err = tx.Exec(ctx, "SELECT set_config('atomic_lock.owner', $1, true)", owner); err != nil {
		return err
	}
	if err = work(tx); err != nil {
		return err
	}
	return tx.Commit(ctx)
}

// Take the lock, then read.  Without the lock, the form is shown for reading only.
func openForm(pool *pgxpool.Pool, owner string, order int, user string) (status, holder, note string, err error) {
	err = request(pool, owner, func(tx pgx.Tx) error {
		err := tx.QueryRow(ctx, `SELECT status, holder
			FROM lock_try_acquire(lock_key('order', $1::int), ttl => '5 min', holder => $2)`,
			order, user).Scan(&status, &holder)
		if err != nil {
			return err
		}
		return tx.QueryRow(ctx, "SELECT note FROM orders WHERE id = $1", order).Scan(&note)
	})
	return status, holder, note, err
}

// The page calls this every 100 seconds, a third of the lease.
func keepOpen(pool *pgxpool.Pool, owner string, order int) (status string, err error) {
	return ask(pool, owner, `SELECT CASE WHEN lock_try_extend(lock_key('order', $1::int)) IS NULL
		THEN 'lost' ELSE 'extended' END`, order)
}

// The guard of the table refuses this without the lock.
func save(pool *pgxpool.Pool, owner string, order int, note string) (string, error) {
	err := request(pool, owner, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, "UPDATE orders SET note = $1 WHERE id = $2", note, order)
		return err
	})
	var refused *pgconn.PgError
	if errors.As(err, &refused) && refused.Code == "LK006" {
		return "refused: " + refused.Message, nil
	}
	return "saved", err
}

// The answer is a word for the result.
func closeForm(pool *pgxpool.Pool, owner string, order int) (string, error) {
	return ask(pool, owner, "SELECT lock_try_release(lock_key('order', $1::int))", order)
}

// From the form to a job.  The job has its own owner, and the form no longer has the lock.
func handOver(pool *pgxpool.Pool, owner string, order int, job string) (string, error) {
	return ask(pool, owner, `SELECT status FROM lock_transfer(lock_key('order', $1::int), owner => $2,
		new_owner => $3, holder => 'nightly export', ttl => '10 min')`, order, owner, job)
}

func ask(pool *pgxpool.Pool, owner, sql string, values ...interface{}) (answer string, err error) {
	err = request(pool, owner, func(tx pgx.Tx) error {
		return tx.QueryRow(ctx, sql, values...).Scan(&answer)
	})
	return answer, err
}

// Prints an answer of one of the above.
func say(what string) func(string, error) {
	return func(answer string, err error) {
		if err != nil {
			panic(err)
		}
		fmt.Println(what+":", answer)
	}
}

func status(pool *pgxpool.Pool, owner string, order int, user string) (string, error) {
	status, _, _, err := openForm(pool, owner, order, user)
	return status, err
}

func statusAndHolder(pool *pgxpool.Pool, owner string, order int, user string) (string, error) {
	status, holder, _, err := openForm(pool, owner, order, user)
	return status + " " + holder, err
}

func openPool() *pgxpool.Pool {
	pool, err := pgxpool.Connect(ctx, os.Args[1])
	if err != nil {
		panic(err)
	}
	return pool
}

// What happens in an afternoon
func main() {
	alice, tab2, bob := "session-8f14e45f/tab-1", "session-8f14e45f/tab-2", "session-c9f0f895/tab-1"
	pool := openPool()

	say("Alice opens 42")(status(pool, alice, 42, "Alice"))
	say("Alice opens 42 in another tab")(statusAndHolder(pool, tab2, 42, "Alice"))
	say("Bob opens 42")(statusAndHolder(pool, bob, 42, "Bob"))
	say("Bob saves")(save(pool, bob, 42, "of Bob"))
	say("Alice goes on")(keepOpen(pool, alice, 42))
	say("Alice saves")(save(pool, alice, 42, "of Alice"))

	// The owner comes with each request, so the application may forget everything.
	pool.Close()
	pool = openPool()
	say("After a restart, Alice goes on")(keepOpen(pool, alice, 42))
	say("Alice reloads the page")(status(pool, alice, 42, "Alice"))

	say("Alice hands 42 to a job")(handOver(pool, alice, 42, "job-17"))
	say("Alice saves")(save(pool, alice, 42, "of Alice, too late"))
	say("The job saves")(save(pool, "job-17", 42, "exported"))
	say("The job ends")(closeForm(pool, "job-17", 42))

	// Alice goes to lunch; a colleague has her lock ended, and Bob takes it.
	say("Alice opens 42")(status(pool, alice, 42, "Alice"))
	if _, err := pool.Exec(ctx, "SELECT force_release('order:42', 'Alice is at lunch')"); err != nil {
		panic(err)
	}
	say("Bob opens 42")(status(pool, bob, 42, "Bob"))
	say("Alice goes on")(keepOpen(pool, alice, 42))
	say("Alice saves")(save(pool, alice, 42, "of Alice, after lunch"))
	say("Alice closes")(closeForm(pool, alice, 42))
	say("Bob closes")(closeForm(pool, bob, 42))

	say("The order is now")(ask(pool, "", "SELECT note FROM orders WHERE id = 42"))
	pool.Close()
}
