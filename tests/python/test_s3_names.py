# SPDX-License-Identifier: Apache-2.0
"""The names of the porting guide against an S3 server: buckets, engines, the wheel
with LMCache's import paths.  Skipped without the library."""

import asyncio
import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import unittest
from unittest import mock

import fake
from kvtier import LMCacheEngineBuilder, S3Adapter, S3Connector

HERE = os.path.dirname(os.path.abspath(__file__))
SERVERS = os.path.join(HERE, "..", "servers")
NAMES = os.path.join(HERE, "..", "..", "python", "lmcache-names")
sys.path.insert(0, SERVERS)
sys.path.insert(0, NAMES)

import names_wheel  # noqa: E402
import s3  # noqa: E402

BUCKETS = ["lmcache-test-bucket", "your-lmcache-bucket", "with.dots"]
REGION = "us-west-2"

GUIDE_YAML = """\
# lmcache-s3-config.yaml
chunk_size: 256
local_device: "cpu"
remote_serde: "cachegen"

storage_backend:
  type: "remote"
  connector:
    type: "s3"
    bucket: "your-lmcache-bucket"
    prefix: "kv-cache/"
    region: "us-west-2"  # optional, uses AWS_DEFAULT_REGION if not set
    # Credentials: uses AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY from env
    # or IAM role if running on EC2/EKS
"""


def environment(facts):
    """Return this process's environment with AWS's variables replaced by the guide's."""
    env = {name: value for name, value in os.environ.items()
           if not name.startswith(("AWS_", "LMCACHE_")) and name != "KVTIER_CONFIG_FILE"
           and not name.lower().endswith("_proxy")}
    env.update(AWS_ACCESS_KEY_ID=facts["access"], AWS_SECRET_ACCESS_KEY=facts["secret"],
               AWS_DEFAULT_REGION=facts["region"], AWS_ENDPOINT_URL=facts["endpoint"])
    return env


def remove_indexes():
    """Remove the local indexes of the stores that this process has open.

    Another test run has other servers' ports, and so other indexes.
    """
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            path = os.readlink("/proc/self/fd/" + fd)
            if re.fullmatch(r"/\S*/kvtier-\d+/[0-9a-f]+/lock", path):
                shutil.rmtree(os.path.dirname(path), ignore_errors=True)


class Case(unittest.TestCase):
    def setUp(self):
        if not fake.have_library():
            self.skipTest("no libkvtier.so")
        self.server = s3.Server(buckets=BUCKETS, region=REGION)
        self.addCleanup(self.server.stop)
        self.env = environment(self.server.facts())
        patch = mock.patch.dict(os.environ, self.env, clear=True)
        patch.start()
        self.addCleanup(patch.stop)

    def own(self, opened):
        remove_indexes()
        self.addCleanup(opened.close)
        return opened

    def connector(self, bucket="lmcache-test-bucket", **words):
        return self.own(S3Connector(bucket=bucket, **words))

    def objects(self, bucket="lmcache-test-bucket"):
        return {key: each.body
                for key, each in self.server.objects.buckets[bucket].objects.items()}


class Guide(Case):
    def test_a_stored_object_is_read_and_deleted(self):
        connector = S3Connector(bucket="lmcache-test-bucket", prefix="test/")
        test_data = b"Hello, LMCache S3!"
        connector.put("test-key", test_data)
        self.assertEqual(self.objects(), {"test/test-key": test_data})
        retrieved = connector.get("test-key")
        self.assertIs(type(retrieved), bytes)
        assert retrieved == test_data
        connector.delete("test-key")
        self.assertEqual(self.objects(), {})
        remove_indexes()
        connector.close()

    def test_an_object_is_stored_read_and_deleted_in_an_event_loop(self):
        async def test_async():
            connector = S3Connector(bucket="lmcache-test-bucket", prefix="async-test/")
            await connector.async_put("test-async", b"Async data")
            data = await connector.async_get("test-async")
            assert data == b"Async data"
            self.assertEqual(list(self.objects()), ["async-test/test-async"])
            await connector.async_delete("test-async")
            remove_indexes()
            connector.close()
        asyncio.run(test_async())
        self.assertEqual(self.objects(), {})


class Connector(Case):
    def test_absent_objects(self):
        connector = self.connector()
        self.assertIsNone(connector.get("key"))
        self.assertFalse(connector.exists("key"))
        self.assertFalse(connector.delete("key"))
        connector.put("key", b"")
        self.assertEqual(connector.get("key"), b"")
        self.assertTrue(connector.exists("key"))
        self.assertTrue(connector.delete("key"))

        async def exists():
            return [await connector.async_get("key"), await connector.async_exists("key"),
                    await connector.async_delete("key")]
        self.assertEqual(asyncio.run(exists()), [None, False, False])

    def test_prefixes_and_names_of_any_text(self):
        self.connector(prefix="/a b/c/").put("d/\u00e9 %20+?&=@#", b"1")
        self.connector().put("x", b"2")
        self.connector("with.dots").put("y", b"3")
        self.assertEqual(self.objects(), {"a b/c/d/\u00e9 %20+?&=@#": b"1", "x": b"2"})
        self.assertEqual(self.objects("with.dots"), {"y": b"3"})
        same = self.connector(prefix="a b/c", region=REGION,
                              endpoint_url=self.server.endpoint)
        self.assertEqual(same.get("d/\u00e9 %20+?&=@#"), b"1")

    def test_get_of_unknown_length_needs_no_head(self):
        connector = self.connector()
        for n in (3 << 20, 10, 1 << 20, (5 << 20) + 1):
            data = os.urandom(n)
            connector.put("key", data)
            self.assertEqual(connector.get("key"), data)
        self.assertNotIn("HEAD", self.server.stats.show()["methods"])

    def test_buffers_are_copied_at_the_call(self):
        connector = self.connector()
        data = bytearray(b"0123456789")
        connector.put("a", data)
        connector.put("b", memoryview(data)[2:8:2])

        async def put():
            task = asyncio.ensure_future(connector.async_put("c", data))
            await asyncio.sleep(0)
            data[:] = b"xxxxxxxxxx"
            await task
        asyncio.run(put())
        self.assertEqual(self.objects(), {"a": b"0123456789", "b": b"246",
                                          "c": b"0123456789"})

    def test_errors_have_sentences(self):
        connector = self.connector()
        for key in ("", "/a", "a//b", "..", "a\0b"):
            with self.assertRaisesRegex(ValueError, "kvtier: "):
                connector.put(key, b"")
        with self.assertRaises(TypeError):
            connector.put("key", "text")
        with self.assertRaisesRegex(OSError, "NoSuchBucket"):
            self.connector("other").put("key", b"1")
        with self.assertRaisesRegex(ValueError, "bucket"):
            S3Connector(bucket="a/b")
        with self.assertRaisesRegex(ValueError, "s3_storage_class|s3_sse"):
            self.connector(config={"s3_sse": "ROT13"})
        self.server.faults.add({"match": {"method": "PUT"}, "do": {"status": 403}})
        with self.assertRaisesRegex(PermissionError, "AccessDenied"):
            connector.put("key", b"1")
        self.server.faults.add({"match": {"method": "GET"}, "count": None,
                                "do": {"corrupt_at": 0}})
        connector.put("key", b"1")
        with self.assertRaisesRegex(OSError, "checksum"):
            connector.get("key")

    def test_settings_of_engines_do_not_count(self):
        with mock.patch.dict(os.environ, LMCACHE_LOCAL_DISK="file:///nonexistent/x",
                             LMCACHE_MAX_LOCAL_DISK_SIZE="1",
                             LMCACHE_CONFIG_FILE="/nonexistent.yaml"):
            self.connector(config={"s3_storage_class": "STANDARD_IA"}).put("key", b"1")
        put = self.server.stats.show()["requests"][-1]
        self.assertEqual(put["headers"]["x-amz-storage-class"], "STANDARD_IA")

    def test_adapter_makes_connectors_from_urls(self):
        adapter = S3Adapter()
        self.assertTrue(adapter.can_parse("s3://bucket"))
        self.assertFalse(adapter.can_parse("fs:///tmp"))
        context = mock.Mock(url="s3://lmcache-test-bucket/ns")
        for url in (context.url, context):
            connector = self.own(adapter.create_connector(url))
            connector.put("key", b"1")
        self.assertEqual(list(self.objects()), ["ns/key"])
        with self.assertRaisesRegex(ValueError, "fs://"):
            adapter.create_connector("fs:///tmp")


class AtOnce(Case):
    def delay(self, method, ms=300):
        self.server.faults.add({"match": {"method": method}, "count": None,
                                "do": {"delay_ms": ms}})

    def hold(self, method):
        """Delay the responses to requests with `method` until the returned Event is set."""
        go, answer = threading.Event(), self.server.answer

        def late(wire, request, fault):
            if request.method == method:
                go.wait()
            return answer(wire, request, fault)
        patch = mock.patch.object(self.server, "answer", late)
        patch.start()
        self.addCleanup(patch.stop)
        self.addCleanup(go.set)
        return go

    def test_requests_of_one_loop_have_no_threads(self):
        connector = self.connector()
        self.delay("PUT", 100)

        async def put():
            tasks = [asyncio.ensure_future(connector.async_put("k%d" % i, b"%d" % i))
                     for i in range(40)]
            await asyncio.sleep(0.05)
            names = [t.name for t in threading.enumerate()]
            await asyncio.gather(*tasks)
            return names
        names = asyncio.run(put())
        self.assertEqual(sum("kvtier" in name for name in names), 1)
        self.assertFalse(any("asyncio" in name or "Executor" in name for name in names))
        self.assertEqual(len(self.objects()), 40)

    def test_threads_and_loops_at_once(self):
        connector = self.connector()
        failures = []

        def check(who, step, value):
            if value != b"%d %d" % (who, step):
                failures.append((who, step, value))

        def here(who):
            for step in range(25):
                key = "%d-%d" % (who, step)
                connector.put(key, b"%d %d" % (who, step))
                check(who, step, connector.get(key))

        def loop(who):
            async def one(step):
                key = "%d-%d" % (who, step)
                await connector.async_put(key, b"%d %d" % (who, step))
                check(who, step, await connector.async_get(key))

            async def all_of_them():
                await asyncio.gather(*map(one, range(25)))
            asyncio.run(all_of_them())
        threads = [threading.Thread(target=loop if who % 2 else here, args=(who,))
                   for who in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(failures, [])
        self.assertEqual(len(self.objects()), 150)

    def test_a_cancelled_call_does_not_affect_others(self):
        connector = self.connector(config={"blocking_timeout_secs": 600})
        connector.put("key", bytes(1 << 20))
        first = self.hold("GET")

        async def get():
            tasks = [asyncio.ensure_future(connector.async_get("key")) for _ in range(5)]
            while self.server.stats.show()["methods"].get("GET", 0) < 5:
                await asyncio.sleep(0.001)
            for task in tasks[:4]:
                task.cancel()
            cancelled = await asyncio.gather(*tasks[:4], return_exceptions=True)
            self.second = self.hold("GET")
            first.set()
            done = await tasks[4]
            with self.assertRaises(asyncio.TimeoutError):
                await asyncio.wait_for(connector.async_get("key"), 0.05)
            return [*cancelled, done]
        done = asyncio.run(get())  # ends before the last request does
        self.assertEqual([type(each) for each in done],
                         [asyncio.CancelledError] * 4 + [bytes])
        self.second.set()
        self.assertEqual(connector.get("key"), bytes(1 << 20))

    def test_close_waits_for_calls_in_flight(self):
        connector = S3Connector(bucket="lmcache-test-bucket")
        self.delay("PUT")

        async def put_and_close():
            tasks = [asyncio.ensure_future(connector.async_put("k%d" % i, b"x"))
                     for i in range(5)]
            await asyncio.sleep(0)
            remove_indexes()
            connector.close()
            self.assertEqual(len(self.objects()), 5)
            await asyncio.gather(*tasks)
            with self.assertRaisesRegex(OSError, "closed"):
                await connector.async_get("k0")
        asyncio.run(put_and_close())
        connector.close()

    def test_a_client_without_references_closes(self):
        connector = S3Connector(bucket="lmcache-test-bucket")
        connector.put("key", b"1")
        remove_indexes()
        thread = connector._store._thread
        del connector
        thread.join(600)
        self.assertFalse(thread.is_alive())

    def test_the_interpreter_ends_with_requests_under_way(self):
        self.hold("PUT")
        code = ("import asyncio, kvtier, test_s3_names as t\n"
                "c = kvtier.S3Connector(bucket='lmcache-test-bucket',\n"
                "                       config={'blocking_timeout_secs': 3600})\n"
                "t.remove_indexes()\n"
                "async def f(): await asyncio.wait_for(c.async_put('k', b'x'), .05)\n"
                "try: asyncio.run(f())\n"
                "except asyncio.TimeoutError: print('gone')\n")
        path = os.pathsep.join([HERE, os.environ.get("PYTHONPATH", "")])
        done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, timeout=600,
                              env=dict(self.env, PYTHONPATH=path))
        self.assertEqual((done.returncode, done.stdout.strip()), (0, b"gone"))

    def test_a_forked_child_gets_an_error(self):
        connector = self.connector()
        connector.put("key", b"1")
        out, into = os.pipe()
        child = os.fork()
        if not child:
            try:
                connector.get("key")
            except OSError as e:
                os.write(into, str(e).encode())
            connector.close()
            del connector
            os._exit(0)
        os.close(into)
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        self.assertIn(b"fork", os.read(out, 4096))
        os.close(out)
        self.assertEqual(connector.get("key"), b"1")


class Uploads(Case):
    def test_ten_uploads_of_an_event_loop_are_under_way_at_a_time(self):
        """The guide's 100 uploads of 1 MB: first in sequence, then ten at a time."""
        data = os.urandom(1000 * 1000)
        connector = self.connector(config={"blocking_timeout_secs": 600})
        for i in range(10):
            connector.put("bench-%d" % i, data)
        self.assertEqual(self.server.stats.show()["max_at_a_time"], 1)
        # No upload is answered before ten have arrived.
        together = threading.Barrier(10, timeout=600)
        answer = self.server.answer

        def late(wire, request, fault):
            if request.method == "PUT":
                together.wait()
            return answer(wire, request, fault)

        async def put(slots, i):
            async with slots:
                await connector.async_put("bench-%d" % i, data)

        async def all_of_them():
            slots = asyncio.Semaphore(10)
            await asyncio.gather(*(put(slots, i) for i in range(10, 110)))
        with mock.patch.object(self.server, "answer", late):
            asyncio.run(all_of_them())
        self.assertEqual(len(self.objects()), 110)


class Engine(Case):
    TOKENS = [i * 7 % 32000 for i in range(1000)]

    def setUp(self):
        super().setUp()
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.yaml = os.path.join(folder.name, "lmcache-s3-config.yaml")
        with open(self.yaml, "w") as file:
            file.write(GUIDE_YAML)

    def build(self, **words):
        return self.own(LMCacheEngineBuilder.build(
            storage_backend_type="remote",
            connector_type="s3",
            connector_config={
                "bucket": "your-lmcache-bucket",
                "prefix": "kv-cache/",
                "region": "us-west-2",
            },
            local_device="cpu",
            remote_serde="cachegen", **words))

    def test_a_second_engine_finds_chunks_of_the_first(self):
        kv = os.urandom(1000 * 48)
        first = self.own(LMCacheEngineBuilder.from_yaml_file(self.yaml))
        self.assertEqual(first.lookup(self.TOKENS), 0)
        self.assertEqual(first.retrieve(self.TOKENS), b"")
        first.store(self.TOKENS, kv)
        names = list(self.objects("your-lmcache-bucket"))
        self.assertEqual(len(names), 3)
        self.assertTrue(all(n.startswith("kv-cache/kvtier/tokens/") for n in names))
        first.close()
        second = self.build()
        self.assertEqual(second.lookup(self.TOKENS), 768)
        self.assertEqual(second.retrieve(self.TOKENS), kv[:768 * 48])
        self.assertEqual(second.retrieve(self.TOKENS[:600] + [5] * 400), kv[:512 * 48])
        self.assertEqual(second.lookup([5] + self.TOKENS), 0)
        self.assertEqual(second.lookup(self.TOKENS[256:]), 0)

    def test_chunk_size_and_tail_are_settings(self):
        engine = self.build(chunk_size=100, save_unfull_chunk=True)
        tokens, kv = self.TOKENS[:250], os.urandom(250 * 3)
        engine.store(tokens, kv)
        self.assertEqual(engine.lookup(tokens), 250)
        self.assertEqual(engine.retrieve(tokens), kv)
        self.assertEqual(engine.lookup(self.TOKENS), 200)

    def test_only_absent_objects_are_written(self):
        engine = self.build()
        engine.store(self.TOKENS[:512], bytes(512 * 8))
        self.server.stats.clear()
        engine.store(self.TOKENS, bytes(1000 * 8))
        self.assertEqual(self.server.stats.show()["methods"]["PUT"], 1)

    def test_models_are_apart(self):
        self.build(model="Qwen/Qwen3-32B").store(self.TOKENS, bytes(1000))
        self.assertEqual(self.build().lookup(self.TOKENS), 0)
        self.assertEqual(self.build(model="Qwen/Qwen3-32B").lookup(self.TOKENS), 768)

    def test_a_damaged_or_missing_chunk_ends_the_hit(self):
        engine = self.build()
        kv = os.urandom(1000)
        engine.store(self.TOKENS, kv)
        self.server.faults.add({"match": {"method": "GET"}, "skip": 1, "count": None,
                                "do": {"corrupt_at": 3}})
        self.assertIn(engine.retrieve(self.TOKENS), (b"", kv[:256]))
        self.server.faults.clear()
        self.assertEqual(engine.retrieve(self.TOKENS), kv[:768])
        objects = self.server.objects.buckets["your-lmcache-bucket"].objects
        for name in list(objects)[1:2]:
            del objects[name]
        found = engine.lookup(self.TOKENS)
        self.assertLess(found, 768)
        self.assertEqual(engine.retrieve(self.TOKENS), kv[:found])

    def test_objects_of_another_program_are_not_loaded(self):
        engine = self.build()
        engine.store(self.TOKENS, bytes(1000))
        for each in self.server.objects.buckets["your-lmcache-bucket"].objects.values():
            each.headers.clear()
        self.assertEqual(engine.retrieve(self.TOKENS), b"")

    def test_errors_have_sentences(self):
        for words in ({"connector_type": "redis"}, {"storage_backend_type": "local"},
                      {"connector_config": {}}):
            with self.assertRaisesRegex(ValueError, "storage_backend"):
                LMCacheEngineBuilder.build(**{
                    "connector_config": {"bucket": "your-lmcache-bucket"}, **words})
        with self.assertRaises(FileNotFoundError):
            LMCacheEngineBuilder.from_yaml_file("/nonexistent.yaml")
        engine = self.build()
        with self.assertRaisesRegex(ValueError, "7 bytes for 5 tokens"):
            engine.store([1, 2, 3, 4, 5], bytes(7))
        self.server.faults.add({"match": {"method": "HEAD"}, "count": None,
                                "do": {"status": 403}})
        with self.assertRaises(PermissionError):
            engine.lookup(self.TOKENS)


class NamesWheel(Case):
    CODE = """
from lmcache import LMCacheEngineBuilder
from lmcache.v1.storage_backend.connector.s3_connector import S3Connector
from lmcache.v1.storage_backend.connector.s3_adapter import S3Adapter
import kvtier, kvtier.plugin
assert (LMCacheEngineBuilder, S3Connector, S3Adapter) == (
    kvtier.LMCacheEngineBuilder, kvtier.S3Connector, kvtier.S3Adapter)
print("not taken for LMCache", kvtier.plugin.wanted())
"""

    def setUp(self):
        super().setUp()
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        name = names_wheel.build_wheel(self.folder)
        self.wheel = os.path.join(self.folder, name)
        self.site = os.path.join(self.folder, "site")
        shutil.unpack_archive(self.wheel, self.site, "zip")

    def run_code(self):
        path = os.pathsep.join([self.site, fake.PYTHON])
        return subprocess.run([sys.executable, "-c", self.CODE], stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True,
                              env=dict(self.env, PYTHONPATH=path)).stdout

    def test_import_paths_mean_kvtier(self):
        self.assertTrue(self.wheel.endswith("-py3-none-any.whl"))
        self.assertEqual(self.run_code(), "not taken for LMCache True\n")

    def test_is_refused_if_lmcache_is_installed(self):
        about = os.path.join(self.site, "LMCache-0.5.6.dist-info")
        os.mkdir(about)
        with open(os.path.join(about, "METADATA"), "w") as file:
            file.write("Metadata-Version: 2.1\nName: lmcache\nVersion: 0.5.6\n")
        said = self.run_code()
        self.assertIn("ImportError: lmcache: LMCache is installed", said)
        self.assertIn("pip uninstall kvtier-lmcache-names", said)

    def test_its_version_is_kvtiers(self):
        import kvtier
        self.assertIn("Version: %s\n" % kvtier.__version__, names_wheel.METADATA)


if __name__ == "__main__":
    unittest.main()
