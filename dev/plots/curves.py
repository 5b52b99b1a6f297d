#!/usr/bin/env python3
"""curves.py - line charts as one SVG file, side by side; of main.log files when it is started as a program. Standard library only.

    python3 dev/plots/curves.py OUT.svg NAME=log_a/main.log NAME=log_b/main.log ...

draws the validation losses on the left, the training losses on the right. As a module: write(path, panels), a panel is
    {"title": text, "x": text, "y": text, "series": [(name, [(x, y), ...]), ...]}
and write_paired() draws runs of many seeds against their baseline. Series of the same name have the same colour in every panel; the legend is drawn once.
Points that are not finite are left out.
Tests: dev/check_study.py
"""
import math
import re
import sys
from xml.sax.saxutils import escape

WIDTH, HEIGHT, LEFT, TOP, BOTTOM, RIGHT = 620, 400, 70, 36, 50, 16  # of a panel, pixels; margins inside of it
COLORS = ["#000000", "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f", "#8c564b", "#6a3d9a", "#b2df8a", "#bcbd22"]  # told apart by the colour-blind, as far as so many can be
DASHES = ["", "6 3", "2 2"]  # after a round of the colours


def ticks(low, high, count=6):
    """Round numbers in low..high, about count of them."""
    step = 10 ** math.floor(math.log10((high - low) / count))
    step *= next(m for m in (1, 2, 5, 10) if (high - low) / (step * m) <= count)
    first = math.ceil(low / step - 1e-9)
    return [round(step * i, 12) for i in range(first, math.floor(high / step + 1e-9) + 1)]


def panel_svg(panel, style):
    """The elements of one panel, whose upper left corner is the origin."""
    series = [(name, [(x, y) for x, y in points if math.isfinite(x) and math.isfinite(y)]) for name, points in panel["series"]]
    points = [p for _, s in series for p in s]
    out = [f'<text x="{WIDTH / 2}" y="20" text-anchor="middle" font-weight="bold">{escape(panel["title"])}</text>']
    if not points:
        return out + [f'<text x="{WIDTH / 2}" y="{HEIGHT / 2}" text-anchor="middle">no points</text>']
    low_x, high_x, low_y, high_y = (f(p[i] for p in points) for i in (0, 1) for f in (min, max))
    high_x += (high_x == low_x)
    margin = (high_y - low_y) * 0.05 or 0.5
    low_y, high_y = low_y - margin, high_y + margin

    def at(x, y):
        return LEFT + (x - low_x) / (high_x - low_x) * (WIDTH - LEFT - RIGHT), HEIGHT - BOTTOM - (y - low_y) / (high_y - low_y) * (HEIGHT - TOP - BOTTOM)
    for y in ticks(low_y, high_y):
        row = at(low_x, y)[1]
        out.append(f'<path d="M{LEFT} {row:.1f}H{WIDTH - RIGHT}" stroke="{"#888888" if y == 0 else "#dddddd"}"/><text x="{LEFT - 6}" y="{row + 4:.1f}" text-anchor="end">{y:g}</text>')
    for x in ticks(low_x, high_x):
        column = at(x, low_y)[0]
        out.append(f'<path d="M{column:.1f} {HEIGHT - BOTTOM}v4" stroke="#888888"/><text x="{column:.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{x:g}</text>')
    out.append(f'<path d="M{LEFT} {TOP}V{HEIGHT - BOTTOM}H{WIDTH - RIGHT}" fill="none" stroke="#888888"/>')
    out.append(f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 12}" text-anchor="middle">{escape(panel["x"])}</text>')
    out.append(f'<text transform="translate(16 {(TOP + HEIGHT - BOTTOM) / 2}) rotate(-90)" text-anchor="middle">{escape(panel["y"])}</text>')
    for name, s in series:
        path = "L".join(f"{x:.1f} {y:.1f}" for x, y in (at(*p) for p in sorted(s)))
        if path:
            out.append(f'<path d="M{path}" fill="none" stroke-width="1.6" {style[name]}/>')
    return out


def svg(panels):
    names = list(dict.fromkeys(name for p in panels for name, _ in p["series"]))
    style = {name: f'stroke="{COLORS[i % len(COLORS)]}" stroke-dasharray="{DASHES[i // len(COLORS) % len(DASHES)]}"' for i, name in enumerate(names)}
    width, height = WIDTH * len(panels), HEIGHT + 10 + 20 * len(names)
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">',
           f'<rect width="{width}" height="{height}" fill="#ffffff"/>']
    for i, panel in enumerate(panels):
        out += [f'<g transform="translate({i * WIDTH} 0)">'] + panel_svg(panel, style) + ["</g>"]
    for i, name in enumerate(names):
        row = HEIGHT + 10 + 20 * i
        out.append(f'<path d="M{LEFT} {row}h36" stroke-width="2" {style[name]}/><text x="{LEFT + 44}" y="{row + 4}">{escape(name)}</text>')
    return "\n".join(out + ["</svg>"]) + "\n"


def write(path, panels):
    with open(path, "w", encoding="utf-8") as f:
        f.write(svg(panels))


def write_paired(path, runs, baseline):
    """Mean curves and mean differences in percent. runs: {name: [{step: loss} of each seed]}, those of one seed in the same place for the baseline; same steps in all."""
    mean, difference = [], []
    for name, of in runs.items():
        steps = sorted(of[0])
        mean.append((name, [(s, sum(r[s] for r in of) / len(of)) for s in steps]))
        difference.append((name, [(s, sum(100 * (r[s] / b[s] - 1) for r, b in zip(of, runs[baseline])) / len(of)) for s in steps]))
    write(path, [{"title": "validation loss, mean over the seeds", "x": "step", "y": "nats a token", "series": mean},
                 {"title": f"paired difference from {baseline}", "x": "step", "y": "percent", "series": difference}])


def main():
    if len(sys.argv) < 3 or not all("=" in a for a in sys.argv[2:]):
        print(f"ERROR: {len(sys.argv) - 1} arguments that are not OUT.svg NAME=main.log ...\nHINT: python3 dev/plots/curves.py loss.svg fp8=log_fp8/main.log bf16=log_bf16/main.log", file=sys.stderr)
        return 2
    series = {"tel": [], "trl": []}
    for argument in sys.argv[2:]:
        name, path = argument.split("=", 1)
        try:
            with open(path, encoding="utf-8") as f:
                text = f.read()
        except OSError as e:
            print(f"ERROR: '{path}': {e.strerror}\nHINT: a run with --output-dir FOLDER writes FOLDER/main.log", file=sys.stderr)
            return 2
        for kind, of in series.items():
            of.append((name, [(int(s), float(x)) for s, x in re.findall(rf"^s:(\d+) {kind}:(\S+)", text, flags=re.M)]))
    write(sys.argv[1], [{"title": title, "x": "step", "y": "nats a token", "series": series[kind]} for kind, title in (("tel", "validation loss"), ("trl", "training loss"))])
    print(f"{sys.argv[1]} written")
    return 0


if __name__ == "__main__":
    sys.exit(main())
