"""Tables of what tools/gpu_check measured

python3 gpu_summary.py results.json
python3 gpu_summary.py --kernels LIST.csv    what Nsight Compute listed, summed up as JSON
"""
import csv
import json
import re
import sys


def sum_kernels(path):
    """Calls and microseconds of each kernel, the longest first."""
    sums = {}
    lines = [line for line in open(path) if line.startswith('"')]
    for row in csv.DictReader(lines):
        if row.get("Metric Name") != "gpu__time_duration.sum":
            continue
        name = re.sub(r"^void |\((bool|int)\)|vcas::(cuda::)?", "", row["Kernel Name"])
        name = name.partition("(")[0]
        unit = {"nsecond": 1e-3, "ns": 1e-3, "usecond": 1, "us": 1, "msecond": 1e3, "ms": 1e3}
        kernel = sums.setdefault(name, {"kernel": name, "calls": 0, "us": 0.0})
        kernel["calls"] += 1
        kernel["us"] += float(row["Metric Value"].replace(",", "")) * unit[row["Metric Unit"]]
    return sorted(sums.values(), key=lambda kernel: -kernel["us"])


if sys.argv[1] == "--kernels":
    print(json.dumps(sum_kernels(sys.argv[2])))
    sys.exit()

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
        milliseconds(eager), milliseconds(compiled),
        *(f"{compiled / ours:.2f}" if compiled else "-" for ours in (exact, sampled))
    ])
table(["step, ms", "in", "exact", "VCAS", "exact/VCAS", "PyTorch", "torch.compile",
       "torch.compile/exact", "torch.compile/VCAS"], rows)

FAMILIES = ["gemm", "attention", "norms", "gelu", "sampling", "optimizer", "rest"]
rows = []
for name, report in reports.items():
    if name.startswith("step_"):
        for kind in ("exact", "sampled"):
            families, launches = report[kind]["families"], report[kind]["family_launches"]
            rows.append([name.removeprefix("step_"), kind, *(
                f"{1e3 * families.get(family, 0):.2f} ({launches.get(family, 0):.0f})"
                for family in FAMILIES)
            ])
table(["ms (launches)", "", *FAMILIES], rows)

for step in ("exact", "vcas"):
    table([f"kernels of a step, {step}", "calls", "us"],
          [[kernel["kernel"], kernel["calls"], f"{kernel['us']:.0f}"]
           for kernel in reports.get(f"kernels_{step}", [])[:25]])

seconds = {run["name"].removesuffix("/real_time"): run["real_time"]
           for run in reports.get("gathered", {}).get("benchmarks", []) if "real_time" in run}
rows = []
for name, gathered in seconds.items():
    kernel, _, size = name.partition("/")
    if kernel == "gathered_product":
        compacted, copied = (seconds.get(f"{other}/{size}", float("nan"))
                             for other in ("compacted_product", "copied_product"))
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
