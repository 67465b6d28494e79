# SPDX-License-Identifier: Apache-2.0
"""Hits in storage after a restart, and hits in host memory without a restart."""
import glob
import os

from case import CHUNK, all_found, request_twice, e2e, found_in_memory
from place import Skipped, check
from server import ServerError

TWO_RANKS = ("--tensor-parallel-size", "2")
TWO_RANKS_ENV = {"VLLM_HOST_IP": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo"}


def restarted(place, lengths, *args, env=None, ranks=1):
    """Check answers from the disk, then from host memory, against the oracles, bit for bit.

    A server stores prompts of the given lengths (tokens).  A second server with the given
    arguments loads the chunks from the disk.  After a reset of vLLM's prefix cache, the
    second server loads the chunks from host memory.  ranks: workers of a server.
    """
    with place.server(*args, env=env) as server:
        prompts, oracles = request_twice(place, server, lengths)
        place.stored()
    with place.server(*args, env=env) as server:
        all_found(place, server, prompts, oracles, "after the restart")
        if place.transfer is None:
            chunks = ranks * sum(len(prompt) // CHUNK for prompt in prompts)
            counted = place.counted(server, "load_chunks", chunks)
            check(counted["load_bytes"] > 0 and not counted["memory_hits"],
                  "the chunks did not come from the disk: %s" % counted)
            found_in_memory(place, server, prompts, oracles, ranks)
        place.check_idle(server)
    place.check_hashes()


@e2e
def restart(place):
    """Prompts hit after a restart, and the answers equal the oracles bit for bit."""
    restarted(place, [300, 1100, 5400])


@e2e
def chunked_prefill(place):
    """Hits after a restart; vLLM splits the prefill into steps of 512 tokens."""
    restarted(place, [700, 3400], "--max-num-batched-tokens", "512")


@e2e
def tensor_parallel(place):
    """Hits after a restart with two ranks: a hit needs the chunks of both ranks."""
    restarted(place, [2100], *TWO_RANKS, env=TWO_RANKS_ENV, ranks=2)


@e2e
def scaled_fp8(place):
    """KV of FP8 numbers with a scale for each layer hits after a restart."""
    place.model = "scaled-kv"
    try:
        restarted(place, [300, 2100], "--kv-cache-dtype", "fp8_e4m3")
    except ServerError as e:
        if "requires x86 with AVX-512" in place.read_log():
            raise Skipped("vLLM has FP8 KV only with AVX-512 or AMX") from e
        raise
    check("scaling factor 1.0" not in place.read_log(), "vLLM did not load the scales")


@e2e
def local_disk(place):
    """Hits after a restart with local_disk, LMCache's other disk back end."""
    if place.transfer is not None:
        raise Skipped("a setting of kvtier's")
    place.settings.update(remote_url=None, local_disk=f'"{place.store}"',
                          max_local_disk_size=1)
    restarted(place, [300, 2100])


@e2e
def lossless(place):
    """Hits in encoded chunks after a restart, bit for bit."""
    if place.transfer is not None:
        raise Skipped("a setting of kvtier's")
    place.settings.update(remote_serde="lossless")
    restarted(place, [300, 2100])
    files = glob.glob(os.path.join(glob.escape(place.store), "kvtier", "*.data"))
    check(files and all(name.endswith("-lossless.data") for name in files),
          "chunks are stored in another encoding: %s" % files[:3])


def kept_in_memory(place, lengths, *args, env=None, ranks=1):
    """Without storage: after a reset of vLLM's prefix cache, check that prompts hit in host
    memory, bit for bit.  A reset of vLLM's and kvtier's caches leaves no hit."""
    if place.transfer is not None:
        raise Skipped("a setting of kvtier's")
    place.settings["remote_url"] = None
    with place.server(*args, env=env) as server:
        check(len(place.memory_directories()) == ranks,
              "the ranks' host memory: %s" % place.memory_directories())
        prompts, oracles = request_twice(place, server, lengths)
        found_in_memory(place, server, prompts, oracles, ranks)
        server.reset_prefix_cache(external=True)
        answer, found = place.hit(server, prompts[0], but=len(prompts[0]))
        check(found == 0, f"{found} tokens found after a reset of everything")
        place.check_close(answer, oracles[0], "after a reset of everything")
        place.check_idle(server)
    place.check_hashes()


@e2e
def host_memory(place):
    """LMCache's defaults, without storage: prompts hit in host memory."""
    kept_in_memory(place, [300, 1100, 5400])


@e2e
def host_memory_ranks(place):
    """Hits in host memory with two ranks: the scheduler sees the memory of both ranks."""
    kept_in_memory(place, [2100], *TWO_RANKS, env=TWO_RANKS_ENV, ranks=2)
