#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The pages agree with the program: generated pages, tables, names, links."""
import functools
import json
import re
import subprocess
import unittest

import pages

ROOT = pages.ROOT
SETTINGS = ["key", "default", "meaning"]
# The folders of the repository whose files the pages name.
FOLDERS = r"(?:bench|cli|demo|docs|examples|fuzz|include|python|scripts|src|tests)/"


@functools.lru_cache(maxsize=None)
def help_of(command):
    return pages.kvtier(command, "--help")


@functools.lru_cache(maxsize=None)
def commands():
    return dict(pages.section(pages.kvtier("--help"), "Commands"))


@functools.lru_cache(maxsize=None)
def settings():
    """Return {key: row of kvtier config keys}."""
    return {row["key"]: row for row in json.loads(pages.kvtier("config", "keys", "--json"))}


def has_setting(key):
    families = (re.escape(name).replace("NAME", r"[\w.]+") for name in settings())
    older = (name for row in settings().values()
             for name in re.split(r"[, ]+", row["older_names"] or "") if name)
    return any(re.fullmatch(family, key) for family in families) or key in older


@functools.lru_cache(maxsize=None)
def counters():
    return {row[0].strip("`") for row in pages.tables(
        "docs/metrics.md", ["name", "kind", "unit", "meaning"])}


def anchors(text):
    """Return the anchors of a page's headings, as GitHub makes them."""
    found = []
    for title in re.findall(r"^#+ +(.*)$", text, re.M):
        title = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", title).replace("`", "").strip().lower()
        slug = re.sub(r"[^\w\- ]", "", title).replace(" ", "-")
        found.append(f"{slug}-{found.count(slug)}" if slug in found else slug)
    return found


class Generated(unittest.TestCase):
    maxDiff = None

    def test_metrics(self):
        made = subprocess.run([ROOT / "scripts" / "make-metrics-docs"], check=True, text=True,
                              stdout=subprocess.PIPE).stdout
        self.assertEqual(made, pages.read("docs/metrics.md"),
                         "run scripts/make-metrics-docs >docs/metrics.md")

    def test_configuration(self):
        made = pages.kvtier("config", "keys", "--markdown")
        self.assertEqual(made, pages.read("docs/configuration.md"),
                         "run scripts/make-config-docs")


class Tables(unittest.TestCase):
    def test_every_tier_has_a_row(self):
        listed = re.search(r"^tiers = \[(.*)\]", (ROOT / "src/tier/meson.build").read_text(),
                           re.M)[1]
        rows = [row[0] for row in pages.tables(
            "docs/tiers.md", ["tier", "chunks are in", "setting or URL", "page"])]
        self.assertLessEqual({f"`{name}`" for name in re.findall(r"\w+", listed)}, set(rows))

    def test_readme_lists_the_commands(self):
        text = "".join(block.text for block in pages.blocks("README.md"))
        self.assertEqual(set(re.findall(r"^kvtier (\w+)", text, re.M)), set(commands()))

    def test_readme_has_the_exit_codes_of_help(self):
        codes = pages.section(pages.kvtier("--help"), "Exit codes")
        self.assertEqual(pages.tables("README.md", ["exit code", "meaning"]),
                         [list(code) for code in codes])

    def test_settings_and_their_defaults(self):
        n = 0
        for name in pages.user_names():
            for keys, default, _ in pages.tables(name, SETTINGS):
                if name == "docs/tiers.md":
                    continue  # keys of fault:// URLs
                for key, value in zip(re.findall(r"`([^`]+)`", keys), default.split(", ")):
                    if key.isupper() or "(variable)" in keys:
                        continue
                    with self.subTest(f"{name}: {key}"):
                        self.assertTrue(has_setting(key), "no such setting")
                        self.check_default(key, value)
                        n += 1
        self.assertGreater(n, 40)

    def check_default(self, key, value):
        """A default is the table's, empty, or text."""
        found = settings().get(key, {}).get("default") or ""
        if re.fullmatch(r"[\d.]+|true|false", value):
            self.assertIn(found, (value, value + ".0"))

    def test_counters(self):
        n = 0
        for name in pages.user_names():
            for row in pages.tables(name, ["counter", "counts"]):
                self.assertIn(row[0].strip("`"), counters(), name)
                n += 1
        self.assertTrue(n)


class Names(unittest.TestCase):
    """Names in the text and in the blocks of all pages."""

    def each(self, pattern):
        """Return [(page, match)] of a pattern in code and blocks of the pages, but for the
        history."""
        return [(name, found) for name in pages.names() if name != "CHANGELOG.md"
                for text in [*pages.code(name), *(block.text for block in pages.blocks(name))]
                for found in re.finditer(pattern, text, re.M)]

    def test_commands_and_options(self):
        found = self.each(r"(?<![\w/.-])(?<!from )kvtier (-v+ )?([a-z]+)\b([^#\n]*)")
        self.assertGreater(len(found), 30)
        for name, match in found:
            with self.subTest(f"{name}: {match[0]}"):
                self.assertIn(match[2], [*commands(), "help"])
                for option in re.findall(r"(?<!\S)--[a-z-]+", match[3]):
                    self.assertRegex(help_of(match[2]), re.escape(option) + r"\b")

    def test_targets_of_make(self):
        targets = re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.M)
        found = self.each(r"^(?:\S+=\S+ )*make (?:\S+=\S+ )*([a-z0-9-]+)")
        self.assertGreater(len(found), 10)
        for name, match in found:
            self.assertIn(match[1], targets, f"{name}: {match[0]}")

    def test_files(self):
        # A name after build/asan is a target of ninja.
        found = self.each(rf"(?:^|(?<=\s)(?<!asan ))(?:\./)?({FOLDERS}[\w./*-]+[\w*/])(?=\W|$)")
        self.assertGreater(len(found), 80)
        for name, match in found:
            with self.subTest(f"{name}: {match[1]}"):
                self.assertTrue(list(ROOT.glob(match[1])))

    def test_functions(self):
        header = (ROOT / "include" / "kvtier.h").read_text()
        sources = "\n".join(path.read_text() for path in (ROOT / "src").rglob("*.h"))
        for name, match in self.each(r"\b(kvt_\w+|kvt__\w+)(\(\)|\b)"):
            if match[1].endswith("_"):
                continue  # a prefix: kvt_store_*
            with self.subTest(f"{name}: {match[1]}"):
                self.assertRegex(header if match[1][4] != "_" else sources,
                                 rf"\b{match[1]}\b")

    def test_settings(self):
        """`key: value` in the text names a setting."""
        found = [(name, text) for name in pages.user_names() for text in pages.code(name)
                 if re.fullmatch(r"[a-z][a-z0-9_.]+: \S.*", text)
                 and text != "medium: Memory"]  # of Kubernetes
        self.assertGreater(len(found), 30)
        for name, text in found:
            with self.subTest(f"{name}: {text}"):
                self.assertTrue(has_setting(text.partition(":")[0]))


class Links(unittest.TestCase):
    def test_links_lead_to_files_and_headings(self):
        for name in pages.names():
            for link in re.findall(r"\]\(([^)\s]+)\)", pages.prose(name)):
                if re.match(r"[a-z]+:", link):
                    continue
                with self.subTest(f"{name}: {link}"):
                    path, _, anchor = link.partition("#")
                    target = (ROOT / name).parent / path if path else ROOT / name
                    self.assertTrue(target.exists(), "no such file")
                    other = str(target.resolve().relative_to(ROOT))
                    if anchor and other.endswith(".md"):
                        self.assertIn(anchor, anchors(pages.prose(other)))


class EndToEnd(unittest.TestCase):
    def test_the_table_of_vllm_names_existing_cases(self):
        cases = {name for path in (ROOT / "tests" / "e2e").glob("cases_*.py")
                 for name in re.findall(r"^@e2e\ndef (\w+)\(", path.read_text(), re.M)}
        rows = pages.tables("docs/vllm.md", ["what", "since vLLM", "tested how"])
        named = {name for row in rows for part in re.findall(r"server: ([^;]*)", row[2])
                 for name in re.findall(r"`(\w+)`", part)}
        self.assertGreater(len(named), 10)
        self.assertLessEqual(named, cases)


if __name__ == "__main__":
    unittest.main()
