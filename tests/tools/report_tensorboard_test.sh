#!/usr/bin/env bash
# usage: report_tensorboard_test.sh PROGRAMS
# The files of `vcas report --tensorboard`, as TensorBoard itself reads them.
# $VCAS_TENSORBOARD_PYTHON is a python3 that has the package tensorboard.
set -euo pipefail

python=${VCAS_TENSORBOARD_PYTHON:-python3}
if ! "$python" -c 'import tensorboard' 2> /dev/null; then
  echo "skipped: $python has no package tensorboard (set VCAS_TENSORBOARD_PYTHON to one that has)"
  exit 77
fi
vcas=$1/vcas
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cd "$scratch"

cat > tiny.json <<'END'
{
  "threads": 1,
  "data": {"type": "synthetic",
           "synthetic": {"items": 256, "eval_items": 64, "classes": 4, "shape": [1, 8, 8]}},
  "model": {"type": "mlp"},
  "train": {"steps": 40, "batch_size": 16, "eval_every": 20},
  "method": {"update_every": 5}
}
END
"$vcas" train tiny.json --folder run 2> log || { cat log; exit 1; }
"$vcas" report run --tensorboard board 2> log || { cat log; exit 1; }
"$python" - <<'END'
import json
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

board = EventAccumulator("board/run")
board.Reload()


def check(event, key, tag):
    lines = map(json.loads, open("run/metrics.jsonl"))
    wanted = [(line["step"], line[key]) for line in lines if line["event"] == event]
    if tag in board.Tags()["scalars"]:
        values = [(scalar.step, scalar.value) for scalar in board.Scalars(tag)]
    else:
        values = [(s, t.tensor_proto.float_val[0]) for _, s, t in board.Tensors(tag)]
    assert len(values) == len(wanted), (tag, len(values), len(wanted))
    for (step, value), (at, number) in zip(values, wanted):
        assert step == at and abs(value - number) <= 1e-6 * abs(number), (tag, step, value, number)


for key in ("loss", "accuracy", "learning_rate", "gradient_norm"):
    check("train", key, "train/" + key)
check("train", "flops_saved", "saved/flops_saved")
check("eval", "accuracy", "eval/accuracy")
print("all scalars are those of metrics.jsonl")
END
