#!/usr/bin/perl
# test/harness.pl KIND TALLY FILE... - runs TAP files like prove(1), and maintains the
# file TALLY with three lines: "PASSED FAILED", the failed files, and the unfinished
# files.  A file that died or broke its plan without a failed assertion counts as one
# failure.
#
# KIND tap: Perl files.  KIND pgtap: SQL files, each in a new copy of the
# database al_template on the server that PGHOST and PGUSER name.

use strict;
use warnings;

use File::Basename qw(basename);
use TAP::Harness;

my ($kind, $tally, @files) = @ARGV;
my %options = (
	failures => 1,
	color    => 0,
	timer    => 1,
	jobs     => $ENV{AL_JOBS} || 1,
	lib      => [ 'test/perl', split /:/, $ENV{AL_PERL_LIB} || '' ]);

if ($kind eq 'pgtap')
{
	my @psql = qw(psql --no-psqlrc --no-align --quiet --tuples-only
	  --pset=pager=off --set=ON_ERROR_STOP=1);

	$options{comments} = 1;
	$options{merge}    = 1;
	$options{exec}     = sub {
		my ($harness, $file) = @_;
		my $db = basename($file, '.sql');

		system('createdb', '--template=al_template', $db) == 0
		  or die "could not create database $db\n";
		return [ @psql, "--dbname=$db", "--file=$file" ];
	};
}

my ($passed, $failed, @bad) = (0, 0);
my %unfinished = map { $_ => 1 } @files;

sub write_tally
{
	open(my $fh, '>', "$tally.new") or die "could not write $tally.new: $!\n";
	print $fh "$passed $failed\n@bad\n@{[ sort keys %unfinished ]}\n";
	close $fh;
	rename("$tally.new", $tally) or die "could not write $tally: $!\n";
	return;
}

my $harness = TAP::Harness->new(\%options);
$harness->callback(
	after_test => sub {
		my ($job, $parser) = @_;

		# A file that bails out, as where its server has crashed, has no plan.
		my $is_bad = $parser->has_problems || !defined $parser->plan;

		$passed += $parser->passed;
		$failed += $parser->failed || ($is_bad ? 1 : 0);
		push @bad, $job->[0] if $is_bad;
		delete $unfinished{ $job->[0] };
		write_tally();
	});
write_tally();
exit($harness->runtests(@files)->all_passed ? 0 : 1);
