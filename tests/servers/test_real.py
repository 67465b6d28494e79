#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The programs that start real servers: the servers accept signed requests, and leave no
process and no file behind.  Servers that are not installed are skipped."""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.request

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
from client import Client, path

ODD_KEY = "a@b=c+d/e f/é~!'()*&$,;:#?%"


def group_of(pid):
    """Return all descendants of a process."""
    found, parents = [], {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat") as file:
                parents[int(name)] = int(file.read().rpartition(")")[2].split()[1])
        except OSError:
            pass
    wanted = [pid]
    while wanted:
        found += (more := [each for each in parents if parents[each] in wanted])
        wanted = more
    return found


def state_of(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0]
    except OSError:
        return "gone"


class Real(unittest.TestCase):
    def start(self, program, *arguments):
        """Start a program and return the facts and an end() function."""
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        child = subprocess.Popen([sys.executable, os.path.join(HERE, program), *arguments],
                                 stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                 stderr=subprocess.PIPE, text=True,
                                 env={**os.environ, "TMPDIR": scratch.name})
        line = child.stdout.readline()
        if not line:
            why = child.communicate()[1]
            if child.returncode == 77:
                self.skipTest(why.strip())
            self.fail(why)

        def end(by_signal):
            below = group_of(child.pid)
            self.assertTrue(below)
            if by_signal:
                child.send_signal(signal.SIGTERM)
            child.communicate(timeout=120)
            self.assertEqual(child.returncode, 0)
            left = [pid for pid in below if state_of(pid) not in ("gone", "Z")]
            self.assertEqual(left, [])
            self.assertEqual(os.listdir(scratch.name), [])
        return json.loads(line), end

    def put_and_get(self, endpoint, facts, **words):
        client = Client(endpoint, facts["access"], facts["secret"], ca=facts.get("ca"),
                        **words)
        self.addCleanup(client.close)
        body = bytes(range(256)) * 1000
        target = path("test", ODD_KEY)
        put = client.do("PUT", target, body, x_amz_meta_note="n")
        self.assertEqual(put.status, 200, put.body)
        got = client.do("GET", target)
        self.assertEqual((got.status, got.body), (200, body))
        self.assertEqual(got.headers["x-amz-meta-note"], "n")
        self.assertEqual(client.do("GET", "/test/none").status, 404)
        host = f"test.{facts['domain']}:{client.url.port}"
        got = client.do("GET", path("", ODD_KEY)[1:], host=host)
        self.assertEqual(got.body, body)

    def test_seaweedfs(self):
        facts, end = self.start("seaweedfs.py", "--tls", "--sts", "1h")
        self.put_and_get(facts["endpoint"], facts)
        self.put_and_get(facts["tls_endpoint"], facts)
        reader = Client(facts["endpoint"], facts["read_access"], facts["read_secret"])
        self.assertEqual(reader.do("PUT", "/test/k", b"x").status, 403)
        reader.close()
        self.take_a_role(facts)
        end(by_signal=True)

    def take_a_role(self, facts):
        """Get keys from STS with a token, and use the keys."""
        with open(facts["token_file"]) as file:
            token = file.read()
        form = ("Action=AssumeRoleWithWebIdentity&Version=2011-06-15&RoleSessionName=test"
                f"&RoleArn={facts['role_arn']}&WebIdentityToken={token}").encode()
        done = subprocess.run(["curl", "-sS", "--data-binary", "@-", facts["endpoint"]],
                              input=form, stdout=subprocess.PIPE, check=True)
        words = [re.search(rf"<{name}>(.*?)<", done.stdout.decode())
                 for name in ("AccessKeyId", "SecretAccessKey", "SessionToken")]
        self.assertTrue(all(words), done.stdout[:300])
        client = Client(facts["endpoint"], *[word.group(1) for word in words])
        self.assertEqual(client.do("PUT", "/test/by-role", b"x").status, 200)
        client.close()

    def test_rgw(self):
        facts, end = self.start("rgw.py", "--tls")
        self.put_and_get(facts["endpoint"], facts)
        self.put_and_get(facts["tls_endpoint"], facts)
        end(by_signal=False)

    def test_moto(self):
        facts, end = self.start("moto-server.py")
        request = urllib.request.Request(
            facts["endpoint"] + "/latest/api/token", method="PUT",
            headers={"X-aws-ec2-metadata-token-ttl-seconds": "60"})
        with urllib.request.urlopen(request, timeout=60) as reply:
            self.assertTrue(reply.read())
        end(by_signal=True)

    def test_a_server_ends_when_its_parent_is_killed(self):
        program = ("import lifetime, sys\n"
                   "print(lifetime.spawn(['sleep', '600'], '/dev/null').pid, flush=True)\n"
                   "sys.stdin.read()")
        with subprocess.Popen([sys.executable, "-c", program], cwd=HERE, text=True,
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
            pid = int(child.stdout.readline())
            child.kill()
        deadline = time.monotonic() + 60
        while state_of(pid) not in ("gone", "Z"):
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.02)


if __name__ == "__main__":
    unittest.main()
