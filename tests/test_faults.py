"""A short campaign of faults; `make faults` runs the long one."""

import json
from pathlib import Path

import pytest

from tests import faults


@pytest.mark.slow
def test_a_short_campaign_of_faults_finds_nothing(tmp_path: Path) -> None:
    out = tmp_path / "faults.json"
    numbers = ("--kills", "6", "--damages", "20", "--inputs", "20")
    assert faults.main(["--seed", "5", *numbers, "--out", str(out)]) == 0
    rows = {row["fault"]: row["tried"] for row in json.loads(out.read_text())["rows"]}
    assert rows["kill -9"] >= 6
    assert rows["run finished after kills"] >= 1
    assert sum(n for name, n in rows.items() if name.startswith("file")) == 20
    assert sum(n for name, n in rows.items() if name.startswith("bad")) == 20
