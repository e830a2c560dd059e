# Work in a block that has a lock, with atomic_lock on ruby-pg
#
# ruby block.rb 'host=... dbname=...' plays a job, Bob and a DBA.  The database needs
# the extension and the role of setup.sql.

require 'openssl'
require 'pg'
require 'securerandom'

# The block has ended without its lock.  The message is a word for the reason.
class Lost < StandardError; end

Lock = Struct.new(:key, :owner, :token, :over) do
  # Call this before each step.  It uses our own clock, so no server can make us wait
  def ours?
    clock < over
  end

  # A call that returns the state of the lock, and the seconds that we still have it
  def call(connection, sql, *values)
    asked = clock
    answer, seconds = row(connection, sql, *values)
    self.over = asked + seconds.to_f # counted from before the call
    answer
  end

  def clock
    Process.clock_gettime(Process::CLOCK_MONOTONIC)
  end
end

# The lock of +key+ for a block, which works on the connection +work+
def locked(dsn, work, key, ttl, holder, every: ttl / 3.0, wait: 0)
  lock = Lock.new(key, "job/#{SecureRandom.uuid}")
  connection = PG.connect(dsn) # a second one, since the work keeps the other busy
  lock.token = lock.call(connection,
    'SELECT fencing_token, extract(epoch FROM waited + ttl_remaining) FROM lock_acquire($1, $2, $3, holder => $4, wait => $5)',
    key, "#{ttl} s", lock.owner, holder, "#{wait} s")
  ended, finish = IO.pipe
  heartbeat = Thread.new { beat(connection, lock, ttl) until IO.select([ended], nil, nil, every) }
  # Separate from the heartbeat, which may get no answer.  Repeatedly: the work may be
  # between two statements.
  watch = Thread.new { lock.ours? || work.cancel until IO.select([ended], nil, nil, 0.2) }
  begin
    yield lock
  ensure
    finish.close
    [heartbeat, watch].each(&:join)
    answer = one(connection, 'SELECT lock_try_release($1, $2)', key, lock.owner)
    raise Lost, answer if answer != 'released'
  end
ensure
  connection&.close
end

def beat(connection, lock, ttl)
  lock.over = 0 if lock.over != 0 && lock.call(connection,
    'SELECT status, extract(epoch FROM ttl_remaining) FROM lock_heartbeat(ARRAY[$1], $2, $3)',
    lock.key, lock.owner, "#{ttl} s") != 'extended'
rescue PG::Error
  lock.over = 0
end

# A key that does not show its name to readers without the secret
def hidden_key(secret, name)
  raise ArgumentError, 'the secret is shorter than 16 bytes' if secret.bytesize < 16

  OpenSSL::HMAC.hexdigest('SHA256', secret, name)
end

def row(connection, sql, *values)
  connection.exec_params(sql, values).values.first
end

def one(connection, sql, *values)
  row(connection, sql, *values).first
end

def sqlstate(error)
  error.result&.error_field(PG::PG_DIAG_SQLSTATE)
end

# Booleans are the texts t and f.
def wait_until(connection, sql, *values)
  sleep 0.02 until one(connection, sql, *values) == 't'
end

# The driver cancels a call that waits.  The call has not acquired the lock then.
def wait_and_give_up(connection, other, key)
  Thread.new do
    wait_until(other, 'SELECT waiters > 0 FROM lock_status($1)', key)
    connection.cancel
  end
  one(connection, "SELECT lock_acquire($1, wait => '1 min')", key)
  'acquired'
rescue PG::QueryCanceled
  'cancelled'
end

# What happens in a night
def play(dsn)
  work, bob, other = Array.new(3) { PG.connect(dsn) }

  locked(dsn, work, 'import:7', 600, 'nightly import', every: 0.2) do |lock|
    puts "The job has the lock: #{lock.ours? ? 'go on' : 'stop'}"
    first = one(other, "SELECT expires_at FROM lock_status('import:7')")
    wait_until(other, "SELECT expires_at > $1 FROM lock_status('import:7')", first)
    puts 'Its heartbeat: the lease ends later'
    begin
      one(bob, "SELECT lock_acquire('import:7')")
    rescue PG::Error => e
      puts "Bob: #{sqlstate(e)} #{e.result.error_field(PG::PG_DIAG_MESSAGE_PRIMARY)}"
    end
    puts "Bob waits, and gives up: #{wait_and_give_up(bob, other, 'import:7')}"
  end

  begin
    locked(dsn, work, 'import:7', 600, 'nightly import') { one(work, 'SELECT 1 / 0') }
  rescue PG::Error => e
    puts "The work fails: #{sqlstate(e)}"
  end
  puts "Its lock: #{one(other, "SELECT locked FROM lock_status('import:7')") == 't' ? 'held' : 'free'}"

  begin
    locked(dsn, work, 'import:7', 600, 'nightly import', every: 0.2) do
      one(other, "SELECT force_release('import:7', 'it takes too long')")
      one(work, 'SELECT pg_sleep(600)')
    end
  rescue Lost => e
    puts "A DBA ends the lease, and the work is stopped: #{e.message}"
  end

  # Heartbeats that come too late, as after the sleep of a laptop
  take = "SELECT lock_acquire($1, owner => 'bob')"
  drop = "SELECT lock_release($1, 'bob')"
  { 'import:8' => [], 'import:9' => [take], 'import:10' => [take, drop] }.each do |key, meanwhile|
    locked(dsn, work, key, 0.01, 'nightly import', every: 3600) do |lock|
      wait_until(other, 'SELECT NOT locked FROM lock_status($1)', key)
      meanwhile.each { |sql| one(bob, sql, key) }
      puts "Overrun: #{lock.ours? ? 'go on' : 'stop'}"
    end
  rescue Lost => e
    puts "At release: #{e.message}"
  end

  puts "Hidden key: #{hidden_key('0123456789abcdef', 'patient:Müller')}"
  begin
    hidden_key('0123456789abcde', 'patient:Müller')
  rescue ArgumentError => e
    puts "Hidden key: #{e.message}"
  end
end

play(ARGV[0]) if __FILE__ == $PROGRAM_NAME
