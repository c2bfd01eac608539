"""Plant one-line defects in a copy of the sources; each must be caught by the test it names.

    python tests/mutations.py            every defect, two at a time
    python tests/mutations.py --find     which tests catch each defect, over the whole suite

A defect that survives, or whose line is no longer in the sources, fails the run.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent


@dataclass(frozen=True)
class Defect:
    what: str
    file: str
    line: str
    becomes: str
    test: str


DEFECTS = (
    Defect(
        "C-EP: sign of the update flipped",
        "rules/continual_ep.py",
        "change = {name: after[name] - before[name] for name in after}",
        "change = {name: before[name] - after[name] for name in after}",
        "",
    ),
    Defect(
        "C-EP: ∂Φ/∂θ at s_t kept from the step before, when θ was another",
        "rules/continual_ep.py",
        "        before = trial.model.phi_gradient(trial.x, s)\n",
        "        before = after if t else trial.model.phi_gradient(trial.x, s)  # noqa: F821\n",
        "",
    ),
    Defect(
        "EP: sign of the update flipped",
        "rules/ep.py",
        "{name: after[name] - before[name] for name in after}",
        "{name: before[name] - after[name] for name in after}",
        "",
    ),
    Defect(
        "C-VF: s_{t+1} where s_t belongs",
        "rules/continual_vf.py",
        "vector_field_gradient(trial.x, s, ds)",
        "vector_field_gradient(trial.x, s_next, ds)",
        "",
    ),
    Defect(
        "VF on tied weights: W where Wᵀ belongs in the backward share",
        "synapses.py",
        "return self._named(forward + backward.mT, None, d_post)",
        "return self._named(forward, None, d_post)",
        "",
    ),
    Defect(
        "within a layer: the ½ of ½ sᵀWs dropped from ∂φ/∂W",
        "synapses.py",
        "product = 0.5 * product * self.block_mask",
        "product = product * self.block_mask",
        "",
    ),
    Defect(
        "feedback through the forward weight although a backward weight exists",
        "synapses.py",
        "self.weight.mT if self.backward_weight is None else self.backward_weight",
        "self.weight.mT",
        "",
    ),
    Defect(
        "nudge away from the target",
        "dynamics.py",
        "output - strength * cost_gradient",
        "output + strength * cost_gradient",
        "",
    ),
    Defect(
        "nudge without the factor ε of real time",
        "dynamics.py",
        "strength = per_member(beta, output, model.ensemble) * model.nudge_scale",
        "strength = per_member(beta, output, model.ensemble)",
        "",
    ),
    Defect(
        "sum over the batch instead of its mean",
        "model.py",
        "return {name: gradient / batch for name, gradient in summed.items()}",
        "return dict(summed)",
        "",
    ),
    Defect(
        "BPTT: states in forward order on the way back",
        "rules/bptt.py",
        "reversed(trial.free.history)",
        "iter(trial.free.history)",
        "",
    ),
    Defect(
        "RBP: ∇_s one step ahead of ∇_θ",
        "rules/rbp.py",
        "yield Step(nabla_s, nabla_theta)",
        "yield Step(later, nabla_theta)",
        "",
    ),
    Defect(
        "real time: σ′ dropped by default, so F is not ∂Φ/∂s",
        "timesteps.py",
        'slope: str = "all"',
        'slope: str = "none"',
        "",
    ),
    Defect(
        "sigmoid shifted by ⅛ instead of ½",
        "activations.py",
        "torch.sigmoid(4 * (v - 0.5))",
        "torch.sigmoid(4 * v - 0.5)",
        "",
    ),
    Defect(
        "in turn: even depths first",
        "dynamics.py",
        "groups[t % len(groups)]",
        "groups[(t + 1) % len(groups)]",
        "",
    ),
    Defect(
        "a member stops when the first of its samples settles",
        "dynamics.py",
        "residual.amax(-1) > tolerance",
        "residual.amin(-1) > tolerance",
        "",
    ),
    Defect(
        "sign flips with probability 1 − cos Ψ",
        "synapses.py",
        "p = 0.5 * (1 - math.cos(math.radians(angle)))",
        "p = 1 - math.cos(math.radians(angle))",
        "",
    ),
    Defect(
        "rescaled C-EP: the total never rescaled",
        "engines/descent.py",
        "theta[name].copy_(start[name] - eta[name] * moved[name])",
        "theta[name].copy_(start[name] - rescale * eta[name] * moved[name])",
        "",
    ),
    Defect(
        "learning rates from output to input",
        "engines/descent.py",
        'given[int(name.split(".")[1])]',
        'given[-1 - int(name.split(".")[1])]',
        "",
    ),
    Defect(
        "every member draws the weights of the first",
        "seeds.py",
        "return tuple(range(seed, seed + members))",
        "return (seed,) * members",
        "",
    ),
)


def run(defect: Defect, tests: list[str]) -> tuple[Defect, bool, str]:
    """Whether the tests fail once the defect is planted, and what pytest said."""
    with tempfile.TemporaryDirectory() as folder:
        package = Path(folder) / "eqprop"
        shutil.copytree(ROOT / "src" / "eqprop", package)
        file = package / defect.file
        source = file.read_text("utf-8")
        if source.count(defect.line) != 1:
            return defect, False, f"its line stands {source.count(defect.line)} times"
        file.write_text(source.replace(defect.line, defect.becomes), "utf-8")
        environment = {**os.environ, "PYTHONPATH": folder, "PYTHONDONTWRITEBYTECODE": "1"}
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--no-header"]
        process = subprocess.run(
            [*command, "--tb=no", *tests], cwd=ROOT, env=environment, capture_output=True, text=True
        )
        # 1: tests ran and failed. Anything else (no such test, an import error) is not a catch.
        return defect, process.returncode == 1, process.stdout


def main() -> int:
    find = "--find" in sys.argv
    survivors = 0
    with ThreadPoolExecutor(2) as pool:
        everything = sorted(str(p) for p in (ROOT / "tests").glob("test_*.py"))
        core = [p for p in everything if "data" not in p and "readme" not in p]
        jobs = [pool.submit(run, d, core if find else [d.test]) for d in DEFECTS]
        for job in jobs:
            defect, caught, said = job.result()
            survivors += not caught
            print(f"{'caught  ' if caught else 'SURVIVED'}  {defect.what}  [{defect.test}]")
            if find or not caught:
                lines = said.splitlines()
                print("\n".join(f"    {line}" for line in lines if "FAILED" in line or find)[:3000])
    print(f"{len(DEFECTS) - survivors} passed, {survivors} failed")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
