# SPDX-License-Identifier: Apache-2.0
"""LMCache's GDS back end and kvtier on one directory of a Weka file system, where files have the
suffix .weka1.  The tests need no Weka: the program restarts in a mount namespace with mount
tables that name a Weka file system."""
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

MARK = "KVTIER_TEST_WEKA"
SOURCE = " - wekafs default/kv rw\n"


def start_anew():
    """Restart the program in a mount namespace with mount tables that name a Weka file system.

    Return true in the restarted program, false if the process may not create a namespace.
    """
    if os.environ.get(MARK):
        return True
    may = ["unshare", "--mount"] + ([] if os.geteuid() == 0 else ["--map-root-user"])
    if not shutil.which("unshare") or \
            subprocess.run([*may, "true"], stderr=subprocess.DEVNULL).returncode:
        return False
    device = os.stat(tempfile.gettempdir()).st_dev
    tables = tempfile.mkdtemp()
    for name, text in (("mountinfo", "1 0 %u:%u / / rw%s" % (
            os.major(device), os.minor(device), SOURCE)),
                       ("mounts", "default/kv / wekafs rw 0 0\n")):
        with open(os.path.join(tables, name), "w") as f:
            f.write(text)
    os.environ[MARK] = "1"
    script = ('for name in mountinfo mounts; do mount --bind "$1/$name" /proc/$$/$name; '
              'done; rm -r "$1"; shift; exec "$@"')
    os.execvp("unshare", [*may, "sh", "-c", script, "sh", tables, sys.executable,
                          *sys.orig_argv[1:]])


STARTED = start_anew()  # before other imports: may restart the program

import theirs  # noqa: E402
from case import OnGds  # noqa: E402
from geometry import LARGE, SMALL  # noqa: E402


@unittest.skipUnless(STARTED, "needs a mount namespace")
class OnWeka(OnGds):
    def setUp(self):
        super().setUp()
        thing = f"{SOURCE}\0{os.path.realpath(self.folder)}".encode()
        number = int.from_bytes(hashlib.sha256(thing).digest()[:8], "little")
        self.addCleanup(shutil.rmtree, "/var/tmp/kvtier-%d/%016x" % (
            os.geteuid(), number))

    def lmcache(self, geometry):
        made = super().lmcache(geometry, mover="cufile")
        self.assertEqual(made.backend.fstype, "wekafs")
        return made

    def test_each_reads_chunks_of_the_other(self):
        for geometry in (SMALL, LARGE):
            tokens, chunks = self.tokens(geometry, 3), self.chunks(geometry, 3)
            keys = theirs.keys(geometry, tokens)
            self.lmcache(geometry).put(keys, chunks)
            kvtier = self.kvtier(geometry)
            self.assertEqual(kvtier.get(tokens), chunks)
            tokens = self.tokens(geometry, 3)
            chunks = kvtier.store(tokens, 1)
            keys += theirs.keys(geometry, tokens)
            lmcache = self.lmcache(geometry)
            self.assertLessEqual(set(keys), lmcache.scanned())
            self.assertEqual(lmcache.get(keys[3:]), chunks)
            for key in keys:
                path = lmcache.path(key)
                self.assertTrue(path.endswith("bfloat16.weka1"))
                self.assertTrue(os.path.exists(path))
                self.assertTrue(os.path.exists(path + ".metadata"))
        self.assertEqual(self.files(), {})


if __name__ == "__main__":
    unittest.main()
