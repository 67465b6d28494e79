# SPDX-License-Identifier: Apache-2.0
"""The ctypes declarations match include/kvtier.h."""

import ctypes
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

import fake  # noqa: F401  (finds the package)
from kvtier import _lib

INCLUDE = os.path.join(fake.PYTHON, "..", "include")


class Layout(unittest.TestCase):
    @unittest.skipUnless(shutil.which("cc"), "no C compiler")
    def test_sizes_and_offsets_equal_c(self):
        lines = []
        for name, struct in _lib.STRUCTS.items():
            lines.append('printf("%%zu\\n", sizeof(struct %s));' % name)
            for field, _ in struct._fields_:
                lines.append('printf("%%zu %%zu\\n", offsetof(struct %s, %s), '
                             'sizeof(((struct %s *)0)->%s));'
                             % (name, field, name, field))
        source = ("#include <stdio.h>\n#include <kvtier.h>\nint main(void) {\n%s\n"
                  "return 0; }\n" % "\n".join(lines))
        with tempfile.TemporaryDirectory() as folder:
            program = os.path.join(folder, "sizes")
            subprocess.run(["cc", "-I", INCLUDE, "-x", "c", "-", "-o", program],
                           input=source.encode(), check=True)
            said = subprocess.run([program], stdout=subprocess.PIPE,
                                  check=True).stdout.decode().splitlines()
        expected = []
        for struct in _lib.STRUCTS.values():
            expected.append("%d" % ctypes.sizeof(struct))
            for field, _ in struct._fields_:
                member = getattr(struct, field)
                expected.append("%d %d" % (member.offset, member.size))
        self.assertEqual(said, expected)

    def test_every_declared_function_is_in_the_header(self):
        with open(os.path.join(INCLUDE, "kvtier.h")) as file:
            header = file.read()
        for name in _lib._PROTOTYPES:
            self.assertTrue(re.search(r"\b%s\(" % name, header), name)

    def test_constants_equal_the_header(self):
        with open(os.path.join(INCLUDE, "kvtier.h")) as file:
            header = file.read()
        for name in ("ROLE_SCHEDULER", "ROLE_WORKER", "ROLE_BOTH", "GROUP_FULL",
                     "GROUP_SLIDING", "FORMAT_OPAQUE", "COUNTER_SUM", "OP_PUT", "OP_GET",
                     "OP_STAT", "OP_DELETE", "OP_NAME", "FOUND_CHECKED"):
            found = re.search(r"\bKVT_%s (?:= )?(\d+)" % name, header)
            self.assertEqual(int(found.group(1)), getattr(_lib, name), name)


class Import(unittest.TestCase):
    def test_importing_starts_no_thread_and_opens_nothing(self):
        code = ("import os, kvtier, kvtier._lib, kvtier._testhook, kvtier.plugin\n"
                "kvtier.S3Connector, kvtier.S3Adapter, kvtier.LMCacheEngineBuilder\n"
                "print(len(os.listdir('/proc/self/task')),"
                " 'libkvtier' in open('/proc/self/maps').read())")
        env = dict(os.environ, PYTHONPATH=fake.PYTHON)
        said = subprocess.run([sys.executable, "-c", code], env=env,
                              stdout=subprocess.PIPE, check=True).stdout
        self.assertEqual(said.decode().split(), ["1", "False"])

    def test_a_missing_library_names_the_remedy(self):
        code = "from kvtier import _lib; _lib.version()"
        env = dict(os.environ, PYTHONPATH=fake.PYTHON,
                   KVTIER_LIBRARY="/nonexistent/libkvtier.so")
        said = subprocess.run([sys.executable, "-c", code], env=env,
                              stderr=subprocess.PIPE).stderr.decode()
        self.assertIn("KVTIER_LIBRARY", said)


if __name__ == "__main__":
    unittest.main()
