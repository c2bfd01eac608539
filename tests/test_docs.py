"""Oracle: the documents. Their code and commands run as written; their links lead somewhere."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
import torch
import yaml

import eqprop
from eqprop import engines
from tests import test_examples
from tests.documents import DOCUMENTS, ROOT, anchors, blocks, links, prose

NOT_RUN = {  # how many blocks of each
    "README.md": 1,
    "CONTRIBUTING.md": 1,
    "docs/convolution.md": 3,
    "docs/fashion.md": 1,
    "docs/ladder.md": 2,
    "docs/paper.md": 1,
    "docs/search.md": 3,
    "docs/settings.md": 1,
    "docs/sweeps.md": 5,
    "docs/tune.md": 1,
    "docs/start.md": 2,
}
SLOW = {
    *("docs/runs.md", "docs/start.md", "docs/settings.md", "docs/paper.md", "docs/networks.md"),
    *("docs/search.md", "docs/sweeps.md", "docs/explorer.md", "docs/convolution.md"),
}
READ = {"toml": tomllib.loads, "yaml": yaml.safe_load}  # languages of files, not of programs
SHOWING = [
    pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else [])
    for name, path in DOCUMENTS.items()
    if any(block.language in ("python", "sh") for block in blocks(path.read_text("utf-8")))
]


def text_of(name: str) -> str:
    return DOCUMENTS[name].read_text("utf-8")


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_block_says_what_it_is(name):
    text = text_of(name)
    for block in blocks(text):
        assert block.language in ("python", "sh", *READ, "dockerfile", "text")
        if block.language in READ:
            READ[block.language](block.code)
    marks = re.findall(r"^<!-- (?:not run|tests add): ", text, flags=re.MULTILINE)
    marked = [block for block in blocks(text) if block.not_run or block.tests_add]
    assert len(marks) == len(marked)  # none stands where it has no effect
    assert not re.search(r"^ {4}[^\s*-]", prose(text), flags=re.MULTILINE)  # no code without fence


def test_what_is_not_run_is_counted_and_has_a_reason():
    found = {
        name: [block.not_run for block in blocks(text_of(name)) if block.not_run is not None]
        for name in DOCUMENTS
    }
    assert {name: len(reasons) for name, reasons in found.items() if reasons} == NOT_RUN
    assert all(len(reason.split()) >= 3 for reasons in found.values() for reason in reasons)


@pytest.mark.parametrize("name", SHOWING)
def test_every_line_runs(name, cli, tmp_path, monkeypatch):
    """In order, in one folder and with one set of names."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(engines, "ENGINES", dict(engines.ENGINES))
    torch.manual_seed(0)
    names: dict[str, object] = {}
    for block in blocks(text_of(name)):
        if block.not_run is not None:
            continue
        if block.language == "python":
            if not (included := re.fullmatch(r'\s*--8<-- "(.*)"\s*', block.code)):
                exec(compile(block.code, name, "exec"), names)
            else:
                assert included[1] in test_examples.RUN
        elif named := re.match(r"# (\S+\.toml)\n", block.code):
            Path(named[1]).write_text(block.code)
        elif block.language == "sh":
            for program, *words in block.commands():
                if program == "python":
                    assert " ".join(words) in test_examples.RUN
                else:
                    assert program == "eqprop"
                    outcome = cli(*words)
                    assert outcome.code == 0, (words, outcome.err)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_link_leads_to_a_file_and_a_heading(name):
    for file, anchor in links(text_of(name)):
        target = (DOCUMENTS[name].parent / file).resolve() if file else DOCUMENTS[name]
        assert target.is_relative_to(ROOT), file
        assert target.exists(), file
        if anchor:
            assert anchor in anchors(target.read_text("utf-8")), f"{file}#{anchor}"


def test_every_public_name_is_in_the_api_page():
    named = re.findall(r"^::: eqprop\.(\w+)$", text_of("docs/api.md"), flags=re.MULTILINE)
    assert sorted(named) == sorted(eqprop.__all__)


def rows(text: str, start: str) -> dict[str, dict[str, str]]:
    """The table after `start`: {first cell of a row: {column: cell}}."""
    lines = text[text.index(start) :].splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith("|"))
    table = []
    for line in lines[first:]:
        if not line.startswith("|"):
            break
        table.append([cell.strip(" *`") for cell in line.strip("|").split("|")])
    head, _, *body = table
    return {row[0]: dict(zip(head, row, strict=True)) for row in body}


def test_the_story_of_c_vf_has_the_numbers_of_the_tables():
    told = rows(text_of("docs/understand.md"), "| `update_slope` |")
    measured = rows(text_of("docs/fidelity.md"), "*C-VF-1h by the initial angle")
    columns = {'"none"': "as released", '"own"': "eqprop", '"full"': "full", "": "paper"}
    assert told.keys() == columns.keys()
    for slope, column in columns.items():
        for angle, cell in (("0", "one hidden layer, Ψ = 0°"), ("180", "Ψ = 180°")):
            published = measured[f"C-VF-1h, Ψ = {angle}°"][column]
            assert told[slope][cell].strip(" *%") == published.partition(" ")[0]


def test_the_comparison_has_the_measured_speeds():
    compared = rows(text_of("docs/compare.md"), "## Speed")
    measured = rows(text_of("docs/speed.md"), "## Measured on two cores")
    assert {name.lower() for name in compared} == measured.keys()
    columns = {
        "baseline": "baseline, ms",
        "eqprop, 1 network": "1 network, ms",
        "eqprop, 5 networks": "5 networks, ms",
    }
    for name, row in compared.items():
        for ours, theirs in columns.items():
            assert row[ours] == measured[name.lower()][theirs]


def test_documents_name_files_that_exist():
    """In `code` and in comments: examples/x.py, tests/test_x.py, results/x.json, docs/x.md."""
    for name in DOCUMENTS:
        for path in re.findall(
            r"\b((?:examples|benchmarks|tests|results|scripts|docs)/[\w/.-]+\.\w+)", text_of(name)
        ):
            made_up = Path(path).stem in ("test_NAME", "test_x")
            assert made_up or (ROOT / path).exists(), f"{name}: {path}"
