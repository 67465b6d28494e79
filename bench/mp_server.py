# SPDX-License-Identifier: Apache-2.0
"""LMCache's MP server and its connector for vLLM, beside vLLM in the cache directory."""
import json
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "demo"))

import workplace  # noqa: E402
from server import Server, free_port  # noqa: E402

REQUIREMENTS = os.path.join(HERE, "lmcache-mp.txt")


def install(python):
    """Return the directory with LMCache for vLLM's interpreter."""
    vllm = os.path.basename(os.path.dirname(os.path.dirname(python)))
    return workplace.make_once(
        f"lmcache-mp-{vllm}",
        lambda directory: [python, "-m", "pip", "install", "--no-deps",
                           "--target", directory, "-r", REQUIREMENTS],
        [REQUIREMENTS])


def environment(directory):
    return {"PYTHONPATH": directory, "LMCACHE_TRACK_USAGE": "false"}


class MPServer(Server):
    """`lmcache server`.  The server has no model; `port` is the port of its HTTP API.
    store: the directory of the server's files, or None."""
    name = "LMCache's MP server"
    health = "/healthcheck"

    def __init__(self, python, log, env, memory_gb, store=None):
        super().__init__(python, None, log, env=env)
        self.store = store
        self.memory_gb = memory_gb
        self.queue_port = free_port()

    def command(self):
        # Without a name for shared memory the KV goes through pickle, which is
        # slower.
        command = [self.python, "-m", "lmcache.cli.main", "server",
                   "--host", "127.0.0.1", "--port", str(self.queue_port),
                   "--http-host", "127.0.0.1", "--http-port", str(self.port),
                   "--chunk-size", str(workplace.CHUNK_TOKENS),
                   "--l1-size-gb", str(self.memory_gb), "--eviction-policy", "LRU",
                   "--supported-transfer-mode", "auto",
                   "--shm-name", f"kvtier-bench-{self.queue_port}"]
        if self.store:
            adapter = {"type": "fs", "base_path": self.store}
            command += ["--l2-adapter", json.dumps(adapter)]
        return command

    def transfer_config(self):
        return {"kv_connector": "LMCacheMPConnector",
                "kv_connector_module_path":
                    "lmcache.integration.vllm.lmcache_mp_connector",
                "kv_role": "kv_both",
                "kv_connector_extra_config": {
                    "lmcache.mp.host": "tcp://127.0.0.1",
                    "lmcache.mp.port": self.queue_port}}
