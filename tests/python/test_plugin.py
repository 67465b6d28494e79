# SPDX-License-Identifier: Apache-2.0
"""The plugin registers the name LMCacheConnectorV1 for kvtier, or leaves it to LMCache."""

import os
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

import fake
from kvtier import plugin


class Wanted(unittest.TestCase):
    def wanted(self, installed, said=None):
        env = {} if said is None else {"KVTIER_REPLACE_LMCACHE": said}
        error = None if installed else (
            plugin.importlib.metadata.PackageNotFoundError("lmcache"))
        with mock.patch.dict(os.environ, env), mock.patch.object(
                plugin.importlib.metadata, "distribution", side_effect=error):
            return plugin.wanted()

    def test_only_without_lmcache_unless_asked(self):
        self.assertTrue(self.wanted(installed=False))
        self.assertFalse(self.wanted(installed=True))
        self.assertTrue(self.wanted(installed=True, said="1"))
        self.assertFalse(self.wanted(installed=False, said="0"))


@unittest.skipUnless(fake.HAVE_VLLM, "vLLM is not installed")
class Register(unittest.TestCase):
    # vLLM is imported once; each case is a process of its own that continues from there.
    CODE = """
import os
import sys
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.config import KVTransferConfig
from kvtier import plugin
def resolve():
    plugin.register()
    plugin.register()
    try:
        cls = KVConnectorFactory.get_connector_class(KVTransferConfig(
            kv_connector="LMCacheConnectorV1", kv_role="kv_both"))
        print("class", cls.__module__, cls.__name__)
        print("hma", KVConnectorFactory.supports_hma_config(KVTransferConfig(
            kv_connector="LMCacheConnectorV1", kv_role="kv_both")))
    except ImportError as e:
        print("class", e)
    print("name", KVConnectorFactory.get_connector_class_by_name(
        "KVTierConnector").__module__)
for case, has_lmcache, replace in (("without", 0, ""), ("with", 1, ""), ("wanted", 1, "1")):
    child = os.fork()
    if child == 0:
        if has_lmcache:
            sys.path.insert(0, sys.argv[1])
        if replace:
            os.environ["KVTIER_REPLACE_LMCACHE"] = replace
        print("case", case)
        resolve()
        sys.stdout.flush()
        os._exit(0)
    os.waitpid(child, 0)
"""

    @classmethod
    def setUpClass(cls):
        with tempfile.TemporaryDirectory() as folder:
            about = os.path.join(folder, "lmcache-0.5.6.dist-info")
            os.mkdir(about)
            with open(os.path.join(about, "METADATA"), "w") as file:
                file.write("Metadata-Version: 2.1\nName: lmcache\nVersion: 0.5.6\n")
            env = dict(os.environ, PYTHONPATH=os.path.dirname(
                os.path.dirname(plugin.__file__)))
            env.pop("KVTIER_REPLACE_LMCACHE", None)
            said = subprocess.run([sys.executable, "-c", cls.CODE, folder],
                                  stdout=subprocess.PIPE, env=env).stdout.decode()
        cls.said = {}
        for line in said.splitlines():
            if line.startswith("case "):
                lines = cls.said[line.split()[1]] = []
            elif line.startswith(("class", "hma", "name")):
                lines.append(line)

    def test_name_means_kvtier_without_lmcache(self):
        self.assertEqual(self.said["without"],
                         ["class kvtier.connector KVTierConnector", "hma True",
                          "name kvtier.connector"])

    def test_name_stays_lmcaches_where_it_is_installed(self):
        said = self.said["with"]
        self.assertNotIn("kvtier", said[0])
        self.assertEqual(said[-1], "name kvtier.connector")

    def test_unless_the_user_wants_kvtier(self):
        self.assertIn("kvtier", self.said["wanted"][0])


if __name__ == "__main__":
    unittest.main()
