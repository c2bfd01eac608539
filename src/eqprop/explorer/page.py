"""The page as a file: read its content, and write one with the networks of a run."""

from __future__ import annotations

import json
import os
import re
from importlib.resources import files
from pathlib import Path

from eqprop import data as datasets
from eqprop.explorer.content import Record, pack_digits, pack_network
from eqprop.runs.folder import RunFolder
from eqprop.runs.recipe import Recipe, UserError
from eqprop.runs.run import Run, load
from eqprop.runs.training import fitting

HELD = re.compile(r'(<script type="application/json" id="content">)(.*?)(</script>)', re.DOTALL)
MOST = 8  # networks of a run on a page: each adds about 2 MB
RULES = {"ep": "ep", "continual-ep": "c-ep", "vf": "vf", "continual-vf": "c-vf"}


def read(page: str | os.PathLike[str] | None = None) -> Record:
    """Return the content of a page, {"networks": [...], "digits": {...}}.

    `page` is an HTML file. Default None: the page of this package.
    """
    found = HELD.search(_text(page))
    if found is None:
        raise UserError(f"{page}: this is no page of the explorer: write one with eqprop explore")
    held: Record = json.loads(found[2])
    return held


def _text(page: str | os.PathLike[str] | None) -> str:
    if page is None:
        return (files("eqprop.explorer") / "page.html").read_text("utf-8")
    return Path(page).read_text("utf-8")


def write(out: str | os.PathLike[str], run: str | os.PathLike[str] | None = None) -> int:
    """Write the page; return the number of networks of the run on it.

    Args:
        out: the HTML file.
        run: a run folder. Its networks come first on the page. Default None: the page of this
            package, unchanged.
    """
    text, added = _text(None), 0
    if run is not None:
        held, trained = read(), load(run)
        records = run_networks(trained)
        added = len(records)
        held["networks"] = records + held["networks"]
        held["digits"] = _digits(trained, held["digits"])
        text = HELD.sub(lambda found: found[1] + dumps(held) + found[3], text, count=1)
    Path(out).write_text(text, "utf-8")
    return added


def dumps(held: Record) -> str:
    """Return JSON that is safe inside a script element."""
    return json.dumps(held, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")


def _digits(run: Run, held: Record) -> Record:
    """Return the digits for a run: those of the page, unless the run has other data."""
    part = run.recipe.data
    if part.name == held["set"] and not part.normalise:
        return held
    assert run.folder is not None
    folder = RunFolder(run.folder).data_folder()
    data = fitting(datasets.load(part.name, folder), run.recipe)
    test = [number for number in held["test"] if number < len(data.test)]
    return pack_digits(data, min(held["train"], len(data.train)), test)


def run_networks(run: Run) -> list[Record]:
    """Pack the networks of a run for a page, at most `MOST`."""
    if run.net is None:
        raise UserError(f"{run.folder}: the run has saved no network that is finite")
    records = []
    for i, member in enumerate(run.living[:MOST]):
        seed, angle = run.members[member].seed, run.members[member].angle
        title = f"{run.recipe.name}, seed {seed}" + (f", Ψ = {angle:g}° at first" if angle else "")
        records.append(
            pack_network(
                run.net.member(i),
                f"run-{member}",
                f"{title}, {run.place}",
                f"eqprop.load({str(run.folder)!r}).net.member({i}).double()",
                settings_of(run.recipe, member),
            )
        )
    return records


def settings_of(recipe: Recipe, member: int = 0) -> Record:
    """Return the values of the controls for a member of this recipe."""
    chosen, rule = recipe.members()[member], recipe.rule
    settings: Record = {"T": rule.free_steps, "order": "turn" if rule.in_turn else "sync"}
    if rule.name in RULES:
        settings |= {
            "rule": RULES[rule.name],
            "beta": chosen.beta,
            "eta": list(chosen.learning_rates),
            "K": rule.nudged_steps,
            "slope": rule.update_slope,
        }
    return settings
