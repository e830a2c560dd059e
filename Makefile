# atomic_lock: offline locks for PostgreSQL 15 and newer
#
#   make && sudo make install    for the PostgreSQL whose pg_config is in PATH
#   make installcheck            tests of the installed extension
#   make demo, make test         install what they need, and touch no server of yours

EXTENSION = atomic_lock
EXTVERSION = $(shell sed -n "s/^default_version *= *'\(.*\)'.*/\1/p" atomic_lock.control)
DISTVERSION = $(shell sed -n 's/^   "version": "\(.*\)",/\1/p' META.json)

MODULE_big = atomic_lock
PGFILEDESC = "atomic_lock - offline locks with leases, owners and fencing tokens"
OBJS := $(patsubst %.c,%.o,$(sort $(wildcard src/*.c src/*/*.c)))
PG_CPPFLAGS = -Isrc
# In test builds, a backend can be stopped at each call that other sessions may see.
ifneq ($(findstring AL_TEST_HOOKS,$(COPT)),)
PG_CPPFLAGS += -include test/explore/points.h
endif
EXTRA_CLEAN = $(OBJS:.o=.d)
DATA := $(sort $(wildcard sql/*--*.sql))
DOCS := $(sort $(wildcard doc/*.md))
# Optional scripts for psql, installed in a directory beside the extension's files
COMPAT := $(sort $(wildcard sql/compat/*.sql))

# Each suite starts its own server, so that the settings are known and no database of
# the machine is touched.  Isolation tests look for expected/ in their output directory.
# TEST_DIR=test/preloaded has the tests that need the library in
# shared_preload_libraries.  test/run passes its own servers in TEST_SERVER.
TEST_DIR = test
TEST_OPTS = --inputdir=$(TEST_DIR) --temp-config=$(TEST_DIR)/atomic_lock.conf \
	--load-extension=atomic_lock --encoding=UTF8 --no-locale
REGRESS := $(sort $(basename $(notdir $(wildcard $(TEST_DIR)/sql/*.sql))))
REGRESS_OPTS = $(TEST_OPTS) $(or $(TEST_SERVER),--temp-instance=./tmp_check)
ISOLATION := $(sort $(basename $(notdir $(wildcard test/specs/*.spec))))
ISOLATION_OPTS = $(TEST_OPTS) --outputdir=. --launcher=test/specs/tester \
	$(or $(TEST_SERVER),--temp-instance=./tmp_check_iso)
TAP_TESTS = 1
PROVE_TESTS := $(sort $(wildcard test/t/*/*.pl))
# PGXS sets the variable anew.
override PROVE_FLAGS += -I test/perl

PG_CONFIG ?= pg_config

# These install or find PostgreSQL themselves, so they must work without one.
OWN_GOALS = demo demo-all demo-stop demo-cluster test quick quick-stop explore bench bench-report soak test-matrix test-assert nightly \
	mutate mutants lint sanitize valgrind coverage dist deb checkver
.PHONY: $(OWN_GOALS)

ifneq ($(filter-out $(OWN_GOALS),$(or $(MAKECMDGOALS),all)),)

# libpq-dev has a pg_config, but not the makefile that pg_config names.
PGXS := $(shell $(PG_CONFIG) --pgxs 2>/dev/null)
ifeq ($(wildcard $(PGXS)),)
$(error The server headers of PostgreSQL are missing: install postgresql-server-dev-N (Debian, Ubuntu) or postgresqlN-devel, or say make PG_CONFIG=/path/to/pg_config)
endif
# PGXS's own tracking of included files, if configured, confuses files of the same name
# in different directories.
override autodepend = no
include $(PGXS)

ifneq ($(filter 9.% 10 11 12 13 14,$(MAJORVERSION)),)
$(error atomic_lock needs PostgreSQL 15 or newer, this is $(VERSION); say make PG_CONFIG=/path/to/pg_config to choose another)
endif

# Names like operating.md do not belong in a directory that all extensions share.
docmoduledir := extension/$(EXTENSION)
doc_dir = $(DESTDIR)$(docdir)/$(docmoduledir)
compat_dir = $(DESTDIR)$(datadir)/extension/$(EXTENSION)

install: install-compat
install-compat:
	$(MKDIR_P) '$(compat_dir)'
	$(INSTALL_DATA) $(addprefix $(srcdir)/,$(COMPAT)) '$(compat_dir)/'

# PGXS would remove documents by their names in this folder.
uninstall: uninstall-more
uninstall-more:
	rm -f $(addprefix '$(compat_dir)'/,$(notdir $(COMPAT))) $(addprefix '$(doc_dir)'/,$(notdir $(DOCS)))
	rmdir '$(compat_dir)' '$(doc_dir)' 2>/dev/null || true
.PHONY: install-compat uninstall-more

# The compiler tracks the included files.  Bitcode, which the server can inline, follows
# its object file.
ifeq ($(GCC),yes)
$(OBJS): override CPPFLAGS += -MMD -MP
-include $(wildcard $(OBJS:.o=.d))
endif
$(OBJS:.o=.bc): %.bc: %.o

endif

demo:
	@demo/run

# Seven scenes more
demo-all:
	@demo/run all

demo-stop:
	@demo/run stop

# Two servers behind PL/Proxy, one of which is lost
demo-cluster:
	@demo/cluster

# make test SUITE=regress, preloaded, sql_preloaded, isolation, tap, pgtap, history, explore or clients; TESTS="name name";
# SUITE=cluster has the tests of several servers, and runs only if it is named
test:
	@test/run

# The tests to run after each change, with the servers and objects of the last run.
# SUITE and TESTS as above; by default regress, isolation and pgtap.
quick quick-stop:
	@test/run $@

# make explore SCENARIO="a: release* x acquire" SCHEDULE=AABBB, or MINUTES=10: interleavings
explore:
	@test/explore/run

bench:
	@test/bench/run

# Tables and plots of doc/benchmarks.md and its report, from the results of make bench
bench-report:
	@/usr/bin/python3 -c 'import matplotlib' 2>/dev/null || \
		bash -c 'set -euo pipefail; . test/lib.sh; al_require plots' bench-report
	@test/bench/report

# make soak MINUTES=60 HANDOVERS=1000000
soak:
	@test/soak

# The tests on other versions of PostgreSQL, and in other builds.  The header of each
# script has its options.  doc/testing.md describes their purpose.
test-matrix:
	@test/matrix

test-assert:
	@test/assert

# The tests that .ci/run leaves out, since they take hours; make nightly SUITE="busy mutate"
nightly:
	@test/nightly

# make mutate SINCE=HEAD~1 checks that tests notice mistakes on the lines of a change.
# Without SINCE, SEED chooses SAMPLE=80 mistakes in src/.  make mutants uses patches.
mutate:
	@test/mutate/run

mutants:
	@test/mutants/run

lint sanitize valgrind coverage:
	@test/$@

# The archive of the last commit, for PGXN
dist: checkver
	git -c safe.directory='*' archive --format=zip --prefix=atomic_lock-$(DISTVERSION)/ -o atomic_lock-$(DISTVERSION).zip HEAD
	@echo atomic_lock-$(DISTVERSION).zip

# The Debian package for the installed PostgreSQL, postgresql-N-atomic-lock
deb:
	@test/package build

checkver:
	@test -n '$(EXTVERSION)' && test -f 'sql/atomic_lock--$(EXTVERSION).sql' || \
		{ echo 'no install script of version $(EXTVERSION)' >&2; exit 1; }
	@case '$(DISTVERSION)' in '$(EXTVERSION)'.*) ;; *) \
		echo 'META.json has $(DISTVERSION), atomic_lock.control $(EXTVERSION)' >&2; exit 1;; esac
	@test "$$(for f in sql/*--*.sql; do sed -n '/^DO/,/^\$$\$$;/p; /^\$$\$$;/q' $$f | cksum; done | sort -u | wc -l)" = 1 || \
		{ echo 'scripts do not begin with the same DO block' >&2; exit 1; }
	@for f in sql/*--*.sql; do sed -n '/^DO/,/^SELECT/p; /^SELECT/q' $$f | tr '\n' ' ' | grep -q '^DO .*[[:space:]]FOR NO KEY UPDATE;.*SELECT app_lock_begin_script(); $$' && \
		[ "$$(tail -n 1 $$f)" = 'SELECT app_lock_refresh_access();' ] || \
		{ echo "$$f does not begin and end as a script has to" >&2; exit 1; }; done
	@grep -q '^#define VERSION "$(EXTVERSION)"$$' src/table/catalog.c || \
		{ echo 'src/table/catalog.c has another version than $(EXTVERSION)' >&2; exit 1; }
	@grep -q '^## $(DISTVERSION)' CHANGELOG.md || \
		{ echo 'CHANGELOG.md says nothing of $(DISTVERSION)' >&2; exit 1; }
	@grep -qF "'$(DISTVERSION)'" clients/python/src/atomic_lock/_version.py || \
		{ echo 'clients/python has another version than $(DISTVERSION)' >&2; exit 1; }
	@grep -qF '"version": "$(DISTVERSION)"' clients/node/package.json || \
		{ echo 'clients/node has another version than $(DISTVERSION)' >&2; exit 1; }
	@address="$$(sed -n 's/.*"mailto": "\(.*\)".*/\1/p' META.json)"; [ -n "$$address" ] || { echo 'META.json has no mailto' >&2; exit 1; }; \
	for f in control control.in copyright changelog upstream/metadata; do grep -qF "$$address" debian/$$f || \
		{ echo "debian/$$f has another address than META.json" >&2; exit 1; }; done
	@head -n 1 debian/changelog | grep -qF ' ($(DISTVERSION)-' || \
		{ echo 'debian/changelog does not begin with $(DISTVERSION)' >&2; exit 1; }
