# SPDX-License-Identifier: Apache-2.0
"""HTTP/1.1 on a blocking socket with control over every byte, for s3.py: reads
requests strictly and writes responses, malformed if a fault requires malformed bytes.
One thread owns a Wire."""

import select
import socket
import struct
from dataclasses import dataclass, field
from http import HTTPStatus
from urllib.parse import unquote

MAX_HEAD = 64 * 1024
MAX_BODY = 1 << 30


class Gone(Exception):
    """The connection is unusable."""


class Malformed(Exception):
    """The request violates HTTP/1.1."""


@dataclass
class Request:
    method: str
    target: str
    headers: list  # [(name, value)]
    body: bytes = b""
    bucket: str = ""
    key: str = ""
    operation: str = ""
    folded: dict = field(default_factory=dict)  # {lower-case name: value}
    params: dict = field(default_factory=dict)  # decoded query
    sums: dict = field(default_factory=dict)  # verified x-amz-checksum-*
    md5: str = ""
    id: str = ""

    @property
    def path(self):
        return self.target.partition("?")[0]

    @property
    def query(self):
        return self.target.partition("?")[2]

    @property
    def range(self):
        return self.folded.get("range", "")

    @property
    def length(self):
        return int(self.folded.get("content-length", 0))


@dataclass
class Answer:
    status: int = 200
    headers: dict = field(default_factory=dict)
    body: bytes = b""
    code: str = None  # S3's error code


def parse_head(head):
    """Parse the bytes before the empty line to a Request."""
    if b"\n" in head.replace(b"\r\n", b"") or b"\r" in head.replace(b"\r\n", b""):
        raise Malformed("a line that does not end in CR LF")
    first, *lines = head.decode("latin-1").split("\r\n")
    words = first.split(" ")
    if len(words) != 3 or words[2] not in ("HTTP/1.1", "HTTP/1.0"):
        raise Malformed("the request line")
    if not words[1].startswith("/") or not words[1].isascii():
        raise Malformed("the request target")
    headers = []
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not name or name != name.strip():
            raise Malformed("a header line")
        headers.append((name, value.strip(" \t")))
    request = Request(words[0], words[1], headers)
    for name, value in headers:
        name = name.lower()
        if name in request.folded and name in ("host", "content-length"):
            raise Malformed(f"two headers {name}")
        old = request.folded.get(name)
        request.folded[name] = value if old is None else f"{old},{value}"
    if words[2] == "HTTP/1.1" and "host" not in request.folded:
        raise Malformed("no host")
    length = request.folded.get("content-length", "0")
    if not (length.isascii() and length.isdigit() and int(length) <= MAX_BODY):
        raise Malformed("the content length")
    for part in filter(None, request.query.split("&")):
        name, _, value = part.partition("=")
        request.params[unquote(name)] = unquote(value)
    return request


class Wire:
    def __init__(self, sock):
        self.sock = sock
        self.ahead = b""  # received bytes of the next request

    def receive(self, size):
        try:
            return self.sock.recv(size)
        except OSError as e:
            raise Gone(str(e)) from None

    def send(self, data):
        try:
            self.sock.sendall(data)
        except OSError as e:
            raise Gone(str(e)) from None

    def read_request(self, idle_s=None):
        """Read the next request, without the body."""
        if not self.ahead and idle_s and not self.wait(idle_s, select.POLLIN):
            raise Gone("idle")
        while b"\r\n\r\n" not in self.ahead:
            if len(self.ahead) > MAX_HEAD:
                raise Malformed("a head of more than 64 KiB")
            data = self.receive(65536)
            if not data:
                raise Gone("closed by the client" +
                           (" inside a request" if self.ahead else ""))
            self.ahead += data
        head, _, self.ahead = self.ahead.partition(b"\r\n\r\n")
        return parse_head(head)

    def read_body(self, length):
        body = bytearray(length)
        start = min(length, len(self.ahead))
        body[:start], self.ahead = self.ahead[:start], self.ahead[start:]
        view = memoryview(body)
        while start < length:
            try:
                got = self.sock.recv_into(view[start:])
            except OSError as e:
                raise Gone(f"{e}, {length - start} bytes of a body missing") from None
            if not got:
                raise Gone(f"closed with {length - start} bytes of a body missing")
            start += got
        view.release()
        return bytes(body)

    def wait(self, seconds, events=0):
        """Wait for one of the events, or for the client's close; False after a timeout."""
        poller = select.poll()
        poller.register(self.sock, events | select.POLLRDHUP)
        return bool(poller.poll(None if seconds is None else seconds * 1000))

    def reset_on_close(self):
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER,
                             struct.pack("ii", 1, 0))

    def reset(self):
        self.reset_on_close()
        self.sock.close()
        raise Gone("reset by a fault")

    def close_gently(self, seconds=60):
        """Close without a reset: a client that still sends can read the response."""
        try:
            self.sock.shutdown(socket.SHUT_WR)
            self.sock.settimeout(seconds)
            while self.sock.recv(1 << 20):
                pass
        except OSError:
            pass
        raise Gone("closed after an early answer")

    def write(self, answer, head_only, fault, before_end):
        """Write a response with a fault of s3_faults.py.  Calls before_end() before the
        client can have the whole response."""
        head, body = compose(answer, fault)
        if head_only or not body:
            before_end()
        self.send(head)
        if head_only:
            return
        marks = [(fault[word], word) for word in ("reset_at", "close_at", "stall_at")
                 if word in fault]
        done = 0
        for at, word in sorted(marks):
            at = min(at, len(body))
            self.trickle(body[done:at], fault.get("drip"))
            done = at
            if word == "reset_at":
                self.reset()
            if word == "close_at":
                raise Gone("cut by a fault")
            if self.wait(fault.get("stall_s")):
                raise Gone("the client left a stalled answer")
        self.trickle(body[done:], fault.get("drip"), before_end)

    def trickle(self, data, bytes_per_second, before_end=lambda: None):
        step = max(1, bytes_per_second // 20) if bytes_per_second else 256 * 1024
        data = memoryview(data)
        for start in range(0, len(data), step):
            if start + step >= len(data):
                before_end()
            self.send(data[start:start + step])
            if bytes_per_second and self.wait(step / bytes_per_second):
                raise Gone("the client left a slow answer")


def in_chunks(body, size):
    for start in range(0, len(body), size):
        piece = body[start:start + size]
        yield b"%x\r\n" % len(piece) + piece + b"\r\n"
    yield b"0\r\n\r\n"


def compose(answer, fault):
    """Return the bytes of the head and the bytes of the body."""
    body = answer.body
    headers = dict(answer.headers)
    if "corrupt_at" in fault and body:
        body = bytearray(body)
        body[fault["corrupt_at"] % len(body)] ^= 0xff
        body = bytes(body)
    if fault.get("chunked") and answer.status not in (204, 304):
        headers["Transfer-Encoding"] = "chunked"
        body = b"".join(in_chunks(body, max(1, int(fault["chunked"]))
                                  if fault["chunked"] is not True else 4096))
    elif answer.status not in (204, 304):
        headers.setdefault("Content-Length", len(body))
    if "content_length" in fault:
        headers["Content-Length"] = fault["content_length"]
    body += b"x" * fault.get("extra", 0)
    headers.update(fault.get("headers", {}))
    try:
        phrase = HTTPStatus(answer.status).phrase
    except ValueError:
        phrase = "Unknown"
    head = f"HTTP/1.1 {answer.status} {phrase}\r\n" + "".join(
        f"{name}: {value}\r\n" for name, value in headers.items() if value is not None)
    return (head + "\r\n").encode("latin-1"), body
