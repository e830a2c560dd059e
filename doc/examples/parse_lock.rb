# Locks as Parse::Lock has them, with atomic_lock on ruby-pg: a block with a deadline, a
# key that does not show its name, an error in case of doubt, and a warning if the block
# ran longer than its lock
#
# ruby parse_lock.rb 'host=... dbname=...' shows it.  The database needs the extension and
# the role of setup.sql.  The block gets the fencing token, which a store can check.

require 'openssl'
require 'pg'
require 'securerandom'

class ParseLock
  class TimeoutError < StandardError; end

  def initialize(dsn, secret)
    raise ArgumentError, 'the secret is shorter than 16 bytes' if secret.bytesize < 16

    @dsn = dsn
    @secret = secret
  end

  # All hosts with the same secret are one owner of this key.  A host with another secret
  # cannot acquire the key, and must not start, since its locks would exclude nobody.  The
  # call waits, since others may not have committed yet.  Repeat it before the lease
  # expires.  SHA512, since SHA256 makes the keys, which are visible.
  def same_secret!(host, ttl: 86_400, wait: 5)
    owner = OpenSSL::HMAC.hexdigest('SHA512', @secret, 'owner')
    acquired, status, holder = PG.connect(@dsn) { |db| row(db, <<~SQL, owner, "#{ttl} s", host, "#{wait} s") }
      SELECT acquired, status, holder FROM lock_try_acquire('parse-lock:secret', owner => $1,
        ttl => $2::interval, holder => $3, wait => $4::interval)
    SQL
    raise SecurityError, "it cannot prove that it has the secret of #{holder || 'another host'}" if acquired != 't'

    status
  end

  # Never calls the block without the lock: an error of the database is an error here.
  def acquire(name, ttl: 3, wait: 2)
    db = PG.connect(@dsn)
    key = "parse-lock:#{hidden(name)}"
    owner = SecureRandom.uuid
    token = begin
      row(db, <<~SQL, key, "#{ttl.clamp(0.001, 30)} s", owner, "#{wait.clamp(0, 30)} s").first
        SELECT fencing_token FROM lock_acquire($1, $2::interval, $3, wait => $4::interval)
      SQL
    rescue PG::LockNotAvailable
      raise TimeoutError, "could not acquire #{name} within #{wait} s"
    end
    begin
      yield Integer(token)
    ensure
      answer = row(db, 'SELECT lock_try_release($1, $2)', key, owner).first
      warn "[ParseLock] #{name} ran longer than its ttl of #{ttl} s: #{answer}" if answer != 'released'
    end
  ensure
    db&.close
  end

  private

  def hidden(name)
    OpenSSL::HMAC.hexdigest('SHA256', @secret, name)
  end

  def row(db, sql, *values)
    db.exec_params(sql, values).values.first
  end
end

# What happens on two hosts
$stderr = $stdout
dsn, = ARGV
locks = ParseLock.new(dsn, 'the secret of all hosts')
PG.connect(dsn) do |db|
  db.exec("BEGIN; SELECT lock_acquire('parse-lock:secret', holder => 'host 2')") # like a host that starts at the same time
  locks.same_secret!('host 1', wait: 0.01)
rescue SecurityError => e
  puts "Host 1 does not start yet: #{e.message}"
end
puts "Host 1 starts: #{locks.same_secret!('host 1')}"
puts "Host 2 starts: #{ParseLock.new(dsn, 'the secret of all hosts').same_secret!('host 2')}"
begin
  ParseLock.new(dsn, 'the secret of host 3').same_secret!('host 3', wait: 0)
rescue SecurityError => e
  puts "Host 3 does not start: #{e.message}"
end
begin
  ParseLock.new(dsn, 'secret')
rescue ArgumentError => e
  puts "Host 4 does not start: #{e.message}"
end

locks.acquire('cron:nightly-rollup', ttl: 30) do |token|
  puts "The block has its token: #{token.positive?}"
  begin
    locks.acquire('cron:nightly-rollup', wait: 0) { puts 'two at a time' }
  rescue ParseLock::TimeoutError => e
    puts "Another worker: #{e.message}"
  end
end

db = PG.connect(dsn)
locks.acquire('import:7', ttl: 0.01) do
  sleep 0.02 while db.exec_params('SELECT locked FROM lock_status($1)', ["parse-lock:#{locks.send(:hidden, 'import:7')}"]).getvalue(0, 0) == 't'
end
begin
  ParseLock.new('dbname=there_is_none', 'the secret of all hosts').acquire('import:7') { puts 'without a lock' }
rescue PG::ConnectionBad
  puts 'Without the database: the block is not called'
end
