#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Build the packages, install the packages apart from this machine, and use them.

demo   ./demo.sh --no-vllm: builds kvtier and replays a trace
wheel  ./demo.sh --wheel: scripts/make-wheel, a virtual environment without a compiler
deb    scripts/make-deb, lintian, dpkg --root

Last line: N passed, N failed, N skipped.  Exit status: 0; 1 if a test failed; 77 if no test
ran.
"""
import argparse
import os
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TESTS = {"demo": ["./demo.sh", "--no-vllm"],
         "wheel": ["sh", "-c", "scripts/wheel-env || exit 77; ./demo.sh --wheel"],
         "deb": ["sh", "tests/package/deb.sh"]}
SKIP = 77


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tests", metavar="TEST", nargs="*",
                        help=" or ".join(TESTS) + " (all)")
    names = parser.parse_args().tests or list(TESTS)
    if not set(names) <= set(TESTS):
        parser.error(f"the tests are: {' '.join(TESTS)}")
    counts = {"ok": 0, "FAILED": 0, "skipped": 0}
    for name in names:
        start = time.time()
        done = subprocess.run(TESTS[name], cwd=ROOT, text=True, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT)
        word = {0: "ok", SKIP: "skipped"}.get(done.returncode, "FAILED")
        counts[word] += 1
        print(f"{word:8} package/{name} ({time.time() - start:.1f} s)")
        print(done.stdout, end="", flush=True)
    print("{ok} passed, {FAILED} failed, {skipped} skipped".format(**counts))
    return 1 if counts["FAILED"] else 0 if counts["ok"] else SKIP


if __name__ == "__main__":
    sys.exit(main())
