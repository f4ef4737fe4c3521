# solkv: `make demo` shows the main job, `make test` runs every test, `make help` lists the rest.

SHELL := /bin/sh
ENGINE ?= strata
BLOOM ?= 20
PAIRS ?= 2000000
EVENTS ?= 1000000
SEED ?= 1
SECONDS ?= 60
SOLKV_CACHE ?= $(if $(XDG_CACHE_HOME),$(XDG_CACHE_HOME),$(HOME)/.cache)/solkv
export SOLKV_CACHE
export CARGO_TARGET_DIR ?= $(SOLKV_CACHE)/target
# cargo keeps one program of a name, that of the newest build, whatever engines it has. So `make build` links its programs
# into a folder of their own, and the demos theirs into another.
RELEASE := $(CARGO_TARGET_DIR)/release
BIN := $(CARGO_TARGET_DIR)/programs

# The engines to compile in: all for tests and checks, one for the demo; `ENGINES="lmdb strata" make test` tests these
# alone. RocksDB's C++ is linked from the copy that engines/rocksdb/static-lib.sh keeps, and only where it is asked for.
ALL_ENGINES := $(shell sed -n 's/^default = \[\(.*\)\]/\1/p' engines/registry/Cargo.toml | tr -d '",')
demo demo-archive: ENGINES := $(ENGINE)
demo demo-archive: BIN := $(CARGO_TARGET_DIR)/programs-demo
# Not a prerequisite: make runs a target once, and `make build demo` needs both kinds of programs.
DEMO_BUILD = $(MAKE) --no-print-directory build ENGINES="$(ENGINES)" BIN="$(BIN)"
ENGINES ?= $(ALL_ENGINES)
unknown = $(filter-out $(ALL_ENGINES),$(ENGINES) $(ENGINE))
$(if $(unknown),$(error no such engine: $(unknown): choose from $(ALL_ENGINES)))
comma := ,
space := $(subst ,, )
# $(call with,NAMES): cargo's options that give the packages solkv-NAME the engines and nothing else. Torture names them again,
# because its tests are a list for each engine.
with = --no-default-features --features $(subst $(space),$(comma),$(strip $(foreach e,$(ENGINES),engines/$e $(if \
	$(filter torture,$1),solkv-torture/$e)) $2))
# Every package but the engines that were not asked for; the instrument links three of them.
WORKSPACE = --workspace $(foreach e,$(filter-out $(ENGINES),$(ALL_ENGINES)),--exclude solkv-engine-$e) \
	$(call with,engine-registry torture bootstrap service loadgen,$(if $(filter-out $(ENGINES),rocksdb lmdb redb),,solkv-loadgen/instrument) \
	solkv-bootstrap/parquet)
CARGO = $(if $(filter rocksdb,$(ENGINES)),ROCKSDB_STATIC=1 ROCKSDB_LIB_DIR="$$(engines/rocksdb/static-lib.sh)" )cargo

.PHONY: $(shell sed -n 's/^\([a-z-]*\):.*/\1/p' $(firstword $(MAKEFILE_LIST)))
.DEFAULT_GOAL := help

help: ## Lists the targets, and the topics of test, torture and bench.
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-12s  %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@awk -F': ' '/^## [a-z]+ [a-z-]+: /{split($$1, name, " "); sub(/^[^:]*: /, ""); \
		printf "  make %-7s TOPIC=%-12s %s\n", name[2], name[3], $$0}' $(MAKEFILE_LIST)
	@echo "  ENGINE=rocksdb|lmdb|redb|strata PAIRS=$(PAIRS) EVENTS=$(EVENTS) BLOOM=$(BLOOM) SEED=$(SEED) set the demo"

# A target with topics runs the variable TARGET_TOPIC; a line `## TARGET TOPIC: text` is what `make help` says of it. A topic
# that needs the built programs begins with $(BUILT). $(call topic,TARGET,DEFAULT): the command of TOPIC.
TOPIC ?=
topics = $(patsubst $1_%,%,$(filter $1_%,$(.VARIABLES)))
topic = $(or $($1_$(or $(TOPIC),$2)),$(error no such topic: $(TOPIC): choose from $(sort $(call topics,$1))))
BUILT = $(MAKE) --no-print-directory build && export BIN="$(BIN)" &&
# PAIRS and SEED count when they are given on the command line: elsewhere they are the demo's.
given = $(if $(filter command,$(firstword $(origin $1))),$2 $($1))

setup: ## Installs what the build needs (a C++ compiler; libclang for RocksDB's bindings).
	@ENGINES="$(ENGINES)" .ci/setup

build: setup ## Builds bootstrap, service and loadgen (ENGINES="redb lmdb" to choose).
	$(CARGO) build --locked --release -p solkv-bootstrap -p solkv-service -p solkv-loadgen $(call with,bootstrap service loadgen)
	@mkdir -p "$(BIN)" && for program in bootstrap service loadgen; do \
		ln -f "$(RELEASE)/$$program" "$(BIN)" 2>/dev/null || cp -f "$(RELEASE)/$$program" "$(BIN)" || exit 1; \
	done
	@echo "built: $(BIN)/bootstrap $(BIN)/service $(BIN)/loadgen"

demo: ## Loads pairs, plays a live Yellowstone stream through a real socket, prints both tables.
	@$(DEMO_BUILD)
	@BIN="$(BIN)" ENGINE="$(ENGINE)" BLOOM="$(BLOOM)" PAIRS="$(PAIRS)" EVENTS="$(EVENTS)" SEED="$(SEED)" deploy/demo.sh

demo-archive: ## Loads a snapshot archive made here, follows its stream, looks up an account by its address.
	@$(DEMO_BUILD)
	@BIN="$(BIN)" ENGINE="$(ENGINE)" PAIRS="$(PAIRS)" EVENTS="$(EVENTS)" SEED="$(SEED)" deploy/demo-archive.sh

# A test that lacks root, a memory cgroup or another ability of the machine is left out, which it prints; it fails if
# SOLKV_MUST_RUN=root,cgroup,fuse names the ability (engines/conformance/src/ability.rs).
test: setup ## Runs every test, on every engine (ENGINES=strata: on that one, without compiling RocksDB).
	@$(call topic,test,all)

test_all = set -x && $(CARGO) build --locked --release $(WORKSPACE) --bins && $(CARGO) test --locked --release $(WORKSPACE) && \
	$(test_loom) && $(MAKE) --no-print-directory torture TOPIC=engines SECONDS=40
## test loom: strata's lock-free parts, through the orders that threads can take (part of all)
test_loom = CARGO_TARGET_DIR="$(CARGO_TARGET_DIR)/loom" RUSTFLAGS="--cfg loom" LOOM_MAX_PREEMPTIONS=3 \
	cargo test --locked --release -p solkv-engine-strata --lib loom
## test miri: strata's unsafe code (needs nightly with miri and rust-src)
test_miri = CARGO_TARGET_DIR="$(CARGO_TARGET_DIR)/miri" MIRIFLAGS="-Zmiri-many-seeds=0..8" \
	cargo +nightly miri test --locked -p solkv-engine-strata --lib -- huge mem resident
DEPTHS ?= 1 64 1024
## test depths: a stream into each of ENGINES at --ingest-depth DEPTHS="1 64 1024"; all digests must be equal (EVENTS=10000000 CAP=96MiB)
test_depths = $(BUILT) DEPTHS="$(DEPTHS)" CAP="$(CAP)" $(if $(filter command,$(firstword $(origin EVENTS))),EVENTS=$(EVENTS)) \
	$(if $(filter command,$(firstword $(origin PAIRS))),PAIRS=$(PAIRS)) deploy/test/depths.sh $(ENGINES)
## test prometheus: a real Prometheus (Debian package) scrapes a live service: every query and rule has data
test_prometheus = $(BUILT) deploy/test/prometheus.sh
## test clients: public gRPC tools against a live service: Python's, and grpcurl where Go is
test_clients = $(BUILT) CACHE="$(CARGO_TARGET_DIR)/clients" deploy/clients/run.sh
## test readiness: a provider misbehaves for SECONDS (1200); the readiness that the service reports is checked each second
test_readiness = $(BUILT) DURATION="$(if $(filter file,$(origin SECONDS)),1200,$(SECONDS))" deploy/test/readiness.sh
## test package: installs, runs, upgrades, removes and purges the package on a clean Debian (root, mmdebstrap, nspawn)
test_package = rm -rf "$(PACKAGES)" && $(MAKE) --no-print-directory deb && \
	DEB="$$(echo $(PACKAGES)/solkv_*.deb)" CACHE="$(SOLKV_CACHE)" deploy/test/package.sh
## test systemd: the units under a real systemd: readiness, watchdog, memory cap, crashes (root, nspawn)
test_systemd = $(BUILT) deploy/test/systemd.sh
CASES ?= setup demo strata all
## test fresh: both commands of README on clean Debian roots, and setup on machines with every clang (root, nspawn; hours)
test_fresh = CACHE="$(SOLKV_CACHE)" deploy/test/fresh.sh $(CASES)

SEEDS ?= 100000
simulate: setup ## Tries SEEDS=100000 seeds of the ingest's simulation, and a tenth with heals (2000 and 200 are part of test).
	SIM_SEEDS=$(SEEDS) $(CARGO) test --locked --release -p solkv-service $(call with,service) --lib simulation -- --nocapture

# Long inputs from the start: a sequence of operations does nothing of interest while it is short. No search for leaks: it
# takes what a thread frees while it ends for one.
FUZZ_SECONDS ?= 60
FUZZ_TARGETS ?= $(addprefix engines/strata/,page manifest wal footer ops) \
	$(addprefix service/,stream feed config rpc shm spool) \
	$(addprefix bootstrap/,source append_vec archive)
fuzz: ## Runs every fuzz target, FUZZ_SECONDS=60 each (needs nightly and cargo-fuzz).
	@cargo +nightly --version >/dev/null 2>&1 || { echo "needs: rustup toolchain install nightly" >&2; exit 1; }
	@cargo +nightly fuzz --version >/dev/null 2>&1 || { echo "needs: cargo install --locked cargo-fuzz" >&2; exit 1; }
	@for target in $(FUZZ_TARGETS); do \
		CARGO_TARGET_DIR="$(CARGO_TARGET_DIR)/fuzz" \
			cargo +nightly fuzz run --fuzz-dir "$$(dirname $$target)/fuzz" "$$(basename $$target)" -- \
			-max_total_time=$(FUZZ_SECONDS) -len_control=0 -max_len=1000 -detect_leaks=0 -print_final_stats=1 || exit 1; \
	done

# The fuzz crates are workspaces of their own, which no other build looks at.
FUZZED := engines/strata service bootstrap
fuzz-locks:
	@for crate in $(FUZZED); do \
		cargo metadata --locked --format-version 1 --manifest-path $$crate/fuzz/Cargo.toml >/dev/null || \
			{ echo "the lock file is old: cd $$crate/fuzz && cargo update --workspace" >&2; exit 1; }; \
	done
	@echo "fuzz-locks: the fuzz crates' lock files are as their manifests say"

torture: ## Kills, power losses and disk faults against every engine, for SECONDS=60.
	@$(call topic,torture,engines)

# ARGS='--engine lmdb --seed 123' runs one life again, as a violation says; then nothing else runs.
torture_engines = $(CARGO) build --locked --release -p solkv-torture $(call with,torture) && \
	"$(RELEASE)/torture" $(if $(ARGS),$(ARGS),--seconds $(SECONDS))
LIVES ?= 1000
# SEED=1 is the demo's: only one that was given on the command line runs a single life again.
## torture load: loads under kills, damaged spills, replaced sources, full disks and small caps: LIVES=1000 (24 are part of test)
torture_load = TORTURE_LIVES=$(LIVES) $(if $(filter command,$(firstword $(origin SEED))),TORTURE_SEED=$(SEED)) \
	$(CARGO) test --locked --release -p solkv-bootstrap $(call with,bootstrap) --test it loads_end_right -- --nocapture
run_torture = $(BUILT) loadgen/scripts/torture-$1.py --bin "$(BIN)" $(call given,PAIRS,--pairs) $(call given,SEED,--seed) $(ENGINES)
## torture archive: snapshot archives into each of ENGINES: digests, memory and disk against their bounds, 10 kills (PAIRS=20000000)
torture_archive = $(call run_torture,archive)
## torture create: `service --create` from an archive and a stream on each of ENGINES: 20 kills each, digests (PAIRS=4000000)
torture_create = $(call run_torture,create)
## torture heal: `service --heal-from` after an outage, on each of ENGINES: 20 kills each, digests, a subscriber (PAIRS=1000000)
torture_heal = $(call run_torture,heal)

mutations: ## Breaks the code on purpose, one break at a time, in a copy: a test must catch each (an hour; ARGS for some of them).
	@.ci/mutations $(ARGS)

check: setup fmt fuzz-locks clippy doc edges circles prose units catalogue tree prometheus architecture targets ## Format, lints, docs, edges, circles, architecture, prose, units, metric documents, rules, tables, the place of each mutation.
	@.ci/mutations --check

# Known vulnerabilities need the network; `make check` does the rest wherever cargo-deny is installed.
DENY = cargo deny --locked check
deny: ## Licences, sources, duplicates and known vulnerabilities of the dependencies (needs cargo-deny and the network).
	@cargo deny --version >/dev/null 2>&1 || { echo "needs: cargo install --locked cargo-deny" >&2; exit 1; }
	$(DENY) licenses bans sources
	$(DENY) advisories || \
		{ echo "advisories: known vulnerabilities, or a database that could not be fetched: see above" >&2; exit 1; }

check: licences
licences:
	@if cargo deny --version >/dev/null 2>&1; then $(DENY) licenses bans sources; \
	else echo "licences: not judged: no cargo-deny here"; fi

fmt:
	cargo fmt --all --check

clippy:
	$(CARGO) clippy --locked --release $(WORKSPACE) --all-targets -- -D warnings
	for feature in grpc shm; do cargo clippy --locked --release -p solkv-client --no-default-features --features $$feature \
		--all-targets -- -D warnings || exit 1; done

doc:
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --locked --release $(WORKSPACE) --no-deps

SCRIPTS := prose edges circles architecture
.PHONY: $(SCRIPTS)
$(SCRIPTS):
	@.ci/$@

# The tables below loadgen/results that `loadgen best` makes of the results beside them; TABLES=write makes them anew.
TABLES ?= check
targets:
	@$(CARGO) build --locked --release -q $(WORKSPACE) --bins
	@cd loadgen/results && for table in targets/best.md live/best.md "strata/targets.md --targets ../targets.toml"; do \
		set -- $$table && file=$$1 && shift && "$(RELEASE)/loadgen" best "$${file%/*}"/*.jsonl.zst "$$@" >"$$file.new" && \
		if [ $(TABLES) = write ] || cmp -s "$$file" "$$file.new"; then mv "$$file.new" "$$file"; else \
			diff -u "$$file" "$$file.new" >&2; rm "$$file.new"; echo "$$file is old: make targets TABLES=write" >&2; exit 1; \
		fi || exit 1; \
	done
	@echo "targets: the tables of loadgen best are those of the results"

size: ## Counts lines of product, tools, tests and scripts, KB of documents, settings, metrics, alerts, targets, mutations.
	@.ci/size

# What is made from the metric catalogue is committed: this says when it is old, `make metrics` makes it anew. Built as
# `make test` builds it, so that nothing is compiled twice.
GENERATE = $(CARGO) build --locked --release -q $(WORKSPACE) --example metrics && "$(RELEASE)/examples/metrics"
catalogue:
	@$(GENERATE) markdown | diff -u METRICS.md - || { echo "METRICS.md is old: make metrics" >&2; exit 1; }
	@$(GENERATE) grafana | diff -u deploy/grafana/solkv.json - >/dev/null || \
		{ echo "deploy/grafana/solkv.json is old: make metrics" >&2; exit 1; }
	@echo "catalogue: METRICS.md and the Grafana dashboard are as the catalogue says"

metrics: ## Makes METRICS.md and the Grafana dashboard from the metric catalogue.
	$(GENERATE) markdown >METRICS.md.new && mv METRICS.md.new METRICS.md
	$(GENERATE) grafana >solkv.json.new && mv solkv.json.new deploy/grafana/solkv.json

prometheus:
	@deploy/prometheus/check.sh

units:
	@.ci/units
	@.ci/links
	@deploy/test/host.sh
	@deploy/test/setup.sh
	@deploy/test/demo.sh

# Results go into a folder of the day, with the folders and names of loadgen/results, which keeps the newest of each kind. Runs that
# are in their file already are not repeated. PIECES names parts of a topic, PAIRS another size, ARGS further options.
RESULTS ?= results/$(shell date +%F)

bench: ## Measures every engine at a small size (ten minutes) and writes the report.
	@$(call topic,bench,small)

bench_small = $(BUILT) OUT="$(RESULTS)/small" loadgen/scripts/bench.sh --pairs 1000000 --repeats 1 --seconds 1 --min-cap 40MiB
## bench full: every engine at the scenarios' own sizes (hours), and the report
bench_full = $(BUILT) OUT="$(RESULTS)/full" loadgen/scripts/bench.sh
## bench targets: strata against every other engine (five hours, 36 GB; PIECES="caps memory changes loads live one-by-one large")
bench_targets = $(BUILT) OUT="$(RESULTS)/targets" loadgen/scripts/bench-targets.sh $(PIECES)
## bench strata: strata in the states that users get, and which targets are met (five hours, 60 GB; PIECES="memory cold ...")
bench_strata = $(BUILT) OUT="$(RESULTS)/strata" loadgen/scripts/bench-strata.sh $(PIECES)
## bench settings: settings of the engines by turns (four to five hours, 30 GB)
bench_settings = $(BUILT) mkdir -p "$(RESULTS)/settings" && for scenario in loadgen/scenarios/settings/*.toml; do \
	"$(BIN)/loadgen" bench "$$scenario" --out "$(RESULTS)/settings/$$(basename "$$scenario" .toml).jsonl" || exit 1; done
## bench before: this tree and COMMIT by turns, on the scenarios that PIECES names (PIECES=loadgen/scenarios/strata/cold.toml)
bench_before = loadgen/scripts/bench-before.py --commit "$(COMMIT)" --out "$(RESULTS)/before" $(PIECES) $(if $(ARGS),-- $(ARGS))
# $(call run_bench,NAME,ENGINES,BEFORE): runs a script, behind another command if BEFORE names one.
run_bench = $(BUILT) $3 loadgen/scripts/bench-$1.py --bin "$(BIN)" $(call given,PAIRS,--pairs) --out "$(RESULTS)/$1/$1.jsonl" $2 $(ARGS)
## bench warm-up: from a cold start to the full rate in memory (three minutes an engine, 15 GB)
bench_warm-up = $(call run_bench,warm-up,$(ENGINES),loadgen/scripts/fill-memory.py)
## bench outage: catching up after an outage of 60 s at 10k events/s (5 minutes an engine; ARGS="--cap 201326592")
bench_outage = $(call run_bench,outage,$(ENGINES))
## bench compression: behind a server that compresses, catching up and live (10 minutes an engine)
bench_compression = $(call run_bench,compression,$(ENGINES))
## bench takeover: five takeovers from a silent provider: its time-out to the next applied slot (a minute)
bench_takeover = $(call run_bench,takeover)
## bench heal: a heal of a million changes from an incremental and a full archive (PAIRS=50000000)
bench_heal = $(call run_bench,heal,$(ENGINES))
## bench large: 700M pairs loaded under 4 GiB, then a stream at once (52 GB; strata, or ARGS='"rocksdb --bloom 20 --order shuffled"')
bench_large = $(BUILT) loadgen/scripts/bench-large.py --bin "$(BIN)" $(call given,PAIRS,--pairs) --out "$(RESULTS)/large/large.jsonl" \
	$(or $(ARGS),strata)
## bench billion: a billion pairs: load, caps of 1, 4 and 16 GiB, kill, copy, scrub (strata; an hour, 76 GB; PAIRS=100000000)
bench_billion = $(BUILT) loadgen/scripts/bench-billion.py --bin "$(BIN)" $(call given,PAIRS,--pairs) \
	--out "$(RESULTS)/billion/billion.jsonl" $(ARGS)
## bench derived: derived stores: load, size, requests, and the ingest beside them (strata, or ENGINES; 20 minutes an engine, 10 GB)
bench_derived = $(BUILT) cargo build --locked --release -p solkv-derived --example asked && loadgen/scripts/bench-derived.py \
	--bin "$(BIN)" --asked "$(RELEASE)/examples/asked" $(call given,PAIRS,--pairs) --out "$(RESULTS)/derived/derived.jsonl" \
	$(ARGS) $(if $(filter command line,$(origin ENGINES)),$(ENGINES),strata)
## bench verify: `bootstrap verify` beside a scan and the sort of its source (minutes)
bench_verify = $(BUILT) loadgen/scripts/bench-verify.py --bin "$(BIN)" $(call given,PAIRS,--pairs) --limit 2 $(ENGINES)
ARCHIVE_GB ?= 10
## bench archive: reading and loading archives beside zstd and a sorted load, five times by turns (ARCHIVE_GB=10 unpacked)
bench_archive = $(BUILT) cargo build --locked --release -p solkv-solana --example append_vec --example read && \
	mkdir -p "$(RESULTS)/archive" && \
	loadgen/scripts/bench-archive.py --bin "$(RELEASE)" --gigabytes $(ARCHIVE_GB) --out "$(RESULTS)/archive/archive"
## bench transports: lookups over shared memory, gRPC and the Redis protocol, beside a redis-server if there is one (a minute)
bench_transports = $(BUILT) mkdir -p "$(RESULTS)/transports" && work=$$(mktemp -d) && trap 'rm -rf "$$work"' EXIT && \
	"$(BIN)/bootstrap" --engine strata --dir "$$work/store" --pairs 1000000 --seed 1 >/dev/null && \
	redis= && if command -v redis-server >/dev/null; then \
		redis-server --port 0 --unixsocket "$$work/redis.sock" --save "" --appendonly no --daemonize yes \
			--pidfile "$$work/redis.pid" >/dev/null && trap 'kill $$(cat "$$work/redis.pid"); rm -rf "$$work"' EXIT && \
			redis="--redis-server redis+unix://$$work/redis.sock"; fi && \
	"$(BIN)/loadgen" transports --engine strata --dir "$$work/store" --pairs 1000000 --seed 1 $$redis \
		--out "$(RESULTS)/transports/transports.jsonl"
## bench instrument: loadgen's figures beside those of minimal programs, one for each engine
bench_instrument = $(BUILT) $(CARGO) build --locked --release -p solkv-loadgen --features instrument --example instrument && \
	"$(RELEASE)/examples/instrument" "$(RELEASE)"

## bench month: a month of mainnet's churn on 100M pairs, a line for each day (strata; an hour, 20 GB; ARGS="--days 3")
bench_month = cargo run --locked --release -p solkv-engine-strata --example month -- --dir "$(RESULTS)/month" \
	$(call given,PAIRS,--pairs) $(ARGS)

SOAK_SECONDS ?= 3600
# The target of mainnet's rate: make soak SOAK_SECONDS=1200 PAIRS=100000000 CAP=1GiB RATE=20000
soak: build ## Runs the whole service for SOAK_SECONDS=3600 under a memory cap smaller than its data, and samples it.
	@mkdir -p "$(RESULTS)/soak"
	@BIN="$(BIN)" OUT="$(RESULTS)/soak/$(ENGINE).tsv" ENGINE="$(ENGINE)" SECONDS_LONG=$(SOAK_SECONDS) \
		loadgen/scripts/soak.sh

# What is installed: programs, units, configuration, manuals, completions.
PACKAGES := results/packages

deb: build ## Makes the Debian package in results/packages, and solkv-dbgsym with its symbols.
	@deploy/package/deb.sh "$(BIN)" "$(PACKAGES)"

# Packing the files takes a minute, laying them out a second: check does that, so that a package can always be made. Needs
# the programs, which targets builds.
tree: targets
	@work=$$(mktemp -d) && trap 'rm -rf "$$work"' EXIT && deploy/package/tree.sh "$(RELEASE)" "$$work/tree"

tarball: build ## Makes a tarball of the same programs for systems without dpkg.
	@deploy/package/tarball.sh "$(BIN)" "$(PACKAGES)"
