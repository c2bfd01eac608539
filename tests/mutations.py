"""Plant one-line defects in a copy of the sources; each must be caught by the test it names.

    python tests/mutations.py            every defect, one per core at a time
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
        "test_toy_model.py::test_continual_ep_follows_its_closed_form_as_its_consumer_moves_theta",
    ),
    Defect(
        "C-EP: ∂Φ/∂θ at s_t kept from the step before, when θ was another",
        "rules/continual_ep.py",
        "        before = trial.model.phi_gradient(trial.x, s)\n",
        "        before = after if t else trial.model.phi_gradient(trial.x, s)  # noqa: F821\n",
        "test_toy_model.py::test_continual_ep_follows_its_closed_form_as_its_consumer_moves_theta",
    ),
    Defect(
        "EP: sign of the update flipped",
        "rules/ep.py",
        "{name: after[name] - before[name] for name in after}",
        "{name: before[name] - after[name] for name in after}",
        "test_toy_model.py::test_one_engine_step_of_ep_moves_theta_once_by_the_whole_difference",
    ),
    Defect(
        "C-VF: s_{t+1} where s_t belongs",
        "rules/continual_vf.py",
        "vector_field_gradient(trial.x, s, ds)",
        "vector_field_gradient(trial.x, s_next, ds)",
        "test_networks.py::test_vector_field_updates_are_changes_times_what_is_transmitted",
    ),
    Defect(
        "VF on tied weights: W where Wᵀ belongs in the backward share",
        "synapses.py",
        "return self._named(forward + backward.mT, None, d_post)",
        "return self._named(forward, None, d_post)",
        "test_networks.py::test_vector_field_gradient_is_the_transposed_jacobian",
    ),
    Defect(
        "within a layer: the ½ of ½ sᵀWs dropped from ∂φ/∂W",
        "synapses.py",
        "product = 0.5 * product * self.block_mask",
        "product = product * self.block_mask",
        "test_topologies.py::test_phi_gradient_is_autograd_of_phi",
    ),
    Defect(
        "feedback through the forward weight although a backward weight exists",
        "synapses.py",
        "self.weight.mT if self.backward_weight is None else self.backward_weight",
        "self.weight.mT",
        "test_networks.py::test_the_condensed_form_is_the_layered_network_in_discrete_time",
    ),
    Defect(
        "nudge away from the target",
        "dynamics.py",
        "output - strength * cost_gradient",
        "output + strength * cost_gradient",
        "test_networks.py::test_the_nudge_is_beta_epsilon_times_y_minus_output_outside_sigma",
    ),
    Defect(
        "nudge without the factor ε of real time",
        "dynamics.py",
        "strength = per_member(beta, output, model.ensemble) * model.nudge_scale",
        "strength = per_member(beta, output, model.ensemble)",
        "test_networks.py::test_the_nudge_is_beta_epsilon_times_y_minus_output_outside_sigma",
    ),
    Defect(
        "sum over the batch instead of its mean",
        "model.py",
        "return {name: gradient / batch for name, gradient in summed.items()}",
        "return dict(summed)",
        "test_toy_model.py::test_the_gradient_of_a_batch_is_the_mean_over_its_samples",
    ),
    Defect(
        "BPTT: states in forward order on the way back",
        "rules/bptt.py",
        "reversed(trial.free.history)",
        "iter(trial.free.history)",
        "test_bptt_rbp.py::test_bptt_at_each_time_is_autograd_with_a_copy_of_theta_at_each_step",
    ),
    Defect(
        "RBP: ∇_s one step ahead of ∇_θ",
        "rules/rbp.py",
        "yield Step(nabla_s, nabla_theta)",
        "yield Step(later, nabla_theta)",
        "test_bptt_rbp.py::test_rbp_at_each_time_is_the_gradient_of_the_projected_cost",
    ),
    Defect(
        "real time: σ′ dropped by default, so F is not ∂Φ/∂s",
        "timesteps.py",
        'slope: str = "all"',
        'slope: str = "none"',
        "test_theorem.py::test_updates_equal_the_gradients_of_bptt_to_first_order_in_beta",
    ),
    Defect(
        "sigmoid shifted by ⅛ instead of ½",
        "activations.py",
        "torch.sigmoid(4 * (v - 0.5))",
        "torch.sigmoid(4 * v - 0.5)",
        "test_activations.py::test_the_value_is_the_formula",
    ),
    Defect(
        "in turn: even depths first",
        "dynamics.py",
        "groups[t % len(groups)]",
        "groups[(t + 1) % len(groups)]",
        "test_dynamics.py::test_in_turn_is_one_of_the_two_interleaved_sequences",
    ),
    Defect(
        "a member stops when the first of its samples settles",
        "dynamics.py",
        "residual.amax(-1) > tolerance",
        "residual.amin(-1) > tolerance",
        "test_dynamics.py::test_a_tolerance_stops_at_the_first_step_that_moves_no_more_than_it",
    ),
    Defect(
        "sign flips with probability 1 − cos Ψ",
        "synapses.py",
        "p = 0.5 * (1 - math.cos(math.radians(angle)))",
        "p = 1 - math.cos(math.radians(angle))",
        "test_initialisation.py::test_the_share_of_flipped_signs_is_half_of_one_minus_cosine",
    ),
    Defect(
        "rescaled C-EP: the total never rescaled",
        "engines/descent.py",
        "theta[name].copy_(start[name] - eta[name] * moved[name])",
        "theta[name].copy_(start[name] - rescale * eta[name] * moved[name])",
        "test_toy_model.py::test_one_engine_step_with_rescaling_applies_eta_to_the_updates_of_the_tiny_rate",
    ),
    Defect(
        "learning rates from output to input",
        "engines/descent.py",
        'given[int(name.split(".")[1])]',
        'given[-1 - int(name.split(".")[1])]',
        "test_engine.py::test_a_list_of_learning_rates_runs_over_synapses_from_input_to_output",
    ),
    Defect(
        "every member draws the weights of the first",
        "seeds.py",
        "return tuple(range(seed, seed + members))",
        "return (seed,) * members",
        "test_ensembles.py::test_a_member_is_the_network_of_its_own_seed",
    ),
    Defect(
        "persistent kernel: messages overwritten before all have read them",
        "engines/persistent/one_hidden.cu",
        "#define EXCHANGES 4",
        "#define EXCHANGES 2",
        "test_persistent.py::test_many_minibatches_gathered_from_bytes_in_one_launch",
    ),
    Defect(
        "persistent kernel: too few threads for the columns of a small minibatch",
        "engines/persistent/__init__.py",
        "and warps * strip >= slice_",
        "",
        "test_persistent.py::test_one_minibatch",
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
        environment = {**os.environ, "PYTHONPATH": folder}
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--no-header"]
        process = subprocess.run(
            [*command, "--tb=no", *tests], cwd=ROOT, env=environment, capture_output=True, text=True
        )
        # 1: tests ran and failed. Anything else (no such test, an import error) is not a catch.
        return defect, process.returncode == 1, process.stdout


def main() -> int:
    find = "--find" in sys.argv
    survivors = 0
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        everything = sorted(str(p) for p in (ROOT / "tests").glob("test_*.py"))
        core = [p for p in everything if "data" not in p and "readme" not in p]
        jobs = [pool.submit(run, d, core if find else ["-x", f"tests/{d.test}"]) for d in DEFECTS]
        for job in jobs:
            defect, caught, said = job.result()
            survivors += not caught
            print(f"{'caught  ' if caught else 'SURVIVED'}  {defect.what}  [{defect.test}]")
            if find or not caught:
                print("\n".join(f"    {line}" for line in said.splitlines())[-3000:])
    print(f"{len(DEFECTS) - survivors} passed, {survivors} failed")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
