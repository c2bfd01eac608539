"""The report as Markdown: the same sections, with links to SVG files for the figures."""

from __future__ import annotations

import re
from collections.abc import Sequence

from eqprop.report.blocks import Block, Chart, Matrix, Table, Text
from eqprop.report.catalogue import Catalogue
from eqprop.report.html import STATES, matrix_number, numeric, shown_state
from eqprop.report.item import MARKS, Item, Row
from eqprop.report.results import Results
from eqprop.report.source import Source
from eqprop.report.svg import SUBSCRIPT, typeset


def page(paper: Catalogue, results: Results) -> str:
    sections = "\n".join(section(item, results) for item in paper.items)
    return (
        "<!-- written by `eqprop paper report` -->\n"
        "# The paper, table by table and figure by figure\n\n"
        f"[The paper]({paper.address}) and what `eqprop` computes, side by side.\n\n"
        f"{summary(paper.items, results)}\n{sections}"
    )


def summary(items: Sequence[Item], results: Results) -> str:
    rows = tuple(
        (
            f"{item.title} (`{item.name}`)",
            item.place,
            STATES[shown_state(item, results)],
            MARKS[item.passed(results)],
        )
        for item in items
    )
    return table(("item", "in the paper", "state", "pass"), rows)


def sources(items: Sequence[Item], results: Results) -> str:
    """Return a table of the documents behind the verdicts, with the items that use each."""
    found: dict[Source, dict[str, None]] = {}
    for item in items:
        for row in item.rows(results):
            if row.source is not None:
                found.setdefault(row.source, {})[f"`{item.name}`"] = None
    rows = [(source.kind, source.place, ", ".join(names)) for source, names in found.items()]
    return table(("source", "place", "items"), sorted(rows))


def section(item: Item, results: Results) -> str:
    state = shown_state(item, results)
    needs = f" It needs: {escaped(item.needs)}." if state in ("missing", "partial") else ""
    head = f"## {escaped(item.title)}\n\n{escaped(item.place)} · `eqprop paper run {item.name}` · "
    parts = [f"{head}**{STATES[state]}**.{needs}\n", rows_table(item.rows(results))]
    parts += [block(each, "figures") for each in item.blocks(results)]
    return "\n".join(part for part in parts if part)


def rows_table(rows: Sequence[Row], *, numbers_only: bool = False) -> str:
    """Return a table of the paper's numbers and ours, with reading, source and notes unless
    `numbers_only`.
    """
    if not rows:
        return ""
    columns = {
        "": [row.name for row in rows],
        "paper": [row.paper for row in rows],
        "eqprop": [row.ours or "–" for row in rows],
        "pass": [MARKS[row.passed] for row in rows],
    }
    more = {
        "reading": [row.reading for row in rows],
        "source": [row.source.kind if row.source else "" for row in rows],
        "note": [row.note for row in rows],
    }
    if not numbers_only:
        columns |= {name: cells for name, cells in more.items() if any(cells)}
    return table(tuple(columns), list(zip(*columns.values(), strict=True)))


def block(each: Block, figures: str) -> str:
    """Return a block as Markdown. `figures` is the relative path to the folder of SVG files."""
    match each:
        case Text():
            return f"{escaped(each.text)}\n"
        case Table():
            return f"{_caption(each.caption)}{table(each.header, each.rows)}"
        case Matrix():
            rows = [
                (name, *(matrix_number(each, value) for value in values))
                for name, values in zip(each.rows, each.values, strict=True)
            ]
            return f"{_caption(each.caption)}{table(('', *each.columns), rows)}"
        case Chart():
            alt = re.sub(r"[`\[\]]", "", each.caption)
            return f"![{alt}]({figures}/{each.name}.svg)\n\n{_caption(each.caption).rstrip()}\n"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    right = [numeric([row[i] for row in rows]) for i in range(len(header))]
    lines = [header, ["---:" if it else "---" for it in right], *rows]
    return "".join(f"| {' | '.join(map(_cell, line))} |\n" for line in lines)


def escaped(text: str) -> str:
    """Escape text; only `code` and subscripts are markup."""
    parts = re.split("(`[^`]+`)", text)
    for i in range(0, len(parts), 2):
        words = SUBSCRIPT.split(typeset(parts[i]))
        words[::2] = [re.sub(r"([\\*_<\[\]])", r"\\\1", word) for word in words[::2]]
        words[1::2] = [f"<sub>{low}</sub>" for low in words[1::2]]
        parts[i] = "".join(words)
    return "".join(parts)


def _cell(text: str) -> str:
    return escaped(text).replace("|", "\\|").replace("\n", " ")


def _caption(caption: str) -> str:
    return f"*{escaped(caption)}*\n\n" if caption else ""
