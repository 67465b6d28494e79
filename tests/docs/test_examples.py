#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Run the examples of README.md, docs/*.md, the manual page and --help.

Each fenced block of a page for users has a kind: yaml, sh, python, c, json or text.  Every
block is checked as its kind demands, or is in a table below with a reason.
"""
import asyncio
import ast
import json
import os
import re
import subprocess
import sys
import tempfile
import unittest

import pages
import store

KINDS = {"yaml", "sh", "python", "c", "json", "text"}

# The names and sizes of the examples, and their replacements in a run.
REPLACEMENTS = [
    ("fs:///var/cache/kvtier", "fs://{scratch}/cache"),
    ("/mnt/nvme0/cache", "{scratch}/gds"),
    ("max_local_cpu_size: 5.0 ", "max_local_cpu_size: 0.25 "),
    ("max_shared_cpu_size: 20 ", "max_shared_cpu_size: 0.0625 "),
    (" KEY", " org/model@1@0@1a540024b49d3bfe@bfloat16"),
    (" PREFIX", " org/"),
    (" FILE", " chunk.bin"),
    (" TRACE", " --scale 1024 trace.jsonl"),
    ("kvtier bench ", "kvtier bench --size 1 --count 4 --concurrency 1 "),
]

# The blocks of kind sh that do not run here: page, a line of the block, reason.
SH_ELSEWHERE = [
    ("README.md", "scripts/install-deps && pip install .      # in the Python environment of vLLM",
     "installs packages and starts vLLM; ./demo.sh --wheel and tests/e2e do"),
    ("README.md", "./test.sh       # all tests that need no inference engine", "runs this test"),
    ("README.md", "pip install .           # builds and installs the library and the command",
     "installs packages; tests/package installs the wheel"),
    ("README.md", "LMCACHE_CONFIG_FILE=lmcache.yaml vllm serve MODEL \\",
     "starts vLLM; tests/e2e does"),
    ("README.md", "make programs && build/kvtier --help", "installs packages and builds"),
    ("README.md", "cc examples/store-and-load.c $(pkg-config --cflags --libs kvtier)"
     " -o store-and-load", "installs the library; tests/cli/header.sh runs the example"),
    ("docs/codecs.md", "make quality", "a quarter of an hour with a real vLLM"),
    ("docs/disaggregation.md", "export KVTIER_REMOTE_URL=fs:///var/cache/kvtier",
     "starts two vLLMs; tests/e2e does"),
    ("docs/metrics.md", "curl -s http://localhost:8000/metrics | grep kvtier",
     "needs vLLM's server; tests/e2e reads these metrics"),
    ("docs/vllm.md", "KVTIER_LOAD_POLICY=faster vllm serve MODEL \\",
     "starts vLLM; tests/e2e does"),
    ("docs/vllm.md", "KVTIER_MAX_TTL_SECONDS=28800 vllm serve MODEL \\",
     "starts vLLM; tests/e2e does"),
    ("docs/vllm.md", "KVTIER_KV_EVENTS_STORAGE=host vllm serve MODEL \\",
     "starts vLLM; tests/e2e does"),
    ("docs/python.md", 'export AWS_ACCESS_KEY_ID="your-access-key-id"',
     "the environment of the page's Python blocks, which run with a test server's values"),
    ("docs/python.md", "pip install ./python/lmcache-names",
     "installs a package; tests/python/test_s3_names.py builds the wheel"),
    ("docs/shared-memory.md", "docker run --shm-size=24g ...", "needs docker"),
    ("docs/shared-memory.md", "mount -o remount,huge=advise /dev/shm"
     "                          # Linux 5.14 and later", "changes a mount of the host"),
]

# The blocks of kind yaml without settings of kvtier.
YAML_OF_OTHERS = [("docs/shared-memory.md", "- name: kv", "a part of a Kubernetes manifest")]

# The blocks of kind text: descriptions, no examples.
TEXTS = [
    ("README.md", "  cold, nothing stored           3.958 s             0           -",
     "the figures of a run of ./demo.sh"),
    ("docs/codecs.md", "(1 - encoded / decoded bytes) * (1 / read rate + 1 / write rate)",
     "a formula"),
    ("docs/formats.md", "model@world_size@worker_id@hash@dtype[@layer][@tag%value]...",
     "the form of key text"),
    ("docs/formats.md", "prefix(i) = H128(\"C\" || prefix(i-1) || leaf(i))", "a definition"),
    ("docs/formats.md", "kvtier-space=2", "a definition"),
    ("docs/formats.md", "[28-byte header, if save_chunk_meta] payload [trailer]", "a layout"),
    ("docs/formats.md", "payload [trailer]", "a layout"),
    ("docs/formats.md", "L1/L2/NAME.metadata    the header once more", "a layout"),
    ("docs/formats.md", "owners    256 records of 32 bytes: incarnation (random; 0 free), "
     "limit_bytes, pid, 0", "a layout"),
    ("docs/formats.md", "pins      256 records of 8320 bytes: 1024 bits (1: the pin is valid),"
     " 1024 places", "a layout"),
    ("docs/formats.md", "hashes    n_entries records of 24 bytes, if wide_hashes is 1",
     "a layout"),
    ("docs/gds.md", ".kvtier/                                  kvtier's own files",
     "a layout"),
]

# The blocks of kind c: page, a line of the block, the program around the block.  The program
# succeeds if the block is right.
C_PROGRAMS = [
    ("docs/formats.md", "z ^= z >> 30; z *= 0xbf58476d1ce4e5b9;", """\
#include <stdint.h>
int
main(void)
{
    uint64_t z = 0x9e3779b97f4a7c15;
    {block}
    return z != 0xe220a8397b1dcdaf; /* the first number of SplitMix64 with seed 0 */
}
"""),
]


def all_blocks(kind=None):
    found = [block for name in pages.user_names() for block in pages.blocks(name)]
    return [block for block in found if kind in (None, block.kind)]


def has(block, page, line):
    return block.page == page and line in block.text.split("\n")


def rows_of(block, table):
    return [row for row in table if has(block, row[0], row[1])]


def replaced(text, scratch):
    for old, new in REPLACEMENTS:
        text = text.replace(old, new.replace("{scratch}", scratch))
    return text


def commands_of_help():
    """Return the examples in --help of kvtier and of each command: (place, line)."""
    words = [word for word, _ in pages.section(pages.kvtier("--help"), "Commands")]
    for command in ([], *([word] for word in words)):
        text = pages.kvtier(*command, "--help")
        for line in re.findall(r"^  ((?:[A-Z_]+=\S+ )?kvtier [a-z]+ .*)$", text, re.M):
            yield "kvtier %s --help" % " ".join(command), re.sub("   .*", "", line)


def commands_of_manual():
    text = (pages.ROOT / "docs" / "kvtier.1.in").read_text()
    examples = re.search(r"^\.SH EXAMPLES\n((?:(?!\.SH).*\n)*)", text, re.M)[1]
    return re.findall(r"^\.B (kvtier .*)$", examples.replace("\\-", "-"), re.M)


class Case(unittest.TestCase):
    """A test with a directory of its own, in which the examples run."""

    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.scratch = temporary.name
        self.env = store.environment(
            HOME=self.scratch, KVTIER_LIBRARY=str(pages.LIBRARY),
            PATH=f"{pages.KVTIER.parent}:{os.environ['PATH']}")

    def write(self, name, text):
        path = os.path.join(self.scratch, name)
        with open(path, "w") as file:
            file.write(text)
        return path

    def run_sh(self, text, **more):
        """Run shell commands, each of which must succeed."""
        done = subprocess.run(["sh", "-eu", "-c", replaced(text, self.scratch)],
                              cwd=self.scratch, env={**self.env, **more}, text=True,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT)
        self.assertEqual(done.returncode, 0, f"{text}\n{done.stdout}")
        return done.stdout


class Tables(unittest.TestCase):
    def test_every_block_has_a_kind(self):
        for name in pages.names():
            for block in pages.blocks(name):
                self.assertIn(block.kind, KINDS, f"{block}: the kind of the block")

    def test_every_example_is_in_a_fenced_block(self):
        for name in pages.names():
            text = pages.prose(name)
            self.assertNotRegex(text, r"(?m)^ *(```|~~~)", f"{name}: an open fence")
            indented = re.search(r"(?:\A|\n\n)( {4,}|\t)(.*)", text)
            self.assertIsNone(indented, f"{name}: an indented block: {indented and indented[2]}")

    def test_every_row_of_a_table_is_one_block(self):
        for kind, table in (("sh", SH_ELSEWHERE), ("c", C_PROGRAMS),
                            ("yaml", YAML_OF_OTHERS), ("text", TEXTS)):
            for row in table:
                found = [str(b) for b in all_blocks(kind) if has(b, *row[:2])]
                self.assertEqual(len(found), 1, f"blocks with {row[1]!r} of {row[0]}: {found}")

    def test_every_text_is_in_the_table(self):
        for block in all_blocks("text"):
            self.assertTrue(rows_of(block, TEXTS), f"{block}: a text that no table contains")

    def test_every_replacement_has_an_example(self):
        text = "\n".join(block.text for block in all_blocks())
        for old, _ in REPLACEMENTS:
            self.assertIn(old, text)


class Examples(Case):
    def test_configurations(self):
        for block in all_blocks("yaml"):
            with self.subTest(str(block)):
                if rows_of(block, YAML_OF_OTHERS):
                    continue
                self.write("example.yaml", block.text)
                out = self.run_sh("kvtier config check example.yaml", **{
                    "KVTIER_" + name.upper(): value
                    for name, value in (("max_local_cpu_size", "0.25"),
                                        ("max_shared_cpu_size", "0.0625"))
                    if name in block.text})
                self.assertRegex(out, r"(?m)^0 errors, 0 warnings")

    def test_json(self):
        found = all_blocks("json")
        self.assertTrue(found)
        for block in found:
            with self.subTest(str(block)):
                json.loads(block.text)

    def test_c(self):
        for block in all_blocks("c"):
            with self.subTest(str(block)):
                row, = rows_of(block, C_PROGRAMS)
                self.write("example.c", row[2].replace("{block}", block.text))
                self.run_sh("cc -Wall -Wextra -Werror -o example example.c && ./example")

    def test_vllm_gets_the_connector_of_the_tests(self):
        """The values of --kv-transfer-config name the connector that tests/e2e use."""
        found = [(name, value) for name in pages.user_names() for value in re.findall(
            r"--kv-transfer-config\s+'(\{.*?\})'", pages.read(name), re.S)]
        self.assertTrue(found)
        for name, value in found:
            config = json.loads(value)
            self.assertIn(config.pop("kv_connector"), ("KVTierConnector", "LMCacheConnectorV1"))
            self.assertIn(config.pop("kv_role"), ("kv_both", "kv_producer", "kv_consumer"))
            self.assertFalse(config, name)


class Commands(Case):
    """Shell commands with README's configuration and a few chunks."""

    def setUp(self):
        super().setUp()
        config, = (b.text for b in all_blocks("yaml") if b.page == "README.md")
        self.write("lmcache.yaml", replaced(config, self.scratch))
        for name in ("disk", "new", "s3"):
            self.write(f"{name}.yaml", f"remote_url: fs://{self.scratch}/{name}\n")
        self.write("trace.jsonl", '{"input_length": 1024, "hash_ids": [1, 2]}\n')
        self.write("chunk.bin", "x" * 100_000)
        try:
            tmpfs = tempfile.TemporaryDirectory(dir="/dev/shm", prefix="kvtier-test.")
        except OSError:
            self.skipTest("no /dev/shm")
        self.addCleanup(tmpfs.cleanup)
        self.env.update(KVTIER_CONFIG_FILE="lmcache.yaml", KVTIER_SHARED_CPU_PATH=tmpfs.name,
                        KVTIER_BLOCKING_TIMEOUT_SECS="600", KVTIER_LOOKUP_TIMEOUT_MS="600000")

    def make_shared_memory(self):
        """Put chunks into shared host memory, and set its size for all later commands."""
        self.run_sh("kvtier replay --scale 1024 --set shared_cpu=true trace.jsonl",
                    KVTIER_MAX_SHARED_CPU_SIZE="0.0625", KVTIER_MAX_LOCAL_CPU_SIZE="0.0625")
        self.env.update(KVTIER_MAX_LOCAL_CPU_SIZE="0.0625")

    def test_pages(self):
        for block in all_blocks("sh"):
            with self.subTest(str(block)):
                if rows_of(block, SH_ELSEWHERE):
                    continue
                if "shared_cpu=true" in block.text:
                    self.make_shared_memory()
                self.run_sh(block.text)

    def test_help(self):
        found = list(commands_of_help())
        self.assertGreater(len(found), 5)
        for place, line in found:
            with self.subTest(place):
                self.run_sh(line)

    def test_manual(self):
        found = commands_of_manual()
        self.assertGreater(len(found), 5)
        self.make_shared_memory()
        for line in found:
            with self.subTest(line):
                self.run_sh(line)


class Python(Case):
    """The Python blocks of a page run one after the other, as one program."""

    def run_page(self, page, path):
        server = store.Store(buckets=("kv", "lmcache-test-bucket", "your-lmcache-bucket"),
                             region="us-west-2")
        self.addCleanup(server.stop)
        for block in all_blocks("yaml"):
            if block.page == page:
                self.write("lmcache-s3-config.yaml", block.text)
        program = self.write("blocks.json", json.dumps(
            [block.text for block in all_blocks("python") if block.page == page]))
        done = subprocess.run(
            [sys.executable, "-B", os.path.abspath(__file__), "run", program],
            cwd=self.scratch, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            env={**self.env, **server.environment(), "PYTHONPATH": path})
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertEqual(done.stdout, "")
        return server

    def test_readme(self):
        server = self.run_page("README.md", str(pages.ROOT / "python"))
        self.assertEqual(server.stored("kv"), {"test/key": b"bytes"})

    def test_guide(self):
        path = f"{pages.ROOT / 'python'}:{pages.ROOT / 'python' / 'lmcache-names'}"
        server = self.run_page("docs/python.md", path)
        self.assertEqual(len(server.stored("lmcache-test-bucket")), 100)
        self.assertEqual(len(server.stored("your-lmcache-bucket")), 2)

    def test_every_page_with_python_has_a_test(self):
        self.assertEqual({b.page for b in all_blocks("python")}, {"README.md", "docs/python.md"})


class Recipes(Case):
    """The recipes of docs/s3.md, unchanged, with an S3 server at the address of each recipe."""

    # Title: host of kvtier's requests through the proxy, region of the signatures.
    HOSTS = {
        "AWS": ("kv-cache.s3.us-east-1.amazonaws.com:443", "us-east-1"),
        "S3 Express One Zone": ("kv-cache--use1-az4--x-s3.s3express-use1-az4.us-east-1"
                                ".amazonaws.com:443", "us-east-1"),
        "MinIO with TLS and a private certificate authority":
            ("minio.example.com:9000", "us-east-1"),
        "Ceph, SeaweedFS and others in your own network, without TLS":
            ("ceph.example.com:8080", "us-east-1"),
        "Cloudflare R2": ("0123abcd.r2.cloudflarestorage.com:443", "auto"),
        "CoreWeave": ("kv-cache.cwlota.com", "US-WEST-04A"),
    }
    KEY = "org/model@1@0@1a540024b49d3bfe@bfloat16"

    def recipes(self):
        """Return {title: configuration}."""
        text = re.search(r"^## Recipes\n(.*?)^## ", pages.read("docs/s3.md"), re.M | re.S)[1]
        return dict(re.findall(r"^\*\*([^*]*)\.\*\*[^`]*?(?:`[^`]+`[^`]*?)*"
                               r"\n```yaml\n(.*?)^```$", text, re.M | re.S))

    def test_every_recipe_has_a_host(self):
        text = re.search(r"^## Recipes\n(.*?)^## ", pages.read("docs/s3.md"), re.M | re.S)[1]
        self.assertEqual(text.count("```yaml"), len(self.recipes()))
        self.assertEqual(set(self.recipes()), set(self.HOSTS))

    def test_recipes(self):
        for title, text in self.recipes().items():
            with self.subTest(title):
                self.check(text, *self.HOSTS[title])

    def check(self, text, host, region):
        name = host.partition(":")[0]
        bucket = name.partition(".")[0] if name.startswith("kv-cache") else "kv-cache"
        server = store.Store(tls=True, domain=name.removeprefix("kv-cache."), region=region,
                             buckets=[bucket])
        self.addCleanup(server.stop)
        facts = server.facts()
        proxy = store.Proxy(facts["port"], facts["tls_port"])
        self.addCleanup(proxy.stop)
        # A prefix of this test: the index of a bucket of this name may be in use.
        prefix = os.path.basename(self.scratch)
        in_host = bucket in name
        self.addCleanup(store.remove_indexes, [store.index_of(
            re.sub(":(443|80)$", "", host),
            f"/{prefix}/" if in_host else f"/{bucket}/{prefix}/")])
        self.write("recipe.yaml", text.replace("/etc/ssl/private-ca.pem", server.ca))
        self.write("given", "bytes of a chunk")
        self.run_sh("""
            kvtier config check recipe.yaml | grep -x '0 errors, 0 warnings'
            export KVTIER_CONFIG_FILE=recipe.yaml
            kvtier doctor
            kvtier put "$KEY" given
            kvtier get "$KEY" back
            cmp given back
            kvtier ls | grep '^1 chunks'
            """, KEY=self.KEY, AWS_ACCESS_KEY_ID=facts["access"],
            AWS_SECRET_ACCESS_KEY=facts["secret"], AWS_CA_BUNDLE=server.ca,
            http_proxy=proxy.url, https_proxy=proxy.url, KVTIER_S3_FILE_PREFIX=prefix)
        self.assertEqual(list(server.stored(bucket)),
                         [f"{prefix}/{self.KEY.replace('/', '_')}"])
        self.assertEqual(proxy.hosts, {host})
        self.assertEqual(server.stats.lines, [])  # no signature was refused


def run(path):
    """Run the blocks of a page, in which await may be outside of a function."""
    names, indexes = {"__name__": "__main__"}, set()

    async def main():
        with open(path) as file:
            texts = json.load(file)
        for text in texts:
            done = eval(compile(text, path, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), names)
            if asyncio.iscoroutine(done):
                await done
            indexes.update(store.open_indexes())

    try:
        asyncio.run(main())
    finally:
        store.remove_indexes(indexes)


if __name__ == "__main__":
    if sys.argv[1:2] == ["run"]:
        run(sys.argv[2])
    else:
        unittest.main()
