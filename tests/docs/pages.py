# SPDX-License-Identifier: Apache-2.0
"""The Markdown pages of the repository: blocks of examples, prose, tables, links."""
import dataclasses
import os
import pathlib
import re
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
KVTIER = pathlib.Path(os.environ.get("KVTIER", ROOT / "build" / "kvtier")).resolve()
LIBRARY = pathlib.Path(
    os.environ.get("KVTIER_LIBRARY", KVTIER.parent / "libkvtier.so")).resolve()
FENCE = re.compile(r"^```(.*)\n((?:(?!```).*\n)*)```$", re.M)


def names():
    """Return the paths of all pages under version control."""
    listed = subprocess.run(["git", "ls-files", "*.md"], cwd=ROOT, check=True, text=True,
                            stdout=subprocess.PIPE).stdout
    return listed.split()


def user_names():
    """Return the paths of the pages for users."""
    return [name for name in names() if name == "README.md" or name.startswith("docs/")]


def read(name):
    return (ROOT / name).read_text()


@dataclasses.dataclass
class Block:
    """A fenced block."""
    page: str
    line: int
    kind: str
    text: str

    def __str__(self):
        return f"{self.page}:{self.line}"


def blocks(name):
    text = read(name)
    return [Block(name, text.count("\n", 0, found.start()) + 1, found[1], found[2])
            for found in FENCE.finditer(text)]


def prose(name):
    """Return the page's text without blocks."""
    return FENCE.sub("", read(name))


def code(name):
    """Return the texts of the page between backticks, line breaks as blanks."""
    return [re.sub(r"\s*\n\s*", " ", each)
            for each in re.findall(r"(?<!`)`([^`]+)`(?!`)", prose(name))]


def tables(name, head):
    """Return the rows of the tables of a page with these headings: lists of cells."""
    found, rows = False, []
    for line in prose(name).split("\n"):
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line[1:-1])] \
            if line.startswith("|") else None
        if cells == head:
            found = True
        elif found and not cells:
            found = False
        elif found and not line.startswith("|---"):
            rows.append(cells)
    return rows


def kvtier(*arguments):
    """Run the command, which must succeed.  Return standard output."""
    return subprocess.run([KVTIER, *arguments], check=True, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE).stdout


def section(text, title):
    """Return the lines of a section of --help: [(first word, meaning)]."""
    lines = re.search(rf"^{title}:\n((?:.+\n)+)", text, re.M)[1]
    return [tuple(line.split(None, 1)) for line in lines.strip().split("\n")]
