# SPDX-License-Identifier: Apache-2.0
"""An S3 server for the examples, and a proxy with which the server has any address."""
import contextlib
import os
import re
import shutil
import socket
import sys
import threading

import pages

sys.path[:0] = [str(pages.ROOT / "tests" / "servers"), str(pages.ROOT / "tests" / "s3")]
import lifetime  # noqa: E402
import s3  # noqa: E402
from place import index_of  # noqa: E402, F401


def environment(**more):
    """Return this process's environment without settings of AWS, LMCache and kvtier."""
    env = {name: value for name, value in os.environ.items()
           if not name.startswith(("AWS_", "LMCACHE_", "KVTIER_", "HF3FS_"))
           and not name.lower().endswith("_proxy") and name != "PYTHONHASHSEED"}
    return {**env, "AWS_EC2_METADATA_DISABLED": "true", **more}


def open_indexes():
    """Return the directories of the indexes of buckets that this process has open."""
    found = set()
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            path = os.readlink("/proc/self/fd/" + fd)
            if re.fullmatch(r"/\S*/kvtier-\d+/[0-9a-f]+/lock", path):
                found.add(os.path.dirname(path))
    return found


def remove_indexes(paths):
    for path in paths:
        shutil.rmtree(path, ignore_errors=True)


class Store(s3.Server):
    def environment(self):
        facts = self.facts()
        return {"AWS_ACCESS_KEY_ID": facts["access"], "AWS_SECRET_ACCESS_KEY": facts["secret"],
                "AWS_DEFAULT_REGION": facts["region"], "AWS_ENDPOINT_URL": facts["endpoint"]}

    def stored(self, bucket):
        """Return the objects of a bucket: {key: body}."""
        return {key: each.body for key, each in self.objects.buckets[bucket].objects.items()}


class Proxy:
    """An HTTP proxy that connects each client to one server, whatever the host of the request.
    plain_port, tls_port: of the server."""

    def __init__(self, plain_port, tls_port):
        self.plain_port, self.tls_port = plain_port, tls_port
        self.hosts = set()  # of the requests
        self.listener = socket.create_server((lifetime.LOOPBACK, 0))
        self.url = "http://%s:%d" % self.listener.getsockname()
        threading.Thread(target=self.accept, daemon=True).start()

    def stop(self):
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()

    def accept(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self.serve, args=(client,), daemon=True).start()

    def serve(self, client):
        with client, client.makefile("rb") as reader:
            method, target, headers = read_head(reader)
            tunnel = method == b"CONNECT"
            port = self.tls_port if tunnel else self.plain_port
            with socket.create_connection((lifetime.LOOPBACK, port)) as server:
                threading.Thread(target=copy, args=(server.makefile("rb"), client),
                                 daemon=True).start()
                if tunnel:
                    self.hosts.add(target.decode())
                    client.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
                    copy(reader, server)
                while method and not tunnel:
                    self.forward(method, target, headers, reader, server)
                    method, target, headers = read_head(reader)

    def forward(self, method, target, headers, reader, server):
        """Forward a request with the path for the target http://HOST/PATH."""
        host, _, path = target.removeprefix(b"http://").partition(b"/")
        self.hosts.add(host.decode())
        server.sendall(b"%s /%s HTTP/1.1\r\n" % (method, path) + b"".join(headers) + b"\r\n")
        for header in headers:
            name, _, value = header.partition(b":")
            if name.lower() == b"content-length":
                server.sendall(reader.read(int(value)))


def read_head(reader):
    """Return (method, target, lines of the headers) of a request; empty at the end."""
    words = reader.readline().split()
    headers = list(iter(reader.readline, b"\r\n")) if words else []
    return (words[0], words[1], headers) if words else (b"", b"", [])


def copy(reader, to):
    """Copy bytes until the end of the connection."""
    try:
        while data := reader.read1(65536):
            to.sendall(data)
        to.shutdown(socket.SHUT_WR)
    except OSError:
        pass  # the other side has closed the connection
