# SPDX-License-Identifier: Apache-2.0
"""Print the current step and its duration, on a terminal and in a log.

A second thread updates the seconds while a step runs.
"""
import contextlib
import sys
import threading
import time

QUIET_PERIOD_S = 20


@contextlib.contextmanager
def step(text):
    """Print `text`, and the elapsed seconds until the block ends."""
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
