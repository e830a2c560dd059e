# Libraries and scripts of versions that do not exist, for the TAP tests of updates.
#
# They are made from a copy of the sources of this version, by edits.  The text that an edit
# replaces must occur exactly once.

package AtomicLockNext;

use strict;
use warnings FATAL => 'all';
use Cwd qw(abs_path);
use Exporter 'import';
use File::Basename;
use PostgreSQL::Test::Utils;

our @EXPORT = qw(build_library next_library put_library next_scripts version_of);

my $top = abs_path(dirname(__FILE__) . '/../..');

# change FILE FROM TO: replaces the one match of the pattern FROM in FILE by TO
sub change
{
	my ($file, $from, $to) = @_;
	my $text = slurp_file($file);

	(my $found = () = $text =~ /$from/g) == 1 or die "$file has not one $from";
	$text =~ s{$from}{$to};
	unlink $file or die "$file: $!";
	append_to_file($file, $text);
	return;
}

# The version of the sources
sub version_of
{
	return slurp_file("$top/atomic_lock.control") =~ /^default_version = '(.*)'/m ? $1 : die;
}

sub version
{
	my ($version) = @_;
	return [ 'src/table/catalog.c', qr/#define VERSION "[^"]*"/, qq(#define VERSION "$version") ];
}

# build_library BINDIR VERSION [FILE, FROM, TO]...: a library for the PostgreSQL that has
# its programs in BINDIR.  Object files that need no recompilation come from the build under
# test.  Returns the file.
my $builds = 0;

sub build_library
{
	my ($bin, $version, @edits) = @_;
	my $dir = "$PostgreSQL::Test::Utils::tmp_check/next_" . $$ . '_' . ++$builds;

	mkdir $dir or die "$dir: $!";
	system_or_bail('cp', '-a', (map { "$top/$_" } qw(Makefile atomic_lock.control META.json src sql)), $dir);
	foreach my $edit (version($version), @edits)
	{
		my ($file, @change) = @$edit;

		@change ? change("$dir/$file", @change) : system_or_bail('cp', "$top/test/next/" . basename($file), "$dir/$file");
	}
	local @ENV{qw(MAKEFLAGS MFLAGS MAKELEVEL)} = ('', '', '');
	system_or_bail('make', '-s', '-j2', '-C', $dir, "PG_CONFIG=$bin/pg_config", 'with_llvm=no', 'COPT=' . ($ENV{AL_COPT} // ''), 'all');
	return "$dir/atomic_lock.so";
}

# The library of version 1.1: with a column, a function and a setting
sub next_library
{
	my ($bin) = @_;

	return build_library(
		$bin, '1.1',
		[ 'src/api/note.c' ],
		[ 'src/table/columns.h', qr/(#define Natts_app_lock\s+)15/, "#define Anum_app_lock_note\t\t\t\t16\n#define Natts_app_lock\t\t\t\t\t16" ],
		[ 'src/table/catalog.c', qr/(?=\};\n\nstatic const ColumnDefinition lock_audit_columns)/, qq(\t{"note", TEXTOID, InvalidOid},\n) ],
		[ 'src/table/row.c', qr/(?=\twhile \(nulls\[natts - 1\]\))/, "\tVALUE(note) = PointerGetDatum(cstring_to_text(al_note));\n\tIS_NULL(note) = al_note[0] == 0;\n" ],
		# Not in base/settings.h, since nearly all files would be compiled again
		[ 'src/table/row.c', qr/(?<=#include "table\/row.h"\n)/, "\nextern char *al_note;\n" ],
		[ 'src/base/settings.c', qr/(?=\tMarkGUCPrefixReserved)/,
			qq(\tDefineCustomStringVariable("atomic_lock.note", "Sets the note of what is locked.", NULL, &al_note, "", PGC_USERSET, 0, NULL, NULL, NULL);\n) ],
		[ 'src/base/settings.c', qr/(?=\nvoid\nal_settings_init)/, "\nchar *al_note;\n" ]);
}

# put_library FILE PKGLIBDIR: installs a library as a package manager does, so that a process that has loaded
# the former one keeps it
sub put_library
{
	my ($file, $lib) = @_;

	system_or_bail('cp', $file, "$lib/atomic_lock.so.new");
	rename "$lib/atomic_lock.so.new", "$lib/atomic_lock.so" or die "$lib/atomic_lock.so: $!";
	return;
}

# The other files of the package of version 1.1: control file, update script, install script
sub next_scripts
{
	my ($share) = @_;
	my $dir = "$share/extension";
	my $update = slurp_file("$top/test/next/atomic_lock--1.0--1.1.sql");
	my ($begin) = $update =~ /^(ALTER TABLE.*?)^DO /ms;
	my ($first) = slurp_file("$top/sql/atomic_lock--1.0.sql") =~ /^(DO .*?^\$\$;\n\n)/ms;

	system_or_bail('cp', "$top/test/next/atomic_lock--1.0--1.1.sql", $dir);
	change("$dir/atomic_lock--1.0--1.1.sql", qr/(?=^SELECT app_lock_begin_script)/m, $first);
	change("$dir/atomic_lock.control", qr/default_version = '[^']*'/, "default_version = '1.1'");
	system_or_bail('cp', "$top/sql/atomic_lock--1.0.sql", "$dir/atomic_lock--1.1.sql");
	change("$dir/atomic_lock--1.1.sql", qr/'lock_leave'\]/, "'lock_leave', 'lock_note']");
	change("$dir/atomic_lock--1.1.sql", qr/(?=^CREATE FUNCTION lock_grant_access)/m, $begin =~ s/-- The new function.*//sr);
	return;
}

1;
