# SPDX-License-Identifier: Apache-2.0
"""Shared parts of the tests against real S3 servers: a server, the addresses of a bucket,
and kvtier's command line."""
import atexit
import ctypes
import functools
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from dataclasses import dataclass, field

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
SERVERS = os.path.join(ROOT, "tests", "servers")
sys.path += [SERVERS, os.path.join(ROOT, "python")]

from client import Client, path as path_of  # noqa: E402, F401
from kvtier import _lib  # noqa: E402

BUCKET = "test"
KVTIER = os.environ.get("KVTIER") or os.path.join(ROOT, "build", "kvtier")
KEY = "org/model@1@0@1a540024b49d3bfe@bfloat16"
TIMEOUT_S = 600


class Server:
    """A running program of tests/servers.  Raises SkipTest if a program is not installed."""

    def __init__(self, program, *arguments):
        self.child = subprocess.Popen(
            [sys.executable, os.path.join(SERVERS, program), *arguments],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True)
        line = self.child.stdout.readline()
        if not line:
            why = self.child.communicate()[1].strip()
            if self.child.returncode == 77:
                raise unittest.SkipTest(why)
            raise RuntimeError(why)
        self.facts = json.loads(line)

    def stop(self):
        self.child.communicate(timeout=120)

    def keys(self, access="access", secret="secret"):
        return {"AWS_ACCESS_KEY_ID": self.facts[access],
                "AWS_SECRET_ACCESS_KEY": self.facts[secret]}

    def client(self, **words):
        f = self.facts
        return Client(f["endpoint"], f["access"], f["secret"], **words)


@dataclass
class Address:
    """A bucket: settings for kvtier, and the host and path of kvtier's requests."""
    settings: dict
    host: str
    path: str
    indexes: set = field(default_factory=set)

    def arguments(self, **more):
        self.indexes.add(index_of(self.host, self.path))
        return [word for name, value in {**self.settings, **more}.items()
                for word in ("--set", f"{name}={value}")]


def in_path(endpoint, bucket=BUCKET, prefix="", **more):
    settings = {"remote_url": f"s3://{bucket}", "s3_endpoint_url": endpoint, **more}
    if prefix:
        settings["s3_file_prefix"] = prefix
    return Address(settings, endpoint.partition("//")[2],
                   f"/{bucket}/" + (prefix + "/" if prefix else ""))


def in_host(facts, bucket=BUCKET):
    host = f"{bucket}.{facts['domain']}:{facts['port']}"
    return Address({"remote_url": f"s3://{host}", "disable_tls": "true",
                    "s3_resolve": f"{host}:127.0.0.1"}, host, "/")


def index_of(host, path):
    """Return the directory of the index of a bucket on this host."""
    digest = hashlib.sha256(f"s3://{host}{path}".encode()).digest()
    return "/var/tmp/kvtier-%d/%016x" % (os.geteuid(),
                                         int.from_bytes(digest[:8], "little"))


def clean_environment(**more):
    """Return an environment without settings of AWS, LMCache and kvtier, except `more`."""
    env = {name: value for name, value in os.environ.items()
           if not name.startswith(("AWS_", "LMCACHE_", "KVTIER_"))
           and not name.lower().endswith("_proxy")}
    env.update(AWS_EC2_METADATA_DISABLED="true", HOME="/nonexistent")
    env.update(more)
    return env


@dataclass
class Done:
    code: int
    out: str
    err: str


@functools.lru_cache(maxsize=None)
def running(program, *arguments):
    """Return a server that all tests share, because some servers start slowly.  The server
    ends with the tests."""
    server = Server(program, *arguments)
    atexit.register(server.stop)
    return server


class Case(unittest.TestCase):
    """A test with a temporary directory."""

    def setUp(self):
        self.addresses = []
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory = directory.name

    def tearDown(self):
        for address in self.addresses:
            for path in address.indexes:
                shutil.rmtree(path, ignore_errors=True)

    def path(self, name, content=None):
        path = os.path.join(self.directory, name)
        if content is not None:
            with open(path, "wb") as f:
                f.write(content)
        return path

    def content(self, name):
        with open(self.path(name), "rb") as f:
            return f.read()

    def at(self, address):
        """Return the address, and remove the address's indexes after the test."""
        self.addresses.append(address)
        return address

    def run_kvtier(self, *arguments, env):
        done = subprocess.run([KVTIER, *arguments], env=clean_environment(**env),
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, timeout=TIMEOUT_S, text=True,
                              errors="replace")
        for secret in env.get("AWS_SECRET_ACCESS_KEY"), env.get("AWS_SESSION_TOKEN"):
            if secret:
                self.assertNotIn(secret, done.stdout + done.stderr)
        return Done(done.returncode, done.stdout, done.stderr)

    def kvtier(self, code, *arguments, address, env, **more):
        """Run a command and check the exit status."""
        done = self.run_kvtier(*arguments, *address.arguments(**more), env=env)
        self.assertEqual(done.code, code, f"kvtier {arguments[0]}: {done}")
        return done

    def expect_output(self, done, *sentences):
        for sentence in sentences:
            self.assertRegex(done.out + done.err, sentence)


class Op(_lib._Sized):
    """The C structure kvt_op."""
    _fields_ = [("struct_size", ctypes.c_size_t), ("kind", ctypes.c_uint32),
                ("flags", ctypes.c_uint32), ("key", ctypes.c_char_p),
                ("buf", ctypes.c_void_p), ("bytes", ctypes.c_uint64),
                ("user", ctypes.c_void_p), ("status", ctypes.c_int),
                ("found", ctypes.c_uint32), ("found_bytes", ctypes.c_uint64),
                ("tokens", ctypes.c_uint32), ("id", ctypes.c_uint8 * 16),
                ("why", ctypes.c_char * 320)]


class Store:
    """An open kvt_store.  The configuration has only these settings, and the environment
    variables that the library reads."""
    PUT, GET = 1, 2

    def __init__(self, address, **more):
        arguments = address.arguments(**more)[1::2]
        self.config = _lib.Config(settings=arguments)
        self.handle = ctypes.c_void_p()
        _lib._check(_lib.lib().kvt_store_open(self.config.handle,
                                              ctypes.byref(self.handle)))

    def close(self):
        _lib.lib().kvt_store_close(self.handle)
        self.config.close()

    def run(self, kind, key, data):
        op = Op(kind=kind, key=key.encode(), bytes=len(data),
                buf=ctypes.cast(data, ctypes.c_void_p))
        _lib.lib().kvt_store_run(self.handle, ctypes.byref(op))
        if op.status:
            raise OSError(-op.status, op.why.decode(errors="replace"))
        return op

    def put(self, key, data):
        self.run(self.PUT, key, ctypes.create_string_buffer(data, len(data)))

    def get(self, key, room=1 << 20):
        buf = ctypes.create_string_buffer(room)
        n_bytes = self.run(self.GET, key, buf).found_bytes
        return buf.raw[:n_bytes]
