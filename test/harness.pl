#!/usr/bin/perl
# test/harness.pl KIND TALLY FILE... - runs TAP files like prove(1), and writes
# "PASSED FAILED BAD-FILE..." to the file TALLY, where a file that died or broke
# its plan without a failed assertion counts as one failure.
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
	lib      => [ split /:/, $ENV{AL_PERL_LIB} || '' ]);

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

my $result = TAP::Harness->new(\%options)->runtests(@files);

# Files that died without a failed assertion to show for it count, too
my $died = grep { $_->has_problems && !$_->failed } $result->parsers($result->descriptions);
my @bad  = grep { ($result->parsers($_))[0]->has_problems } $result->descriptions;

open(my $fh, '>', $tally) or die "could not write $tally: $!\n";
print $fh join(' ', scalar $result->passed, $result->failed + $died, @bad), "\n";
close $fh;

exit($result->all_passed ? 0 : 1);
