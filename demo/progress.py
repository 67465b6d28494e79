# SPDX-License-Identifier: Apache-2.0
"""Announce the steps of a run; print the current step and its duration, on a terminal and in
a log.

A second thread updates the seconds while a step runs.
"""
import collections
import contextlib
import sys
import threading
import time

QUIET_PERIOD_S = 20

# seconds: on an earlier run; first_time: what the first run on a machine takes more, or None
Step = collections.namedtuple("Step", "text seconds first_time", defaults=[None])
announced = set()


def announce(machine, steps):
    """Print the steps to come, with the seconds of each step on an earlier run on `machine`."""
    print(f"Steps, and about how many seconds each step took on {machine}:", file=sys.stderr)
    for text, seconds, first_time in steps:
        more = f" (the first time: {first_time})" if first_time else ""
        print(f"  {seconds:6.1f}  {text}{more}", file=sys.stderr)
    print(f"  {sum(step.seconds for step in steps):6.1f}  in all\n", file=sys.stderr, flush=True)
    announced.update(step.text for step in steps)


@contextlib.contextmanager
def step(text):
    """Print `text`, an announced step, and the elapsed seconds until the block ends."""
    if text not in announced:
        raise ValueError(f"the step '{text}' was not announced")
    terminal = sys.stderr.isatty()
    began = time.monotonic()
    ended = threading.Event()

    def show():
        while not ended.wait(0.5 if terminal else QUIET_PERIOD_S):
            seconds = time.monotonic() - began
            if terminal:
                sys.stderr.write(f"\r  {text} ... {seconds:.0f} s ")
            else:
                sys.stderr.write(f"  {text} ... {seconds:.0f} s\n")
            sys.stderr.flush()

    if terminal:
        sys.stderr.write(f"  {text} ... ")
        sys.stderr.flush()
    thread = threading.Thread(target=show, daemon=True)
    thread.start()
    result = "stopped"
    try:
        yield
        result = "done"
    finally:
        ended.set()
        thread.join()
        line = f"  {text}: {result} in {time.monotonic() - began:.1f} s"
        sys.stderr.write(("\r" + line.ljust(72) if terminal else line) + "\n")
        sys.stderr.flush()


def note(text):
    print("  " + text, file=sys.stderr, flush=True)
