# SPDX-License-Identifier: Apache-2.0
"""Pipeline parallelism: a hit needs the chunks of all stages.

vLLM 0.32's CPU backend runs pipeline parallelism only with a compilation mode: with
--enforce-eager, the second stage fails at its first batch, also without kvtier.
"""
import contextlib
import functools
import glob
import json
import os
import shutil

import workplace
from case import CHUNK, all_found, check_loaded, e2e, request_twice
from cases_vllm import ENGINES_ENV, needs_kvtier
from place import Skipped, check
from cases_restart import TWO_RANKS, TWO_RANKS_ENV
from server import free_port

STAGES = ("--pipeline-parallel-size", "2", "--no-enforce-eager",
          "--compilation-config", json.dumps({"mode": 2, "backend": "eager"}))


def layers(*n):
    """Return the environment of a server whose stages have so many layers."""
    return {**ENGINES_ENV, "VLLM_PP_LAYER_PARTITION": ",".join(map(str, n))}


def files_of(place, world, rank):
    return sorted(glob.glob(os.path.join(place.store, "kvtier", f"*@{world}@{rank}@*.data")))


def check_files(place, world, chunks):
    """Check that each rank has a file of each chunk.  Return the sizes by rank."""
    sizes = []
    for rank in range(world):
        files = files_of(place, world, rank)
        check(len(files) == chunks, f"rank {rank} stored {len(files)} chunks, not {chunks}")
        sizes.append(os.path.getsize(files[0]))
    return sizes


@e2e
def pipeline_parallel(place):
    """Two stages of 5 and 7 layers: a restart, a lost chunk of a stage, other stages."""
    needs_kvtier(place)
    with place.server(*STAGES, env=layers(5, 7)) as server:
        prompts, oracles = request_twice(place, server, (300, 1100))
        place.stored()
    chunks = sum(len(prompt) // CHUNK for prompt in prompts)
    first, second = check_files(place, 2, chunks)
    check(abs(first / second - 5 / 7) < 0.01, f"chunks have {first} and {second} bytes")
    with place.server(*STAGES, env=layers(5, 7)) as server:
        all_found(place, server, prompts, oracles, "in two stages")
        check_loaded(place, server, 2 * chunks)
        place.check_idle(server)
    for rank in (0, 1):
        lose_chunks(place, prompts, oracles, rank)
    with place.server(*STAGES, env=layers(7, 5)) as server:
        for prompt, oracle in zip(prompts, oracles):
            answer, found = place.hit(server, prompt, but=len(prompt))
            check(not found, f"stages of other layers find {found} tokens")
            place.check_close(answer, oracle, "stages of 7 and 5 layers")
        place.check_idle(server)
    place.check_hashes()


def lose_chunks(place, prompts, oracles, rank):
    """Change a byte in files of one stage before a restart: loads fail in this stage alone."""
    for path in files_of(place, 2, rank)[::2]:
        with open(path, "r+b") as file:
            file.seek(1000)
            byte = file.read(1)[0]
            file.seek(1000)
            file.write(bytes([byte ^ 0x40]))
    with place.server(*STAGES, env=layers(5, 7)) as server:
        for prompt, oracle in zip(prompts, oracles):
            place.check_close(server.complete(prompt), oracle,
                              f"after a loss of rank {rank}'s chunks")
        place.check_idle(server)
        counted = place.counted(server, "load_corrupt", 1)
        check(counted["load_corrupt"] > 0, "no damage was met")
        place.stored()


@e2e
def tensor_and_pipeline_parallel(place):
    """Two stages of two ranks each: four files for each chunk, and hits after a restart."""
    needs_kvtier(place)
    args = (*STAGES, "--tensor-parallel-size", "2")
    with place.server(*args, env=layers(5, 7)) as server:
        prompts, oracles = request_twice(place, server, (300, 1100))
        place.stored()
    chunks = sum(len(prompt) // CHUNK for prompt in prompts)
    check_files(place, 4, chunks)
    with place.server(*args, env=layers(5, 7)) as server:
        all_found(place, server, prompts, oracles, "in four ranks")
        check_loaded(place, server, 4 * chunks)
        place.check_idle(server)
    place.check_hashes()


@contextlib.contextmanager
def two_hosts(place):
    """Run a server with a rank on each of two hosts; the second host is a UTS namespace with
    another host name, with a directory of its own."""
    port = free_port()
    second_store = os.path.join(place.directory, "second")
    os.makedirs(second_store, exist_ok=True)
    head = place.server(*ranks_on_hosts(0, port), env=TWO_RANKS_ENV)
    config = os.path.join(place.directory, "second.yaml")
    workplace.write_config(config, second_store, **place.settings)
    second = place.server(*ranks_on_hosts(1, port), "--headless",
                          env={**TWO_RANKS_ENV, "LMCACHE_CONFIG_FILE": config})
    place.last_server = head
    second.command = functools.partial(headless, second.command)
    second.wait_ready = lambda began: None  # it has no port
    with second, head:
        yield head


def ranks_on_hosts(host, port):
    return (*TWO_RANKS, "--distributed-executor-backend", "mp", "--nnodes", "2",
            "--node-rank", str(host), "--master-addr", "127.0.0.1", "--master-port", str(port))


def headless(command):
    """Return the command of a server as the command of the workers of another host."""
    python, _, _, *args = command()
    script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "headless.py")
    return ["unshare", "--uts", "sh", "-c", "hostname second-host && exec \"$@\"", "sh",
            python, script, *args]


@e2e
def two_hosts_without_shared_storage(place):
    """Two ranks on two hosts with a directory each: hits after a restart, a lost directory."""
    needs_kvtier(place)
    if os.geteuid():
        raise Skipped("root makes the second host's name")
    with two_hosts(place) as server:
        prompts, oracles = request_twice(place, server, (300, 1100))
        place.stores_ended()
    chunks = sum(len(prompt) // CHUNK for prompt in prompts)
    second = os.path.join(place.directory, "second", "kvtier")
    for folder, rank in (os.path.join(place.store, "kvtier"), 0), (second, 1):
        names = os.listdir(folder)
        check(len(names) == chunks and all(f"@2@{rank}@" in name for name in names),
              f"host {rank} stored {names}")
    with two_hosts(place) as server:
        all_found(place, server, prompts, oracles, "on two hosts")
        check_loaded(place, server, 2 * chunks)
        server.reset_prefix_cache(external=True)
        answer, found = place.hit(server, prompts[1], but=len(prompts[1]))
        check(not found, f"after a reset {found} tokens are found")
        place.check_close(answer, oracles[1], "after a reset")
        place.check_idle(server)
    shutil.rmtree(os.path.dirname(second))
    with two_hosts(place) as server:
        answer, found = place.hit(server, prompts[1], but=len(prompts[1]))
        check(not found, f"without the second host's directory {found} tokens are found")
        place.check_close(answer, oracles[1], "without the second host's directory")
    check("the workers look up chunks" in place.read_log(), "the workers looked nothing up")
    place.check_hashes()
    with place.server():
        # vLLM 0.32 kills the workers of the second host: they wait for a message of the first.  The
        # next worker on the host removes what they left in /dev/shm.
        pass
