# Targets for people and for CI. `make help` lists them.

CARGO ?= cargo
# Seeds of the fault worlds of `make sim`.
SEEDS ?= 2000
# Sets of the engine's own crash tests in `make sim`, 20 seeds each.
CRASH_SETS ?= 1
# What `make bench` and `make bench-array` are told besides, as BENCH='--dir DIRECTORY-ON-THE-DRIVE --rows 1,4'.
BENCH ?=
# Seconds that each fuzz target runs.
FUZZ_SECONDS ?= 60

# What all tests are built with, once: all crates, and the switch of the bugs that are planted to prove the simulator.
# What is built for one crate alone, or without a feature, is built anew. The lints see the code without the switch, as
# it is released.
TESTED = --workspace --locked --features plimsoll-sim/planted

# The binary that `make build` makes.
RELEASED = $${CARGO_TARGET_DIR:-target}/release/plimsoll

.DEFAULT_GOAL := help
.PHONY: help run test prepare build deb fmt lint unit experiments bench bench-quick bench-array instructions bench-test sim fuzz clean

help: ## Say what there is
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/make \1\t\2/' | expand -t 16

run: ## Build and serve ./plimsoll-data on 127.0.0.1:6379
	$(CARGO) run --release --locked --bin plimsoll -- serve --data ./plimsoll-data

build: ## Build the binary: target/release/plimsoll
	$(CARGO) build --release --locked --bin plimsoll

deb: ## Make the Debian package: target/debian; installs cargo-deb if it is missing
	command -v cargo-deb >/dev/null || $(CARGO) install cargo-deb --locked --version '^3'
	$(CARGO) deb --locked -p plimsoll

test: prepare lint unit bench-test ## Install what the tests need, then run them all

prepare: ## Install what the tests need, if it is missing
	.ci/prepare
	.ci/venv
	.ci/redis-py
	.ci/node
	.ci/go
	.ci/java

fmt: ## Lay out the code
	$(CARGO) fmt --all

lint: ## Check layout and lints
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings

unit: ## Run all tests
	$(CARGO) test $(TESTED)
	PLIMSOLL_TEST_DRIVER=portable $(CARGO) test $(TESTED) \
		--test binary --test device --test devices --test evict --test full --test loading --test memory --test operators \
		--test overload --test resources --test tls
	PLIMSOLL_TEST_DRIVER=portable $(CARGO) test $(TESTED) --test clients -- \
		matrix::redis_py redis_py_users redis_py_tests::redis_py_commands redis_cli like_redis

experiments: build ## Run the simulated experiments, 6 to 40 minutes; writes their plots and numbers into docs
	for name in $$($(RELEASED) sim list | cut -d' ' -f1); do \
		$(RELEASED) sim run $$name --out docs/plots/simulated || exit 1; done

bench: build ## Measure beside Redis, memcached, RocksDB and fio, 30 minutes; writes README's and docs' tables and plots
	python3 bench/side_by_side $(RELEASED) --pages . $(BENCH)

bench-quick: build ## The same with few keys and one round, to see that it runs: target/bench-quick
	python3 bench/side_by_side $(RELEASED) --quick $(BENCH)

bench-array: build ## Measure several devices as one over six slowed files, 40 minutes; writes docs' table and plot
	python3 bench/several_devices $(RELEASED) --pages . $(BENCH)

instructions: build ## Count the instructions of GET and SET by callgrind, 10 minutes; writes docs' table
	RUSTFLAGS="--cfg rustix_use_libc" CARGO_TARGET_DIR=$${CARGO_TARGET_DIR:-target}/counted \
		$(CARGO) build --release --locked --bin plimsoll
	python3 bench/instructions $(RELEASED) $${CARGO_TARGET_DIR:-target}/counted/release/plimsoll --pages . $(BENCH)

bench-test: ## Test what measures, and that the pages say what was measured
	$(CARGO) test $(TESTED) --no-run
	PLIMSOLL_BINARY=$${CARGO_TARGET_DIR:-target}/debug/plimsoll \
		python3 -m unittest discover --start-directory bench --top-level-directory bench

sim: ## Fault worlds with many seeds, and the engine's crash tests: make sim SEEDS=10000
	$(CARGO) run --release --locked --bin plimsoll -- sim fuzz --seeds 0..$(SEEDS) --all-faults
	$(CARGO) run --release --locked --bin plimsoll -- sim fuzz --transactions --seeds 0..$(SEEDS)
	$(CARGO) run --release --locked --bin plimsoll -- sim fuzz --arrays --seeds 0..$(SEEDS)
	PLIMSOLL_SEEDS=$(CRASH_SETS) $(CARGO) test --release --locked -p plimsoll-flash --test flash crash::

fuzz: ## Each fuzz target for FUZZ_SECONDS; needs nightly Rust and cargo-fuzz
	for target in $$(cd fuzz/fuzz_targets && ls *.rs | sed 's/\.rs$$//'); do \
		$(CARGO) +nightly fuzz run $$target -- -max_total_time=$(FUZZ_SECONDS) || exit 1; \
	done

clean: ## Remove what was built; the data stays
	$(CARGO) clean
