# SPDX-License-Identifier: Apache-2.0
"""Whose name LMCacheConnectorV1 is."""

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
    CODE = """
import sys
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.config import KVTransferConfig
from kvtier import plugin
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
"""

    def resolve(self, with_lmcache, **env):
        with tempfile.TemporaryDirectory() as folder:
            if with_lmcache:
                about = os.path.join(folder, "lmcache-0.5.6.dist-info")
                os.mkdir(about)
                with open(os.path.join(about, "METADATA"), "w") as file:
                    file.write("Metadata-Version: 2.1\nName: lmcache\n"
                               "Version: 0.5.6\n")
            path = os.pathsep.join([folder, os.path.dirname(
                os.path.dirname(plugin.__file__))])
            said = subprocess.run(
                [sys.executable, "-c", self.CODE], stdout=subprocess.PIPE,
                env=dict(os.environ, PYTHONPATH=path, **env)).stdout.decode()
        return [line for line in said.splitlines()
                if line.startswith(("class", "hma"))]

    def test_name_means_kvtier_without_lmcache(self):
        self.assertEqual(self.resolve(False),
                         ["class kvtier.connector KVTierConnector", "hma True"])

    def test_name_stays_lmcaches_where_it_is_installed(self):
        self.assertNotIn("kvtier", self.resolve(True)[0])

    def test_unless_the_user_wants_kvtier(self):
        self.assertIn("kvtier",
                      self.resolve(True, KVTIER_REPLACE_LMCACHE="1")[0])


if __name__ == "__main__":
    unittest.main()
