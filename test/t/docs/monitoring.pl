# The files of doc/monitoring work.
#
# Properties: sql_exporter accepts the collector; its queries run as a
# role with level monitor alone, on a primary and on a standby; without
# shared memory they fail one by one, with 55000; each query gives the columns that its
# metrics name, numbers as values, and no two rows with the same labels;
# counters are those of lock_stats for this database, gauges show the present state.
# Alerts and dashboard use metrics and labels that are defined, and name
# functions and views that exist.  The SQL of the README runs, and the README has a
# section for every alert.
#
# Turns red when: a column of a view is renamed; a view asks for more than
# level monitor; counters of another database are mixed in, or a database that
# was not used yet has none; a metric is renamed in one of the files only.
use strict;
use warnings FATAL => 'all';
use CPAN::Meta::YAML;
use JSON::PP ();
use AtomicLockClock;
use AtomicLockTest;
use AtomicLockWait;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Scalar::Util qw(looks_like_number);
use Test::More;
use Time::HiRes ();

my $clock = make_clock() or plan skip_all => 'needs a C compiler';

my $dir = 'doc/monitoring';
my $readme = slurp_file("$dir/README.md");

sub yaml
{
	my ($file) = @_;
	my $text = slurp_file("$dir/$file");
	my $parsed = CPAN::Meta::YAML->read_string($text)
	  or die "$file: " . CPAN::Meta::YAML->errstr;

	unlike($text, qr/\t/, "$file has no tabs");
	is(scalar @$parsed, 1, "$file is one document");
	return $parsed->[0];
}

# Names of metrics in a text
sub metrics_in
{
	my ($text) = @_;
	return $text =~ /\b(atomic_lock_[a-z_]+)/g;
}

###############################################################################
# The collector, by the rules of sql_exporter
###############################################################################

my $collector = yaml('atomic_lock.collector.yml');
my (%metrics, %queries, %query_metrics);

is_deeply([ sort keys %$collector ], [ 'collector_name', 'metrics', 'queries' ],
	'the collector has fields that sql_exporter knows');
foreach my $query (@{ $collector->{queries} })
{
	my $name = $query->{query_name};

	is_deeply([ sort keys %$query ], [ 'query', 'query_name' ], "query $name has fields that are known");
	ok(!$queries{$name}, "query $name is defined once");
	$queries{$name} = $query->{query};
}
foreach my $metric (@{ $collector->{metrics} })
{
	my $name = $metric->{metric_name};
	my @labels = @{ $metric->{key_labels} };
	my @problems;

	push @problems, 'defined twice' if $metrics{$name};
	push @problems, 'a name of its own kind' if $name !~ /^atomic_lock_[a-z]+(_[a-z]+)*$/;
	push @problems, "field $_"
	  foreach grep { !/^(metric_name|type|help|key_labels|value_label|values|query_ref)$/ } keys %$metric;
	push @problems, "type $metric->{type}" if $metric->{type} !~ /^(counter|gauge)$/;
	push @problems, 'a counter is called _total, and nothing else is'
	  if ($metric->{type} eq 'counter') != ($name =~ /_total$/);
	push @problems, 'no help' if ($metric->{help} || '') eq '';
	push @problems, 'no query' if !$queries{ $metric->{query_ref} };
	push @problems, 'no values' if !@{ $metric->{values} };
	push @problems, 'a value_label exactly where there are several values'
	  if (@{ $metric->{values} } > 1) != defined $metric->{value_label};
	push @labels, $metric->{value_label} if defined $metric->{value_label};
	push @problems, 'no label database' if !grep { $_ eq 'database' } @labels;
	push @problems, 'a reserved label' if grep { /^(job|target|instance)$/ } @labels;
	is(join('; ', @problems), '', "metric $name");

	$metrics{$name} = { %$metric, labels => \@labels };
	push @{ $query_metrics{ $metric->{query_ref} } }, $metrics{$name};
}
is_deeply([ sort keys %query_metrics ], [ sort keys %queries ], 'each query is used');

# sample(NODE, DATABASE): the output for the exporter, as a hash of series: each
# is a metric with its labels, and has a value.  Columns are checked; queries that fail
# are in "failed", with their SQLSTATE.
sub sample
{
	my ($node, $database) = @_;
	my (%series, %failed, @problems);

	foreach my $name (sort keys %queries)
	{
		my ($stdout, $stderr);

		# The exporter prepares its queries, too.
		$node->psql(
			$database,
			"PREPARE metrics AS SELECT row_to_json(q) FROM ($queries{$name}) AS q; EXECUTE metrics",
			stdout => \$stdout,
			stderr => \$stderr,
			extra_params => [ '-U', 'lock_monitor', '-v', 'VERBOSITY=verbose' ]);
		if ($stderr =~ /ERROR:  (\w{5}): (.*)/)
		{
			$failed{$name} = $1;
			note "$name: $2";
			next;
		}
		push @problems, "$name: $stderr" if $stderr ne '';
		foreach my $row (map { JSON::PP->new->decode($_) } split(/\n/, $stdout))
		{
			foreach my $metric (@{ $query_metrics{$name} })
			{
				my %labels = map { $_ => $row->{$_} } @{ $metric->{key_labels} };

				push @problems, map { "$metric->{metric_name} has no label $_" } grep { !defined $labels{$_} } keys %labels;
				push @problems, "$metric->{metric_name} is of database $labels{database}" if $labels{database} ne $database;
				foreach my $value (@{ $metric->{values} })
				{
					my $id;

					$labels{ $metric->{value_label} } = $value if defined $metric->{value_label};
					$id = "$metric->{metric_name}\{"
					  . join(',', map { qq($_="$labels{$_}") } grep { $_ ne 'database' } sort keys %labels) . '}';
					$id =~ s/\{\}$//;
					push @problems, "$metric->{metric_name} has no column $value" if !exists $row->{$value};
					# The exporter omits NULL.
					next if !defined $row->{$value};
					push @problems, "$id is $row->{$value}"
					  if ref $row->{$value} || !looks_like_number($row->{$value}) || $row->{$value} < 0;
					push @problems, "$id comes twice" if exists $series{$id};
					$series{$id} = $row->{$value};
				}
			}
		}
	}
	is(join("\n", @problems), '', "columns and values in database $database of " . $node->name);
	$series{failed} = \%failed;
	return \%series;
}

###############################################################################
# The configuration of Debian's exporter, another program: it gives the same
# series, after Prometheus has followed the rules in the README
###############################################################################

my $debian = yaml('prometheus-sql-exporter.yml');
my ($rules) = $readme =~ /^ *metric_relabel_configs:\n(.*?)^```$/ms;
my ($from, $to) = $rules =~ /regex: '(.*?;.*?)'\n.*replacement: '(.*?)'/s;
is($to =~ s/\$1/x/r, 'atomic_lock_x', 'the README renames the series of that exporter');
like($rules, qr/regex: col\n *action: labeldrop\n/, '... and drops a label that would keep series apart');

# by_debian(LINE...): the series of its metrics page, without the labels of the
# connection
sub by_debian
{
	my %series;

	foreach (@_)
	{
		my ($name, $labels, $value) = /^(sql_atomic_lock\w*)\{(.*)\} (\S+)$/ or next;
		my %labels = $labels =~ /(\w+)="((?:[^"\\]|\\.)*)"/g;

		delete @labels{ 'driver', 'host', 'database', 'user', 'sql_job' };
		$name = "$name;" . delete $labels{col};
		$name = $name =~ s/^$from$/atomic_lock_$1/r;
		$name .= "\{" . join(',', map { qq($_="$labels{$_}") } sort keys %labels) . '}' if %labels;
		$series{$name} = $value;
	}
	return \%series;
}

# Lines of that page, as the exporter makes them
sub debian_page
{
	my ($node, $database) = @_;
	my @lines;

	foreach my $query (map { @{ $_->{queries} } } @{ $debian->{jobs} })
	{
		my $rows = $node->safe_psql($database, "SELECT row_to_json(q) FROM ($query->{query}) AS q", extra_params => [ '-U', 'lock_monitor' ]);

		foreach my $row (map { JSON::PP->new->decode($_) } split(/\n/, $rows))
		{
			my @labels = map { qq($_="$row->{$_}") } @{ $query->{labels} || [] };

			push @lines, "sql_$query->{name}\{" . join(',', qq(col="$_"), qq(database="$database"), @labels) . "} $row->{$_}" foreach @{ $query->{values} };
		}
	}
	return @lines;
}

# Series of both exporters are the same, and so are values that do not depend on time.
sub same_series
{
	my ($one, $other, $name) = @_;

	is_deeply([ sort keys %$other ], [ sort grep { $_ ne 'failed' } keys %$one ], "$name: the same series");
	is(join(', ', grep { $one->{$_} != $other->{$_} } grep { exists $other->{$_} && !/age_seconds|current_wait/ } sort keys %$one), '', '... with the same values');
	return;
}

###############################################################################
# A primary with a value for every gauge
###############################################################################

my $primary = PostgreSQL::Test::Cluster->new('primary');
$primary->init(allows_streaming => 1);
$primary->append_conf('postgresql.conf',
	"autovacuum = off\nshared_preload_libraries = 'atomic_lock'\natomic_lock.sweep_interval = 0\n");
start_with_clock($primary, $clock);
$primary->safe_psql('postgres', "CREATE DATABASE $_") foreach ('orders', 'other', 'fresh');
$primary->safe_psql($_, 'CREATE EXTENSION atomic_lock') foreach ('orders', 'other', 'fresh');

# The role is made as the README says.
my @blocks = map { { sql => $_->[0], line => $_->[1] } } do
{
	my @found;

	while ($readme =~ /^([ ]*)```sql\n(.*?)^\1```$/gms)
	{
		push @found, [ $2, 1 + (substr($readme, 0, $-[2]) =~ tr/\n//) ];
	}
	@found;
};
my ($setup, @more) = grep { $_->{sql} =~ /CREATE ROLE/ } @blocks;
is(scalar @more, 0, 'the README makes one role');
$primary->safe_psql('orders', $setup->{sql});
$primary->safe_psql($_, q{SELECT lock_grant_access('lock_monitor', 'monitor')}) foreach ('other', 'fresh');
is( $primary->safe_psql('orders',
		q{SELECT rolsuper, (SELECT count(*) FROM pg_auth_members WHERE member = r.oid),
			has_table_privilege(r.oid, 'app_lock', 'SELECT'), has_function_privilege(r.oid, 'lock_sweep(bigint)', 'EXECUTE')
			FROM pg_roles r WHERE rolname = 'lock_monitor'}),
	'f|0|f|f', 'it may monitor and nothing else');

my $watch = session($primary, 'Watch', 'orders');
my $waiter = session($primary, 'Waiter', 'orders');
my $holder = session($primary, 'Holder', 'orders');

# Before the first lock, all metrics are there, and 0.
my $zero = sample($primary, 'fresh');
is_deeply($zero->{failed}, {}, 'all queries answer if nothing was locked yet');
is( join(', ', map { "$_ $zero->{$_}" }
		grep { $_ ne 'failed' && $zero->{$_} != 0 } sort keys %$zero),
	'', '... with 0');
is( join(', ', grep { !exists $zero->{$_} && !/contended|last_sweep/ }
		grep { !defined $metrics{$_}{value_label} } sort keys %metrics),
	'', '... for every metric');

# Two leases, one of them old; a lock with lifetime session, one with lifetime
# transaction, and a lock that two owners share
ask($holder, $_) foreach (
	q{SELECT lock_acquire('waited', '1 hour', 'h')},
	q{SELECT lock_acquire('plain', '1 hour', 'h')},
	q{SELECT lock_acquire('plain', '1 hour', 'h')},
	q{SELECT lock_extend('plain', 'h')},
	q{SELECT lock_acquire('session', owner => 'h', lifetime => 'session')},
	q{SELECT lock_acquire('catalog', owner => 'a', mode => 'shared')},
	q{SELECT lock_acquire('catalog', owner => 'b', mode => 'shared')},
	q{SELECT lock_acquire('released', owner => 'h')},
	q{SELECT lock_release('released', 'h')},
	q{SELECT lock_acquire('forced', owner => 'h')},
	q{SELECT force_release('forced', 'test')},
	q{SELECT lock_acquire('stolen', owner => 'h')},
	q{SELECT lock_steal('stolen', 'thief', 'test')},
	q{SELECT lock_acquire('expired', '1 ms', 'h')});
poll($watch, q{SELECT NOT locked FROM lock_status('expired')});
ask($watch, q{SELECT lock_acquire('expired', '1 ms', 'again')});
ask($watch, q{SELECT lock_try_acquire('waited', wait => '1 ms')});
# Refusals: twelve keys once, and two whose first 100 letters are the same, more often
ask($holder, q{SELECT count(lock_acquire('busy:' || n, '1 hour', 'h')) FROM generate_series(1, 12) AS n});
ask($holder, qq{SELECT count(lock_acquire(repeat('x', 110) || n, '1 hour', 'h')) FROM generate_series(1, 2) AS n});
ask($watch, q{SELECT count(lock_try_acquire('busy:' || n, owner => 'w')) FROM generate_series(1, 12) AS n});
ask($watch, q{SELECT count(lock_try_acquire(repeat('x', 110) || n, owner => 'w')) FROM generate_series(1, 2) AS n, generate_series(1, 3)}) foreach (1 .. 3);
ask($holder, q{BEGIN; SELECT lock_acquire('transaction', lifetime => 'transaction')});
poll($watch, q{SELECT NOT locked FROM lock_status('expired')});
# Locks of another database must not be counted.
$primary->safe_psql('other', q{SELECT lock_acquire('one', owner => 'o'), lock_acquire('two', owner => 'o')});

# Three tickets, two of them for one key
ask($watch, q{SELECT count(lock_enqueue(key, 'in line ' || n)) FROM (VALUES ('plain', 1), ('plain', 2), ('session', 1)) AS v (key, n)});

# A waiter waits for a lease that is hours old and about to end; the clock stands then.
queue_up($watch, $waiter, q{SELECT status FROM lock_acquire('waited', owner => 'waiter', wait => '4 min')});
ask($watch, q{UPDATE app_lock SET acquired_at = acquired_at - interval '2 hours' WHERE key = 'waited'});
my $quiet = sample($primary, 'orders');
is($quiet->{atomic_lock_leases_ending_with_waiters}, 0, 'a lease with an hour left does not end soon');
freeze_clock($clock, int(1_000_000 * Time::HiRes::time()));
ask($watch, q{SELECT lock_extend('waited', 'h', '29 s')});
my $now = sample($primary, 'orders');
my $stats = JSON::PP->new->decode(ask($watch,
	q{SELECT row_to_json(s) FROM (SELECT *, extract(epoch FROM total_wait) AS wait_seconds FROM lock_stats) AS s WHERE database = 'orders'}));

is_deeply($now->{failed}, {}, 'all queries answer');
same_series($now, by_debian(debian_page($primary, 'orders')), "Debian's exporter");
SKIP:
{
	my $port = PostgreSQL::Test::Cluster::get_free_port();
	my $config = "$PostgreSQL::Test::Utils::tmp_check/prometheus-sql-exporter.yml";
	my ($run, $page, $output);

	skip 'prometheus-sql-exporter is not installed', 2 if system('command -v prometheus-sql-exporter >/dev/null');
	append_to_file($config, slurp_file("$dir/prometheus-sql-exporter.yml")
		=~ s{( *- )'postgres://[^']*'\n *- 'postgres://[^']*'}{"$1'postgres://lock_monitor@/orders?host=" . $primary->host . '&port=' . $primary->port . "&sslmode=disable'"}er);
	$run = IPC::Run::start([ 'prometheus-sql-exporter', '-config.file', $config, '-web.listen-address', "127.0.0.1:$port" ], '>&', \$output);
	foreach (1 .. 10 * $PostgreSQL::Test::Utils::timeout_default)
	{
		($page) = run_command([ 'curl', '-s', "http://127.0.0.1:$port/metrics" ]);
		last if keys %{ by_debian(split /\n/, $page) } >= keys(%$now) - 1;
		select undef, undef, undef, 0.1;
	}
	$run->kill_kill;
	same_series($now, by_debian(split /\n/, $page), "Debian's exporter, itself") or diag($output);
}
ask($watch, q{SELECT lock_extend('waited', 'h', '1 hour')});
set_clock($clock, 0);
is($now->{atomic_lock_in_recovery}, 0, 'it is a primary');
# waited, plain, session, stolen, 12 + 2 busy ones, transaction
is($now->{'atomic_lock_locks_held{mode="exclusive"}'}, 19, 'exclusive holdings');
is($now->{'atomic_lock_locks_held{mode="shared"}'}, 2, 'shared holdings');
cmp_ok($now->{atomic_lock_oldest_lease_age_seconds}, '>=', 7200, 'the oldest lease is hours old');
cmp_ok($now->{atomic_lock_oldest_lease_age_seconds}, '<', 7200 + 3600, '... and not older');
is($now->{atomic_lock_leases_ending_with_waiters}, 1, 'one lease with waiters ends soon');
is($now->{atomic_lock_waiters}, 1, 'one session waits');
cmp_ok($now->{atomic_lock_longest_current_wait_seconds}, '>', 0, '... for some time');
is($now->{atomic_lock_places_in_line}, 3, 'three tickets are in line');
is($now->{atomic_lock_longest_line}, 2, '... two of them for one key');
is($now->{atomic_lock_sweeper_running}, 0, 'the sweeper does not run');
ok(!exists $now->{atomic_lock_last_sweep_age_seconds}, '... and there was no sweep');

foreach my $name (grep { $metrics{$_}{type} eq 'counter' } sort keys %metrics)
{
	my ($column) = $name =~ /^atomic_lock_(.*)_total$/;
	cmp_ok($now->{$name}, '==', $stats->{$column}, "$name is the value of lock_stats");
}
foreach my $column (grep { looks_like_number($stats->{$_}) } sort keys %$stats)
{
	ok($metrics{"atomic_lock_${column}_total"}, "column $column of lock_stats is a metric");
}
foreach my $name (qw(grants regrants refusals timeouts releases extends expirations steals forced waits wait_seconds))
{
	cmp_ok($now->{"atomic_lock_${name}_total"}, '>', 0, "$name are counted");
}
cmp_ok($now->{atomic_lock_longest_wait_seconds}, '>=', 0.001, 'the longest wait was at least as long as requested');
cmp_ok($now->{atomic_lock_longest_wait_seconds}, '<=', $now->{atomic_lock_wait_seconds_total} + 0.001, '... and not longer than the sum of all waits');

my @contended = grep { /^atomic_lock_contended_key_refusals/ } keys %$now;
cmp_ok(scalar @contended, '<=', 10, 'at most ten keys are shown');
cmp_ok(scalar @contended, '>=', 9, '... and at least nine');
is($now->{ 'atomic_lock_contended_key_refusals{key="' . 'x' x 100 . '"}' }, 18, 'keys with the same first 100 letters are one');

my $other = sample($primary, 'other');
is($other->{'atomic_lock_locks_held{mode="exclusive"}'}, 2, 'another database has locks of its own');
is($other->{atomic_lock_grants_total}, 2, '... and counters');
is($other->{atomic_lock_waiters}, 0, '... and no waiter');

# A sweep by hand, then the worker
ask($watch, 'SELECT lock_sweep()');
$now = sample($primary, 'orders');
is($now->{atomic_lock_sweeps_total}, 1, 'a sweep is counted');
cmp_ok($now->{atomic_lock_swept_total}, '>=', 1, '... and so are the rows that it removed');
cmp_ok($now->{atomic_lock_last_sweep_age_seconds}, '<', 600, '... and the sweep was not long ago');
is($now->{atomic_lock_sweeper_running}, 0, 'the background sweeper still does not run');
$primary->append_conf('postgresql.conf', "atomic_lock.sweep_interval = 1s\n");
$primary->reload;
poll($watch, q{SELECT sweeps > 1 FROM lock_stats WHERE database = 'orders'});
$now = sample($primary, 'orders');
is($now->{atomic_lock_sweeper_running}, 1, 'now the sweeper runs');
cmp_ok($now->{atomic_lock_sweeps_total}, '>', 1, '... and its sweeps are counted, too');

###############################################################################
# The SQL of the README
###############################################################################

foreach my $block (grep { $_ != $setup } @blocks)
{
	my $stderr;

	$primary->psql('orders', $block->{sql}, stderr => \$stderr, on_error_stop => 0);
	is($stderr, '', "the SQL at README.md:$block->{line}");
	# The role of the exporter can run all SQL that changes nothing, too.
	next if $block->{sql} =~ /lock_sweep\(/;
	$primary->psql('orders', $block->{sql},
		stderr => \$stderr, on_error_stop => 0, extra_params => [ '-U', 'lock_monitor' ]);
	is($stderr, '', "the SQL at README.md:$block->{line}, as a monitor");
}
cmp_ok(scalar @blocks, '>', 4, 'the README has SQL');

# Functions and views that the files name
my %names = map { $_ => 1 }
  map { slurp_file("$dir/$_") =~ /\b((?:lock|force)_[a-z_]+)\b/g } ('README.md', 'alerts.yml');
delete $names{$_} foreach ('lock_monitor');
foreach my $name (sort keys %names)
{
	is( ask($watch,
			qq{SELECT EXISTS (SELECT FROM pg_proc WHERE proname = '$name') OR to_regclass('$name') IS NOT NULL}),
		't', "there is $name");
}

###############################################################################
# A standby, before and after its promotion
###############################################################################

ask($holder, 'COMMIT');
$primary->backup('backup');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($primary, 'backup', has_streaming => 1);
$standby->start;
$primary->wait_for_catchup($standby);
my $copy = sample($standby, 'orders');
is_deeply($copy->{failed}, {}, 'all queries answer on a standby');
same_series($copy, by_debian(debian_page($standby, 'orders')), "Debian's exporter");
delete $copy->{failed};
is_deeply($copy, { atomic_lock_in_recovery => 1 }, '... with the one metric that says that it is a standby');

ask($holder, q{SELECT lock_try_release('waited', 'h')});
is(answer($waiter), 'acquired', 'the waiter gets the lock in the end');
end($holder, $waiter, $watch);
$primary->stop;
$standby->promote;
$standby->safe_psql('orders', q{SELECT lock_acquire('promoted', owner => 'p')});
$copy = sample($standby, 'orders');
is_deeply($copy->{failed}, {}, 'all queries answer after promotion');
is($copy->{atomic_lock_in_recovery}, 0, 'it is a primary');
cmp_ok($copy->{'atomic_lock_locks_held{mode="exclusive"}'}, '>=', 15, 'leases are held');
is($copy->{atomic_lock_grants_total}, 1, 'one was granted here');
$standby->stop;

###############################################################################
# Without preload
###############################################################################

$primary->append_conf('postgresql.conf', "shared_preload_libraries = ''\n");
$primary->start;
my $bare = sample($primary, 'orders');
is_deeply(
	$bare->{failed},
	$primary->pg_version < 17
	? { map { $_ => '55000' } qw(atomic_lock_counters atomic_lock_keys atomic_lock_queue) }
	: {},
	'without preload, only queries that need shared memory fail');
is($bare->{atomic_lock_in_recovery}, 0, '... and the others answer');
cmp_ok($bare->{'atomic_lock_locks_held{mode="exclusive"}'}, '>=', 15, '... with the locks that are held');
is($bare->{atomic_lock_sweeper_running}, 0, '... and no sweeper');
$primary->stop;

###############################################################################
# Alerts
###############################################################################

# Expressions use only defined metrics, and only labels of these metrics.
sub expression_ok
{
	my ($expr, $what) = @_;
	my %known = map { $_ => 1 } 'target', 'database';
	my @problems = map { "no metric $_" } grep { !$metrics{$_} } metrics_in($expr);
	my $depth = 0;

	push @problems, 'no metric at all' if !metrics_in($expr);
	foreach my $name (grep { $metrics{$_} } metrics_in($expr))
	{
		$known{$_} = 1 foreach @{ $metrics{$name}{labels} };
		push @problems, "$name is no counter" if $expr =~ /\b(rate|increase)\($name\b/ && $metrics{$name}{type} ne 'counter';
		push @problems, "$name is a counter" if $expr !~ /\b(rate|increase)\($name\b/ && $metrics{$name}{type} eq 'counter'
		  && $expr !~ /$name offset|unless $name/;
	}
	push @problems, map { "no label $_" } grep { !$known{$_} }
	  ((map { split(/,\s*/) } $expr =~ /\b(?:by|on) \(([^)]*)\)/g), (map { /(\w+)(?==~?")/g } $expr =~ /\{([^}]*)\}/g));
	foreach my $char ($expr =~ /[()]/g)
	{
		$depth += $char eq '(' ? 1 : -1;
		push @problems, 'parentheses' if $depth < 0;
	}
	push @problems, 'parentheses' if $depth;
	is(join('; ', @problems), '', $what);
	return \%known;
}

my $alerts = yaml('alerts.yml');
my %seen;

is_deeply([ keys %$alerts ], ['groups'], 'alerts are in groups');
foreach my $rule (map { @{ $_->{rules} } } @{ $alerts->{groups} })
{
	my $name = $rule->{alert};
	my $known = expression_ok($rule->{expr}, "expression of alert $name");
	my $text = join(' ', values %{ $rule->{annotations} });

	is(join(' ', grep { !/^(alert|expr|for|labels|annotations)$/ } keys %$rule), '', "fields of alert $name");
	is_deeply([ sort keys %{ $rule->{annotations} } ], [ 'description', 'summary' ], "annotations of alert $name");
	like($rule->{labels}{severity}, qr/^(warning|critical)$/, "severity of alert $name");
	like($rule->{for}, qr/^\d+[smh]$/, "duration of alert $name") if exists $rule->{for};
	is(join(' ', grep { !$known->{$_} } $text =~ /\$labels\.(\w+)/g), '', "labels in the text of alert $name");
	like($rule->{annotations}{summary}, qr/\$labels\.database/, "alert $name says which database");
	cmp_ok(length $rule->{annotations}{description}, '>', 100, "alert $name says what to do");
	like($readme, qr/^### $name$/m, "the README has alert $name");
	ok(!$seen{$name}++, "alert $name is defined once");
}
is_deeply([ sort $readme =~ /^### (\w+)$/mg ], [ sort keys %seen ], '... and no other alert');
is(join(' ', grep { !/_$/ && !$metrics{$_} } metrics_in($readme)), '', 'the README names only metrics that exist');

###############################################################################
# Dashboard
###############################################################################

my $dashboard = JSON::PP->new->utf8->decode(slurp_file("$dir/grafana.json"));
my %variables = map { $_->{name} => $_ } @{ $dashboard->{templating}{list} };
my (%used, %ids, %cells);

cmp_ok($dashboard->{schemaVersion}, '>=', 38, 'the dashboard is one of Grafana 10 or newer');
is($variables{datasource}{type}, 'datasource', 'the data source is a variable');
foreach my $name (grep { $variables{$_}{type} eq 'query' } sort keys %variables)
{
	expression_ok($variables{$name}{query}{query} =~ s/^label_values\((.*), (\w+)\)$/sum by ($2) ($1)/r,
		"the query of variable $name");
	is($variables{$name}{datasource}{uid}, '${datasource}', "variable $name asks the data source that is chosen");
}
ok($variables{database}, 'the database is one');
foreach my $panel (@{ $dashboard->{panels} })
{
	my $title = $panel->{title};
	my $at = $panel->{gridPos};
	my %refs;

	ok(!$ids{ $panel->{id} }++, "panel \"$title\" has an id of its own");
	like($panel->{type}, qr/^(stat|timeseries|table)$/, "panel \"$title\" is of a type that Grafana has");
	cmp_ok($at->{x} + $at->{w}, '<=', 24, "panel \"$title\" is within the page");
	foreach my $cell (map { my $x = $_; map { "$x $_" } $at->{y} .. $at->{y} + $at->{h} - 1 } $at->{x} .. $at->{x} + $at->{w} - 1)
	{
		fail("panels \"$title\" and \"$cells{$cell}\" overlap"), last if $cells{$cell};
		$cells{$cell} = $title;
	}
	cmp_ok(scalar @{ $panel->{targets} }, '>', 0, "panel \"$title\" shows something");
	foreach my $target (@{ $panel->{targets} })
	{
		my $known = expression_ok($target->{expr}, "expression $target->{refId} of panel \"$title\"");
		my @variables = $target->{expr} =~ /\$(\w+)/g;

		ok(!$refs{ $target->{refId} }++, "expression $target->{refId} of panel \"$title\" is named once");
		is($target->{datasource}{uid}, '${datasource}', "it asks the data source that is chosen");
		is(join(' ', grep { !$variables{$_} && $_ ne '__rate_interval' } @variables), '', 'its variables are there');
		is(scalar(grep { $_ eq 'database' } @variables), scalar(my @all = metrics_in($target->{expr})),
			'each of its metrics is of the database chosen');
		# Labels that are not in "by" are lost.
		foreach my $label ($target->{legendFormat} =~ /\{\{(\w+)\}\}/g)
		{
			like($target->{expr}, qr/\bby \([^)]*\b$label\b/, "its legend has label $label");
		}
		$used{$_} = 1 foreach metrics_in($target->{expr});
	}
}
is(join(' ', grep { !$used{$_} } sort keys %metrics), '', 'each metric is shown');

done_testing();
