# SPDX-License-Identifier: Apache-2.0
"""Prompts found in storage after a restart, and in host memory without one."""
from case import CHUNK, all_found, ask_twice, e2e, found_in_memory
from place import Skipped, check

TWO_RANKS = ("--tensor-parallel-size", "2")
TWO_RANKS_ENV = {"VLLM_HOST_IP": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo"}


def restarted(place, lengths, *args, env=None, ranks=1):
    """Prompts of these lengths: cold, oracle, restart, warm; bit for bit, from
    the disk and then from host memory, where they were kept."""
    with place.server(*args, env=env) as server:
        prompts, oracles = ask_twice(place, server, lengths)
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
    """Prompts are found after a restart and answered bit for bit alike."""
    restarted(place, [300, 1100, 5400])


@e2e
def chunked_prefill(place):
    """The same with a prefill in steps of 512 tokens."""
    restarted(place, [700, 3400], "--max-num-batched-tokens", "512")


@e2e
def tensor_parallel(place):
    """The same with two ranks: a chunk counts when both have stored it."""
    restarted(place, [2100], *TWO_RANKS, env=TWO_RANKS_ENV, ranks=2)


@e2e
def local_disk(place):
    """The same with LMCache's other disk back end."""
    if place.transfer is not None:
        raise Skipped("a setting of kvtier's")
    place.settings.update(remote_url=None, local_disk=f'"{place.store}"',
                          max_local_disk_size=1)
    restarted(place, [300, 2100])


def kept_in_memory(place, lengths, *args, env=None, ranks=1):
    """No storage at all: what vLLM forgets is in host memory, bit for bit."""
    if place.transfer is not None:
        raise Skipped("a setting of kvtier's")
    place.settings["remote_url"] = None
    with place.server(*args, env=env) as server:
        check(len(place.memory_directories()) == ranks,
              "the ranks' host memory: %s" % place.memory_directories())
        prompts, oracles = ask_twice(place, server, lengths)
        found_in_memory(place, server, prompts, oracles, ranks)
        server.reset_prefix_cache(external=True)
        answer, found = place.hit(server, prompts[0], but=len(prompts[0]))
        check(found == 0, f"{found} tokens found after a reset of everything")
        place.check_close(answer, oracles[0], "after a reset of everything")
        place.check_idle(server)
    place.check_hashes()


@e2e
def host_memory(place):
    """Nothing but LMCache's defaults: prompts stay in host memory."""
    kept_in_memory(place, [300, 1100, 5400])


@e2e
def host_memory_ranks(place):
    """The same with two ranks: the scheduler sees the memory of both."""
    kept_in_memory(place, [2100], *TWO_RANKS, env=TWO_RANKS_ENV, ranks=2)
