# SPDX-License-Identifier: Apache-2.0
"""The plug-in registers KVTierConnector, and LMCacheConnectorV1 for kvtier or LMCache."""

import os
import re
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

    def test_is_registered_without_lmcache_or_on_request(self):
        self.assertTrue(self.wanted(installed=False))
        self.assertFalse(self.wanted(installed=True))
        self.assertTrue(self.wanted(installed=True, said="1"))
        self.assertFalse(self.wanted(installed=False, said="0"))


@unittest.skipUnless(fake.HAVE_VLLM, "vLLM is not installed")
class Register(unittest.TestCase):
    # vLLM is imported once, and a child process is forked for each case.
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

    def test_the_name_belongs_to_an_installed_lmcache(self):
        said = self.said["with"]
        self.assertNotIn("kvtier", said[0])
        self.assertEqual(said[-1], "name kvtier.connector")

    def test_unless_the_user_wants_kvtier(self):
        self.assertIn("kvtier", self.said["wanted"][0])


@unittest.skipUnless(fake.HAVE_VLLM, "vLLM is not installed")
class EntryPoint(unittest.TestCase):
    """vLLM's entry points register KVTierConnector in each kind of process."""

    # A child process is forked for each kind and calls vLLM's first step of the kind.  The
    # engine core and the worker fail after the first step: the configuration is a mock.
    CODE = """
import os
from unittest import mock
from vllm.config import KVTransferConfig
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.v1.multi_connector import MultiConnector
from vllm.engine.arg_utils import EngineArgs
from vllm.v1.engine.core import EngineCore
from vllm.v1.worker.worker_base import WorkerWrapperBase
def front_end():
    EngineArgs(model="none")
def engine_core():
    EngineCore(None, None, False)
def worker():
    WorkerWrapperBase.init_worker(mock.MagicMock(rpc_rank=0, global_rank=0),
                                  [{"vllm_config": mock.MagicMock()}])
def transfer(name="KVTierConnector", **more):
    return KVTransferConfig(kv_connector=name, kv_role="kv_both", **more)
for kind in front_end, engine_core, worker:
    child = os.fork()
    if child == 0:
        print("before", "KVTierConnector" in KVConnectorFactory._registry)
        try:
            kind()
        except Exception as e:
            print("stopped by", repr(e))
        path = transfer(kv_connector_module_path="kvtier.connector")
        multi = transfer("MultiConnector", kv_connector_extra_config={"connectors": [
            {"kv_connector": "KVTierConnector", "kv_role": "kv_both"}]})
        config = mock.MagicMock(kv_transfer_config=multi)
        name = KVConnectorFactory.get_connector_class(transfer())
        found = [KVConnectorFactory.get_connector_class(path),
                 KVConnectorFactory.get_connector_class_by_name("KVTierConnector"),
                 *(c for c, _ in MultiConnector._get_connector_classes_and_configs(config))]
        print(kind.__name__, name.__module__, name.__name__, [c is name for c in found],
              flush=True)
        os._exit(0)
    os.waitpid(child, 0)
"""

    def test_name_is_enough_in_each_process(self):
        package = os.path.dirname(os.path.dirname(plugin.__file__))
        with open(os.path.join(os.path.dirname(__file__), "..", "..",
                               "pyproject.toml")) as file:
            group, name, value = re.search(
                r'^\[project\.entry-points\."(.*)"\]\n(\w+) = "(.*)"', file.read(),
                re.M).groups()
        with tempfile.TemporaryDirectory() as folder:
            about = os.path.join(folder, "kvtier-0.1.0.dist-info")
            os.mkdir(about)
            with open(os.path.join(about, "METADATA"), "w") as file:
                file.write("Metadata-Version: 2.1\nName: kvtier\nVersion: 0.1.0\n")
            with open(os.path.join(about, "entry_points.txt"), "w") as file:
                file.write(f"[{group}]\n{name} = {value}\n")
            env = dict(os.environ, PYTHONPATH=os.pathsep.join((package, folder)))
            env.pop("VLLM_PLUGINS", None)
            said = subprocess.run([sys.executable, "-c", self.CODE], env=env, text=True,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT).stdout
        for kind in "front_end", "engine_core", "worker":
            self.assertIn(f"{kind} kvtier.connector KVTierConnector [True, True, True]\n",
                          said)
        self.assertEqual(said.count("before False\n"), 3, said)


if __name__ == "__main__":
    unittest.main()
