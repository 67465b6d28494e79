# SPDX-License-Identifier: Apache-2.0
#
# The habitual words for what meson does.  Options: make MESONFLAGS=-Dtests=disabled
BUILD = build
MESONFLAGS =

all: $(BUILD)/build.ninja
	ninja -C $(BUILD)

$(BUILD)/build.ninja:
	meson setup $(BUILD) $(MESONFLAGS)

bench: all
	$(BUILD)/kvtier-bench

bench-vllm: all
	python3 bench/vllm.py

demo: programs
	python3 demo/demo.py

# Build the library, the command and the programs of the demo, not the test programs.
# usrbiod needs cmocka and libfuse.
programs: $(BUILD)/build.ninja
	ninja -C $(BUILD) kvtier kvtier-gds-probe $$(ninja -C $(BUILD) -t targets all | \
	    sed -n 's|^\(tests/servers/usrbiod\): .*|\1|p')

test:
	scripts/run-tests

test-all:
	scripts/run-tests --all

test-aarch64:
	scripts/test-aarch64

vllm-versions:
	scripts/test-vllm-versions

e2e: all
	python3 tests/e2e/run.py

lmcache: all
	python3 tests/lmcache/run.py

s3: all
	python3 tests/s3/run.py

# The wheel: build, check, install into an environment without a compiler, use.
wheel-test:
	python3 tests/package/run.py wheel

# The Debian package: build; check, install into a temporary directory, use, remove.
deb:
	scripts/make-deb

deb-test:
	python3 tests/package/run.py deb

mutants:
	scripts/mutants

# 100,000 deaths of processes that share an index; 10,000 deaths and 10,000 stops of engines
# that share host memory, whose calls may last 1 s; 10,000 deaths at any access to the memory.
crash: all
	$(BUILD)/tests/test-table-death 100000
	$(BUILD)/tests/test-tier-shared-cpu-death 10000
	KVTIER_TEST_ROUNDS=10000 KVTIER_TEST_CALL_MS=1000 \
	    $(BUILD)/tests/test-system-shared-cpu-death

soak: all
	python3 tests/soak/run.py

install: all
	meson install -C $(BUILD)

clean:
	rm -rf $(BUILD)

.PHONY: all bench bench-vllm crash demo programs test test-all test-aarch64 vllm-versions e2e \
    lmcache s3 wheel-test deb deb-test mutants soak install clean
