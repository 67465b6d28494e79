# SPDX-License-Identifier: Apache-2.0
"""vLLM's KV cache events, received over ZMQ as a router receives the events."""
import json
import os
import subprocess
import threading
import time

from case import CHUNK, e2e
from cases_restart import TWO_RANKS, TWO_RANKS_ENV
from cases_vllm import needs_kvtier
from place import PATIENCE_S, check

BLOCKS = CHUNK // 128  # vLLM's blocks of a chunk on CPUs


class Router:
    """A subscriber that knows which blocks each medium holds."""

    def __init__(self, place):
        self.endpoint = "ipc://" + os.path.join(place.directory, "zmq")
        self.python = place.python
        self.media = {}  # medium -> {hash: event}
        self.errors = []

    def args(self):
        return (*TWO_RANKS, "--kv-events-config", json.dumps({
            "enable_kv_cache_events": True, "publisher": "zmq", "endpoint": self.endpoint}))

    def __enter__(self):
        script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "subscriber.py")
        self.process = subprocess.Popen([self.python, script, self.endpoint], text=True,
                                        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        for line in self.process.stdout:
            if line == "ready\n":
                break
        check(self.process.poll() is None, "the subscriber ended")
        self.thread = threading.Thread(target=self.follow)
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self.thread.join()
        self.process.stdout.close()

    def follow(self):
        for line in self.process.stdout:
            event = json.loads(line)
            try:
                self.apply(event)
            except KeyError as e:
                self.errors.append("%s of an unknown block %s" % (event["type"], e))

    def apply(self, event):
        if event["type"] == "AllBlocksCleared":
            self.media["GPU"] = {}
            return
        known = self.media.setdefault(event["medium"], {})
        for one in event["block_hashes"]:
            if event["type"] == "BlockRemoved":
                del known[one]
            elif one in known and event["medium"] != "GPU":
                self.errors.append("block %s is stored twice" % one)
            else:
                known[one] = event

    def have(self, medium):
        return set(self.media.get(medium, ()))

    def wait(self, n, *media):
        """Wait until each of the media holds n blocks."""
        deadline = time.monotonic() + PATIENCE_S
        while any(len(self.have(medium)) != n for medium in media):
            check(time.monotonic() < deadline, "the router knows %s, not %d blocks" % (
                {medium: len(self.have(medium)) for medium in media}, n))
            time.sleep(0.05)
        check(not self.errors, "; ".join(self.errors[:3]))


@e2e
def events(place):
    """A router follows vLLM's KV events with two ranks: host memory, storage, a restart, a
    reset."""
    needs_kvtier(place)
    place.settings["kv_events_storage"] = "host"
    # The seed is for block hashes of older versions of vLLM.
    env = {"PYTHONHASHSEED": "0", **TWO_RANKS_ENV}
    with Router(place) as router, place.server(*router.args(), env=env) as server:
        prompt = place.prompt(server, 0, 1000)
        server.complete(prompt, 2)
        # The engine is idle, and no request brings the events of the storage.
        router.wait(3 * BLOCKS, "CPU", "STORAGE")
        files, _ = place.stored()
        check(files == 2 * 3, f"{files} chunks are stored")
        hashes = router.have("STORAGE")
        check(hashes == router.have("CPU") and hashes <= router.have("GPU"),
              "kvtier's block hashes are not vLLM's")
        tokens = {tuple(event["token_ids"]) for event in router.media["STORAGE"].values()}
        check(tokens == {tuple(prompt[i * CHUNK:(i + 1) * CHUNK]) for i in range(3)},
              "the events have other tokens than the prompt")
    with Router(place) as router, place.server(*router.args(), env=env) as server:
        _, found = place.hit(server, prompt)
        check(found == len(prompt) - 16, f"{found} tokens found")
        router.wait(3 * BLOCKS, "CPU", "STORAGE")
        check(router.have("STORAGE") == hashes, "other block hashes after the restart")
        server.reset_prefix_cache(external=True)
        server.complete([5, 6, 7], 2)
        router.wait(0, "CPU", "STORAGE")
        server.complete(prompt, 2)
        router.wait(3 * BLOCKS, "CPU", "STORAGE")
        place.check_idle(server)
    place.check_hashes()
