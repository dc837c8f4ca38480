#!/usr/bin/env bash
# tools/get_data against a server on this machine.
set -euo pipefail

for program in python3 curl unzip sha256sum; do
  if ! command -v "$program" > /dev/null; then
    echo "skipped: $program is not installed"
    exit 77
  fi
done
get_data=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)/tools/get_data
scratch=$(mktemp -d)
server=
finish() {
  if [[ -n $server ]]; then kill "$server"; fi
  rm -rf "$scratch"
}
trap finish EXIT
cd "$scratch"

mkdir -p site/glue/data site/senteval/senteval_data RTE/original
printf 'index\tsentence1\tsentence2\tlabel\n0\ta\tb\tentailment\n' | tee RTE/train.tsv > RTE/dev.tsv
printf 'index\tsentence1\tsentence2\n0\ta\tb\n' > RTE/test.tsv
echo "not this one" > RTE/original/train.tsv
python3 -m zipfile -c site/glue/data/RTE.zip RTE
printf '2\t3\r\n' > site/glue/data/mrpc_dev_ids.tsv
head=$'\xEF\xBB\xBFQuality\t#1 ID\t#2 ID\t#1 String\t#2 String'
printf '%s\r\n1\t2\t3\ta\tb\r\n0\t3\t2\tc\td\r\n' "$head" |
  tee site/senteval/senteval_data/msr_paraphrase_train.txt \
    > site/senteval/senteval_data/msr_paraphrase_test.txt
mkdir MNLI
for table in train {dev,test}_{matched,mismatched}; do echo "$table" > "MNLI/$table.tsv"; done
python3 -m zipfile -c site/glue/data/MNLI.zip MNLI
echo diagnostic > site/glue/data/AX.tsv
bert=site/google-bert/bert-base-uncased/resolve/main
mkdir -p $bert
echo '{"model_type": "bert"}' > $bert/config.json
echo weights > $bert/model.safetensors
(cd site && find . -type f -printf '%P\n' | xargs sha256sum) > sums

: > log
python3 -u -m http.server 0 --bind 127.0.0.1 --directory site >> log 2>&1 &
server=$!
port=
for _ in {1..100}; do
  port=$(sed -n 's/.*port \([0-9]*\).*/\1/p' log)
  if [[ -n $port ]]; then break; fi
  sleep 0.1
done
export VCAS_DATA_URL=http://127.0.0.1:$port

# expect CODE TEXT ARGUMENT...: the exit code and a part of what get_data says.
expect() {
  local code=0
  "$get_data" "${@:3}" > out 2>&1 || code=$?
  if [[ $code != "$1" ]] || ! grep -qF -- "$2" out; then
    echo "get_data ${*:3}: exit code $code, expected $1 and \"$2\"; it said:"
    cat out
    exit 1
  fi
}

expect 0 "$VCAS_DATA_URL/glue/data/RTE.zip" --sums sums rte
diff -r --exclude original RTE glue/RTE
expect 0 "$VCAS_DATA_URL/glue/data/AX.tsv" --sums sums MNLI
[[ $(cat glue/MNLI/{test_mismatched,diagnostic}.tsv) == $'test_mismatched\ndiagnostic' ]]
expect 0 "total" --from "$VCAS_DATA_URL" --sums sums MRPC mrpc
printf '%s\n1\t2\t3\ta\tb\n' "$head" | diff - mrpc/dev.tsv
printf '%s\n0\t3\t2\tc\td\n' "$head" |
  diff - mrpc/train.tsv

expect 0 "$VCAS_DATA_URL/google-bert/bert-base-uncased/resolve/main/model.safetensors" \
  --sums sums bert-base-uncased
diff -r $bert bert-base-uncased
expect 0 "total" --sums sums bert-base-uncased models/bert
diff -r $bert models/bert
# A checksum of Git's, as some files have.
echo "dc1fb7b6703fe03317c1a080b523bf475f3d4818  ${bert#site/}/config.json" > git_sums
expect 0 "config.json" --sums git_sums bert-base-uncased by_git
[[ $(ls by_git) == config.json ]]
echo changed >> $bert/config.json
expect 65 ", expected dc1fb7b6703fe03317c1a080b523bf475f3d4818; nothing was changed in by_git" \
  --sums git_sums bert-base-uncased by_git
diff <(echo '{"model_type": "bert"}') by_git/config.json
rm $bert/model.safetensors
expect 66 "model.safetensors; nothing was changed in bert-base-uncased" \
  --sums sums bert-base-uncased
expect 66 "no checksum of the files of bert-large-uncased in sums" --sums sums bert-large-uncased
expect 66 "cannot download $VCAS_DATA_URL/google/vit-base-patch16-224-in21k/resolve/b4569560" \
  vit-base-patch16-224-in21k
expect 66 "cannot download" --sums sums --from "$VCAS_DATA_URL/none" MRPC "$PWD/new/of/mrpc"
mkdir empty
expect 66 "cannot download" --sums sums --from "$VCAS_DATA_URL/none" MRPC empty/mrpc
# Folders that nothing came into are not left behind; those that were there are.
[[ ! -e bert-large-uncased && ! -e vit-base-patch16-224-in21k && ! -e new && -z $(ls empty) ]]

# The official checksums are not those of these files; what was there stays.
echo old > glue/RTE/train.tsv
expect 65 "expected 6bf86de103ecd335f3441bd43574d23fef87ecc695977a63b82d5efb206556ee; nothing" RTE
[[ $(cat glue/RTE/train.tsv) == old && $(find glue/RTE -name 'get_data.*') == "" ]]
rm site/glue/data/RTE.zip
expect 66 "cannot download $VCAS_DATA_URL/glue/data/RTE.zip" --sums sums RTE
expect 66 "no checksum of glue/data/WNLI.zip in sums" --sums sums WNLI
expect 2 "there is no task or model MNIL; the tasks are CoLA SST-2" MNIL
expect 2 "unknown argument --form" --form x RTE
expect 2 "usage: tools/get_data"
echo passed
