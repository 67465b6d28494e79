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

# All figures of bench/RESULTS.md: make bench-all -k.  The replay needs TRACE=FILE, the comparison
# with libraries ISAL=DIR, the sources of ISA-L_crypto, and vLLM on a GPU PYTHON=PROGRAM.
bench-all: bench bench-lookup bench-faster bench-weights bench-vllm bench-lmcache bench-sharing \
    bench-link bench-awscrt $(if $(TRACE),bench-replay) $(if $(ISAL),bench-libraries) \
    $(if $(PYTHON),bench-vllm-gpu)

bench-lookup: all
	KVTIER_LIBRARY=$(BUILD)/libkvtier.so python3 bench/lookup-vllm.py --rounds 60

bench-faster: all
	KVTIER_LIBRARY=$(CURDIR)/$(BUILD)/libkvtier.so $(or $(PYTHON),python3) bench/faster.py $(ARGS)

bench-weights:
	for tensors in 24 1000; do \
	    python3 bench/weights-digest.py --sparse --tensors $$tensors || exit; done

bench-vllm: all
	python3 bench/vllm.py

bench-vllm-gpu: all
	KVTIER_LIBRARY=$(CURDIR)/$(BUILD)/libkvtier.so PYTHONPATH=python \
	    $(or $(PYTHON),python3) bench/vllm-gpu.py $(ARGS)

bench-lmcache: all
	python3 bench/lmcache-mp.py

bench-sharing: all
	python3 bench/two-servers.py

bench-link: all
	python3 bench/codec-link.py $(ARGS)

bench-awscrt: all
	python3 -m venv $(BUILD)/awscrt
	$(BUILD)/awscrt/bin/pip install -q -r bench/peers/awscrt-lmcache.txt
	$(BUILD)/awscrt/bin/python bench/peers/awscrt-lmcache.py --rounds 1 \
	    --kvtier-bench $(BUILD)/kvtier-bench

bench-libraries:
	bench/libraries/run "$(ISAL)"

bench-replay: all
	test -r "$(TRACE)" # make bench-replay TRACE=FILE
	dir=$$(mktemp -d /var/tmp/kvtier-replay.XXXXXX) && trap 'rm -rf "$$dir"' EXIT && \
	$(BUILD)/kvtier replay --scale 1024 --set remote_url=fs://$$dir \
	    --set max_local_cpu_size=0.25 --set max_remote_size=2 --json "$(TRACE)"

# The table of docs/codecs.md, with a real vLLM: two engines for each codec.
quality: all
	bench/quality/run.py

demo:
	./demo.sh

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

# Root installs for the dynamic loader too, which finds /usr/local/lib by its cache.
install: all
	meson install -C $(BUILD)
	test -n "$$DESTDIR" || test "$$(id -u)" != 0 || /sbin/ldconfig

clean:
	rm -rf $(BUILD)

.PHONY: all bench bench-all bench-awscrt bench-faster bench-libraries bench-link bench-lmcache \
    bench-lookup bench-replay bench-sharing bench-vllm bench-vllm-gpu bench-weights crash demo programs \
    quality test test-all test-aarch64 vllm-versions e2e lmcache s3 wheel-test deb deb-test \
    mutants soak install clean
