# SPDX-License-Identifier: Apache-2.0
#
# docs/metrics.md is the output of scripts/make-metrics-docs; docs/tiers.md has a row per tier; each
# relative link of a page leads to a file and a heading.
set -eu
top=$(cd "$(dirname "$0")/../.." && pwd)
temp=$(mktemp)
trap 'rm -f "$temp"' EXIT

"$top/scripts/make-metrics-docs" >"$temp"
cmp "$temp" "$top/docs/metrics.md" || {
    echo "docs/metrics.md differs from src/base/counters.def: run scripts/make-metrics-docs >docs/metrics.md"
    exit 1
}
for word in $(sed -n "s/^tiers = \[\(.*\)\]/\1/p" "$top/src/tier/meson.build" | tr -d "',"); do
    grep -q "^| \`$word\`" "$top/docs/tiers.md" || {
        echo "docs/tiers.md has no row for the tier '$word'"
        exit 1
    }
done
python3 - "$top" <<'END'
import pathlib, re, subprocess, sys

top = pathlib.Path(sys.argv[1])
names = subprocess.run(["git", "ls-files", "*.md"], cwd=top, check=True, text=True,
                       stdout=subprocess.PIPE).stdout.split()
pages = {name: re.sub(r"^(```|~~~).*?^\1", "", (top / name).read_text(), flags=re.S | re.M)
         for name in names}

def anchors(text):
    """Return the anchors of a page's headings, as GitHub makes them."""
    found = []
    for title in re.findall(r"^#+ +(.*)$", text, re.M):
        title = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", title).replace("`", "").strip().lower()
        slug = re.sub(r"[^\w\- ]", "", title).replace(" ", "-")
        found.append(f"{slug}-{found.count(slug)}" if slug in found else slug)
    return found

bad = 0
for name, text in pages.items():
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (top / name).parent / path if path else top / name
        other = str(target.resolve().relative_to(top.resolve())) if target.exists() else None
        if other is None:
            print(f"{name}: the link {link} leads to no file")
            bad += 1
        elif anchor and other in pages and anchor not in anchors(pages[other]):
            print(f"{name}: the link {link} leads to no heading")
            bad += 1
sys.exit(bool(bad))
END
