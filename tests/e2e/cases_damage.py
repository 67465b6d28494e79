# SPDX-License-Identifier: Apache-2.0
"""Killed servers, damaged files and failed reads never cause a wrong answer."""
import functools
import os
import threading
import time

import workplace
from case import e2e
from place import Skipped, check, in_parallel


@e2e
def kill_while_storing(place):
    """SIGKILL of the server during stores: a restarted server returns the right answers."""
    prompts, left, n_amid, was_amid = [], [], 0, False
    steps = "--max-num-batched-tokens", "512"
    while True:
        with place.server(*steps) as server:
            check(not set(left) & set(place.memory_directories()),
                  "what the killed server had in /dev/shm is there still")
            if was_amid:
                _, found = place.hit(server, prompts[-1])
                check(0 < found < len(prompts[-1]) - 16, "%d tokens are found of the "
                      "prompt whose server was killed in round %d" % (found, n_amid))
            check_against_references(place, server, prompts[-3:])
            if n_amid == 3:
                place.check_idle(server)
                break
            check(len(prompts) < 9, "no server was killed while it stored")
            prompts.append(place.prompt(server, 900 * len(prompts), 3900))
            was_amid = kill_amid(place, server, prompts[-1])
            n_amid += was_amid
            left = place.memory_directories()
            check(left or place.transfer, "the killed server had no host memory")
    place.check_hashes()


def kill_amid(place, server, prompt):
    """Kill the server when some chunks of a prompt are in the store.

    Return True if other chunks of the prompt are missing, False if this process ran too late
    and the server had stored all chunks.
    """
    answers = []

    def complete():
        try:
            answers.append(server.complete(prompt, 4000))
        except Exception:
            pass
    first, _ = workplace.stored(place.store)
    thread = threading.Thread(target=complete, daemon=True)
    thread.start()
    # A step computes two chunks.  Once four chunks are stored, the first two chunks of the
    # prompt are among them.
    while workplace.stored(place.store)[0] < first + 4 and thread.is_alive():
        time.sleep(0.01)
    time.sleep(place.random.uniform(0, 0.5))
    server.kill()
    thread.join()
    n = workplace.stored(place.store)[0] - first
    check(n >= 4, "too little was stored")
    check(not answers, "the request was over when the server was killed")
    return n < len(prompt) // workplace.CHUNK_TOKENS


def check_against_references(place, server, prompts):
    """Compare each prompt's answer, whole or partial hit, with an answer without hits."""
    for prompt in prompts:
        salt = "%x" % place.random.getrandbits(64)
        answer = server.complete(prompt)
        reference = server.complete(prompt, cache_salt=salt)
        place.check_close(answer, reference, "against a run without any hit")


@e2e
def damaged_files(place):
    """A third of the files truncated, changed or deleted: never a wrong answer."""
    if place.transfer is not None:
        raise Skipped("only kvtier verifies what it reads")
    with place.server() as server:
        prompts = [place.prompt(server, 2700 * i, 2700) for i in range(4)]
        references = [server.complete(prompt) for prompt in prompts]
        place.stored()
    damage(place)
    with place.server() as server:
        answers = in_parallel([functools.partial(server.complete, prompt)
                               for prompt in prompts])
        for answer, reference in zip(answers, references):
            place.check_close(answer, reference, "with damaged files")
        place.check_idle(server)
        counted = place.counted(server, "load_corrupt", 1)
        check(counted["load_corrupt"] > 0, "no damage was met")
    place.check_hashes()


def damage(place):
    files = [path for path in sorted(workplace.files_below(place.store))
             if f"{os.sep}.kvtier{os.sep}" not in path]
    for number, path in enumerate(files):
        size = os.path.getsize(path)
        if number % 9 == 2:
            os.unlink(path)
        elif number % 9 == 5:
            os.truncate(path, place.random.randrange(size))
        elif number % 9 == 8:
            at = place.random.randrange(size)
            with open(path, "r+b") as f:
                f.seek(at)
                byte = f.read(1)[0]
                f.seek(at)
                f.write(bytes([byte ^ 0x40]))


@e2e
def read_faults(place):
    """Reads that fail, are short or return a flipped bit: every request completes."""
    if place.transfer is not None:
        raise Skipped("only kvtier has a tier that fails on purpose")
    with place.server() as server:
        prompts = [place.prompt(server, 1500 * i, 1500) for i in range(8)]
        references = [server.complete(prompt) for prompt in prompts]
        place.stored()
    place.settings["remote_url"] = (
        '"fault://seed=1,read_error=0.3,short_read=0.05,bit_flip=0.05/fs://%s"'
        % place.store)
    with place.server() as server:
        answers = in_parallel([functools.partial(server.complete, prompt)
                               for prompt in prompts])
        for answer, reference in zip(answers, references):
            place.check_close(answer, reference, "with failing reads")
        place.check_idle(server)
        counted = place.counted(server, "load_failed", 1)
        check(counted["load_failed"] > 0, "no read failed")
    place.check_hashes()
