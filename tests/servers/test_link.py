#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""kvtier-bench-link: the relay forwards every byte of many connections in both directions, and
the ends of connections.  Asserts nothing about speed.  $KVTIER_LINK is the path of the
program."""

import hashlib
import json
import os
import socket
import struct
import subprocess
import sys
import threading
import unittest

LINK = os.environ.get("KVTIER_LINK", "build/kvtier-bench-link")
if not os.path.exists(LINK):
    print(f"{LINK} is not there: build it, or name it in KVTIER_LINK", file=sys.stderr)
    sys.exit(77)

BODY = os.urandom(3000001)


def receive(sock, n=None):
    """Return n bytes; all bytes until the end of the connection if n is None."""
    parts, left = [], n
    while left is None or left:
        part = sock.recv(min(left or 65536, 65536))
        if not part:
            break
        parts.append(part)
        left = left if left is None else left - len(part)
    return b"".join(parts)


class Server:
    """A server that answers the bytes up to the client's end with their digest and BODY."""

    def __init__(self):
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=100)
        self.port = self.listener.getsockname()[1]
        self.ended = threading.Semaphore(0)  # a connection of the server has ended
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                sock, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self.answer, args=(sock,), daemon=True).start()

    def answer(self, sock):
        try:
            sock.sendall(hashlib.sha256(receive(sock)).digest() + BODY)
        except OSError:
            pass
        sock.close()
        self.ended.release()


class Relay(unittest.TestCase):
    def setUp(self):
        self.server = Server()
        self.addCleanup(self.server.listener.close)

    def start(self, rate=100000000, port=None):
        child = subprocess.Popen([LINK, str(port or self.server.port), str(rate)],
                                 stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.child = child
        self.port = json.loads(child.stdout.readline())["port"]

        def stop():
            child.stdin.close()
            child.stdout.close()
            self.assertEqual(child.wait(60), 0)
        self.addCleanup(stop)

    def connect(self):
        sock = socket.create_connection(("127.0.0.1", self.port), timeout=60)
        self.addCleanup(sock.close)
        return sock

    def counters(self):
        self.child.stdin.write(b"\n")
        self.child.stdin.flush()
        return json.loads(self.child.stdout.readline())

    def exchange(self, body):
        sock = self.connect()
        sock.sendall(body)
        sock.shutdown(socket.SHUT_WR)
        self.assertEqual(receive(sock), hashlib.sha256(body).digest() + BODY)

    def test_bytes_arrive_in_both_directions(self):
        self.start()
        self.exchange(BODY[1:])
        self.exchange(b"")
        counters = self.counters()
        self.assertEqual(counters["up_bytes"], len(BODY) - 1)
        self.assertEqual(counters["down_bytes"], 2 * (32 + len(BODY)))

    def test_connections_at_the_same_time(self):
        self.start()
        failed = []

        def one(i):
            try:
                self.exchange(BODY[i:i + 500000])
            except Exception as e:
                failed.append(e)
        threads = [threading.Thread(target=one, args=(i,)) for i in range(40)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(failed, [])

    def test_a_reset_ends_the_connection_to_the_server(self):
        self.start()
        sock = self.connect()
        sock.sendall(BODY[:100])
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        sock.close()
        self.assertTrue(self.server.ended.acquire(timeout=60))
        self.exchange(b"afterwards")

    def test_a_client_that_reads_nothing_does_not_stop_the_others(self):
        self.start()
        slow = self.connect()
        slow.shutdown(socket.SHUT_WR)
        self.exchange(b"meanwhile")
        self.assertEqual(receive(slow), hashlib.sha256(b"").digest() + BODY)

    def test_an_absent_server(self):
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
        self.start(port=port)
        self.assertEqual(self.connect().recv(1), b"")

    def test_usage(self):
        for arguments in [], ["80"], ["0", "1000000"], ["80", "999999"], ["65536", "1000000"]:
            done = subprocess.run([LINK, *arguments], stdin=subprocess.DEVNULL,
                                  stderr=subprocess.PIPE)
            self.assertEqual(done.returncode, 2)
            self.assertIn(b"usage", done.stderr)


if __name__ == "__main__":
    unittest.main()
