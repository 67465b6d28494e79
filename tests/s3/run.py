#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Run kvtier against real S3 servers: SeaweedFS, Ceph's gateway, moto.

Each server starts on the loopback for its tests.  If a server is not installed
(scripts/s3-env; Debian: ceph-mon ceph-osd radosgw ceph-common), the tests of the server
are skipped with a message.  Last line: N passed, N failed, N skipped.  Exit status: 0;
1 if a test failed; 77 if no test ran.
"""
import argparse
import os
import sys
import time
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, HERE)
MODULES = ["test_store", "test_credentials", "test_tier"]


class Result(unittest.TextTestResult):
    n_passed = 0

    def addSuccess(self, test):
        super().addSuccess(test)
        self.n_passed += 1


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", metavar="TEST", nargs="*",
                        help="module, module.Class or module.Class.test (all)")
    names = parser.parse_args().names or MODULES
    library = os.environ.setdefault("KVTIER_LIBRARY", os.path.join(
        ROOT, "build", "libkvtier.so"))
    if not os.path.exists(library):
        sys.exit(f"{library} is not there: build kvtier first (make)")
    counts = [0, 0, 0]
    for name in names:
        began = time.monotonic()
        suite = unittest.defaultTestLoader.loadTestsFromName(name)
        result = unittest.TextTestRunner(stream=sys.stdout, resultclass=Result,
                                         buffer=True, verbosity=0).run(suite)
        failed = len(result.failures) + len(result.errors)
        print("%-8s s3/%s (%d passed, %.1f s)" % (
            "FAILED" if failed else "ok" if result.n_passed else "skipped", name,
            result.n_passed, time.monotonic() - began), flush=True)
        for test, why in result.skipped:
            print(f"         skipped: {test}: {why}")
        counts = [a + b for a, b in zip(counts, (
            result.n_passed, failed, len(result.skipped)))]
    print("%d passed, %d failed, %d skipped" % tuple(counts))
    return 1 if counts[1] else 0 if counts[0] else 77


if __name__ == "__main__":
    sys.exit(main())
