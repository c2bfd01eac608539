"""Oracle: the sources. What is built contains them all and works without the repository."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

import eqprop

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "eqprop"
NEEDED = (
    "eqprop/py.typed",
    "eqprop/engines/native/kernel.c",
    "eqprop/explorer/page.html",
    "eqprop/engines/persistent/one_hidden.cu",
    "eqprop/engines/persistent/two_hidden.cu",
    "eqprop/engines/persistent/common.cuh",
    "eqprop/report/page.css",
    "eqprop/report/page.js",
    "eqprop/recipes/c-ep-1h.toml",
)


@dataclass(frozen=True)
class Built:
    wheel: Path
    sdist: Path


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """The wheel and the source distribution, built from a copy of the repository."""
    folder = tmp_path_factory.mktemp("build")
    for file in (
        "pyproject.toml",
        "README.md",
        "LICENSE",
        "MANIFEST.in",
        "CHANGELOG.md",
        "CITATION.cff",
    ):
        shutil.copy(ROOT / file, folder)
    unwanted = shutil.ignore_patterns("__pycache__", "*.egg-info")
    shutil.copytree(ROOT / "src", folder / "src", ignore=unwanted)
    command = [sys.executable, "-m", "build", "--no-isolation", str(folder)]
    process = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert process.returncode == 0, process.stdout + process.stderr
    (wheel,), (sdist,) = folder.glob("dist/*.whl"), folder.glob("dist/*.tar.gz")
    return Built(wheel, sdist)


def sources() -> set[str]:
    files = (file for file in PACKAGE.rglob("*") if file.is_file())
    return {
        str(file.relative_to(PACKAGE.parent)) for file in files if "__pycache__" not in file.parts
    }


@pytest.mark.slow
def test_the_wheel_contains_every_source_and_the_licence(built):
    names = set(zipfile.ZipFile(built.wheel).namelist())
    assert names >= sources() >= set(NEEDED)
    information = f"eqprop-{eqprop.__version__}.dist-info"
    assert f"{information}/licenses/LICENSE" in names
    assert all(name.startswith(("eqprop/", information)) for name in names)


@pytest.mark.slow
def test_the_source_distribution_contains_every_source_and_the_licence(built):
    top = f"eqprop-{eqprop.__version__}"
    with tarfile.open(built.sdist) as archive:
        names = {name.removeprefix(f"{top}/") for name in archive.getnames()}
    assert names >= {f"src/{name}" for name in sources()}
    assert names >= {"LICENSE", "README.md", "CHANGELOG.md", "CITATION.cff", "pyproject.toml"}


@pytest.mark.slow
def test_an_installed_wheel_trains_without_the_repository(built, fresh_venv, mnist, tmp_path):
    venv, elsewhere = tmp_path / "venv", tmp_path / "elsewhere"
    shutil.copytree(fresh_venv, venv, symlinks=True)
    elsewhere.mkdir()
    environment = {n: v for n, v in os.environ.items() if not n.startswith(("PYTHON", "PYTEST"))}

    def run(*words: str | Path) -> str:
        process = subprocess.run(
            words, cwd=elsewhere, env=environment, capture_output=True, text=True, timeout=200
        )
        assert process.returncode == 0, process.stdout + process.stderr
        return process.stdout + process.stderr

    python = venv / "bin" / "python"
    run(python, "-m", "pip", "install", "-q", "--no-deps", "--no-index", built.wheel)
    # PyTorch and the others come from where the tests have them. Python does not read the .pth
    # files of a folder that another .pth file names, so an editable eqprop there stays unseen.
    (packages,) = venv.glob("lib/python*/site-packages")
    (packages / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    where = "import eqprop, sys; print(eqprop.__file__); print(*sys.path)"
    file, path = run(python, "-c", where).splitlines()
    assert Path(file).is_relative_to(packages)
    assert str(ROOT / "src") not in path.split()
    assert f"eqprop {eqprop.__version__}" in run(venv / "bin" / "eqprop", "--version")
    small = ("--epochs", "1", "--set", "train_samples=200", "--set", "test_samples=100")
    run(venv / "bin" / "eqprop", "train", "c-ep-1h", *small, "--out", "run")
    assert (elsewhere / "run" / "summary.json").is_file()
    assert (elsewhere / "run" / "curves.png").is_file()


def test_the_version_has_one_home():
    number = re.escape(eqprop.__version__)
    assert re.fullmatch(r"\d+\.\d+\.\d+", eqprop.__version__)
    for file in ("pyproject.toml", "CITATION.cff"):
        text = (ROOT / file).read_text()
        assert not re.search(rf'^version: |^version = "|{number}"', text, re.MULTILINE), file


def test_the_changelog_has_releases_with_the_newest_first():
    headings = re.findall(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[:2] == ["Unreleased", eqprop.__version__]
    numbers = [tuple(map(int, heading.split("."))) for heading in headings[1:]]
    assert numbers == sorted(numbers, reverse=True)


def test_the_citation_names_the_software_and_the_paper():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert {"cff-version", "message", "title", "authors"} <= set(
        citation
    )  # what the format demands
    assert citation["license"] == "Apache-2.0"
    paper = citation["preferred-citation"]
    assert [author["family-names"] for author in paper["authors"]] == [
        "Ernoult",
        "Grollier",
        "Querlioz",
        "Bengio",
        "Scellier",
    ]
    assert paper["url"] in (ROOT / "README.md").read_text()


@pytest.mark.slow
def test_without_fcntl_everything_imports_and_training_asks_for_wsl(tmp_path, mnist):
    script = (
        "import sys; sys.modules['fcntl'] = None\n"
        "import eqprop, eqprop.runs, eqprop.papers.continual_ep, eqprop.cli\n"
        "sys.exit(eqprop.cli.main(sys.argv[1:]))"
    )
    small = ("--epochs", "1", "--set", "train_samples=20", "--set", "test_samples=20")
    process = subprocess.run(
        [sys.executable, "-c", script, "train", "c-ep-1h", *small, "--out", tmp_path / "run"],
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert process.returncode == 2
    (line,) = process.stderr.splitlines()
    assert line.startswith("eqprop: error: ")
    assert "Windows lacks: use WSL" in line
