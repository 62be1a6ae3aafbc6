# SPDX-License-Identifier: MIT OR Apache-2.0
"""Draws the figures of `telegraphos bench` and `telegraphos sim --cost` as SVG: `python3 plot.py FILE.svg < FIGURES.csv`.

With --plot these commands run it. Needs Python 3 and nothing else. Each line of the table is one value: a point of a
curve (kind `curve`) in a chart of two logarithmic axes, or a figure (kind `dot`) with its name beside it on one axis.
`low` and `high` say how far apart the measurements lie. A line without a value is a chart without any.
"""

import csv
import math
import sys
from html import escape

# Width and height of a chart, and where the frame of one is; on its right are the names of the curves.
WIDTH, HEIGHT, LEFT, TOP, RIGHT, BELOW = 760, 440, 80, 32, 630, 51
# Width of the names of figures, height of one, and height of all that is around them.
NAMES, ROW, AROUND = 360, 16, 90
# Distinct also for colour-blind readers.
COLOURS = ["#000000", "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#777777", "#882255", "#666633"]


class Axis:
    """A logarithmic axis from `begin` to `end` pixels, of the values above 0, widened to powers of `base`."""

    def __init__(self, base, begin, end, values):
        logs = [math.log(value, base) for value in values if value > 0]
        # A power is one, however its logarithm is rounded.
        self.base, self.low = base, math.floor(min(logs, default=0) + 1e-9)
        self.high = max(math.ceil(max(logs, default=0) - 1e-9), self.low + 1)
        self.begin, self.scale = begin, (end - begin) / (self.high - self.low)

    def place(self, value):
        """Where a value is; one that is not greater than 0 is at the beginning."""
        log = math.log(value, self.base) if value > 0 else self.low
        return self.begin + (max(log, self.low) - self.low) * self.scale

    def ticks(self):
        step = -(-(self.high - self.low) // 12)
        for power in range(self.low, self.high + 1, step):
            value = self.base**power
            yield self.place(value), binary(value) if self.base == 2 else f"{value:.12g}"


def binary(value):
    for unit, name in ((1 << 20, "M"), (1 << 10, "K")):
        if value >= unit:
            return f"{value / unit:.12g}{name}"
    return f"{value:.12g}"


class Page:
    def __init__(self):
        self.parts, self.top = [], 0

    def text(self, x, y, text, anchor="middle", size=12, colour="#000000", more=""):
        more = f'text-anchor="{anchor}" font-size="{size}" fill="{colour}"{more}'
        self.parts.append(f'<text x="{x:.1f}" y="{y + self.top:.1f}" dy="0.35em" {more}>\n{escape(text)}\n</text>')

    def line(self, points, colour="#000000", width=1, more=""):
        points = " ".join(f"{x:.1f},{y + self.top:.1f}" for x, y in points)
        self.parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="{width}"{more}/>')

    def point(self, x, y, colour):
        self.parts.append(f'<circle cx="{x:.1f}" cy="{y + self.top:.1f}" r="3" fill="{colour}"/>')

    def frame(self, chart, left, right, bottom, x_axis):
        """What all charts have: the title, and the axis below."""
        self.text((left + right) / 2, TOP / 2, chart[0]["chart"], size=15)
        self.line([(left, bottom), (right, bottom)])
        for x, label in x_axis.ticks():
            self.line([(x, TOP), (x, bottom)], width=0.2)
            self.text(x, bottom + 12, label, size=10)
        self.text((left + right) / 2, bottom + 34, chart[0]["x title"])

    def curves(self, chart):
        bottom, valued = HEIGHT - BELOW, [row for row in chart if row["value"]]
        x_axis = Axis(2, LEFT, RIGHT, [row["x"] for row in valued])
        y_axis = Axis(10, bottom, TOP, [row[end] for row in valued for end in ("value", "low", "high") if row[end] != ""])
        self.frame(chart, LEFT, RIGHT, bottom, x_axis)
        self.line([(LEFT, TOP), (LEFT, bottom)])
        for y, label in y_axis.ticks():
            self.line([(LEFT, y), (RIGHT, y)], width=0.2)
            self.text(LEFT - 6, y, label, anchor="end", size=10)
        middle = (TOP + bottom) / 2
        turned = f' transform="rotate(270, 16, {middle + self.top:.1f})"'
        self.text(16, middle, chart[0]["y title"], more=turned)
        for number in sorted({row["colour"] for row in valued}):
            rows = [row for row in valued if row["colour"] == number]
            colour = COLOURS[number % len(COLOURS)]
            points = [(x_axis.place(row["x"]), y_axis.place(row["value"])) for row in rows]
            # The first is the baseline, and lies under the others; dashes show which curve lies under another.
            self.line(points, colour, 2 if number else 3, ' stroke-dasharray="8 4"' if number % 2 else "")
            for (x, y), row in zip(points, rows):
                self.point(x, y, colour)
                if row["low"] != "" and row["low"] > 0:
                    self.line([(x, y_axis.place(row["low"])), (x, y_axis.place(row["high"]))], colour)
            self.text(RIGHT + 10, 40 + 14 * number, rows[0]["name"], anchor="start", colour=colour)
        return HEIGHT

    def dots(self, chart):
        rows = [row for row in chart if row["name"]]
        bottom, bound = TOP + ROW * len(rows), chart[0]["bound"]
        values = [row[end] for row in rows for end in ("value", "low", "high")] + [bound] * (bound != "")
        axis = Axis(10, NAMES, WIDTH - 20, values)
        self.frame(chart, NAMES, WIDTH - 20, bottom, axis)
        if bound != "":
            self.line([(axis.place(bound), TOP), (axis.place(bound), bottom)])
        for number, row in enumerate(rows):
            y, colour = TOP + ROW * (number + 0.5), COLOURS[row["colour"] % len(COLOURS)]
            self.line([(axis.place(row["low"]), y), (axis.place(row["high"]), y)], colour, 2)
            self.point(axis.place(row["value"]), y, colour)
            self.text(NAMES - 6, y, row["name"], anchor="end", colour=colour)
        return AROUND + ROW * len(rows)


def read(table):
    """The charts, each a list of lines."""
    charts = {}
    for row in csv.DictReader(table):
        for number in ("x", "value", "low", "high", "bound"):
            row[number] = row[number] and float(row[number])
        row["colour"] = int(row["colour"] or 0)
        charts.setdefault(row["number"], []).append(row)
    return charts.values()


def main(path):
    page = Page()
    for chart in read(sys.stdin):
        page.top += page.dots(chart) if chart[0]["kind"] == "dot" else page.curves(chart)
    size = f'width="{WIDTH}" height="{page.top}" viewBox="0 0 {WIDTH} {page.top}"'
    with open(path, "w", encoding="utf-8") as out:
        print(f'<svg {size} xmlns="http://www.w3.org/2000/svg" font-family="sans-serif">', file=out)
        print('<rect width="100%" height="100%" fill="white"/>', *page.parts, "</svg>", sep="\n", file=out)


if __name__ == "__main__":
    try:
        main(sys.argv[1])
    except OSError as error:
        sys.exit(error.strerror)
