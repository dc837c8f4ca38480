"""Tables of what tools/gpu_check measured: python3 gpu_summary.py results.json"""
import json
import sys

reports = {part["part"]: part["report"]
           for part in json.load(open(sys.argv[1]))["parts"] if "report" in part}


def table(head, rows):
    if not rows:
        return
    cells = [head, *([str(cell) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells)]
    print()
    for row in cells:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip())


# (model, items, precision, compiled): seconds of an exact step of PyTorch; on emu of few items
theirs = {}
for model in ("bert", "vit", "resnet"):
    lines = [line for line in reports.get("pytorch_" + model, []) if "seconds" in line]
    for line in lines:
        items = line["items"] if line["items"] >= 32 else 32
        theirs[model, items, line["precision"], line["compiled"]] = line["seconds"]


def milliseconds(seconds):
    return f"{1e3 * seconds:.2f}" if seconds else "-"


rows = []
for name, report in reports.items():
    if not name.startswith("step_"):
        continue
    model, precision = name.removeprefix("step_").rsplit("_", 1)
    kind, items = model.removesuffix("_256"), 256 if model.endswith("_256") else 32
    exact, sampled = (report[kind]["median_seconds"] for kind in ("exact", "sampled"))
    eager, compiled = (theirs.get((kind, items, precision, made)) for made in (False, True))
    rows.append([
        model, precision, milliseconds(exact), milliseconds(sampled), f"{exact / sampled:.2f}",
        milliseconds(eager), milliseconds(compiled), f"{compiled / exact:.2f}" if compiled else "-"
    ])
table(["step, ms", "in", "exact", "VCAS", "exact/VCAS", "PyTorch", "compiled", "compiled/exact"],
      rows)

seconds = {run["name"].removesuffix("/real_time"): run["real_time"]
           for run in reports.get("gathered", {}).get("benchmarks", []) if "real_time" in run}
rows = []
for name, gathered in seconds.items():
    kernel, _, size = name.partition("/")
    if kernel == "gathered_product":
        compacted, copied = (seconds.get(f"{other}/{size}", float("nan"))
                             for other in ("compacted_product", "gather_then_product"))
        rows.append([size, *(f"{t / 1e3:.1f}" for t in (gathered, compacted, copied)),
                     f"{compacted / gathered:.2f}"])
table(["weight gradient, us", "gathered", "of compacted rows", "copied and multiplied",
       "compacted/gathered"], rows)

rows = []
for run in reports.get("convolutions", {}).get("benchmarks", []):
    if "real_time" in run:
        rows.append([run["name"].removesuffix("/real_time"), f"{run['real_time'] / 1e3:.1f}",
                     f"{run.get('of_gemm_peak', 0):.2f}", f"{run['of_copy']:.2f}"])
table(["convolutions and norms", "us", "of the product's rate", "of the copy's"], rows)
