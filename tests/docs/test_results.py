#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Check that bench/RESULTS.md and the benchmark programs name equal cases and commands."""
import fnmatch
import re
import subprocess
import unittest

import pages

PAGE = pages.read("bench/RESULTS.md")
BENCH = pages.KVTIER.parent / "kvtier-bench"
PATTERN = re.compile(r"--case '?([a-z0-9_.*]+)")


def output_of(option):
    return subprocess.run([BENCH, option], check=True, text=True, stdout=subprocess.PIPE).stdout


def listed():
    return [line.split()[0] for line in output_of("--list").splitlines()]


def script_cases():
    """Return the cases printed by the scripts in bench/."""
    return {name for path in (pages.ROOT / "bench").glob("*.py")
            for name in re.findall(r'"((?:lookup|vllm)\.[a-z_.]+)"', path.read_text())}


def named(cases):
    """Return the names on the page with the beginning of a case, except names of files."""
    families = "|".join(sorted({name.split(".")[0] for name in cases}))
    found = re.findall(rf"(?<![\w./-])((?:{families})(?:\.[a-z0-9_]+)+)(?![\w/(])", PAGE)
    return {name for name in found if not name.endswith((".py", ".md", ".sh"))}


class Results(unittest.TestCase):
    def test_each_name_is_a_case_or_the_beginning_of_cases(self):
        cases = {*listed(), *script_cases()}
        self.assertEqual([name for name in sorted(named(cases))
                          if not any((case + ".").startswith(name + ".") for case in cases)], [])

    def test_each_case_is_on_the_page(self):
        cases = listed()
        names, patterns = named(cases), PATTERN.findall(PAGE)
        self.assertEqual([case for case in cases if case not in names and
                          not any(fnmatch.fnmatch(case, pattern) for pattern in patterns)], [])

    def test_each_pattern_matches_a_case(self):
        cases = listed()
        for name in pages.names():
            for pattern in PATTERN.findall(pages.read(name)):
                if name != "CHANGELOG.md":
                    self.assertTrue(fnmatch.filter(cases, pattern), f"{name}: --case {pattern}")

    def test_bench_all_runs_each_target_of_the_page(self):
        makefile = pages.read("Makefile")
        targets = set(re.findall(r"^(bench-[a-z-]+):", makefile, re.M)) - {"bench-all"}
        together = re.search(r"^bench-all:((?:.*\\\n)*.*)", makefile, re.M)[1]
        self.assertEqual(targets, set(re.findall(r"bench-[a-z-]+", together)))
        self.assertEqual(targets, set(re.findall(r"\bbench-[a-z-]+", PAGE)) - {"bench-all"})

    def test_help_names_each_variable(self):
        text = output_of("--help")
        for name in re.findall(r"KVTIER_BENCH_[A-Z_]+", PAGE):
            self.assertIn(name, text)


if __name__ == "__main__":
    unittest.main()
