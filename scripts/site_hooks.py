"""What MkDocs cannot do by itself, for `make docs`.

- A formula, $…$ or $$…$$, becomes MathML: browsers show it without a script.
- A file of the repository that a page links to, ../results/…, becomes part of the site.
- <!-- help --> becomes the help of every command of `eqprop`.
- The docstring of a class is the one that `help` shows: rules explain what they inherit.
"""

from __future__ import annotations

import argparse
import html
import inspect
import os
import posixpath
import pydoc
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import griffe
from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from eqprop.cli import _parser

ROOT = Path(__file__).parent.parent
LINK = re.compile(r"(?<=\]\()([^)#:]+)")
FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)

os.environ["COLUMNS"] = "80"  # how wide argparse writes


def on_files(files: Files, config: MkDocsConfig) -> Files:
    pages = list(files.documentation_pages())
    for page in pages:
        for target in LINK.findall(page.content_string):
            path = in_repository(page.src_uri, target)
            if (ROOT / path).is_file() and files.get_file_from_path(path) is None:
                linked = File.generated(config, path, abs_src_path=str(ROOT / path))
                files.append(linked)
                if linked.is_documentation_page():
                    pages.append(linked)  # which has links of its own
    return files


def in_repository(page: str, target: str) -> str:
    """What a page links to. The site has docs/ and the rest of the repository in one folder."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(page), target)).removeprefix("../")


def on_page_markdown(text: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    if "/" not in page.file.src_uri:  # a page of docs/
        text = text.replace("](../", "](")
    return text.replace("<!-- help -->", "\n".join(help_sections(_parser(), "eqprop")))


def on_page_content(text: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    return FORMULA.sub(_mathml, text)


def _mathml(found: re.Match[str]) -> str:
    display = "block" if found[1] == "div" else "inline"
    formula = convert(html.unescape(found[2]).strip(), display=display)
    return f'<{found[1]} class="formula">{formula}</{found[1]}>'


def help_sections(command: argparse.ArgumentParser, name: str) -> Iterator[str]:
    """A heading and the help of a command, then those of its subcommands."""
    yield f"## `{name}`\n\n```text\n{command.format_help()}```\n"
    for action in command._actions:
        if isinstance(action, argparse._SubParsersAction):
            for word, below in action.choices.items():
                yield from help_sections(below, f"{name} {word}")


class Docstrings(griffe.Extension):
    """Docstrings as they are once the classes are made."""

    def on_class(self, *, cls: griffe.Class, **_: Any) -> None:
        text = inspect.getdoc(pydoc.locate(cls.path)) if cls.docstring else None
        if text is not None:
            cls.docstring = griffe.Docstring(text, parent=cls)
