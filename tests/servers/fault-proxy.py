#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A TCP proxy that injects random faults between a client and a real server.

An equal seed and an equal order of requests cause equal faults.  A turn of a connection
begins with the client's first bytes on the connection or after a response.  For each turn the
proxy draws no fault or a fault:
  delay     the proxy forwards the request late
  reset     the proxy resets the connection before or inside the response
  truncate  the proxy closes the connection before or inside the response
  drip      the proxy forwards the response slowly
  inject    the proxy responds 503 SlowDown and forwards nothing (plain HTTP only)
The proxy prints its addresses in a line of JSON when the proxy accepts connections.  The proxy
ends on SIGTERM or when standard input closes, and then prints the number of turns and of faults
of each kind in a line of JSON."""

import argparse
import random
import re
import socket
import threading
import time

import lifetime
from s3_wire import Answer, Gone, Malformed, Wire, compose, parse_head
from s3_xml import error

KINDS = ("delay", "reset", "truncate", "drip", "inject")
PIECE = 256 * 1024


class Proxy:
    def __init__(self, target, rate, kinds, seed, within, delay_ms, drip):
        self.target = target
        self.rate, self.kinds = rate, kinds
        self.random = random.Random(seed)
        self.within, self.delay_s, self.drip = within, delay_ms / 1000, drip
        self.lock = threading.Lock()
        self.counts = dict.fromkeys(("turns", *KINDS), 0)
        self.listener = socket.create_server((lifetime.LOOPBACK, 0), backlog=1024)
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            sock, _ = self.listener.accept()
            threading.Thread(target=Pair(self, sock).run, daemon=True).start()

    def draw(self, plain):
        """Draw the fault of a turn.  Return (kind, bytes of the response to forward before a
        reset or truncate); kind None: no fault.  plain: the connection is plain HTTP."""
        with self.lock:
            self.counts["turns"] += 1
            kind = None
            if self.random.random() < self.rate:
                kind = self.random.choice(self.kinds)
            after = self.random.randrange(self.within + 1)
            if kind == "inject" and not plain:
                kind = None
            if kind:
                self.counts[kind] += 1
            return kind, after


class Pair:
    """A client's connection and the proxy's connection to the server.  A thread forwards
    requests, another thread forwards responses."""

    def __init__(self, proxy, sock):
        self.proxy = proxy
        self.client = Wire(sock)
        self.server = None
        self.answering = True  # the server sent bytes after the client's last bytes
        self.kind, self.after = None, 0
        self.resetting = False

    def run(self):
        try:
            self.server = Wire(socket.create_connection(self.proxy.target, timeout=10))
            for wire in self.client, self.server:
                wire.sock.settimeout(None)
                wire.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=self.pump_answers, daemon=True).start()
            self.pump_requests()
        except (Gone, Malformed, OSError):
            pass
        finally:
            self.close()

    def close(self):
        for wire in filter(None, (self.client, self.server)):
            # shutdown() wakes the other thread, which may block on the socket: close() sends
            # the FIN or RST only after the other thread has left the socket.  Before a reset,
            # SHUT_RD wakes the thread without sending a FIN.
            how = socket.SHUT_RD if wire is self.client and self.resetting else \
                socket.SHUT_RDWR
            try:
                wire.sock.shutdown(how)
            except OSError:
                pass
            wire.sock.close()

    def pump_requests(self):
        while data := self.client.receive(PIECE):
            if self.answering:
                plain = bool(re.match(rb"[A-Z]+ /", data))
                self.kind, self.after = self.proxy.draw(plain)
                if self.kind == "delay":
                    time.sleep(self.proxy.delay_s)
                if self.kind == "inject":
                    self.inject(data)
                    continue
                self.answering = False
            self.server.send(data)

    def inject(self, data):
        """Read the whole request from the client and respond 503 SlowDown.  data: the bytes of
        the request that the proxy has read already."""
        while b"\r\n\r\n" not in data:
            more = self.client.receive(PIECE)
            if not more:
                raise Gone
            data += more
        head, _, self.client.ahead = data.partition(b"\r\n\r\n")
        request = parse_head(head)
        if request.folded.get("expect", "").lower() != "100-continue":
            self.client.read_body(request.length)
        answer = Answer(503, {"Retry-After": 0, "Content-Type": "application/xml"},
                        error("SlowDown", "Please reduce your request rate.", {}))
        head, body = compose(answer, {})
        self.client.send(head + (b"" if request.method == "HEAD" else body))

    def pump_answers(self):
        try:
            while data := self.server.receive(PIECE):
                self.answering = True
                self.pass_on(data)
        except (Gone, OSError):
            pass
        finally:
            self.close()

    def pass_on(self, data):
        if self.kind in ("reset", "truncate"):
            self.client.send(data[:self.after])
            self.after -= len(data)
            if self.after <= 0 and self.kind == "reset":
                self.resetting = True
                self.client.reset_on_close()
            if self.after <= 0:
                raise Gone
        elif self.kind == "drip":
            self.client.trickle(data, self.proxy.drip)
        else:
            self.client.send(data)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("target", help="HOST:PORT of the server")
    parser.add_argument("--rate", type=float, default=0.05,
                        help="of turns that fail (0.05)")
    parser.add_argument("--kinds", default=",".join(KINDS),
                        help="with commas between (all)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--within", type=int, default=100000, metavar="BYTES",
                        help="of an answer in which it is cut (100000)")
    parser.add_argument("--delay-ms", type=float, default=200)
    parser.add_argument("--drip", type=int, default=1 << 20, metavar="BYTES",
                        help="a second")
    args = parser.parse_args()
    kinds = args.kinds.split(",")
    if set(kinds) - set(KINDS):
        parser.error("unknown kind in --kinds")
    host, _, port = args.target.rpartition(":")
    lifetime.end_on_signals()
    proxy = Proxy((host, int(port)), args.rate, kinds, args.seed, args.within,
                  args.delay_ms, args.drip)
    try:
        lifetime.print_facts(port=proxy.port, endpoint=f"http://{lifetime.LOOPBACK}:{proxy.port}",
                     tls_endpoint=f"https://{lifetime.LOOPBACK}:{proxy.port}")
        lifetime.stay()
    except lifetime.Ended:
        pass
    with proxy.lock:
        lifetime.print_facts(**proxy.counts)


if __name__ == "__main__":
    main()
