#!/usr/bin/env bash
# The parts of tools/gpu_check, without a GPU: other programs stand for what it calls. The argument
# is the program of the kernels' tests.
set -euo pipefail

gpu_check=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)/tools/gpu_check
tests=$(realpath "$1")
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cd "$scratch"
export OUT=$scratch/out PATH=$scratch/bin:$PATH CALLS=$scratch/calls HANGS=none

fail() {
  echo "FAILED: $1"
  cat log
  exit 1
}

mkdir -p bin build/tests
cat > program <<'END'
#!/usr/bin/env bash
echo "$(basename "$0") $*" >> "$CALLS"
if [[ "$*" == *"$HANGS"* ]]; then sleep 60; fi
if [[ "$*" == "[nccl]" ]]; then sleep 3; fi
END
chmod +x program
for name in bin/{nvidia-smi,compute-sanitizer} build/tests/vcas_kernels_tests; do
  cp program "$name"
done
# check PARTS OPTIONS...
check() {
  : > "$CALLS"
  "$gpu_check" --build "$scratch/build" --only "$@" > log 2>&1
}

# Each test is in one part, so a test that hangs takes no other part's time.
check 'ptx,nccl,suite_kernels*,*check_*' || fail "a part fails"
mapfile -t filters < <(sed -n 's/^vcas_kernels_tests //p' "$CALLS")
# tests_of FILTER: their names. Catch2 2 exits with how many they are.
tests_of() { { "$tests" --list-tests "$1" || true; } | sed -n 's/^  \([^ ]\)/\1/p'; }
for filter in "${filters[@]}"; do tests_of "$filter"; done | sort > in_parts
tests_of '*' | sort > all
diff all in_parts > log || fail "tests are in no part or in several"

# What matters most comes first.
sed -E '/nvidia-smi/d; s/(--tool [a-z]*).*/\1/; s/^(vcas_kernels_tests) .*~.*/\1/' "$CALLS" |
  uniq > log
diff - log <<'END' || fail "the order of the parts is another"
vcas_kernels_tests [ptx]
vcas_kernels_tests
compute-sanitizer --tool memcheck
vcas_kernels_tests [nccl]
compute-sanitizer --tool racecheck
compute-sanitizer --tool initcheck
compute-sanitizer --tool synccheck
END
for tag in group_norm sketch linear pointwise layer_norm sampling attention tensor_core; do
  grep -q "memcheck.*vcas_kernels_tests \[$tag\]$" "$CALLS" || fail "memcheck misses [$tag]"
done

# A slow sanitizer takes no time from later parts, a test that hangs does.
HANGS='memcheck' check 'memcheck_sketch,nccl' --limit 30 && fail "a part has no time"
grep -Eq '^memcheck_sketch +timed out' log || fail "memcheck has its time"
grep -Eq '^nccl +passed' log || fail "nccl has less time than it had"
HANGS='[ptx]' check 'ptx,nccl' --limit 30 && fail "a part has no time"
grep -Eq '^nccl +timed out' log || fail "a test that hangs takes no time from others"

status=0
check 'memcheck_*,no_*' || status=$?
if [[ $status != 2 ]]; then fail "a part that is not there: exit status $status"; fi
grep -q '^tools/gpu_check: part "no_\*" is not one of: headers configure' log ||
  fail "it does not say which part"
