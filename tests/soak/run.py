#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Run build/tests/soak/soak against an S3 server with injected faults, and check that the
memory of kvtier does not grow.

A proxy in front of the S3 server injects more faults.  The environment variable SECONDS
sets the duration (default 3600).  Runs of less than 300 seconds are too short to show a
leak.
"""
import http.client
import json
import os
import shutil
import subprocess
import sys
import threading

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
SERVERS = os.path.join(ROOT, "tests", "servers")
sys.path.insert(0, os.path.join(ROOT, "tests", "s3"))
from place import Server, in_path  # noqa: E402


def fault(rate, match=None, **do):
    return {"match": match or {}, "rate": rate, "count": None, "do": do}


FAULTS = [
    fault(0.01, status=503, code="SlowDown", retry_after=0),
    fault(0.01, status=500, code="InternalError"),
    fault(0.005, status=403, code="RequestTimeTooSkewed"),
    fault(0.01, reset=True),
    fault(0.01, {"method": "GET"}, reset_at=5000),
    fault(0.01, {"method": "GET"}, close_at=5000),
    fault(0.01, {"method": "GET"}, corrupt_at=100),
    fault(0.01, {"method": "GET"}, content_length=50),
    fault(0.005, {"method": "GET"}, stall_at=3000, stall_s=1),
    fault(0.01, {"method": "PUT"}, early=True, status=503, code="SlowDown"),
    fault(0.01, {"method": "HEAD"}, status=404),
    fault(0.01, delay_ms=300),
    fault(0.01, close=True),
]


def control(facts, method, path, body=None):
    connection = http.client.HTTPConnection("127.0.0.1", facts["control_port"])
    connection.request(method, path, body and json.dumps(body))
    reply = connection.getresponse()
    value = json.loads(reply.read())
    connection.close()
    if reply.status != 200:
        raise RuntimeError(value)
    return value


def main():
    seconds = os.environ.get("SECONDS", "3600")
    server = Server("s3.py")
    proxy = Server("fault-proxy.py", f"127.0.0.1:{server.facts['port']}",
                   "--rate", "0.03", "--delay-ms", "100")
    stop = threading.Event()

    def forget():  # bounds the server's list of requests, which grows by each request
        while not stop.wait(5):
            control(server.facts, "DELETE", "/stats")
    control(server.facts, "POST", "/faults", FAULTS)
    threading.Thread(target=forget, daemon=True).start()
    bucket = in_path(proxy.facts["endpoint"], blocking_timeout_secs="10")
    settings = bucket.arguments()[1::2]
    try:
        code = subprocess.run(
            [os.path.join(ROOT, "build", "tests", "soak", "soak"), seconds, *settings,
             "s3_region=us-east-1"], env={**os.environ, **server.keys()}).returncode
    finally:
        stop.set()
        done = sum(each["done"] for each in control(server.facts, "GET", "/faults"))
        output = proxy.child.communicate()[0]
        server.stop()
        for path in bucket.indexes:
            shutil.rmtree(path, ignore_errors=True)
    print(f"{done} mistakes of the server; of the proxy: {output.strip()}")
    print("%d passed, %d failed, 0 skipped" % (not code, bool(code)))
    return bool(code)


if __name__ == "__main__":
    sys.exit(main())
