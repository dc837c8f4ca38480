#!/usr/bin/env bash
# tools/experiments on a few steps. The argument is the folder of the program.
set -euo pipefail

if [[ ! -e /usr/share/datasets/fashion-mnist ]]; then
  echo "skipped: dataset-fashion-mnist is not installed"
  exit 77
fi
experiments=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)/tools/experiments
export VCAS=$1/vcas
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cd "$scratch"

fail() {
  echo "FAILED: $*"
  exit 1
}

for arguments in "nothing" "" "--seeds" "--twice tau"; do
  # shellcheck disable=SC2086
  "$experiments" $arguments 2> error && fail "accepted: $arguments"
  grep -q "hint: tools/experiments --help lists all" error || fail "no hint: $arguments"
done
"$experiments" --help | grep -q "small-32 | small-64" || fail "the help lacks a name"

run() {
  "$experiments" --seeds 0,1 --out out small-32 -- \
    --set train.steps=12 --set data.limit=256 --set train.batch_size=16 --set threads=1 2> log
}
run > first || { cat log; fail "did not run"; }
grep -q "^## small-32$" first || fail "no title"
grep -q "^The paper: " first || fail "nothing of the paper"
grep -q "^|  *| exact | controller_paper | controller_budget |$" first || fail "no table"
grep -q '"width": 32' out/small-32/compare.json || fail "another width"

if "$experiments" --seeds 0,1 --out out small-32 -- --set train.steps=13 > other 2>&1; then
  fail "other settings were dropped"
fi
grep -q "^error: out/small-32 has other seeds or settings: --seeds 0,1 " other ||
  { cat other; fail "it does not say which settings the folder has"; }
run > second || { cat log; fail "did not go on"; }
cmp first second || fail "a finished experiment changed"
