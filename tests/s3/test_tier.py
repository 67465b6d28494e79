# SPDX-License-Identifier: Apache-2.0
"""real.c against each server."""
import os
import subprocess
import unittest

from place import ROOT, Case, clean_environment, running

PROGRAM = os.path.join(ROOT, "build", "tests", "s3", "s3-real")


class Tier(Case):
    def check(self, server):
        if not os.path.exists(PROGRAM):
            self.skipTest("s3-real is not built: cmocka is missing")
        server = running(server, "--tls")
        done = subprocess.run([PROGRAM, str(server.facts["port"])], timeout=300,
                              env=clean_environment(), stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True)
        self.assertEqual(done.returncode, 0, done.stdout)

    def test_seaweedfs(self):
        self.check("seaweedfs.py")

    def test_rgw(self):
        self.check("rgw.py")


if __name__ == "__main__":
    unittest.main()
