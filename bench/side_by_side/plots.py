"""Plots: SVG by hand, small, the same for the same summary, readable on light and on dark pages.

Role: drawn of the summary alone, by the standard library alone. Colours follow the reader's theme by a
style within each file.
"""

import math
from xml.sax.saxutils import escape

from side_by_side import summary as summaries

NAMES = {
    "bars": "Each bar, and how far the median is from it",
    "get": "GETs a second",
    "set": "SETs a second",
    "latency": "Latencies: p50, p99 and p99.9",
    "cpu": "Server CPU of an operation",
}
STYLE = """
 text { font: 12px system-ui, sans-serif; fill: #1f2328 } .dim { fill: #59636e } .head { font-weight: 600 }
 .grid { stroke: #d1d9e0 } .limit { stroke: #1f2328; stroke-dasharray: 4 3 } .range { stroke: #1f2328 }
 .plimsoll { fill: #0969da } .redis { fill: #bc4c00 } .rocksdb { fill: #8250df } \
.memcached { fill: #1a7f37 }
 .fio { fill: #6e7781 } .met { fill: #1a7f37 } .missed { fill: #cf222e }
 @media (prefers-color-scheme: dark) {
  text { fill: #f0f6fc } .dim { fill: #9198a1 } .grid { stroke: #3d444d } .limit { stroke: #f0f6fc }
  .range { stroke: #f0f6fc } .plimsoll { fill: #4493f8 } .redis { fill: #f0883e } .rocksdb { fill: #ab7df8 }
  .memcached { fill: #3fb950 } .fio { fill: #9198a1 } .met { fill: #3fb950 } .missed { fill: #f85149 } }
"""
WIDTH, LEFT, RIGHT, LINE = 980, 470, 120, 20
# Letters that stand left of a plot.
LABEL = 64


class Picture:
    """Lines from the top down; a plot stands between LEFT and WIDTH - RIGHT."""

    def __init__(self, title):
        self.parts, self.y, self.title = [], 0, title
        self.text(8, 20, title, "head")
        self.y = 34

    def text(self, x, y, words, kind="", anchor="start"):
        self.parts.append(
            f'<text x="{x:.0f}" y="{y:.0f}" class="{kind}" text-anchor="{anchor}">{escape(words)}</text>'
        )

    def rule(self, x, top, bottom, kind):
        # Behind all that was drawn.
        self.parts.insert(
            0, f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{top:.0f}" y2="{bottom:.0f}" class="{kind}"/>'
        )

    def range(self, low, high, y):
        self.parts.append(f'<line x1="{low:.1f}" x2="{high:.1f}" y1="{y:.0f}" y2="{y:.0f}" class="range"/>')

    def bar(self, x, y, kind):
        self.parts.append(
            f'<rect x="{LEFT}" y="{y:.0f}" width="{max(x - LEFT, 1):.1f}" height="12" class="{kind}"/>'
        )

    def dot(self, x, y, kind, radius=5):
        self.parts.append(f'<circle cx="{x:.1f}" cy="{y:.0f}" r="{radius}" class="{kind}"/>')

    def done(self):
        height = self.y + 12
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" '
            f'width="{WIDTH}" role="img">'
            f"<title>{escape(self.title)}</title><style>{STYLE}</style>\n"
            + "\n".join(self.parts)
            + "\n</svg>\n"
        )


def linear(value, most):
    return LEFT + (WIDTH - RIGHT - LEFT) * value / most


def logarithmic(value, least, most):
    share = math.log(max(min(value, most), least) / least) / math.log(most / least)
    return LEFT + (WIDTH - RIGHT - LEFT) * share


def kind_of(server):
    first = server.lower().split()[0].strip(",")
    return first if first in ("plimsoll", "redis", "rocksdb", "memcached", "fio") else "plimsoll"


def short(words):
    return words if len(words) <= LABEL else words[: LABEL - 1] + "…"


def label(measure):
    """A measure in few letters."""
    return short(f"{measure['server'].replace(', embedded, on both processors', '')}: {measure['what']}")


def bars(told):
    """Every bar on one scale: how many times better than wished."""
    picture = Picture(
        "Median and range of each ratio, by its bar: right of the line is better than the bar"
    )
    top = picture.y
    least, most = 0.2, 5.0
    for each in told["tables"]:
        for bar in each["bars"]:
            if not bar["values"]:
                continue

            def place(value, bar=bar):
                better = (
                    value / bar["limit"]
                    if bar["is_least"]
                    else bar["limit"] / max(value, bar["limit"] / most)
                )
                return logarithmic(better, least, most)

            median, low, high = summaries.spread(bar["values"])
            y = picture.y + 10
            picture.text(
                LEFT - 10,
                y + 4,
                short(f"{bar['row']}  {bar['name']} / {bar['against'].split(',')[0]}"),
                anchor="end",
            )
            picture.range(*sorted((place(low), place(high))), y)
            picture.dot(place(median), y, "met" if bar["is_met"] else "missed")
            sign = "≥" if bar["is_least"] else "≤"
            picture.text(WIDTH - RIGHT + 10, y + 4, f"{median:.2f} ({sign} {bar['limit']:g})", "dim")
            picture.y += LINE
    for value in (0.25, 0.5, 1, 2, 4):
        x = logarithmic(value, least, most)
        picture.rule(x, top, picture.y, "limit" if value == 1 else "grid")
        picture.text(x, picture.y + 14, f"{value:g} ×", "dim", "middle")
    picture.y += LINE
    return picture.done()


def chosen(told, heads, field):
    """Tables whose names begin so, each with its measures that have the field."""
    for each in told["tables"]:
        measures = [measure for measure in each["measures"] if field in measure["fields"]]
        if measures and each["name"].startswith(heads):
            yield each, measures


def amounts(told, title, heads, field, form):
    """A horizontal bar for each measure, with its range."""
    picture = Picture(title)
    groups = list(chosen(told, heads, field))
    if not groups:
        return picture.done()
    most = max(measure["fields"][field][2] for _, measures in groups for measure in measures) or 1
    for each, measures in groups:
        picture.text(8, picture.y + 16, each["title"], "head")
        picture.y += LINE + 4
        for measure in measures:
            median, low, high = measure["fields"][field]
            y = picture.y + 8
            picture.text(LEFT - 10, y + 4, label(measure), "", "end")
            picture.bar(linear(median, most), y - 6, kind_of(measure["server"]))
            if measure["rounds"] > 1:
                picture.range(linear(low, most), linear(high, most), y)
            picture.text(linear(max(median, high), most) + 6, y + 4, form(median), "dim")
            picture.y += LINE
    return picture.done()


def latency(told):
    """Three dots for each measure, on one logarithmic scale."""
    picture = Picture("Latency: p50, p99, p99.9 from left to right, ms")
    top, least, most = picture.y, 20.0, 200_000.0
    for each, measures in chosen(told, ("flash", "cached", "set", "overwrite"), "p99_9_us"):
        picture.text(8, picture.y + 16, each["title"], "head")
        picture.y += LINE + 4
        for measure in measures:
            y, kind = picture.y + 8, kind_of(measure["server"])
            places = [
                logarithmic(measure["fields"][name][0], least, most)
                for name in ("p50_us", "p99_us", "p99_9_us")
            ]
            picture.text(LEFT - 10, y + 4, label(measure), "", "end")
            picture.range(places[0], places[2], y)
            for place, radius in zip(places, (5, 4, 3)):
                picture.dot(place, y, kind, radius)
            picture.text(WIDTH - RIGHT + 10, y + 4, f"{measure['fields']['p99_9_us'][0] / 1000:.2f}", "dim")
            picture.y += LINE
    for milliseconds in (0.1, 1, 10, 100):
        x = logarithmic(milliseconds * 1000, least, most)
        picture.rule(x, top, picture.y, "grid")
        picture.text(x, picture.y + 14, f"{milliseconds:g}", "dim", "middle")
    picture.y += LINE
    return picture.done()


def draw(told):
    """All plots, by name."""

    def thousands(value):
        return f"{value:,.0f}"

    return {
        "bars": bars(told),
        "get": amounts(told, "GETs a second", ("flash", "cached", "portable"), "per_second", thousands),
        "set": amounts(
            told, "SETs a second, durable unless it says otherwise", ("set",), "per_second", thousands
        ),
        "latency": latency(told),
        "cpu": amounts(
            told,
            "Processor time of the server for an operation, us (RocksDB and fio: of all they do)",
            ("flash", "cached", "set"),
            "cpu_us",
            lambda value: f"{value:.1f}",
        ),
    }
