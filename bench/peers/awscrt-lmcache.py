#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compare awscrt, driven as by LMCache's S3 connector, and kvtier, in turns: CPU time of the
client for each GB, and GB/s.  Server and client have a core each.  Objects of 32 MiB, 8 at a
time, over plain HTTP.  GET from nginx, which sends a file of a tmpfs; PUT to http-sink of
kvtier's tests, which discards the data.

As in the connector: 64 event loops, awscrt's default size of parts, a copy of each part from
a bytes object to the destination, and a memoryview as the body of a PUT.  awscrt verifies no
checksum here, and sends no HEAD before a chunk's first GET.  kvtier's figures come from
kvtier-bench, with the checksum.

    python3 -m venv VENV && VENV/bin/pip install -r bench/peers/awscrt-lmcache.txt
    VENV/bin/python bench/peers/awscrt-lmcache.py
"""
import argparse
import base64
import ctypes
import json
import os
import queue
import resource
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request

from awscrt import auth, checksums, io, s3
from awscrt.http import HttpHeaders, HttpRequest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SIZE, SLOTS, GIGA = 32 << 20, 8, 1e9
BUCKET = "bench"

NGINX = """
daemon off; worker_processes 1; pid nginx.pid; error_log stderr error; {user}
events {{ worker_connections 1024; }}
http {{
    access_log off; default_type application/octet-stream;
    sendfile on; sendfile_max_chunk 2m; tcp_nopush on; tcp_nodelay on;
    keepalive_requests 1000000; keepalive_timeout 600s;
    client_body_temp_path t1; proxy_temp_path t2; fastcgi_temp_path t3;
    uwsgi_temp_path t4; scgi_temp_path t5;
    server {{
        listen 127.0.0.1:{port};
        add_header x-amz-checksum-crc32c {crc};
        location / {{ root objects; }}
        location /{bucket}/ {{ alias objects/; }}
    }}
}}
"""


class View:
    """A body stream over a memoryview, as the connector passes to awscrt."""

    def __init__(self, memory):
        self.view, self.at = memoryview(memory).cast("B"), 0

    def read(self, size=None):
        end = len(self.view) if size is None else min(self.at + size, len(self.view))
        part, self.at = self.view[self.at:end], end
        return part

    def seek(self, offset, whence=0):
        self.at = offset + (0, self.at, len(self.view))[whence]
        return self.at


class Client:
    def __init__(self, threads):
        loops = io.EventLoopGroup(threads)
        bootstrap = io.ClientBootstrap(loops, io.DefaultHostResolver(loops))
        self.keys = auth.AwsCredentialsProvider.new_static("bench", "bench")
        self.client = s3.S3Client(bootstrap=bootstrap, region="bench",
                                  tls_mode=s3.S3RequestTlsMode.DISABLED)
        self.memory = [(ctypes.c_char * SIZE)() for _ in range(SLOTS)]
        for memory in self.memory:
            ctypes.memset(memory, 0x5a, SIZE)

    def start(self, method, port, slot, done):
        headers = HttpHeaders()
        headers.add("Host", f"127.0.0.1:{port}")
        options = {"type": s3.S3RequestType.GET_OBJECT}
        if method == "PUT":
            headers.add("Content-Length", str(SIZE))
            headers.add("Content-Type", "application/octet-stream")
            options = {"type": s3.S3RequestType.PUT_OBJECT}
        else:
            at = ctypes.addressof(self.memory[slot])
            options["on_body"] = lambda chunk, offset, **_: ctypes.memmove(
                at + offset, chunk, len(chunk))
        body = View(self.memory[slot]) if method == "PUT" else None
        return s3.S3Request(
            client=self.client,
            request=HttpRequest(method, f"/object-{slot}", headers, body),
            credential_provider=self.keys, region="bench",
            on_done=lambda error=None, **_: done.put((slot, error)), **options)

    def run(self, method, port, n):
        """Transfer n objects; return (CPU s/GB, GB/s)."""
        done, running, started = queue.Queue(), {}, 0
        cpu, begin = cpu_now(), time.monotonic()
        for _ in range(n):
            if started < SLOTS:
                slot = started
            else:
                slot, error = done.get()
                if error:
                    raise error
            running[slot] = self.start(method, port, slot, done)
            started += 1
        for _ in range(min(n, SLOTS)):
            slot, error = done.get()
            if error:
                raise error
        seconds = time.monotonic() - begin
        return (cpu_now() - cpu) / (n * SIZE / GIGA), n * SIZE / GIGA / seconds


def cpu_now():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def pin(core):
    return lambda: os.sched_setaffinity(0, {core})


def start_nginx(where, core):
    """Return nginx's process and port.  All objects are links to one file."""
    data = os.urandom(SIZE)
    crc = base64.b64encode(checksums.crc32c(data).to_bytes(4, "big")).decode()
    os.mkdir(os.path.join(where, "objects"))
    with open(os.path.join(where, "objects", "object-0"), "wb") as f:
        f.write(data)
    for i in range(1, SLOTS):
        os.link(f.name, os.path.join(where, "objects", f"object-{i}"))
    port = free_port()
    with open(os.path.join(where, "nginx.conf"), "w") as f:
        f.write(NGINX.format(port=port, crc=crc, bucket=BUCKET,
                             user="user root;" if os.getuid() == 0 else ""))
    process = subprocess.Popen(["nginx", "-p", where + "/", "-c", f.name, "-e", "stderr"],
                               preexec_fn=pin(core))
    for _ in range(100):
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/object-0").close()
            return process, port
        except OSError:
            time.sleep(0.05)
    process.terminate()
    process.wait()
    sys.exit("awscrt-lmcache: nginx does not respond")


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def start_sink(program, core):
    process = subprocess.Popen([program, "--cpu", str(core)], stdin=subprocess.PIPE,
                               stdout=subprocess.PIPE)
    return process, json.loads(process.stdout.readline())["port"]


def run_kvtier(program, case, port):
    out = subprocess.run([program, "--json", "--case", case, "--server",
                          f"http://127.0.0.1:{port}/{BUCKET}"], check=True,
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE).stdout
    line = json.loads(out)
    return line["value"], line["gb_per_s"], line["limit"]


def measure(client, options, method, port):
    client.run(method, port, SLOTS)  # connects
    rows = []
    for _ in range(options.rounds):
        peer = [client.run(method, port, options.objects) for _ in range(5)]
        cpu = statistics.median(p[0] for p in peer)
        rate = statistics.median(p[1] for p in peer)
        ours = run_kvtier(options.kvtier_bench, "s3." + method.lower(), port)
        rows.append({"awscrt_cpu": cpu, "awscrt_rate": rate, "kvtier_cpu": ours[0],
                     "kvtier_rate": ours[1], "baseline_cpu": ours[2],
                     "cpu_times": cpu / ours[0], "rate_times": ours[1] / rate})
    result = {name: round(statistics.median(r[name] for r in rows), 3) for name in rows[0]}
    return {"operation": method, "rounds": options.rounds, **result}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--kvtier-bench", default=os.path.join(ROOT, "build", "kvtier-bench"),
                        help="kvtier's benchmark program (%(default)s)")
    parser.add_argument("--sink", help="http-sink (default: in the same build directory)")
    parser.add_argument("--rounds", type=int, default=3, help="(%(default)s)")
    parser.add_argument("--objects", type=int, default=32,
                        help="objects of a run of awscrt (%(default)s)")
    parser.add_argument("--threads", type=int, default=64,
                        help="event loops of awscrt (%(default)s)")
    options = parser.parse_args()
    sink = options.sink or os.path.join(os.path.dirname(os.path.abspath(options.kvtier_bench)),
                                        "tests", "servers", "http-sink")
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2 or not shutil.which("nginx") or not os.access(sink, os.X_OK):
        sys.exit("awscrt-lmcache: needs two cores, nginx and " + sink)
    os.sched_setaffinity(0, {cores[1]})
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that `finally` ends the servers
    where = tempfile.mkdtemp(dir="/dev/shm")
    servers = []
    try:
        client = Client(options.threads)
        for method, start, what in (("GET", start_nginx, where), ("PUT", start_sink, sink)):
            process, port = start(what, cores[0])
            servers.append(process)
            print(json.dumps(measure(client, options, method, port)), flush=True)
    finally:
        for process in servers:
            process.terminate()
            process.wait()
        shutil.rmtree(where)


if __name__ == "__main__":
    main()
