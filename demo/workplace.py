# SPDX-License-Identifier: Apache-2.0
"""The environment of the demo and the end-to-end tests: the Python environment with vLLM,
the small model, the configuration of kvtier, the store's directory.

All large files are outside the repository, in the user's cache directory.
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
    """This machine lacks a requirement; the text names the requirement."""


def cache_directory():
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    path = os.environ.get("KVTIER_CACHE_DIR") or os.path.join(home, "kvtier")
    os.makedirs(path, exist_ok=True)
    return path


def vllm_python():
    """Return the interpreter of the environment with vLLM; install vLLM if necessary.

    KVTIER_VLLM_PYTHON overrides the interpreter."""
    given = os.environ.get("KVTIER_VLLM_PYTHON")
    if given:
        return given
    done = subprocess.run([os.path.join(REPOSITORY, "scripts", "vllm-env")],
                          stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        raise Unavailable("vLLM cannot be installed here")
    return os.path.join(done.stdout.splitlines()[-1], "bin", "python")


def make_once(name, command_for, inputs):
    """Return the directory that command_for(directory) fills.  The directory is made once
    for each content of the input files."""
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
    """Return the directory of the random Llama of make-model.py, with a tokenizer for
    text.txt."""
    script = os.path.join(DEMO, "make-model.py")
    text = os.path.join(DEMO, "text.txt")
    return make_once("small-llama",
                     lambda directory: [python, script, directory, text],
                     [script, text])


def gemma(python):
    """Return the directory of Gemma 3 270M, a download of 0.25 GB."""
    script = os.path.join(REPOSITORY, "tests", "e2e", "make-gemma.py")
    return make_once("gemma", lambda directory: [python, script, directory], [script])


def read_text(name):
    with open(os.path.join(DEMO, name), encoding="utf-8") as f:
        return f.read()


def whole_chunks(token_ids, at_most=None):
    """Cut a prompt so that vLLM's own prefix hit and kvtier's hit are equally long.

    vLLM reuses whole blocks of all tokens except the last token, kvtier whole chunks.  If a
    prompt has 16 tokens after a chunk's end, both hits end at the chunk's end, for every
    block size from 16 tokens to a chunk.  vLLM then computes the same rest after both hits,
    with bit-identical rounding."""
    n = min(len(token_ids), at_most or len(token_ids))
    chunks = (n - 16) // CHUNK_TOKENS
    if chunks < 1:
        raise ValueError(f"a prompt of {n} tokens has no whole chunk before "
                         "its last 16 tokens")
    return token_ids[:chunks * CHUNK_TOKENS + 16]


def transfer_config(**extra):
    """Return the value of --kv-transfer-config for kvtier's connector."""
    return {"kv_connector": "KVTierConnector",
            "kv_connector_module_path": "kvtier.connector",
            "kv_role": "kv_both",
            "kv_connector_extra_config": extra}


def kvtier_environment(config_file):
    """Return the environment variables with which a server finds kvtier and the
    configuration."""
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
    """Write a configuration file in LMCache's form; leave out settings that are None."""
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
    """Return (files, bytes) of the chunks in a store."""
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
    """Wait until look() returns equal values for still_s seconds; return the last value."""
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
    """Wait until the store no longer changes."""
    return wait_until_still(lambda: stored(store))


def drop_page_cache(store):
    """Drop a store's files from the page cache: the next reader reads from the disk."""
    for path in files_below(store):
        fd = os.open(path, os.O_RDONLY)
        try:
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)
