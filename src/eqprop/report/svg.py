"""Charts as SVG. They are drawn here, so that a report needs only the core dependencies.

`plot` draws one panel for the HTML page, whose style sheet defines the colours. `figure` draws a
whole chart for a separate file, on a light background.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import chain, groupby
from math import isfinite

from eqprop.report.blocks import Chart, Line, Panel

# First blue, vermilion, green, orange, purple, sky: safe for colour-blind readers.
COLORS = 10
NAMES = ("page", "ink", "muted", "grid", *(f"c{i}" for i in range(COLORS)))
LIGHT_VALUES = """#ffffff #1d2127 #5d6570 #e6e8eb
#0b6fae #d1560a #07926b #c98a00 #b2548d #43a5dc #7a5a3a #6b7280 #5646a5 #8a9a1c"""
DARK_VALUES = """#14171b #e4e7eb #9aa3ae #2b3037
#5aaee6 #f58a4b #3cc79d #eebc4a #e293c1 #a2d8f7 #c7a27c #a3abb6 #a79bf0 #c9d65f"""
LIGHT, DARK = (dict(zip(NAMES, v.split(), strict=True)) for v in (LIGHT_VALUES, DARK_VALUES))
HEIGHT = 250.0  # height of a panel without title and legend
SUBSCRIPT = re.compile(r"(?<=[\w∇])_(\w)(?!\w)")  # θ_f, but not fan_in
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Liberation Sans', sans-serif"


@dataclass(frozen=True)
class Scale:
    """A map from data (`low` to `high`) to the drawing (`start` to `end`)."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        """Return the position of a value; NaN if it has none."""
        if not isfinite(value) or (self.log and value <= 0):
            return math.nan
        low, high, at = ((math.log10(v) if self.log else v) for v in (self.low, self.high, value))
        return self.start + (self.end - self.start) * (at - low) / (high - low)


def _power(exponent: int) -> str:
    return "10" + str(exponent).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))


def number(value: float, digits: int = 4) -> str:
    """Format a number for readers: 0.0123, −3, 1.5×10⁻⁷."""
    if not isfinite(value):
        return "–"
    text = f"{value:.{digits - 1}e}"
    mantissa, exponent = text.split("e")
    if value == 0 or -4 <= int(exponent) < 6:
        decimals = max(0, digits - 1 - int(exponent))
        mantissa, power = f"{value:.{decimals}f}", ""
    else:
        power = f"×{_power(int(exponent))}"
    if "." in mantissa:
        mantissa = mantissa.rstrip("0").rstrip(".")
    return mantissa.replace("-", "−") + power


def typeset(text: str) -> str:
    """Replace 1e-12 by 10⁻¹² and 2.5e-05 by 2.5×10⁻⁵ in a text."""

    def replaced(found: re.Match[str]) -> str:
        mantissa, exponent = found[1], int(found[2])
        if exponent == 0 or float(mantissa) == 0:
            return mantissa
        return _power(exponent) if mantissa == "1" else f"{mantissa}×{_power(exponent)}"

    return re.sub(r"(?<![\w.])(\d+(?:\.\d+)?)e([+-]\d+)(?!\w)", replaced, text)


def ticks(
    low: float, high: float, *, log: bool = False, degrees: bool = False, whole: bool = False
) -> list[float]:
    """Return about five round numbers from `low` to `high`; only integers if `whole`."""
    if log:
        decades = range(math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9) + 1)
        if len(decades) > 3:
            return [10.0**e for e in decades if e % math.ceil(len(decades) / 6) == 0]
        wide = range(decades.start - 1, decades.stop + 1)
        found = [m * 10.0**e for e in wide for m in (1, 2, 5) if low <= m * 10.0**e <= high]
        if len(found) > 2:
            return found
    rough = max((high - low) / 5, 1.0 if whole else 0.0)
    power = 10.0 ** math.floor(math.log10(rough))
    if degrees and 10 < rough < 90:
        step = next(s for s in (15.0, 30.0, 45.0, 90.0) if s >= rough)
    else:
        step = next(m * power for m in (1, 2, 5, 10) if m * power > 0.75 * rough)
    first, last = math.ceil(low / step - 1e-6), math.floor(high / step + 1e-6)
    return [i * step for i in range(first, last + 1)]


def tick_labels(at: Sequence[float], *, log: bool = False) -> tuple[list[str], str]:
    """Return the labels, and their common power of ten: "" or "×10⁻³"."""
    largest = max((abs(t) for t in at), default=0.0)
    if log and (min(at) < 1e-3 or largest > 1e4):
        return [_power(round(math.log10(t))) for t in at], ""
    if log or largest == 0 or 1e-2 <= largest < 1e5:
        return [number(t, 3) for t in at], ""
    exponent = math.floor(math.log10(largest) + 1e-9)
    labels = [number(round(t / 10.0**exponent, 9), 3) for t in at]
    return labels, f"×{_power(exponent)}"


def _extent(values: Iterable[float], log: bool, margin: float) -> tuple[float, float]:
    known = [v for v in values if isfinite(v) and (v > 0 or not log)]
    if not known:
        return (1.0, 10.0) if log else (0.0, 1.0)
    low, high = min(known), max(known)
    if log:
        if low == high:
            return low / 2, high * 2
        wider = (high / low) ** margin
        return low / wider, high * wider
    if low == high:
        half = abs(low) / 2 or 1.0
        return low - half, high + half
    pad = margin * (high - low)
    from_zero = margin > 0.03 and 0 <= low < 0.3 * high
    return (0.0 if from_zero else low - pad), high + pad


def coincide(chart: Chart) -> bool:
    """Return whether a dashed line coincides with the solid line of its colour, which is then
    drawn broad.
    """
    for panel in chart.panels:
        low, high = _extent((v for line in panel.lines for v in line.y), False, 0.0)
        solid = {line.color: line for line in panel.lines if line.style == "solid"}
        for line in panel.lines:
            other = solid.get(line.color)
            if line.style == "dashed" and other is not None and line.x == other.x:
                near = [
                    abs(a - b) < 0.02 * (high - low) for a, b in zip(line.y, other.y, strict=True)
                ]
                if sum(near) > len(near) / 2:
                    return True
    return False


@dataclass(frozen=True)
class Key:
    """An entry of a legend; without a colour if it stands for several."""

    label: str
    style: str
    color: int | None = None


def legend(lines: Sequence[Line], broad: bool = False) -> tuple[Key, ...]:
    """Return the entries of a legend. Lines with equal label and style share an entry.

    If all labels are "what, kind", with one colour per "what" and one style per "kind", there is
    one entry per colour and one per style.
    """
    dashed = {line.color for line in lines if line.style == "dashed"}
    keys: dict[tuple[str, str], Key] = {}
    for line in lines:
        if line.label:
            pale = broad and line.style == "solid" and line.color in dashed
            style = "broad" if pale else line.style
            old = keys.get((line.label, style))
            same = old is None or old.color == line.color
            keys[line.label, style] = Key(line.label, style, line.color if same else None)
    plain = tuple(keys.values())
    parts = [(*key.label.rpartition(", ")[::2], key) for key in plain]
    colors = {(what, key.color) for what, _, key in parts}
    styles = {(kind, key.style) for _, kind, key in parts}
    one_each = len(colors) == len(dict(colors)) and len(styles) == len(dict(styles))
    if (
        one_each
        and all(what for what, _, _ in parts)
        and 4 <= len(plain) >= len(colors) + len(styles)
    ):
        first = {what: Key(what, "solid", key.color) for what, _, key in parts}
        then = {kind: Key(kind, key.style) for _, kind, key in parts}
        return (*first.values(), *then.values())
    return plain


def shared_legend(chart: Chart) -> tuple[Key, ...] | None:
    """Return one legend for all panels, or None if each panel needs its own."""
    each = [legend(panel.lines, coincide(chart)) for panel in chart.panels]
    largest = max(each, key=len, default=())
    return largest if all(set(keys) <= set(largest) for keys in each) else None


def columns(chart: Chart) -> int:
    return {1: 1, 2: 2, 3: 3, 4: 2}.get(len(chart.panels), 3)


def panel_width(chart: Chart) -> float:
    """Return the width of a panel: smaller if there are three columns, with equal font size."""
    return 380.0 if columns(chart) < 3 else 340.0


def _stroke(style: str, color: int | None) -> str:
    paint = "var(--muted)" if color is None else f"var(--c{color % COLORS})"
    shape = {
        "solid": 'stroke-width="1.8"',
        "broad": 'stroke-width="4.5" stroke-opacity="0.38"',
        "dashed": 'stroke-width="1.8" stroke-dasharray="5 3.5"',
        "points": 'stroke-width="5.5"',
    }[style]
    cap = "butt" if style == "dashed" else "round"
    return f'fill="none" stroke="{paint}" {shape} stroke-linecap="{cap}" stroke-linejoin="round"'


def swatch(key: Key) -> str:
    """Return the line sample of a legend entry, 24 by 10."""
    path = "M12 5h0" if key.style == "points" else "M2 5H22"
    return f'<path d="{path}" {_stroke(key.style, key.color)}/>'


def _text(
    x: float, y: float, text: str, *, size: float = 11, ink: str = "muted", more: str = ""
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size:g}" fill="var(--{ink})"{more}>'
        f"{_lowered(text)}</text>"
    )


def _lowered(text: str) -> str:
    """Escape a text and set its subscripts."""
    parts = SUBSCRIPT.split(escape(typeset(text)))
    out = [parts[0]]
    for low, after in zip(parts[1::2], parts[2::2], strict=True):
        out.append(f'<tspan dy="3" font-size="80%">{low}</tspan>')
        out.append(f'<tspan dy="-3">{after}</tspan>' if after else "")
    return "".join(out)


def _runs(line: Line, x: Scale, y: Scale) -> Iterator[list[int]]:
    """Yield the indices of a line's points, split at points without a position."""
    known = (isfinite(x(a)) and isfinite(y(b)) for a, b in zip(line.x, line.y, strict=True))
    for there, run in groupby(enumerate(known), key=lambda pair: pair[1]):
        if there:
            yield [i for i, _ in run]


def _spread(line: Line, x: Scale, y: Scale) -> str:
    """Draw a band around a line, or a bar through each point."""
    if line.low is None or line.high is None:
        return ""
    paint = f"var(--c{line.color % COLORS})"
    bottom = [y.start if y.log and low <= 0 else y(low) for low in line.low]  # to the floor
    top = [y(high) for high in line.high]
    path = []
    for run in _runs(line, x, y):
        inside = [i for i in run if isfinite(bottom[i]) and isfinite(top[i])]
        at = [f"{x(line.x[i]):.1f}" for i in inside]
        if line.style == "points":
            path += [f"M{a} {bottom[i]:.1f}V{top[i]:.1f}" for i, a in zip(inside, at, strict=True)]
        elif inside:
            there = [f"{a} {top[i]:.1f}" for i, a in zip(inside, at, strict=True)]
            back = [f"{a} {bottom[i]:.1f}" for i, a in zip(inside, at, strict=True)]
            path.append(f"M{'L'.join([*there, *reversed(back)])}Z")
    if line.style == "points":
        return f'<path d="{"".join(path)}" stroke="{paint}" stroke-width="1.4" fill="none"/>'
    return f'<path d="{"".join(path)}" fill="{paint}" fill-opacity="0.16"/>'


def _curve(line: Line, style: str, x: Scale, y: Scale, hover: bool) -> str:
    path, values = [], []
    for run in _runs(line, x, y):
        alone = "h0" if style == "points" or len(run) == 1 else ""  # a dot
        for n, i in enumerate(run):
            step = "M" if alone or n == 0 else "L"
            path.append(f"{step}{x(line.x[i]):.1f} {y(line.y[i]):.1f}{alone}")
            value = f"{number(line.x[i])};{number(line.y[i])}"
            if line.low is not None and line.high is not None:
                value += f" ({number(line.low[i], 3)} to {number(line.high[i], 3)})"
            values.append(value)
    data = (
        f' data-label="{escape(line.label)}" data-v="{escape("|".join(values))}"' if hover else ""
    )
    return f'<path d="{"".join(path)}" {_stroke(style, line.color)}{data}/>'


def _drawing(panel: Panel, width: float, broad: bool, hover: bool) -> str:
    """Draw axes and lines in a field of `width` by HEIGHT."""
    heights = [line.y for line in panel.lines]
    heights += [line.high or () for line in panel.lines]
    heights += [  # not `low` on a log axis, where it may be decades below
        line.low or () for line in panel.lines if line.style == "points" or not panel.y_log
    ]
    y_low, y_high = panel.y_range or _extent(chain(*heights), panel.y_log, 0.05)
    x_low, x_high = _extent((v for line in panel.lines for v in line.x), panel.x_log, 0.02)
    y_ticks = ticks(y_low, y_high, log=panel.y_log)
    y_labels, y_power = tick_labels(y_ticks, log=panel.y_log)
    whole = all(v == round(v) for line in panel.lines for v in line.x if isfinite(v))
    degrees = re.search("°|degree", panel.x_label) is not None
    x_ticks = ticks(x_low, x_high, log=panel.x_log, degrees=degrees, whole=whole)
    x_labels, x_power = tick_labels(x_ticks, log=panel.x_log)
    left = 14 + 6.2 * max(map(len, y_labels), default=0)
    top, right, bottom = 26.0, 12.0, 42.0
    x = Scale(x_low, x_high, 0, width - left - right, panel.x_log)
    y = Scale(y_low, y_high, HEIGHT - top - bottom, 0, panel.y_log)

    out = [_text(0, 11, f"{panel.y_label} {y_power}".rstrip())]
    for tick, label in zip(y_ticks, y_labels, strict=True):
        at = top + y(tick)
        ink = "muted" if tick == 0 and y_low < 0 else "grid"
        across = f"M{left:.1f} {at:.1f}H{width - right:.1f}"
        out.append(f'<path d="{across}" stroke="var(--{ink})" stroke-width="0.8"/>')
        out.append(_text(left - 7, at + 4, label, more=' text-anchor="end"'))
    floor = HEIGHT - bottom
    out.append(f'<path d="M{left:.1f} {floor:.1f}H{width - right:.1f}" stroke="var(--muted)"/>')
    for tick, label in zip(x_ticks, x_labels, strict=True):
        at = left + x(tick)
        out.append(f'<path d="M{at:.1f} {floor:.1f}v4" stroke="var(--muted)"/>')
        out.append(_text(at, floor + 17, label, more=' text-anchor="middle"'))
    middle = (left + width - right) / 2
    label = f"{panel.x_label} {x_power}".rstrip()
    out.append(_text(middle, HEIGHT - 6, label, more=' text-anchor="middle"'))

    edge = 4  # room for whole dots on the border
    w, h = x.end + 2 * edge, y.start + 2 * edge
    out.append(
        f'<svg x="{left - edge:.1f}" y="{top - edge:.1f}" width="{w:.1f}" height="{h:.1f}" '
        f'viewBox="{-edge} {-edge} {w:.1f} {h:.1f}" overflow="hidden">'
    )
    dashed = {line.color for line in panel.lines if line.style == "dashed"}
    bands = "".join(_spread(line, x, y) for line in panel.lines)
    out.append(f'<svg width="{x.end:.1f}" height="{y.start:.1f}" overflow="hidden">{bands}</svg>')
    for line in panel.lines:
        pale = broad and line.style == "solid" and line.color in dashed
        out.append(_curve(line, "broad" if pale else line.style, x, y, hover))
    if not any(True for line in panel.lines for _ in _runs(line, x, y)):
        out.append(_text(x.end / 2, y.start / 2, "no data", more=' text-anchor="middle"'))
    if hover:
        out.append('<circle class="mark" r="0" fill="none" stroke="var(--ink)"/>')
    return "".join([*out, "</svg>"])


def plot(panel: Panel, width: float = 380.0, broad: bool = False) -> str:
    """Draw one panel for the page, which adds title and legend."""
    title = escape(f"{panel.title}: {panel.y_label} against {panel.x_label}")
    return (
        f'<svg class="plot" role="img" aria-label="{title}" viewBox="0 0 {width:g} {HEIGHT:g}" '
        f'data-x="{escape(panel.x_label)}" data-y="{escape(panel.y_label)}">'
        f"{_drawing(panel, width, broad, hover=True)}</svg>"
    )


def _wrapped(text: str, room: float) -> list[str]:
    lines = [""]
    for word in text.split():
        longer = f"{lines[-1]} {word}".strip()
        lines = [*lines[:-1], longer] if len(longer) <= room or not lines[-1] else [*lines, word]
    return lines


def _keys(keys: Sequence[Key], width: float) -> tuple[str, float]:
    """Draw a legend of this width; return it and its height."""
    out, x, y = [], 0.0, 4.0
    for key in keys:
        room = 30 + 6.2 * len(key.label)
        if x > 0 and x + room > width:
            x, y = 0.0, y + 18
        out.append(f'<g transform="translate({x:.1f} {y:.1f})">{swatch(key)}')
        out.append(_text(29, 9, key.label, ink="ink") + "</g>")
        x += room + 14
    return "".join(out), y + 18 if keys else 0.0


def figure(chart: Chart) -> str:
    """Draw a chart for a separate file: all panels with titles and legends, on light ground."""
    broad, shared, across = coincide(chart), shared_legend(chart), columns(chart)
    margin, gap, each = 16.0, 28.0, panel_width(chart)
    width = across * (each + gap) - gap + 2 * margin
    out: list[str] = []
    y = margin
    for start in range(0, len(chart.panels), across):
        row = chart.panels[start : start + across]
        titles = [_wrapped(panel.title, each / 6.8) for panel in row]
        head = 18.0 * max(map(len, titles)) + 4
        foot = 0.0
        for i, (panel, title) in enumerate(zip(row, titles, strict=True)):
            x = margin + i * (each + gap)
            for n, words in enumerate(title):
                out.append(
                    _text(x, y + 12 + 18 * n, words, size=13, ink="ink", more=' font-weight="600"')
                )
            drawn = _drawing(panel, each, broad, hover=False)
            out.append(f'<g transform="translate({x:.1f} {y + head:.1f})">{drawn}</g>')
            if shared is None:
                drawn, height = _keys(legend(panel.lines, broad), each)
                at = y + head + HEIGHT + 4
                out.append(f'<g transform="translate({x:.1f} {at:.1f})">{drawn}</g>')
                foot = max(foot, height)
        y += head + HEIGHT + foot + 0.8 * gap
    if shared:
        drawn, height = _keys(shared, width - 2 * margin)
        out.append(f'<g transform="translate({margin:.1f} {y:.1f})">{drawn}</g>')
        y += height
    size = f"{width:.0f} {y + margin / 2:.0f}"
    inner = "".join(out)
    colored = re.sub(r"var\(--(\w+)\)", lambda name: LIGHT[name[1]], inner)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{escape(chart.caption)}" '
        f'viewBox="0 0 {size}" width="{width:.0f}" font-family="{FONT}">'
        f'<rect width="100%" height="100%" fill="{LIGHT["page"]}"/>{colored}</svg>\n'
    )
