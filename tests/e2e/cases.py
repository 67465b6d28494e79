# SPDX-License-Identifier: Apache-2.0
"""The end-to-end tests: a real vLLM on the CPU, restarted on one store.

A test is a function of a Place.  Its oracle is the answer to a second
identical request in one server, which hits vLLM's own prefix cache: a hit of
the same length in kvtier must equal it bit for bit.  A request with a
cache_salt of its own finds nothing in any cache: the reference where hits may
differ in length.
"""
import functools
import os
import threading
import time

import workplace
from place import Skipped, check, in_parallel

TESTS = {}
LOADS_FAILED = "vllm:kvtier_load_failed_total"


def e2e(timeout_s):
    """Register a test under its function's name."""
    def register(function):
        TESTS[function.__name__] = (function, timeout_s)
        return function
    return register


def restarted(place, lengths, *args, env=None):
    """Prompts of these lengths: cold, oracle, restart, warm; bit for bit."""
    prompts, oracles = [], []
    with place.server(*args, env=env) as server:
        start = 0
        for n in lengths:
            prompts.append(place.prompt(server, start, n))
            start += n
        for prompt in prompts:
            server.complete(prompt)
            oracles.append(server.complete(prompt))
        place.stored()
    with place.server(*args, env=env) as server:
        for prompt, oracle in zip(prompts, oracles):
            answer, found = place.hit(server, prompt)
            what = f"prompt of {len(prompt)} tokens"
            check(found == len(prompt) - 16,
                  f"{what}: {found} tokens found after the restart")
            place.check_equal(answer, oracle, what)
        place.check_idle(server)
    place.check_hashes()


@e2e(300)
def restart(place):
    """Prompts are found after a restart and answered bit for bit alike."""
    restarted(place, [300, 1100, 5400])


@e2e(300)
def chunked_prefill(place):
    """The same with a prefill in steps of 512 tokens."""
    restarted(place, [700, 3400], "--max-num-batched-tokens", "512")


@e2e(400)
def tensor_parallel(place):
    """The same with two ranks: a chunk counts when both have stored it."""
    restarted(place, [2100], "--tensor-parallel-size", "2", env={
        "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1",
        "VLLM_HOST_IP": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo"})


@e2e(300)
def shared_prefixes(place):
    """Requests that share a prefix, in parallel, in a restarted server."""
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
    with place.server() as server:
        answers = in_parallel([functools.partial(server.complete, prompt)
                               for prompt in prompts])
        for i, answer in enumerate(answers):
            place.check_close(answer, oracles[i], f"parallel request {i}")
        # Their blocks, loaded in parallel, are now vLLM's own prefix hits.
        for i, prompt in enumerate(prompts):
            place.check_equal(server.complete(prompt), oracles[i],
                              f"request {i} after the parallel loads")
        place.check_idle(server)
    place.check_hashes()


def abandon(server, prompt, after_s):
    """Send a request and close the connection without reading the answer."""
    connection = server.connect()
    try:
        server.send_completion(connection, prompt, 64)
        time.sleep(after_s)
    finally:
        connection.close()


@e2e(300)
def aborts(place):
    """Clients that go away while prompts are stored and loaded."""
    with place.server() as server:
        hits = [place.prompt(server, 1000 * i, 1000) for i in range(6)]
        oracles = []
        for prompt in hits:
            server.complete(prompt)
            oracles.append(server.complete(prompt))
        place.stored()
    with place.server() as server:
        news = [place.prompt(server, 6100 + 1000 * i, 1000) for i in range(5)]
        for _ in range(3):
            pauses = [place.random.uniform(0, 0.6) for _ in hits + news]
            in_parallel([functools.partial(abandon, server, prompt, pause)
                         for prompt, pause in zip(hits[:-1] + news, pauses)])
        place.check_idle(server)
        answer, found = place.hit(server, hits[-1])
        check(found == len(hits[-1]) - 16, f"{found} tokens found")
        place.check_equal(answer, oracles[-1], "after the aborts")
        for prompt, oracle in zip(hits, oracles):
            place.check_close(server.complete(prompt), oracle,
                              "an aborted prompt, asked again")
        place.check_idle(server)
    place.check_hashes()


@e2e(400)
def partial_chunk(place):
    """With save_unfull_chunk all of a prompt but its last token is found."""
    place.settings["save_unfull_chunk"] = "true"
    prompts, cold, warm = [], [], []
    with place.server() as server:
        start = 0
        # In a chunk's first and second block; shorter than one; whole chunks; one
        # token more than whole blocks, which vLLM's own prefix hit covers too.
        for n in (600, 700, 50, 768, 641):
            prompts.append(place.piece(server, start, n))
            start += n
        for prompt in prompts:
            cold.append(server.complete(prompt))
        place.stored()
        for prompt in prompts:
            warm.append(server.complete(prompt))
    with place.server() as server:
        for prompt, reference, oracle in zip(prompts, cold, warm):
            answer, found = place.hit(server, prompt, but=1)
            what = f"prompt of {len(prompt)} tokens"
            check(found == len(prompt) - 1,
                  f"{what}: {found} tokens found after the restart")
            place.check_close(answer, reference, f"{what}, against a cold run")
            place.check_equal(answer, oracle, what)
        longer = prompts[0] + prompts[2]
        answer, found = place.hit(server, longer, but=len(longer))
        check(found == 0, f"{found} tokens found beyond what vLLM has")
        place.check_close(answer, server.complete(longer, cache_salt="x"),
                          "a longer prompt")
        place.check_idle(server)
    place.check_hashes()


@e2e(400)
def preemption(place):
    """Too few blocks for all: requests are preempted and resumed."""
    args = ("--num-gpu-blocks-override", "47", "--max-model-len", "4096",
            "--max-num-batched-tokens", "4096")
    with place.server(*args) as server:
        prompts = [place.prompt(server, 1100 * i, 1100) for i in range(6)]
        references = [server.complete(prompt, 2) for prompt in prompts]
        place.stored()
    with place.server(*args) as server:
        for i in range(2):
            answers = in_parallel([
                functools.partial(server.complete, prompt, 200)
                for prompt in prompts])
            for answer, reference in zip(answers, references):
                check(len(answer.token_ids) == 200, "an answer is cut short")
                place.check_close(answer, reference, f"round {i}")
        preempted = server.metrics()["vllm:num_preemptions_total"]
        check(preempted > 0, "no request was preempted")
        place.check_idle(server)
    place.check_hashes()


@e2e(500)
def kill_while_storing(place):
    """SIGKILL of the server while it stores: what is found is right."""
    prompts = []
    for round_number in range(3):
        with place.server() as server:
            check_against_references(place, server, prompts)
            prompt = place.prompt(server, 3900 * round_number, 3900)
            prompts.append(prompt)
            thread = threading.Thread(
                target=ask_until_killed, args=(server, prompt), daemon=True)
            thread.start()
            time.sleep(place.random.uniform(0.8, 3.0))
            server.kill()
            thread.join()
    with place.server() as server:
        check_against_references(place, server, prompts)
        place.check_idle(server)
    place.check_hashes(expect_loads=False)


def ask_until_killed(server, prompt):
    try:
        server.complete(prompt, 8)
    except Exception:
        pass


def check_against_references(place, server, prompts):
    """Each prompt, whatever of it is found, against a run that finds nothing."""
    for prompt in prompts:
        salt = "%x" % place.random.getrandbits(64)
        answer = server.complete(prompt)
        reference = server.complete(prompt, cache_salt=salt)
        place.check_close(answer, reference, "against a run without any hit")


@e2e(300)
def damaged_files(place):
    """A third of the files cut, changed or gone: never a wrong answer."""
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


@e2e(300)
def read_faults(place):
    """Reads that fail, are short or flip a bit: every request completes."""
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
        failed = server.settled_metrics(LOADS_FAILED, 1)[LOADS_FAILED]
        check(failed > 0, "no read failed")
    place.check_hashes()


@e2e(600)
def hybrid_attention(place):
    """Gemma 3: full and sliding-window groups, several of each prompt's cuts."""
    place.model = "gemma"
    try:
        place.model_directory()
    except workplace.Unavailable as e:
        raise Skipped(str(e).splitlines()[0]) from e
    prompts, oracles = [], []
    with place.server() as server:
        for start, n in ((0, 400), (500, 2400), (3000, 5000)):
            prompts.append(place.prompt(server, start, n))
        for prompt in prompts:
            server.complete(prompt)
            oracles.append(server.complete(prompt))
        place.stored()
    with place.server() as server:
        for prompt, oracle in zip(prompts, oracles):
            answer, found = place.hit(server, prompt)
            what = f"prompt of {len(prompt)} tokens"
            check(found == len(prompt) - 16,
                  f"{what}: {found} tokens found after the restart")
            check(answer.token_ids == oracle.token_ids,
                  f"{what}: other tokens than the oracle's")
            place.check_close(answer, oracle, what)
        place.check_idle(server)
    place.check_hashes()
