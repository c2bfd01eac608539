"""The report as one HTML page, which contains its style, script and figures.

The page is also well-formed XML. Text is escaped; `code` in backticks is its only markup.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from math import isfinite

from eqprop.report import svg
from eqprop.report.blocks import Block, Chart, Matrix, Panel, Table, Text
from eqprop.report.catalogue import Catalogue
from eqprop.report.item import Item, Row
from eqprop.report.results import Results

STATES = {"full": "full run", "quick": "quick run", "partial": "in part", "missing": "not run yet"}
EXTRA = {  # colours that the figures do not use
    "light": "--wash: #f1f3f5; --warn: #9a6700; --bad: #c02f1d; --heat: 11 111 174",
    "dark": "--wash: #22272e; --warn: #e3b341; --bad: #ff7b6b; --heat: 90 174 230",
}


def shown_state(item: Item, results: Results) -> str:
    """Return the state of an item; "partial" if only a part of it is missing."""
    state = item.completeness(results)
    some = any(row.ours is not None for row in item.rows(results))
    return "partial" if state == "missing" and some else state


def text(source: str) -> str:
    parts = re.split("`([^`]+)`", escape(source))
    parts[::2] = [svg.SUBSCRIPT.sub(r"<sub>\1</sub>", svg.typeset(part)) for part in parts[::2]]
    parts[1::2] = [f"<code>{part}</code>" for part in parts[1::2]]
    return "".join(parts)


def page(paper: Catalogue, results: Results, made: Sequence[str]) -> str:
    """Return the page. `made` are the lines of its footer: the machine and the versions."""
    resources = files("eqprop.report")
    css, js = ((resources / name).read_text("utf-8") for name in ("page.css", "page.js"))
    light, dark = (
        "; ".join(f"--{name}: {value}" for name, value in colors.items())
        for colors in (svg.LIGHT, svg.DARK)
    )
    root = f":root {{ color-scheme: light dark; {light}; {EXTRA['light']} }}"
    root += f"\n@media (prefers-color-scheme: dark) {{ :root {{ {dark}; {EXTRA['dark']} }} }}"
    sections = "\n".join(section(item, results) for item in paper.items)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8"/>
<meta name="viewport" content="width=device-width, initial-scale=1"/>
<link rel="icon" href="data:,"/>
<title>eqprop: the paper, table by table and figure by figure</title>
<style>/*<![CDATA[*/
{root}
{css}/*]]>*/</style>
</head>
<body>
<header id="top">
<h1>{text(paper.title)}</h1>
<p>Every table and figure of <a href="{escape(paper.address)}">the paper</a>
({text(paper.authors)}), computed by <code>eqprop</code>, the published numbers beside ours.</p>
{summary(paper.items, results)}
</header>
<main>
{sections}
</main>
<footer>{"".join(f"<p>{text(line)}</p>" for line in made)}</footer>
<div id="tip" hidden="hidden"></div>
<script>//<![CDATA[
{js}//]]></script>
</body>
</html>
"""


def summary(items: Sequence[Item], results: Results) -> str:
    rows = []
    for item in items:
        verdicts = [row.passed for row in item.rows(results) if row.passed is not None]
        count = f"{sum(verdicts)} of {len(verdicts)}" if verdicts else ""
        rows.append(
            f'<tr><td><a href="#{escape(item.name)}">{text(item.title)}</a></td>'
            f'<td class="muted wide">{text(item.place)}</td>'
            f"<td>{_badge(shown_state(item, results))}</td>"
            f'<td class="num wide">{count}</td>'
            f'<td class="mark">{mark(item.passed(results))}</td></tr>'
        )
    states = [shown_state(item, results) for item in items]
    counts = ", ".join(f"{states.count(s)} {words}" for s, words in STATES.items() if s in states)
    head = '<th>Item</th><th class="wide">In the paper</th><th>State</th>'
    head += '<th class="num wide">Rows</th><th class="mark">Pass</th>'
    return f"""<p class="meta">{len(items)} items: {counts}.
{mark(True)} within the tolerance, {mark(False)} outside, {mark(None)} not run yet, or nothing is
claimed.</p>
<div class="scroll"><table class="summary"><thead><tr>{head}</tr></thead>
<tbody>{"".join(rows)}</tbody></table></div>"""


def section(item: Item, results: Results) -> str:
    state = shown_state(item, results)
    notice = {
        "full": "",
        "quick": '<p class="notice">A quick run: fewer epochs, seeds or settings than the paper '
        "has, so the numbers need not agree.</p>",
        "partial": f"<p>Not all of it has run yet. It needs: {text(item.needs)}.</p>",
        "missing": f"<p>Not run yet. It needs: {text(item.needs)}.</p>",
    }[state]
    rows = item.rows(results)
    blocks = "\n".join(_block(block) for block in item.blocks(results))
    return f"""<section id="{escape(item.name)}" aria-labelledby="{escape(item.name)}-title">
<div class="head"><h2 id="{escape(item.name)}-title">{text(item.title)}</h2>{_badge(state)}</div>
<p class="meta">{text(item.place)} · <code>eqprop paper run {escape(item.name)}</code> ·
<a href="#top">all items</a></p>
{notice}
{_rows(rows) if rows else ""}
{blocks}
</section>"""


def mark(passed: bool | None) -> str:
    name, sign, words = {
        True: ("yes", "✓", "passes"),
        False: ("no", "✗", "does not pass"),
        None: ("open", "–", "no verdict"),
    }[passed]
    return f'<span class="{name}" role="img" aria-label="{words}" title="{words}">{sign}</span>'


def _badge(state: str) -> str:
    return f'<span class="badge {state}">{STATES[state]}</span>'


def numeric(column: Sequence[str]) -> bool:
    """Return whether a column has numbers, which are aligned to the right."""
    cells = [cell for cell in column if cell not in ("", "–", "—")]
    return bool(cells) and all(re.match(r"[-−+±≈∼~<>≤≥→]?\s?\d", cell) for cell in cells)


def _rows(rows: Sequence[Row]) -> str:
    cells = [(row.paper, row.ours or "–") for row in rows]
    paper, ours = (' class="num"' if numeric([c[i] for c in cells]) else "" for i in (0, 1))
    remarks = {
        "Reading": [row.reading for row in rows],
        "Source": [row.source.kind if row.source else "" for row in rows],
        "Note": [row.note for row in rows],
    }
    shown = {name: cells for name, cells in remarks.items() if any(cells)}
    body = "".join(
        f"<tr><td>{text(row.name)}</td><td{paper}>{text(row.paper)}</td>"
        f'<td{ours}>{text(row.ours or "–")}</td><td class="mark">{mark(row.passed)}</td>'
        + "".join(f'<td class="note">{text(cells[i])}</td>' for cells in shown.values())
        + "</tr>"
        for i, row in enumerate(rows)
    )
    head = f'<th></th><th{paper}>Paper</th><th{ours}>eqprop</th><th class="mark">Pass</th>'
    head += "".join(f"<th>{name}</th>" for name in shown)
    table = f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody>"
    return _scroll(f'<table class="rows">{table}</table>')


def _scroll(table: str) -> str:
    return f'<div class="scroll" tabindex="0">{table}</div>'


def _caption(caption: str) -> str:
    return f"<figcaption>{text(caption)}</figcaption>" if caption else ""


def _block(block: Block) -> str:
    match block:
        case Text():
            return f"<p>{text(block.text)}</p>"
        case Table():
            return f"<figure>{_caption(block.caption)}{_table(block)}</figure>"
        case Matrix():
            return f"<figure>{_caption(block.caption)}{_matrix(block)}</figure>"
        case Chart():
            return f"<figure>{_chart(block)}{_caption(block.caption)}</figure>"


def _table(table: Table) -> str:
    right = [numeric([row[i] for row in table.rows]) for i in range(len(table.header))]
    kinds = [' class="num"' if it else "" for it in right]
    head = "".join(f"<th{k}>{text(c)}</th>" for k, c in zip(kinds, table.header, strict=True))
    body = "".join(
        f"<tr>{''.join(f'<td{k}>{text(c)}</td>' for k, c in zip(kinds, row, strict=True))}</tr>"
        for row in table.rows
    )
    return _scroll(f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>")


def _matrix(matrix: Matrix) -> str:
    def cell(value: float) -> str:
        part = (value - matrix.low) / (matrix.high - matrix.low) if isfinite(value) else 0.0
        return f'<td style="--v:{min(1.0, max(0.0, part)):.3f}">{matrix_number(matrix, value)}</td>'

    head = "".join(f"<th>{text(name)}</th>" for name in matrix.columns)
    body = "".join(
        f"<tr><th>{text(name)}</th>{''.join(map(cell, values))}</tr>"
        for name, values in zip(matrix.rows, matrix.values, strict=True)
    )
    table = f"<thead><tr><th></th>{head}</tr></thead><tbody>{body}</tbody>"
    return _scroll(f'<table class="matrix">{table}</table>')


def matrix_number(matrix: Matrix, value: float) -> str:
    decimals = 4 if matrix.high - matrix.low <= 2 else 1
    return f"{value:.{decimals}f}".replace("-", "−") if isfinite(value) else "–"


def _chart(chart: Chart) -> str:
    broad, shared = svg.coincide(chart), svg.shared_legend(chart)
    width = svg.panel_width(chart)

    def panel(each: Panel) -> str:
        keys = "" if shared is not None else _legend(svg.legend(each.lines, broad))
        return f"<div><h3>{text(each.title)}</h3>{svg.plot(each, width, broad)}{keys}</div>"

    panels = "".join(map(panel, chart.panels))
    grid = f'<div class="panels" style="--columns:{svg.columns(chart)}">{panels}</div>'
    return grid + _legend(shared or ())


def _legend(keys: Sequence[svg.Key]) -> str:
    entries = (
        f'<li><svg viewBox="0 0 24 10" aria-hidden="true">{svg.swatch(key)}</svg>'
        f"{text(key.label)}</li>"
        for key in keys
    )
    return f'<ul class="legend">{"".join(entries)}</ul>' if keys else ""
