#!/usr/bin/env bash
# tools/make_figure on a comparison of two short runs.
set -euo pipefail

if ! command -v python3 > /dev/null; then
  echo "skipped: python3 is not installed"
  exit 77
fi
make_figure=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)/tools/make_figure
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cd "$scratch"

fail() {
  echo "FAILED: $1"
  exit 1
}

mkdir -p both/slow both/fast
echo '{"runs": [{"name": "slow"}, {"name": "fast"}]}' > both/compare.json
for run in slow:3 fast:2; do
  for ((step = 1; step <= 50; ++step)); do
    echo '{"event": "train", "loss": '$((100 - step))', "train_seconds": '$((${run#*:} * step))'}'
    echo '{"event": "variance"}'
  done > "both/${run%:*}/metrics.jsonl"
done
"$make_figure" both figure
for theme in light dark; do
  python3 -c 'import sys, xml.dom.minidom as xml; xml.parse(sys.argv[1])' figure-$theme.svg ||
    fail "figure-$theme.svg is not XML"
  # The ends of the curves are those of the runs.
  for text in 'slow: 150 s' 'fast: 100 s' '>70<' '>60<'; do
    grep -qF "$text" figure-$theme.svg || fail "figure-$theme.svg lacks $text"
  done
done
cmp -s figure-light.svg figure-dark.svg && fail "the themes are alike"
echo '{"runs": [{"name": "slow"}]}' > both/compare.json
if "$make_figure" both figure > out 2>&1; then fail "one run is no comparison"; fi
grep -q '^both: not a comparison of two runs' out || { cat out; fail "it does not say why"; }
if "$make_figure" both > out 2>&1; then fail "a missing argument is an error"; fi
grep -q '^usage: tools/make_figure' out || fail "it does not say how it is used"
