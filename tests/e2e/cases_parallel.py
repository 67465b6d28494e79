# SPDX-License-Identifier: Apache-2.0
"""Pipeline parallelism: a hit needs the chunks of all stages.

vLLM 0.32's CPU backend runs pipeline parallelism only with a compilation mode: with
--enforce-eager, the second stage fails at its first batch, also without kvtier.
"""
import glob
import json
import os

from case import CHUNK, all_found, e2e, request_twice
from cases_vllm import ENGINES_ENV, needs_kvtier
from place import check

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
        counted = place.counted(server, "load_chunks", 2 * chunks)
        check(counted["load_chunks"] == 2 * chunks,
              "%d chunks were loaded" % counted["load_chunks"])
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
        counted = place.counted(server, "load_chunks", 4 * chunks)
        check(counted["load_chunks"] == 4 * chunks,
              "%d chunks were loaded" % counted["load_chunks"])
        place.check_idle(server)
    place.check_hashes()
