#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Run the end-to-end tests against a real vLLM on the CPU.

Tests run one after another, each in a new directory.  The directory of a passed test is
removed.  A test that runs longer than the timeout is stopped and fails.
"""
import argparse
import json
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback

import place as places
import workplace
from cases import TESTS
from server import ServerError, install_signal_handlers


TIMEOUT_S = 1800  # on an idle machine, a test takes a minute or two


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", metavar="TEST", nargs="*",
                        help="the tests to run (all)")
    parser.add_argument("--list", action="store_true",
                        help="show the tests and end")
    parser.add_argument("--keep", action="store_true",
                        help="keep the directories of passed tests too")
    parser.add_argument("--seed", type=int, default=1,
                        help="seed of everything random (1)")
    parser.add_argument("--kv-transfer-config", metavar="JSON",
                        type=json.loads, help="use another connector; {store} "
                        "in its extra config becomes the store's directory")
    args = parser.parse_args()
    unknown = set(args.names) - set(TESTS)
    if unknown:
        parser.error("no test is called %s: see --list" %
                     ", ".join(sorted(unknown)))
    return args


def on_alarm(_signum, _frame):
    raise TimeoutError


def run_one(name, place):
    """Run a test.  Return the outcome ("passed", "failed" or "skipped") and the reason."""
    signal.signal(signal.SIGALRM, on_alarm)
    signal.alarm(TIMEOUT_S)
    try:
        TESTS[name](place)
        place.check_nothing_left()
        return "passed", ""
    except places.Skipped as e:
        return "skipped", str(e)
    except (places.Failed, ServerError, workplace.Unavailable) as e:
        return "failed", str(e)
    except TimeoutError:
        return "failed", f"not done after {TIMEOUT_S} s"
    except Exception:
        return "failed", traceback.format_exc()
    finally:
        signal.alarm(0)


def run_all(names, args):
    python = workplace.vllm_python()
    top = tempfile.mkdtemp(prefix="e2e-", dir=workplace.cache_directory())
    counts = {"passed": 0, "failed": 0, "skipped": 0}
    for name in names:
        directory = os.path.join(top, name)
        began = time.monotonic()
        place = places.Place(directory, python, args.kv_transfer_config,
                             args.seed)
        print(f"{name} ...", flush=True)
        outcome, why = run_one(name, place)
        counts[outcome] += 1
        word = {"passed": "ok", "failed": "FAILED"}.get(outcome, outcome)
        print("%-8s e2e/%s (%.0f s)" % (word, name, time.monotonic() - began),
              flush=True)
        if why:
            print("  " + why.rstrip().replace("\n", "\n  "), flush=True)
        if outcome == "failed":
            print(f"  see {directory}", flush=True)
        elif not args.keep:
            shutil.rmtree(directory, ignore_errors=True)
    if not os.listdir(top):
        os.rmdir(top)
    return counts


def main():
    args = parse_arguments()
    if args.list:
        for name, function in TESTS.items():
            print("%-20s %s" % (name, function.__doc__.splitlines()[0]))
        return 0
    install_signal_handlers()
    names = args.names or list(TESTS)
    try:
        counts = run_all(names, args)
    except workplace.Unavailable as e:
        print(f"end-to-end tests: {e}", flush=True)
        counts = {"passed": 0, "failed": 0, "skipped": len(names)}
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    print("%(passed)d passed, %(failed)d failed, %(skipped)d skipped" % counts)
    return 1 if counts["failed"] else 0 if counts["passed"] else 77


if __name__ == "__main__":
    sys.exit(main())
