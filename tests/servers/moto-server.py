#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Start moto, which imitates S3, STS and instance metadata (IMDSv2) on the same loopback
port, almost without checks.  Prints a line of JSON when ready; ends on SIGTERM or at the
end of standard input.  Exit status 77: not installed (scripts/s3-env)."""

import os
import socket
import sys
import tempfile
import time

import lifetime
from s3_env import find


def serves(port, child):
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline and child.poll() is None:
        try:
            socket.create_connection((lifetime.LOOPBACK, port), timeout=30).close()
            return True
        except OSError:
            time.sleep(0.1)
    return False


def main():
    program = find("moto_server")
    if not program:
        print("moto is not installed: run scripts/s3-env", file=sys.stderr)
        return 77
    lifetime.end_on_signals()
    port = lifetime.free_port()
    with tempfile.TemporaryDirectory(prefix="moto-") as directory:
        log = os.path.join(directory, "log")
        child = lifetime.spawn([program, "-H", lifetime.LOOPBACK, "-p", str(port)], log)
        try:
            if not serves(port, child):
                with open(log) as file:
                    sys.exit("moto does not start:\n" + file.read()[-3000:])
            lifetime.print_facts(endpoint=f"http://{lifetime.LOOPBACK}:{port}", port=port,
                         access="AKTEST", secret="SKTEST", region="us-east-1")
            lifetime.stay([child])
        except lifetime.Ended:
            pass
        finally:
            lifetime.end(child, seconds=0.2)
    return 0


if __name__ == "__main__":
    sys.exit(main())
