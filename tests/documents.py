"""The documents of the repository, and what they show: code, commands, links, headings."""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
DOCUMENTS = {
    path.relative_to(ROOT).as_posix(): path
    for path in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("docs/*.md")))
}
FENCE = re.compile(
    r"^(?:<!-- (?P<mark>not run|tests add): (?P<said>.*?) -->\n)?"
    r"^(?P<indent> *)```(?P<language>.*?)\n(?P<code>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Block:
    """What a document shows between ``` and ```.

    Args:
        language: as written after the first ```.
        code: what it holds.
        not_run: why no test runs it, or None.
        tests_add: options that tests add to its lines that train, so that they are short.
    """

    language: str
    code: str
    not_run: str | None
    tests_add: tuple[str, ...]

    def commands(self) -> list[list[str]]:
        """The words of each line, comments left out."""
        whole = self.code.replace("\\\n", " ")
        lines = [shlex.split(line, comments=True) for line in whole.splitlines()]
        return [
            [*words, *self.tests_add] if words[1:2] in (["train"], ["search"]) else words
            for words in lines
            if words
        ]


def blocks(text: str) -> list[Block]:
    """Every block of a Markdown text."""
    return [
        Block(
            found["language"],
            found["code"],
            found["said"] if found["mark"] == "not run" else None,
            tuple(shlex.split(found["said"])) if found["mark"] == "tests add" else (),
        )
        for found in FENCE.finditer(text)
    ]


def python_blocks(text: str) -> list[str]:
    """The examples of a Markdown text."""
    return [block.code for block in blocks(text) if block.language == "python"]


def prose(text: str) -> str:
    """A Markdown text without its blocks and without `code`."""
    return re.sub(r"`[^`\n]+`", "", FENCE.sub("", text))


def anchors(text: str) -> set[str]:
    """What a link may name after its #: the headings, as GitHub and the site spell them."""
    headings = re.findall(r"^#+ (.*)$", FENCE.sub("", text), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def links(text: str) -> Iterator[tuple[str, str]]:
    """(file, anchor) of every link and picture that does not lead into the web."""
    for target in re.findall(r"\]\(([^)\s]+)\)", FENCE.sub("", text)):
        if not target.startswith("http"):
            file, _, anchor = target.partition("#")
            yield file, anchor


def told(start: str, page: str) -> dict[str, list[str]]:
    """The first table of a document after some text: {first cell of a row: the others}."""
    lines = DOCUMENTS[page].read_text("utf-8").partition(start)[2].splitlines()
    table = itertools.takewhile(
        lambda line: line.startswith("|"),
        itertools.dropwhile(lambda line: not line.startswith("|"), lines),
    )
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table]
    return {row[0]: row[1:] for row in cells[2:]}
