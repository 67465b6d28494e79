# SPDX-License-Identifier: Apache-2.0
"""Name, header and payload of kvtier's files equal LMCache's.  kvtier adds a trailer."""
import os
import tempfile
import unittest

import ours
import theirs
from geometry import Geometry

HEADER_BYTES = 28
TRAILER_BYTES = 64


class Headers(unittest.TestCase):
    def one_file(self, directory):
        names = [n for n in os.listdir(directory) if n.endswith(".data")]
        self.assertEqual(len(names), 1)
        with open(os.path.join(directory, names[0]), "rb") as f:
            return names[0], f.read()

    def compare(self, geometry, header):
        meta = "true" if header else "false"
        tokens = list(range(geometry.chunk_tokens))
        with tempfile.TemporaryDirectory() as top:
            kvtier = ours.Kvtier(top + "/a", geometry, save_chunk_meta=meta)
            chunks = kvtier.store(tokens, 1)
            kvtier.close()
            lmcache = theirs.LMCache(top + "/b", geometry, save_chunk_meta=header)
            lmcache.put(theirs.keys(geometry, tokens), chunks)
            lmcache.close()
            name, mine = self.one_file(top + "/a")
            their_name, their = self.one_file(top + "/b")
        self.assertEqual(name, their_name)
        self.assertEqual(mine[:-TRAILER_BYTES], their)
        self.assertEqual(len(their),
                         geometry.chunk_bytes + (HEADER_BYTES if header else 0))

    def test_every_type_has_lmcaches_header_and_payload(self):
        for dtype in ("half", "bfloat16", "float", "uint8", "fp8_e4m3fn",
                      "fp8_e5m2"):
            for mla in (False, True):
                for header in (True, False):
                    with self.subTest(dtype=dtype, mla=mla, header=header):
                        self.compare(Geometry(dtype=dtype, mla=mla), header)


if __name__ == "__main__":
    unittest.main()
