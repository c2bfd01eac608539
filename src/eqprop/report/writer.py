"""`eqprop paper report`: writes the page, the Markdown, the figures and, on request, docs tables.

Running it twice changes nothing. `--update-docs` fills the sections

    <!-- paper: ITEM -->
    <!-- end -->

of README.md and docs/*.md, next to the folder of the results, with the tables of an item.
`<!-- paper: ITEM rows -->` has only the comparison with the paper, `<!-- paper: ITEM numbers -->`
only its numbers and verdicts, `<!-- paper: ITEM tables -->` only the other tables,
`<!-- paper: ITEM figures -->` the figures, `<!-- paper: summary -->` the list of items and
`<!-- paper: sources -->` the list of sources. A section never shrinks.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from eqprop.report import html, markdown, svg
from eqprop.report.blocks import Chart, Matrix, Table
from eqprop.report.catalogue import Catalogue
from eqprop.report.item import Item
from eqprop.report.results import Results
from eqprop.runs.machine import describe
from eqprop.runs.recipe import UserError

MARKED = re.compile(
    r"(<!-- paper: ([^\s]+)(?: (rows|numbers|tables|figures))? -->\n)(.*?)(<!-- end -->)", re.DOTALL
)


def write(
    paper: Catalogue, results: Results, out: Path, *, update_docs: bool = False
) -> list[Path]:
    """Write the report; return the paths of all its files, the page first."""
    items = paper.items
    folder = results.root / "paper"
    charts = [b for item in items for b in item.blocks(results) if isinstance(b, Chart)]
    texts = {
        out: html.page(paper, results, _made(describe("cpu"))),
        folder / "report.md": markdown.page(paper, results),
        **{folder / "figures" / f"{chart.name}.svg": svg.figure(chart) for chart in charts},
    }
    if update_docs:
        project = Path(os.path.relpath(results.root.resolve().parent))
        for path in [project / "README.md", *sorted((project / "docs").glob("*.md"))]:
            if path.is_file() and MARKED.search(old := path.read_text("utf-8")):
                texts[path] = _filled(path, old, items, results)
    for path, content in texts.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.is_file() or path.read_text("utf-8") != content:
            path.write_text(content, "utf-8")
    return list(texts)


def _filled(path: Path, old: str, items: Sequence[Item], results: Results) -> str:
    """Return a document with its marked sections filled in."""
    figures = Path(os.path.relpath(results.root / "paper" / "figures", path.parent)).as_posix()

    def between(found: re.Match[str]) -> str:
        start, name, what, before, end = found.groups()
        item = next((item for item in items if item.name == name), None)
        if name == "summary":
            parts = [markdown.summary(items, results)]
        elif name == "sources":
            parts = [markdown.sources(items, results)]
        elif item is None:
            known = ", ".join(item.name for item in items)
            raise UserError(f"{path}: paper: {name}: no such item. There are: {known}")
        else:
            parts = _parts(item, results, what, figures)
        after = "\n".join(part for part in parts if part)
        for there, now, of in zip(_held(before), _held(after), ("lines", "cells"), strict=True):
            if now < there:
                raise UserError(
                    f"{path}: paper: {name}: would hold {now} {of} instead of {there}: complete "
                    "the results, or empty the section if it is to shrink"
                )
        return f"{start}\n{after}\n{end}"

    return MARKED.sub(between, old)


def _parts(item: Item, results: Results, what: str | None, figures: str) -> list[str]:
    """Return the "rows", "numbers", "tables" or "figures" of an item; None: rows and tables."""
    parts = []
    if what in (None, "rows", "numbers"):
        parts.append(markdown.rows_table(item.rows(results), numbers_only=what == "numbers"))
    if what in (None, "tables", "figures"):
        kinds = (Chart,) if what == "figures" else (Table, Matrix)
        parts += [markdown.block(b, figures) for b in item.blocks(results) if isinstance(b, kinds)]
    return parts


def _held(section: str) -> tuple[int, int]:
    """Count the lines of tables and figures in a section, and its filled cells.

    Notes do not count: there are fewer of them if more rows pass.
    """
    figures = sum(line.startswith("![") for line in section.splitlines())
    lines = [line for line in section.splitlines() if line.startswith("|")]
    tables = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
    filled, notes = [], None
    for line, below in pairwise([*tables, ["end"]]):
        if _is_rule(below):  # so this line is a header
            notes = line.index("note") if "note" in line else None
        if not _is_rule(line):
            filled.append(sum(c not in ("", "–") for k, c in enumerate(line) if k != notes))
    return len(filled) + figures, sum(filled)


def _is_rule(line: Sequence[str]) -> bool:
    """Return whether a line is the rule between the header of a table and its rows."""
    return set("".join(line)) <= {"-", ":"}


def _made(here: dict[str, Any]) -> list[str]:
    machine, versions = here["machine"], here["versions"]
    return [
        "Written by `eqprop paper report`. Each number is computed from what lies in "
        "`results/paper`, where machine, versions and commit of every run are kept.",
        f"This page: {machine['processor']}, {machine['cores']} cores, {machine['system']}; "
        f"Python {versions['python']}, PyTorch {versions['torch']}, eqprop {versions['eqprop']}, "
        f"commit {(here['commit'] or 'unknown')[:12]}.",
    ]
