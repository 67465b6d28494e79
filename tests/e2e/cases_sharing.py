# SPDX-License-Identifier: Apache-2.0
"""Parallel requests whose prompts share a prefix."""
import contextlib
import functools
import glob
import os
import shutil
import subprocess

from case import e2e
from place import Skipped, check, in_parallel


def shared(place, remove=None, meanwhile=contextlib.nullcontext):
    """Send parallel requests with a shared prefix to a restarted server, and check the
    answers.

    remove() runs before the restart, and the context manager meanwhile() is active during
    the requests: both may delete chunks.  vLLM computes deleted chunks again, so the answers
    may then differ by rounding.  Return kvtier's counters, or None with another connector.
    """
    prompts, oracles = [], []
    with place.server() as server:
        common = place.prompt(server, 0, 2100)[:2048]
        for i in range(6):
            rest = place.prompt(server, 2100 + 600 * i, 300 + 40 * i)
            prompts.append(common + rest)
        for prompt in prompts:
            server.complete(prompt)
            oracles.append(server.complete(prompt))
        place.stored()
    if remove:
        remove()
    with place.server() as server:
        with meanwhile():
            answers = in_parallel([functools.partial(server.complete, prompt)
                                   for prompt in prompts])
        for i, answer in enumerate(answers):
            place.check_close(answer, oracles[i], f"parallel request {i}")
        # The blocks of the parallel loads are now hits in vLLM's own prefix cache.
        for i, prompt in enumerate(prompts):
            anew = remove or meanwhile is not contextlib.nullcontext
            check_same = place.check_close if anew else place.check_equal
            check_same(server.complete(prompt), oracles[i],
                       f"request {i} after the parallel loads")
        place.check_idle(server)
        counted = None
        if place.transfer is None:
            counted = place.counted(server, "load_chunks", 1)
            check(counted["load_bytes"] > 0, "nothing was read from the disk")
    place.check_hashes()
    return counted


@e2e
def shared_prefixes(place):
    """Parallel requests with a shared prefix, after a restart."""
    shared(place)


@e2e
def read_ahead(place):
    """Parallel requests with a shared prefix; kvtier prefetches chunks to host memory."""
    if place.transfer is not None:
        raise Skipped("a setting of kvtier's")
    place.settings["enable_async_loading"] = "true"
    counted = shared(place)
    check(counted["prefetch_chunks"] > 0, "nothing was read ahead")
    check(counted["memory_hits"] > 0, "nothing came from host memory")


@e2e
def other_hosts(place):
    """Parallel requests with a shared prefix; another program deletes chunks.

    The store is a bindfs mount (FUSE), and files are deleted in the directory below.
    vLLM computes the deleted chunks, and no load fails.
    """
    if place.transfer is not None:
        raise Skipped("counts kvtier's own loads")
    if not shutil.which("bindfs") or not os.access("/dev/fuse", os.W_OK):
        raise Skipped("needs bindfs and /dev/fuse")
    below = place.store + ".below"
    indexes = "/var/tmp/kvtier-%d/*" % os.getuid()
    before = set(glob.glob(indexes))
    os.mkdir(below)
    subprocess.run(["bindfs", below, place.store], check=True)

    def remove_some():
        files = sorted(glob.glob(os.path.join(below, "kvtier", "*.data")))
        check(len(files) > 8, "too few files")
        for path in files[::8]:
            os.unlink(path)
    try:
        counted = shared(place, remove_some)
    finally:
        subprocess.run(["umount", "--lazy", place.store], check=True)
        for path in set(glob.glob(indexes)) - before:
            shutil.rmtree(path)
    check(counted["prefetch_chunks"] > 0, "nothing was read ahead")
    check(not counted["load_missing"], "a load failed: %s" % counted)
