# An edit form with atomic_lock, on ruby-pg
#
# ruby edit_form.rb 'host=... dbname=...' plays Alice, Bob and a job.  The database needs
# the extension and the table of setup.sql.

require 'pg'

# One request: a transaction in which we are +owner+
def request(db, owner)
  db.transaction do # commits, or rolls back
    db.exec_params("SELECT set_config('atomic_lock.owner', $1, true)", [owner])
    yield
  end
end

def row(db, sql, *values)
  db.exec_params(sql, values).values.first
end

# Take the lock, then read.  Without the lock, the form is shown for reading only.
def open_form(db, owner, order, user)
  request(db, owner) do
    lock = row(db, "SELECT status, holder FROM lock_try_acquire(lock_key('order', $1), ttl => '5 min', holder => $2)",
               order, user)
    lock + row(db, 'SELECT note FROM orders WHERE id = $1', order)
  end
end

# The page calls this every 100 seconds, a third of the lease.
def keep_open(db, owner, order)
  request(db, owner) { row(db, "SELECT lock_try_extend(lock_key('order', $1))", order) } == [nil] ? 'lost' : 'extended'
end

# The guard of the table refuses this without the lock.
def save(db, owner, order, note)
  request(db, owner) { db.exec_params('UPDATE orders SET note = $1 WHERE id = $2', [note, order]) }
  'saved'
rescue PG::ServerError => e
  raise if e.result.error_field(PG::PG_DIAG_SQLSTATE) != 'LK006'

  "refused: #{e.result.error_field(PG::PG_DIAG_MESSAGE_PRIMARY)}"
end

# The answer is a word for the result.
def close_form(db, owner, order)
  request(db, owner) { row(db, "SELECT lock_try_release(lock_key('order', $1))", order).first }
end

# From the form to a job.  The job has its own owner, and the form no longer has the lock.
def hand_over(db, owner, order, job)
  request(db, owner) do
    row(db, "SELECT status FROM lock_transfer(lock_key('order', $1), owner => $2, new_owner => $3,
             holder => 'nightly export', ttl => '10 min')", order, owner, job).first
  end
end

# What happens in an afternoon
def play(dsn)
  alice, tab2, bob = 'session-8f14e45f/tab-1', 'session-8f14e45f/tab-2', 'session-c9f0f895/tab-1'
  db = PG.connect(dsn)

  puts "Alice opens 42: #{open_form(db, alice, 42, 'Alice')[0]}"
  puts "Alice opens 42 in another tab: #{open_form(db, tab2, 42, 'Alice')[0, 2].join(' ')}"
  puts "Bob opens 42: #{open_form(db, bob, 42, 'Bob')[0, 2].join(' ')}"
  puts "Bob saves: #{save(db, bob, 42, 'of Bob')}"
  puts "Alice goes on: #{keep_open(db, alice, 42)}"
  puts "Alice saves: #{save(db, alice, 42, 'of Alice')}"

  # The owner comes with each request, so the application may forget everything.
  db.close
  db = PG.connect(dsn)
  puts "After a restart, Alice goes on: #{keep_open(db, alice, 42)}"
  puts "Alice reloads the page: #{open_form(db, alice, 42, 'Alice')[0]}"

  puts "Alice hands 42 to a job: #{hand_over(db, alice, 42, 'job-17')}"
  puts "Alice saves: #{save(db, alice, 42, 'of Alice, too late')}"
  puts "The job saves: #{save(db, 'job-17', 42, 'exported')}"
  puts "The job ends: #{close_form(db, 'job-17', 42)}"

  # Alice goes to lunch; a colleague has her lock ended, and Bob takes it.
  puts "Alice opens 42: #{open_form(db, alice, 42, 'Alice')[0]}"
  db.exec("SELECT force_release('order:42', 'Alice is at lunch')")
  puts "Bob opens 42: #{open_form(db, bob, 42, 'Bob')[0]}"
  puts "Alice goes on: #{keep_open(db, alice, 42)}"
  puts "Alice saves: #{save(db, alice, 42, 'of Alice, after lunch')}"
  puts "Alice closes: #{close_form(db, alice, 42)}"
  puts "Bob closes: #{close_form(db, bob, 42)}"

  puts "The order is now: #{row(db, 'SELECT note FROM orders WHERE id = 42')[0]}"
end

play(ARGV[0]) if __FILE__ == $PROGRAM_NAME
