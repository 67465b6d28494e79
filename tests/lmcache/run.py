#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compare kvtier's files and chunk names with the real LMCache, on CPU tensors.

Each group of tests runs in a separate process, because PYTHONHASHSEED and LMCache's
settings hold for a process.  Last line: N passed, N failed, N skipped.  If LMCache cannot
be installed, the program reports this and counts each group as skipped.
Exit status: 0 success, 1 a test failed, 77 no test ran.
"""
import argparse
import os
import re
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
TIMEOUT_S = 1800  # for a group of tests, which takes a minute on an idle machine
# The module of tests, and the value of PYTHONHASHSEED (None: unset).
RUNS = [("test_headers", "0"), ("test_files", "0"), ("test_3fs", "0"),
        ("test_disk", "0"), ("test_gds", "0"), ("test_weka", "0"), ("test_s3", "0"),
        ("test_keys", "0"), ("test_keys", "42"), ("test_keys", "random"),
        ("test_keys", None)]


def library():
    return os.environ.get("KVTIER_LIBRARY") or os.path.join(
        ROOT, "build", "libkvtier.so")


def interpreter():
    """Return the path of a Python with LMCache, after installing LMCache if necessary.

    Return None if LMCache cannot be installed.
    """
    given = os.environ.get("KVTIER_LMCACHE_PYTHON")
    if given:
        return given
    done = subprocess.run([os.path.join(ROOT, "scripts", "lmcache-env")],
                          stdout=subprocess.PIPE, text=True)
    if done.returncode:
        return None
    return os.path.join(done.stdout.splitlines()[-1], "bin", "python")


def count(output, returncode):
    """Return (passed, failed, skipped) of a unittest run; (0, 1, 0) if the run broke off."""
    ran = re.findall(r"^Ran (\d+) tests? in", output, re.M)
    failed = len(set(re.findall(r"^(?:FAIL|ERROR): (\w+)", output, re.M)))
    skipped = sum(map(int, re.findall(r"skipped=(\d+)\)?$", output, re.M)))
    if not ran or (returncode and not failed):
        return 0, 1, 0
    return max(int(ran[-1]) - failed - skipped, 0), failed, skipped


def run(python, module, seed):
    env = dict(os.environ, KVTIER_LIBRARY=library(), PYTHONDONTWRITEBYTECODE="1")
    for name in list(env):
        if name.startswith("LMCACHE_"):
            del env[name]
    env.pop("PYTHONHASHSEED", None)
    if seed is not None:
        env["PYTHONHASHSEED"] = seed
    command = [python, "-W", "ignore", "-X", "faulthandler",
               os.path.join(HERE, module + ".py")]
    try:
        done = subprocess.run(command, env=env, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, timeout=TIMEOUT_S,
                              text=True, errors="replace")
    except subprocess.TimeoutExpired as e:
        output = (e.stdout or b"").decode(errors="replace")
        return (0, 1, 0), output + "\nnot done after %d s" % TIMEOUT_S
    return count(done.stdout, done.returncode), done.stdout


def main():
    argparse.ArgumentParser(description=__doc__).parse_args()
    if not os.path.exists(library()):
        sys.exit("%s is not there: build kvtier first (make)" % library())
    python = interpreter()
    total = [0, 0, 0]
    for module, seed in RUNS:
        name = "lmcache/%s, %s" % (module, "no PYTHONHASHSEED" if seed is None
                                   else "PYTHONHASHSEED=" + seed)
        began = time.monotonic()
        if python:
            counts, output = run(python, module, seed)
        else:
            counts, output = (0, 0, 1), ""
        total = [a + b for a, b in zip(total, counts)]
        word = "FAILED" if counts[1] else "ok" if counts[0] else "skipped"
        print("%-8s %s (%d passed, %.1f s)" %
              (word, name, counts[0], time.monotonic() - began), flush=True)
        if counts[1]:
            print(output, flush=True)
    if not python:
        print("LMCache cannot be installed here (see above): nothing of kvtier "
              "was compared with it")
    print("%d passed, %d failed, %d skipped" % tuple(total))
    return 1 if total[1] else 0 if total[0] else 77


if __name__ == "__main__":
    sys.exit(main())
