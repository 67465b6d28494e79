#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of fault-proxy.py between a client and s3.py: the client observes each kind of fault,
and an equal seed causes equal faults."""

import json
import os
import subprocess
import sys
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
from client import Client
from s3 import Server

BODY = bytes(range(256)) * 400


class Proxy(unittest.TestCase):
    def setUp(self):
        self.server = Server(buckets=["kv"], tls=True)
        self.addCleanup(self.server.stop)
        self.facts = self.server.facts()
        direct = self.connect(self.facts["endpoint"])
        self.assertEqual(direct.do("PUT", "/kv/k", BODY).status, 200)

    def connect(self, endpoint):
        client = Client(endpoint, self.facts["access"], self.facts["secret"],
                        ca=self.facts["ca"])
        self.addCleanup(client.close)
        return client

    def outcomes(self, *arguments, tls=False, requests=40):
        """Run fault-proxy.py with these arguments and send GET requests through the proxy.
        Return (list of the requests' outcomes, counts that the proxy printed at the end)."""
        port = self.facts["tls_port" if tls else "port"]
        child = subprocess.Popen(
            [sys.executable, os.path.join(HERE, "fault-proxy.py"), f"127.0.0.1:{port}",
             *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        with child:
            facts = json.loads(child.stdout.readline())
            client = self.connect(facts["tls_endpoint" if tls else "endpoint"])
            seen = [self.one(client) for _ in range(requests)]
            client.close()
            child.stdin.close()
            counts = json.loads(child.stdout.readline())
        self.assertEqual(child.returncode, 0)
        return seen, counts

    def one(self, client):
        try:
            reply = client.do("GET", "/kv/k")
        except ConnectionResetError:
            client.close()
            return "reset"
        except (EOFError, OSError):
            client.close()
            return "closed"
        if not reply.complete:
            client.close()
            return "closed"
        if reply.status == 200:
            self.assertEqual(reply.body, BODY)
        return reply.status

    def test_nothing_is_changed_without_a_fault(self):
        seen, counts = self.outcomes("--rate", "0")
        self.assertEqual(set(seen), {200})
        self.assertEqual(counts["turns"], 40)

    def test_each_kind(self):
        for kind, outcome in (("reset", "reset"), ("truncate", "closed"), ("inject", 503),
                              ("drip", 200), ("delay", 200)):
            with self.subTest(kind):
                seen, counts = self.outcomes(
                    "--rate", "0.3", "--kinds", kind, "--drip", "4000000",
                    "--delay-ms", "5")
                self.assertGreater(counts[kind], 3)
                self.assertIn(200, seen)
                if outcome != 200:
                    self.assertEqual(seen.count(outcome), counts[kind])
                self.assertEqual(set(seen), {200, outcome})

    def test_equal_seeds_give_equal_faults(self):
        words = "--rate", "0.3", "--kinds", "truncate,inject", "--seed", "7"
        self.assertEqual(self.outcomes(*words), self.outcomes(*words))

    def test_tls_passes_through(self):
        seen, counts = self.outcomes("--rate", "0.2", "--kinds", "truncate", tls=True,
                                     requests=20)
        self.assertIn(200, seen)
        self.assertGreater(counts["truncate"], 0)


if __name__ == "__main__":
    unittest.main()
