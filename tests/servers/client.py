# SPDX-License-Identifier: Apache-2.0
"""A small S3 client on a raw socket, for the tests of the servers: the client signs
requests, and returns the raw bytes of responses."""

import socket
import ssl
import sys
import time
from dataclasses import dataclass, field
from urllib.parse import quote, urlsplit

import sigv4


@dataclass
class Reply:
    status: int
    headers: dict = field(default_factory=dict)
    body: bytes = b""
    interim: int = 0  # number of 1xx responses before
    complete: bool = True  # the body has Content-Length bytes


class Client:
    """A client with one connection, opened on demand, also after a close."""

    def __init__(self, endpoint, access, secret, token=None, ca=None, region="us-east-1",
                 service="s3", token_header="x-amz-security-token", clock_s=0):
        self.url = urlsplit(endpoint)
        self.credentials = sigv4.Credentials(access, secret, token)
        self.token_header = token_header
        self.ca = ca
        self.scope = region, service
        self.clock_s = clock_s
        self.sock = None
        self.ahead = b""

    def connect(self):
        self.sock = socket.create_connection((self.url.hostname, self.url.port),
                                             timeout=60)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self.url.scheme == "https":
            context = ssl.create_default_context(cafile=self.ca)
            self.sock = context.wrap_socket(self.sock, server_hostname=self.url.hostname)
        self.ahead = b""

    def close(self):
        if self.sock:
            self.sock.close()
        self.sock = None

    def head(self, method, target, headers, body, host=None):
        """Return the bytes of a signed request head."""
        when = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(time.time() + self.clock_s))
        pairs = {"host": host or self.url.netloc, "x-amz-date": when,
                 "x-amz-content-sha256": sigv4.UNSIGNED}
        if self.credentials.token:
            pairs[self.token_header] = self.credentials.token
        pairs.update(headers)
        pairs = [(name, value) for name, value in pairs.items() if value is not None]
        hop = [("content-length", str(len(body)))] if body or method == "PUT" else []
        hop += [pair for pair in pairs if pair[0] in ("expect", "connection")]
        pairs = [pair for pair in pairs if pair not in hop]
        pairs.append(("authorization", sigv4.authorize(
            method, target, pairs, self.credentials, *self.scope)))
        return (f"{method} {target} HTTP/1.1\r\n" + "".join(
            f"{name}: {value}\r\n" for name, value in pairs + hop) + "\r\n").encode()

    def send(self, method, target, body=b"", host=None, **headers):
        if self.sock is None:
            self.connect()
        headers = {name.replace("_", "-"): value for name, value in headers.items()}
        self.sock.sendall(self.head(method, target, headers, body, host) + body)

    def fill(self):
        data = self.sock.recv(65536)
        self.ahead += data
        return data

    def reply(self, head_only=False):
        """Read a response.  Raises OSError after a reset, EOFError if no byte arrived."""
        interim = 0
        while True:
            while b"\r\n\r\n" not in self.ahead:
                if not self.fill():
                    raise EOFError
            head, _, self.ahead = self.ahead.partition(b"\r\n\r\n")
            first, *lines = head.decode("latin-1").split("\r\n")
            reply = Reply(int(first.split()[1]), interim=interim, headers={
                name.lower(): value.strip() for name, _, value in
                (line.partition(":") for line in lines)})
            if reply.status >= 200:
                break
            interim += 1
        if not head_only and reply.status not in (204, 304):
            self.read_body(reply)
        return reply

    def read_body(self, reply):
        if reply.headers.get("transfer-encoding") == "chunked":
            while not reply.body.endswith(b"\r\n0\r\n\r\n") and reply.body != b"0\r\n\r\n":
                if not self.ahead and not self.fill():
                    raise EOFError
                reply.body, self.ahead = reply.body + self.ahead, b""
            reply.body = unchunk(reply.body)
            return
        length = int(reply.headers["content-length"])
        while len(self.ahead) < length and self.fill():
            pass
        reply.body, self.ahead = self.ahead[:length], self.ahead[length:]
        reply.complete = len(reply.body) == length

    def do(self, method, target, body=b"", host=None, **headers):
        self.send(method, target, body, host, **headers)
        return self.reply(method == "HEAD")


def unchunk(data):
    body = b""
    while True:
        size, _, data = data.partition(b"\r\n")
        if int(size, 16) == 0:
            return body
        body, data = body + data[:int(size, 16)], data[int(size, 16) + 2:]


def path(bucket, key):
    return f"/{bucket}/{quote(key, safe='/')}"


def make_buckets(facts, names):
    client = Client(facts["endpoint"], facts["access"], facts["secret"])
    for name in names:
        reply = client.do("PUT", "/" + name)
        if reply.status != 200:
            sys.exit(f"bucket {name}: {reply.status} {reply.body.decode()}")
    client.close()
