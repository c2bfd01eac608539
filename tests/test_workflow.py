"""Oracle: the Makefile, for everything that names its targets."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import yaml

ROOT = Path(__file__).parent.parent
MAKEFILE = (ROOT / "Makefile").read_text()
TARGETS = set(re.findall(r"^([a-z]+):", MAKEFILE, re.MULTILINE))
WORKFLOW = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())
JOB = WORKFLOW["jobs"]["check"]


def make_targets(text: str) -> set[str]:
    """The words after each "make" at the start of a command."""
    commands = re.findall(r"^\s*make((?: [a-z]+)+)", text, re.MULTILINE)
    return {word for words in commands for word in words.split()}


def test_the_public_checks_run_on_two_systems_and_two_pythons():
    assert set(WORKFLOW) == {"name", True, "permissions", "jobs"}  # YAML 1.1 reads "on" as true
    assert set(WORKFLOW[True]) == {"push", "pull_request"}
    assert JOB["strategy"]["matrix"] == {
        "os": ["ubuntu-latest", "macos-latest"],
        "python": ["3.11", "3.13"],
    }
    for step in JOB["steps"]:
        assert ("uses" in step) != ("run" in step), step
        assert re.fullmatch(r"actions/[a-z-]+@v\d+", step.get("uses", "actions/x@v1"))


def test_the_public_checks_run_all_that_make_test_runs_and_the_wheel():
    named = {target for step in JOB["steps"] for target in make_targets(step.get("run", ""))}
    assert named <= TARGETS
    assert named >= {"lint", "types", "quick", "slow", "mutation", "wheel"}
    (parts,) = re.findall(r"^test: ([a-z ]+?)  ##", MAKEFILE, re.MULTILINE)
    assert set(parts.split()) <= named


def test_the_private_checks_are_make_test():
    assert make_targets((ROOT / ".ci" / "run").read_text()) == {"test"}


def test_documents_name_targets_that_exist():
    for file in ("README.md", "CONTRIBUTING.md", *(p for p in (ROOT / "docs").glob("*.md"))):
        text = (ROOT / file).read_text()
        named = set(re.findall(r"`make ([a-z]+)", text)) | make_targets(text)
        assert named <= TARGETS, file


def test_every_target_is_phony_and_explained():
    (phony,) = re.findall(r"^\.PHONY: (.*)$", MAKEFILE, re.MULTILINE)
    assert set(phony.split()) == TARGETS
    outside = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    process = subprocess.run(
        ["make", "help"], cwd=ROOT, env=outside, capture_output=True, text=True, check=True
    )
    explained = dict(line.split(maxsplit=1) for line in process.stdout.splitlines())
    assert set(explained) == TARGETS
    assert all(text[0].isupper() and text.endswith(".") for text in explained.values())
