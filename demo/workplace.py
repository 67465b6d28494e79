# SPDX-License-Identifier: Apache-2.0
"""What the demo and the end-to-end tests stand on: the Python environment with
vLLM, the small model, the configuration of kvtier, the store's directory.

Everything large lies outside the repository, in the user's cache directory.
"""
import hashlib
import os
import shutil
import subprocess
import time

REPOSITORY = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
DEMO = os.path.join(REPOSITORY, "demo")
CHUNK_TOKENS = 256


class Unavailable(Exception):
    """Something this machine cannot provide; the text says what."""


def cache_directory():
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    path = os.environ.get("KVTIER_CACHE_DIR") or os.path.join(home, "kvtier")
    os.makedirs(path, exist_ok=True)
    return path


def vllm_python():
    """The interpreter of the environment with vLLM, installed if need be.

    KVTIER_VLLM_PYTHON names another one."""
    given = os.environ.get("KVTIER_VLLM_PYTHON")
    if given:
        return given
    done = subprocess.run([os.path.join(REPOSITORY, "scripts", "vllm-env")],
                          stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        raise Unavailable("vLLM cannot be installed here")
    return os.path.join(done.stdout.splitlines()[-1], "bin", "python")


def make_once(name, command_for, inputs):
    """The directory that command_for(directory) fills, made once for the same
    contents of the input files."""
    digest = hashlib.sha256()
    for path in inputs:
        with open(path, "rb") as f:
            digest.update(f.read())
    final = os.path.join(cache_directory(),
                         f"{name}-{digest.hexdigest()[:12]}")
    if os.path.isdir(final):
        return final
    building = f"{final}.{os.getpid()}.tmp"
    try:
        done = subprocess.run(command_for(building), stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True)
        if done.returncode != 0:
            raise Unavailable(f"cannot make {name}:\n{done.stdout}")
        try:
            os.rename(building, final)
        except OSError:
            if not os.path.isdir(final):
                raise
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return final


def small_model(python):
    """The random Llama of make-model.py with a tokenizer for text.txt."""
    script = os.path.join(DEMO, "make-model.py")
    text = os.path.join(DEMO, "text.txt")
    return make_once("small-llama",
                     lambda directory: [python, script, directory, text],
                     [script, text])


def read_text(name):
    with open(os.path.join(DEMO, name), encoding="utf-8") as f:
        return f.read()


def whole_chunks(token_ids, at_most=None):
    """Cut a prompt so that vLLM's own prefix hit and kvtier's are equally long.

    vLLM reuses whole blocks of all tokens but the last, kvtier whole chunks.
    16 tokens behind a chunk's end both end there, for every block size from 16
    tokens to a chunk.  Only then do both compute the same rest, and rounding
    is the same to the last bit."""
    n = min(len(token_ids), at_most or len(token_ids))
    chunks = (n - 16) // CHUNK_TOKENS
    if chunks < 1:
        raise ValueError(f"a prompt of {n} tokens has no whole chunk before "
                         "its last 16 tokens")
    return token_ids[:chunks * CHUNK_TOKENS + 16]


def transfer_config(**extra):
    """--kv-transfer-config for kvtier's connector."""
    return {"kv_connector": "KVTierConnector",
            "kv_connector_module_path": "kvtier.connector",
            "kv_role": "kv_both",
            "kv_connector_extra_config": extra}


def kvtier_environment(config_file):
    """What a server needs to find kvtier and its configuration."""
    library = os.path.join(REPOSITORY, "build", "libkvtier.so")
    if not os.path.exists(library):
        raise Unavailable(f"{library} is not there: run make first")
    path = [os.path.join(REPOSITORY, "python")]
    if os.environ.get("PYTHONPATH"):
        path.append(os.environ["PYTHONPATH"])
    return {"PYTHONPATH": os.pathsep.join(path),
            "KVTIER_LIBRARY": library,
            "LMCACHE_CONFIG_FILE": config_file}


def write_config(path, store, pool_gb=0.5, **more):
    """A configuration file as a user of LMCache would write it; a setting that is
    None is left out."""
    settings = {"chunk_size": CHUNK_TOKENS, "max_local_cpu_size": pool_gb,
                "remote_url": f'"fs://{store}"', **more}
    with open(path, "w") as f:
        for key, value in settings.items():
            if value is not None:
                f.write(f"{key}: {value}\n")


def files_below(directory):
    for folder, _, names in os.walk(directory):
        for name in names:
            yield os.path.join(folder, name)


def stored(store):
    """(files, bytes) of the chunks in a store."""
    files = total = 0
    for path in files_below(store):
        if f"{os.sep}.kvtier{os.sep}" in path:
            continue
        try:
            total += os.stat(path).st_size
            files += 1
        except FileNotFoundError:
            pass
    return files, total


def wait_until_still(look, still_s=1.5, timeout_s=60):
    """Wait until what look() tells has been the same for a while."""
    deadline = time.monotonic() + timeout_s
    last, since = look(), time.monotonic()
    while time.monotonic() < deadline:
        time.sleep(0.1)
        now = look()
        if now != last:
            last, since = now, time.monotonic()
        elif time.monotonic() - since > still_s:
            break
    return last


def wait_until_stored(store):
    """Wait until nothing was added to a store for a while."""
    return wait_until_still(lambda: stored(store))


def drop_page_cache(store):
    """Let the next reader of a store find it on the disk, not in memory."""
    for path in files_below(store):
        fd = os.open(path, os.O_RDONLY)
        try:
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)
