// Work in a block that has a lock, with atomic_lock on pgx
//
// block postgresql://... plays a job, Bob and a DBA.  The database needs the extension
// and the role of setup.sql.  For pgx 5, the imports are github.com/jackc/pgx/v5 and
// github.com/jackc/pgx/v5/pgconn; nothing else differs.
package main

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"math"
	"os"
	"time"

	"github.com/jackc/pgconn"
	"github.com/jackc/pgx/v4"
)

// Lost means that a block has ended without its lock, and has a word for the reason.
type Lost string

func (lost Lost) Error() string { return string(lost) }

// Locked calls block with the lock of a key.  When the lock is lost, or may be, the
// block's context is cancelled, and with it the statements that were given it.
func Locked(ctx context.Context, dsn, key string, ttl, every, wait time.Duration, holder string,
	block func(ctx context.Context, owner, token string) error) (err error) {
	conn, err := pgx.Connect(ctx, dsn) // a separate one, since the work keeps others busy
	if err != nil {
		return err
	}
	defer conn.Close(context.Background())
	working, stop := context.WithCancel(ctx)
	defer stop()
	over := time.AfterFunc(math.MaxInt64, stop) // call() sets it; also if the server no longer answers
	defer over.Stop()

	// A call that returns the state of the lock, and the seconds that we still have it
	call := func(sql string, values ...interface{}) (answer string, err error) {
		var seconds *float64
		asked := time.Now()
		err = conn.QueryRow(ctx, sql, values...).Scan(&answer, &seconds)
		if err == nil && seconds != nil { // counted from before the call
			over.Reset(time.Until(asked.Add(time.Duration(*seconds * float64(time.Second)))))
		}
		return answer, err
	}

	owner := "job/" + random()
	token, err := call(`SELECT fencing_token::text, extract(epoch FROM waited + ttl_remaining)::float8
		FROM lock_acquire($1, $2, $3, holder => $4, wait => $5)`, key, ttl, owner, holder, wait)
	if err != nil {
		return err
	}

	ended, beaten := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(beaten)
		for {
			select {
			case <-ended:
				return
			case <-time.After(every):
			}
			status, err := call(`SELECT status, extract(epoch FROM ttl_remaining)::float8
				FROM lock_heartbeat(ARRAY[$1::text], $2, $3)`, key, owner, ttl)
			if err != nil || status != "extended" {
				stop()
				return
			}
		}
	}()
	defer func() { // also when the block panics
		close(ended)
		<-beaten
		answer, failure := one[string](conn, "SELECT lock_try_release($1, $2)", key, owner)
		if failure != nil && err == nil {
			err = failure
		} else if failure == nil && answer != "released" {
			err = Lost(answer)
		}
	}()
	return block(working, owner, token)
}

// hiddenKey is a key that does not show its name to readers without the secret.
func hiddenKey(secret []byte, name string) (string, error) {
	if len(secret) < 16 {
		return "", errors.New("the secret is shorter than 16 bytes")
	}
	mac := hmac.New(sha256.New, secret)
	mac.Write([]byte(name))
	return fmt.Sprintf("%x", mac.Sum(nil)), nil
}

func random() string {
	bytes := make([]byte, 16)
	must(rand.Read(bytes))
	return fmt.Sprintf("%x", bytes)
}

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

func one[T any](conn *pgx.Conn, sql string, values ...interface{}) (value T, err error) {
	return value, conn.QueryRow(context.Background(), sql, values...).Scan(&value)
}

func until(conn *pgx.Conn, sql string, values ...interface{}) {
	for !must(one[bool](conn, sql, values...)) {
		time.Sleep(20 * time.Millisecond)
	}
}

// waitAndGiveUp cancels a call that waits.  pgx closes the connection then, and does not
// hear whether the call was just about to acquire the lock.  So it is in a transaction,
// which nobody commits.
func waitAndGiveUp(conn, other *pgx.Conn, key string) string {
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		until(other, "SELECT waiters > 0 FROM lock_status($1)", key)
		cancel()
	}()
	tx := must(conn.Begin(ctx))
	_, err := tx.Exec(ctx, "SELECT lock_acquire($1, wait => '1 min')", key)
	if !errors.Is(err, context.Canceled) {
		return fmt.Sprint(err)
	}
	until(other, "SELECT coalesce(waiters, 0) = 0 FROM lock_status($1)", key)
	return "cancelled"
}

// What happens in a night
func main() {
	ctx, dsn, job := context.Background(), os.Args[1], "nightly import"
	work, bob, other := must(pgx.Connect(ctx, dsn)), must(pgx.Connect(ctx, dsn)), must(pgx.Connect(ctx, dsn))
	var refused *pgconn.PgError

	err := Locked(ctx, dsn, "import:7", 10*time.Minute, time.Second/5, 0, job, func(ctx context.Context, owner, token string) error {
		fmt.Println("The job has the lock:", goOn(ctx))
		first := must(one[string](other, "SELECT expires_at::text FROM lock_status('import:7')"))
		until(other, "SELECT expires_at > $1::text::timestamptz FROM lock_status('import:7')", first)
		fmt.Println("Its heartbeat: the lease ends later")
		_, err := bob.Exec(ctx, "SELECT lock_acquire('import:7')")
		if errors.As(err, &refused) {
			fmt.Println("Bob:", refused.Code, refused.Message)
		}
		fmt.Println("Bob waits, and gives up:", waitAndGiveUp(bob, other, "import:7"))
		return nil
	})
	must(0, err)

	err = Locked(ctx, dsn, "import:7", 10*time.Minute, 10*time.Second, 0, job, func(ctx context.Context, owner, token string) error {
		_, err := work.Exec(ctx, "SELECT 1 / 0")
		return err
	})
	if errors.As(err, &refused) {
		fmt.Println("The work fails:", refused.Code)
	}
	fmt.Println("Its lock:", must(one[string](other, "SELECT CASE WHEN locked THEN 'held' ELSE 'free' END FROM lock_status('import:7')")))

	err = Locked(ctx, dsn, "import:7", 10*time.Minute, time.Second/5, 0, job, func(ctx context.Context, owner, token string) error {
		must(other.Exec(ctx, "SELECT force_release('import:7', 'it takes too long')"))
		_, err := work.Exec(ctx, "SELECT pg_sleep(600)")
		return err
	})
	fmt.Println("A DBA ends the lease, and the work is stopped:", err)

	// Heartbeats that come too late, as after the sleep of a laptop
	take, drop := "SELECT lock_acquire($1, owner => 'bob')", "SELECT lock_release($1, 'bob')"
	for _, overrun := range [][]string{{"import:8"}, {"import:9", take}, {"import:10", take, drop}} {
		err = Locked(ctx, dsn, overrun[0], 10*time.Millisecond, time.Hour, 0, job, func(ctx context.Context, owner, token string) error {
			until(other, "SELECT NOT locked FROM lock_status($1)", overrun[0])
			for _, sql := range overrun[1:] {
				must(other.Exec(context.Background(), sql, overrun[0]))
			}
			<-ctx.Done() // by a timer, which may be a moment late
			fmt.Println("Overrun:", goOn(ctx))
			return nil
		})
		fmt.Println("At release:", err)
	}

	fmt.Println("Hidden key:", must(hiddenKey([]byte("0123456789abcdef"), "patient:Müller")))
	_, err = hiddenKey([]byte("0123456789abcde"), "patient:Müller")
	fmt.Println("Hidden key:", err)
}

// Whether a block may go on
func goOn(ctx context.Context) string {
	if ctx.Err() != nil {
		return "stop"
	}
	return "go on"
}
