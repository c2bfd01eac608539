"""Oracle: what `scripts/setup.sh` installs and says on machines made of files.

Each machine has its own PATH, package indexes and a small project with the real script. Real pip
does the installing; PyTorch is an empty wheel; a shell script stands in for uv.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests import tiny_wheels

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parent.parent
CPU, DEFAULT = "2.13.0+cpu", "2.13.0"
TOOLS = ("cat", "cksum", "cp", "dirname", "env", "grep", "rm", "sed", "sh", "tail")
PYPROJECT = """
[build-system]
requires = []
build-backend = "tiny_wheels"
backend-path = ["."]
"""
PYTHON = """#!/bin/sh
case "$1 $2" in
    "-m venv") rm -rf "$4" && exec cp -Rp {fresh_venv} "$4" ;;
    *) exec {python} "$@" ;;
esac
"""
OLD_PYTHON = """#!/bin/sh
case "$1" in
    -c) exit 1 ;;
    *) echo "Python 3.10.13" ;;
esac
"""
UV = """#!/bin/sh
echo "$*" >>"$UV_CALLS"
case "$1" in
    venv) exec {python} -m venv --without-pip "$5" ;;
    *) [ -z "${{UV_BREAKS:-}}" ] || exit 2
       shift 6  # pip install -q --compile-bytecode --python .venv/bin/python
       export PIP_INDEX_URL="$THE_INDEX"
       exec {fresh_venv}/bin/python -m pip --python .venv/bin/python install "$@" ;;
esac
"""


@dataclass
class Machine:
    """The project, the commands on PATH, and two package indexes: "configured" and "pytorch"."""

    root: Path
    fresh_venv: Path
    environment: dict[str, str] = field(default_factory=dict)

    def offer(self, index: str, *builds: str) -> None:
        for build in builds:
            tiny_wheels.add_to_index(self.root / index, "torch", build)

    def add_command(self, name: str, script: str) -> None:
        file = self.root / "bin" / name
        file.write_text(script.format(python=sys.executable, fresh_venv=self.fresh_venv))
        file.chmod(0o755)

    def setup(self, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["sh", "scripts/setup.sh"],
            cwd=self.project,
            env={**self.environment, **variables},
            capture_output=True,
            text=True,
            timeout=120,
        )

    @property
    def project(self) -> Path:
        return self.root / "project"

    @property
    def finished(self) -> bool:
        return (self.project / ".venv" / ".done").is_file()

    def uv_calls(self) -> list[str]:
        calls = self.root / "uv-calls"
        return calls.read_text().splitlines() if calls.is_file() else []

    def installed(self) -> dict[str, str]:
        """The version of each package that was installed into .venv."""
        packages = (self.project / ".venv").glob("lib/python*/site-packages/*.dist-info")
        pairs = (package.name.removesuffix(".dist-info").split("-") for package in packages)
        return {name: version for name, version in pairs if name not in ("pip", "setuptools")}


@pytest.fixture
def machine(tmp_path: Path, fresh_venv: Path) -> Machine:
    """A Linux machine with Python, whose configured index has everything but PyTorch."""
    project, commands = tmp_path / "project", tmp_path / "bin"
    (project / "scripts").mkdir(parents=True)
    shutil.copy(ROOT / "scripts" / "setup.sh", project / "scripts")
    shutil.copy(tiny_wheels.__file__, project)
    (project / "pyproject.toml").write_text(PYPROJECT)
    (project / "constraints.txt").write_text("torch==2.13.0\n")
    commands.mkdir()
    for tool in TOOLS:
        (commands / tool).symlink_to(shutil.which(tool) or tool)
    tiny_wheels.add_to_index(tmp_path / "configured", "fake-linter", "1.0")
    index = f"file://{tmp_path / 'configured'}"
    made = Machine(
        tmp_path,
        fresh_venv,
        {
            "PATH": str(commands),
            "HOME": str(tmp_path),
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_RETRIES": "0",
            "PIP_INDEX_URL": index,
            "THE_INDEX": index,
            "TORCH_INDEX": f"file://{tmp_path / 'pytorch'}",
            "UV_CALLS": str(tmp_path / "uv-calls"),
        },
    )
    made.add_command("python3", PYTHON)
    made.add_command("uname", "#!/bin/sh\necho Linux\n")
    return made


def expect(machine: Machine, build: str, **variables: str) -> list[str]:
    """Set up, check that everything is there with this build of PyTorch, return what was said."""
    process = machine.setup(**variables)
    assert process.returncode == 0, process.stderr
    assert process.stderr == ""
    assert machine.installed() == {"torch": build, "eqprop": "0.1.0", "fake_linter": "1.0"}
    assert machine.finished
    lines = process.stdout.splitlines()
    assert all(line.startswith("setup: ") for line in lines)
    python = "{}.{}".format(*sys.version_info)
    end = f"setup: done: .venv has Python {python} and PyTorch {build}"
    assert not lines or lines[-1] == end
    return [line.removeprefix("setup: ") for line in lines]


def expect_error(process: subprocess.CompletedProcess[str]) -> str:
    assert process.returncode == 1
    (line,) = process.stderr.splitlines()
    assert line.startswith("setup: error: ")
    return line.removeprefix("setup: error: ")


def test_the_cpu_build_of_the_configured_index_comes_first(machine):
    machine.offer("configured", CPU, DEFAULT)
    machine.offer("pytorch", CPU)
    said = expect(machine, CPU)
    assert said[:-1] == [
        "installing PyTorch 2.13.0: the CPU build, from the configured package index",
        "installing eqprop and its development tools",
    ]


def test_then_the_cpu_build_of_pytorchs_own_index(machine):
    machine.offer("configured", DEFAULT)
    machine.offer("pytorch", CPU)
    said = expect(machine, CPU)
    index = machine.environment["TORCH_INDEX"]
    assert said[1] == f"not found; trying the CPU build from PyTorch's own index, {index}"


def test_then_the_default_build(machine):
    machine.offer("configured", DEFAULT)
    del machine.environment["TORCH_INDEX"]
    unreachable = {"https_proxy": "http://127.0.0.1:9"}
    said = expect(machine, DEFAULT, **unreachable)
    assert said[1].endswith("PyTorch's own index, https://download.pytorch.org/whl/cpu")
    assert said[2].startswith("not found; trying the default build")


def test_macos_has_one_build(machine):
    machine.add_command("uname", "#!/bin/sh\necho Darwin\n")
    machine.offer("configured", DEFAULT)
    machine.offer("pytorch", CPU)
    said = expect(machine, DEFAULT)
    assert said[0] == "installing PyTorch 2.13.0"


def test_a_build_that_is_asked_for_replaces_another(machine):
    machine.offer("configured", CPU, DEFAULT)
    expect(machine, CPU)
    assert expect(machine, DEFAULT, TORCH=DEFAULT)[0] == "installing PyTorch 2.13.0"
    assert expect(machine, DEFAULT, TORCH=DEFAULT) == []
    assert expect(machine, DEFAULT) == []


def test_uv_is_preferred(machine):
    machine.add_command("uv", UV)
    machine.offer("configured", CPU)
    del machine.environment["PIP_INDEX_URL"]
    said = expect(machine, CPU)
    assert said[0] == "using uv"
    into = "pip install -q --compile-bytecode --python .venv/bin/python"
    assert machine.uv_calls() == [
        "venv -q --python python3 .venv",
        f"{into} --no-deps torch==2.13.0+cpu",
        f"{into} -c constraints.txt -e .[dev]",
    ]


def test_pip_is_used_where_only_pip_is_told_which_index_to_ask(machine):
    machine.add_command("uv", UV)
    machine.offer("configured", CPU)
    said = expect(machine, CPU)
    assert said[0] == "using pip, not uv: only pip has a package index configured"
    assert machine.uv_calls() == []


def test_uv_is_used_where_it_is_told_which_index_to_ask(machine):
    machine.add_command("uv", UV)
    machine.offer("configured", DEFAULT)
    machine.offer("pytorch", CPU)
    expect(machine, CPU, UV_DEFAULT_INDEX=machine.environment["THE_INDEX"])
    assert len(machine.uv_calls()) == 4


def test_pip_takes_over_where_uv_fails(machine):
    machine.add_command("uv", UV)
    machine.offer("configured", CPU)
    both = {"UV_DEFAULT_INDEX": machine.environment["THE_INDEX"], "UV_BREAKS": "1"}
    said = expect(machine, CPU, **both)
    assert "uv failed; trying again with pip" in said


@pytest.mark.parametrize("name", [None, "python3"])
def test_a_python_that_is_too_old_is_refused(machine, name):
    machine.add_command("python3", OLD_PYTHON)
    error = expect_error(machine.setup(**({"PYTHON": name} if name else {})))
    assert error.startswith("eqprop needs Python 3.11 to 3.14, which python3 is not")
    assert not (machine.project / ".venv").exists()


def test_a_python_without_venv_says_what_to_install(machine):
    machine.add_command("python3", PYTHON.replace('rm -rf "$4" &&', "exit 1;"))
    error = expect_error(machine.setup())
    assert error == "python3 cannot create .venv: on Debian and Ubuntu, apt install python3-venv"
    assert not machine.finished


def test_a_newer_python_beside_one_that_is_too_old_is_found(machine):
    machine.add_command("python3", OLD_PYTHON)
    machine.add_command("python3.12", PYTHON.replace('rm -rf "$4" &&', "exit 1;"))
    assert expect_error(machine.setup()).startswith("python3.12 cannot create .venv")


def test_offline_nothing_looks_done(machine):
    offline = {"PIP_INDEX_URL": "http://127.0.0.1:9/", "TORCH_INDEX": "http://127.0.0.1:9/"}
    error = expect_error(machine.setup(**offline))
    assert "No matching distribution found for torch==2.13.0" in error
    assert "Is this machine online? .venv/setup.log has the details" in error
    assert "127.0.0.1" in (machine.project / ".venv" / "setup.log").read_text()
    assert not machine.finished


def test_a_second_run_does_nothing_until_something_changes(machine):
    machine.offer("configured", CPU)
    expect(machine, CPU)
    assert expect(machine, CPU) == []
    with open(machine.project / "pyproject.toml", "a") as file:
        file.write("# changed\n")
    assert expect(machine, CPU)[:-1] == ["installing eqprop and its development tools"]
    (machine.project / "constraints.txt").write_text("torch==2.14.0\n")
    expect_error(machine.setup())
    assert not machine.finished
    machine.offer("configured", "2.14.0+cpu")
    expect(machine, "2.14.0+cpu")
    python = machine.project / ".venv" / "bin" / "python"
    python.unlink()
    python.symlink_to("nothing")  # the Python that .venv was made with is gone
    assert expect(machine, "2.14.0+cpu") != []


def test_another_python_that_is_asked_for_gets_a_new_environment(machine):
    machine.offer("configured", CPU)
    expect(machine, CPU)
    version = "{}.{}".format(*sys.version_info)
    another = PYTHON.replace(
        "*)", f'"-c import sys; print"*) echo 3.{sys.version_info.minor + 1} ;;\n    *)'
    )
    machine.add_command("another", another)
    assert expect(machine, CPU, PYTHON="python3") == []
    assert expect(machine, CPU, PYTHON="another")[-1].startswith(
        f"done: .venv has Python {version}"
    )
