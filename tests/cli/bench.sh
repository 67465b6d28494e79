#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# kvtier bench: steps, tiers, JSON, the HTML page, failures, deletion of all chunks.  No check of
# speed.
#   KVTIER=build/kvtier sh tests/cli/bench.sh
command=bench
. "$(dirname "$0")/lib"
name='fs<i>&"' # the page escapes the characters
fs="--set remote_url=fs://$dir/$name"
small='--size 1 --count 3'

# expect_empty: the storage must hold no chunk
expect_empty() {
    left=$(find "$name" disk -type f ! -path '*/.kvtier/*' 2>/dev/null)
    [ -z "$left" ] || fail "chunks stay: $left"
}

# --- two tiers, two concurrencies, four steps

expect 0 $small --concurrency 1,2 --html page.html $fs --set local_disk="$dir/disk" \
    --set max_local_disk_size=1
[ "$(grep -c '^local_disk ' out)" -eq 8 ] || fail 'not 8 rows of local_disk'
[ "$(grep -c '^fs ' out)" -eq 8 ] || fail 'not 8 rows of fs'
! grep -q 'failed' out || fail 'operations failed'
expect_empty
expect 0 $small --concurrency 2 --tier fs --json $fs --set local_disk="$dir/disk" \
    --set max_local_disk_size=1
cp out rows
expect_empty
python3 - rows page.html <<'END' || fail 'the JSON or the page is wrong'
import html.parser, json, re, sys

rows = [json.loads(line) for line in open(sys.argv[1])]
assert [r["operation"] for r in rows] == ["write", "exists", "read", "delete"], rows
for r in rows:
    assert r["tier"] == "fs" and r["url"].startswith("fs:///"), r
    assert r["done"] == 3 and r["failed"] == 0 and "error" not in r, r
    assert r["chunk_bytes"] == 1 << 20 and r["concurrency"] == 2, r
    p = r["latency_ms"]
    assert 0 < p["p50"] <= p["p90"] <= p["p99"] <= p["max"], r
    assert r["seconds"] > 0 and r["cpu_seconds"] >= 0, r
    assert ("bytes_per_s" in r) == (r["operation"] in ("write", "read")), r

class Page(html.parser.HTMLParser):
    found = {}

    def handle_starttag(self, tag, attributes):
        self.found[tag] = self.found.get(tag, 0) + 1
        for name, value in attributes:
            assert name not in ("src", "href", "onload"), (tag, name)
            assert "nan" not in (value or "") and "inf" not in (value or ""), (tag, name, value)

page = Page()
text = open(sys.argv[2]).read()
page.feed(text)
for chart in text.split("<svg")[1:]:
    assert re.search(r'y="222" text-anchor="middle">[0-9]', chart), "a chart without ticks"
# For each tier two charts of rates and a chart of latencies at each concurrency.
assert page.found["h2"] == 2 and page.found["svg"] == 2 * 4, page.found
assert page.found["polyline"] == 2 * (4 + 2 * 4) and page.found["table"] == 2, page.found
assert "script" not in page.found and "i" not in page.found, page.found
END

# --- wrong usage

for list in '' 0 1,,2 1, 2000 x 1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17; do
    expect 2 $fs --concurrency "$list"
    grep -q 'concurrency needs' err || fail "no reason for --concurrency '$list'"
done
expect 2 $fs --tier s3
grep -q "no tier 's3'" err || fail 'the unknown tier is not named'
[ ! -s out ] || fail 'a table of no tier'
expect 2 $fs --size 0
expect 2 $fs extra
expect 2
expect 3 $small $fs --html absent/page.html
grep -q 'write absent/page.html' err || fail 'the page that cannot be written is not named'
[ ! -s out ] || fail 'a measurement before the page that cannot be written'
expect 2 $small $fs --html page2.html --tier absent
expect 3 $small --set remote_url=fs:///dev/null/store --html page2.html
[ ! -e page2.html ] && [ ! -e page2.html.kvtier-part ] || fail 'a page without a measurement'
expect_empty

# --- a tier without room for the chunks is left out

expect 1 --size 1 --count 3 $fs --set max_remote_size=0.002
grep -q 'would evict chunks' err || fail 'no reason why the tier is left out'
[ -z "$(sed 1d out)" ] || fail 'a measurement that evicts'
key=model@1@0@1a540024b49d3bfe@bfloat16
head -c 3000000 /dev/zero >chunk
"$kvtier" put $key chunk --set remote_url=fs://$dir/full || fail 'put'
expect 1 --size 1 --count 1 --set remote_url=fs://$dir/full --set max_remote_size=0.002
grep -q 'would evict chunks' err || fail 'no reason why the tier above the limit is left out'
"$kvtier" stat $key --set remote_url=fs://$dir/full >out || fail 'a measurement that evicts'
rm -rf full

# --- storage that fails

expect 3 $small --concurrency 2 --set "remote_url=fault://read_error=1/fs://$dir/$name"
grep -q '3 of 3 operations failed; the first: ' out || fail 'the failed reads are not reported'
expect_empty

# --- an interrupt: the written chunks are deleted

for signal in INT TERM HUP; do
    env --default-signal=$signal "$kvtier" bench --size 1 --count 100000 $fs >out 2>err &
    pid=$!
    n=0
    while [ $n -lt 600 ] && ! ls "$name"/*.data >/dev/null 2>&1; do
        sleep 0.1
        n=$((n + 1))
    done
    kill -$signal $pid
    wait $pid
    [ $? -eq 1 ] || fail "the exit code after SIG$signal is not 1"
    grep -q interrupted err || fail "SIG$signal is not reported"
    expect_empty
done
finish cli/bench
