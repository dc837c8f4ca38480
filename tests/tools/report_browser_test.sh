#!/usr/bin/env bash
# usage: report_browser_test.sh PROGRAMS
# The page of `vcas report` in a browser, as wide as a desk and a phone: every plot is drawn, and
# nothing is wider than the page.
set -euo pipefail

for browser in chromium chromium-browser google-chrome ""; do
  if command -v "$browser" > /dev/null; then break; fi
done
if [[ -z $browser ]]; then
  echo "skipped: chromium is not installed (tools/install_packages --browser)"
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
  "model": {"type": "vit", "width": 16, "depth": 4, "heads": 2, "patch": 4},
  "train": {"steps": 200, "batch_size": 16, "eval_every": 20},
  "method": {"update_every": 5, "s_step": 0.1, "weight_multiplier": 0.7}
}
END
"$vcas" compare tiny.json --folder twins > /dev/null 2> log || { cat log; exit 1; }
"$vcas" train tiny.json --folder a_run_with_quite_a_long_name_in_the_legend \
  method.controller=budget 2> log || { cat log; exit 1; }
"$vcas" report twins a_run* --to page.html 2> log || { cat log; exit 1; }
plots=$(grep -c '<svg class="plot"' page.html)

# A frame has a width of its own; the browser's window may not be as narrow as a phone.
cat > head.html <<'END'
<!DOCTYPE html><body><script>
function look() {
  const page = frames[0].document, width = frames[0].innerWidth, bad = [];
  if (page.documentElement.scrollWidth > width) bad.push("the page is wider than " + width);
  for (const element of page.body.querySelectorAll("*"))
    if (!element.closest(".scroll table") && element.getBoundingClientRect().right > width + 0.5)
      bad.push(element.tagName + " reaches beyond the page: " + element.textContent.slice(0, 60));
  const plots = page.querySelectorAll("svg.plot");
  for (const plot of plots) {
    const outer = plot.getBoundingClientRect();
    if (plot.querySelectorAll(".curve, .heat, path[class^=f]").length == 0)
      bad.push(plot.id + " has nothing in it");
    for (const part of plot.querySelectorAll("path, text, circle")) {
      const box = part.getBoundingClientRect();
      if (box.width + box.height == 0 && part.closest(".f7, .f6, .f5") == null)
        bad.push(plot.id + ": an empty " + part.tagName);
      if (box.left < outer.left - 1 || box.right > outer.right + 1 || box.top < outer.top - 1 ||
          box.bottom > outer.bottom + 1)
        bad.push(plot.id + ": cut off: " + (part.textContent || part.tagName));
    }
  }
  document.body.textContent = plots.length + " plots, " + bad.length + " faults; " + bad.join("; ");
}
</script>
END
for width in 1280 390; do
  {
    cat head.html
    echo "<iframe onload=\"look()\" width=\"$width\" height=\"900\" frameborder=\"0\" srcdoc=\""
    sed -e 's/&/\&amp;/g' -e 's/"/\&quot;/g' page.html
    echo '"></iframe>'
  } > frame.html
  timeout 100 "$browser" --headless --no-sandbox --disable-gpu --window-size=1400,900 \
    --user-data-dir="$scratch/profile" --virtual-time-budget=10000 \
    --dump-dom "file://$scratch/frame.html" > dom.html 2> log || { cat log; exit 1; }
  if ! grep -qF "$plots plots, 0 faults" dom.html; then
    echo "FAILED at $width pixels, of $plots plots:"
    tail -c 2000 dom.html
    exit 1
  fi
  echo "$width pixels: $plots plots, all drawn and within the page"
done
