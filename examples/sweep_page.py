"""Pages of the documentation that show a sweep: what their scripts share.

The sweep NAME is examples/NAME.toml, its runs lie below results/NAME, and docs/NAME.md shows them.
"""

import argparse
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from eqprop.runs.folder import RunFolder
from eqprop.runs.recipe import Recipe
from eqprop.sweeps import file
from eqprop.sweeps.table import Row, Table, collect

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class SweepPage:
    """A page about a sweep, with a part that a script writes.

    Args:
        name: name of the sweep, its results, its page and its script.
        parts: fields in which a run may differ from the sweep, because it holds some of its
            networks. Default: none.
        root: the folder that holds examples, results and docs. Default: that of the repository.
    """

    name: str
    parts: tuple[str, ...] = ()
    root: Path = ROOT

    @cached_property
    def recipes(self) -> dict[str, Recipe]:
        """The recipes of the sweep by name, in its order."""
        found = file.read(self.root / "examples" / f"{self.name}.toml")
        return {recipe.name: recipe for recipe in found}

    @property
    def results(self) -> Path:
        return self.root / "results" / self.name

    def options(self) -> argparse.Namespace:
        """Return the options of the command line: `folder` and `update_docs`."""
        page = f"docs/{self.name}.md"
        parser = argparse.ArgumentParser(description=f"Print the table of {page}.")
        parser.add_argument("folder", nargs="?", type=Path, default=self.results)
        parser.add_argument(
            "--update-docs", action="store_true", help="also write it into the page"
        )
        return parser.parse_args()

    def runs(self, folder: Path) -> Table:
        """Return the networks of all run folders below a folder. The results may not exist yet."""
        if folder == self.results and not folder.is_dir():
            return Table([], folder)
        table = collect(folder)
        for run in table.folders:
            self._check(run)
        return table

    def _check(self, folder: RunFolder) -> None:
        """Raise if a run has the name of a recipe of the sweep, but other settings."""
        found = folder.recipe()
        if (wanted := self.recipes.get(found.name)) is None:
            return
        differing = [path for path in found.differences(wanted) if path not in self.parts]
        differing += ["epochs"] * (found.epochs != wanted.epochs and "epochs" not in differing)
        if differing:
            raise SystemExit(
                f"{folder.path}: its {', '.join(differing)} differ from examples/{self.name}.toml: "
                "move it away"
            )

    def update(self, text: str) -> None:
        """Replace the part of the page that the script writes."""
        page = self.root / "docs" / f"{self.name}.md"
        start = f"<!-- python examples/{self.name}.py -->\n"
        marked = re.compile(f"({re.escape(start)}).*?(<!-- end -->)", re.DOTALL)
        page.write_text(marked.sub(rf"\1\n{text}\n\2", page.read_text("utf-8")), "utf-8")


def once(networks: Sequence[Row]) -> Sequence[Row]:
    """Return networks of one setting; raise if two of them have the same seed."""
    if len({network["seed"] for network in networks}) < len(networks):
        folders = " and ".join(sorted({network["folder"] for network in networks}))
        raise SystemExit(f"{folders} hold the same networks: move one of them away")
    return networks
