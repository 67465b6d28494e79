# SPDX-License-Identifier: Apache-2.0
"""Prefill and decode in two vLLM servers behind the example's proxy."""
import contextlib
import os
import subprocess

from case import e2e
from cases_stores import bucket_of
from place import Skipped, check
from server import Server

PROXY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "examples",
                     "disaggregated-proxy.py")


class Proxy(Server):
    name = "proxy"

    def command(self):
        prefill, decode = self.args
        return [self.python, PROXY, "--port", str(self.port),
                "--prefill", f"http://127.0.0.1:{prefill.port}",
                "--decode", f"http://127.0.0.1:{decode.port}"]


@contextlib.contextmanager
def behind_a_proxy(place):
    """Start a producer, a consumer and the proxy.  Yield the three servers."""
    if place.transfer is not None:
        raise Skipped("a test of kvtier's roles")
    place.role = "kv_producer"
    with place.server() as prefill:
        place.role = "kv_consumer"
        with place.server() as decode:
            proxy = Proxy(place.python, None, place.log, args=(prefill, decode))
            with proxy:
                yield prefill, decode, proxy


def disaggregated(place):
    with behind_a_proxy(place) as (prefill, decode, proxy):
        start = 0
        for n in (1500, 3000, 400):
            prompt = place.prompt(decode, start, n)
            start += n
            before = prefill.metrics()["vllm:prompt_tokens_total"]
            answer, found = place.hit(decode, prompt, ask=proxy)
            what = f"prompt of {len(prompt)} tokens"
            check(found == len(prompt) - 16,
                  f"{what}: the decode server found {found} tokens")
            check(prefill.metrics()["vllm:prompt_tokens_total"] == before + len(prompt),
                  f"{what}: the prefill server did not compute the prompt once")
            place.check_equal(answer, decode.complete(prompt), what)
        short = place.piece(decode, start, 60)  # less than a chunk: nothing to wait for
        place.check_close(proxy.complete(short), decode.complete(short, cache_salt="x"),
                          "a prompt of 60 tokens")
        for server in prefill, decode:
            place.check_idle(server)
        waited = [line for line in place.read_log().splitlines() if "request waited" in line]
        check(not waited, "a wait was in vain: %s" % waited)


@e2e
def disaggregated_directory(place):
    """The prefill server hands KV to the decode server in a directory."""
    disaggregated(place)
    place.check_hashes()


@e2e
def disaggregated_memory(place):
    """The prefill server hands KV to the decode server in shared host memory."""
    memory = os.path.join("/dev/shm", "kvtier-e2e-%d" % os.getpid())
    os.mkdir(memory)
    place.settings.update(remote_url=None, max_shared_cpu_size=1, shared_cpu_path=memory)
    try:
        disaggregated(place)
        place.check_hashes()
    finally:
        subprocess.run(["rm", "-r", memory], check=True)


@e2e
def disaggregated_s3(place):
    """The prefill server hands KV to the decode server in a bucket."""
    with bucket_of(place):
        disaggregated(place)
    place.check_hashes()


@e2e
def decode_without_prefill(place):
    """When the prefill server dies, the decode server computes the prompts."""
    with behind_a_proxy(place) as (prefill, decode, proxy):
        prompt = place.prompt(decode, 0, 1000)
        prefill.stop()
        answer, found = place.hit(decode, prompt, but=len(prompt), ask=proxy)
        check(found == 0, f"{found} tokens found")
        place.check_close(answer, decode.complete(prompt, cache_salt="x"),
                          "without a prefill server")
        place.check_idle(decode)
