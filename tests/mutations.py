"""Plant one-line defects in a copy of the sources; each must be caught by the test it names.

    python tests/mutations.py            every defect, one per core at a time
    python tests/mutations.py --find     which tests catch each defect, over the whole suite

A defect that survives, or whose line is no longer in the sources, fails the run.
"""

from __future__ import annotations

import gc
import os
import shutil
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parent.parent
LIBRARIES = ["hypothesis", "msgspec", "numpy", "pytest", "torch", "torch._dynamo", "tqdm"]


@dataclass(frozen=True)
class Defect:
    what: str
    file: str
    line: str
    becomes: str
    test: str


DEFECTS = (
    Defect(
        "compiled engines take a subclass of Dense for Dense",
        "network.py",
        "type(synapse) is Dense for synapse",
        "isinstance(synapse, Dense) for synapse",
        "test_extending.py::test_fast_engines_leave_a_kind_of_dense_synapses_to_the_reference",
    ),
    Defect(
        "centred C-EP: each phase counts whole",
        "rules/two_phase.py",
        "n = len(trial.betas)",
        "n = 1",
        "test_nudging.py::test_a_stored_steady_state_costs_eta_over_eight_beta",
    ),
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
        "rules/vector_field.py",
        "vector_field_gradient(trial.x, s, ds, self.update_slope)",
        "vector_field_gradient(trial.x, s_next, ds, self.update_slope)",
        "test_networks.py::test_vector_field_updates_are_changes_times_what_is_transmitted",
    ),
    Defect(
        "own slope: σ′ at the whole drive of the layer",
        "network.py",
        "self.activations[j].slope(on_post)",
        "self.activations[j].slope(self._drives(self._rates(s), self.hold(x), [j])[j])",
        "test_update_slope.py::test_the_update_is_the_loop_over_neurons",
    ),
    Defect(
        "own slope: σ′ at the drive without the bias of the synapse",
        "network.py",
        "self.activations[j].slope(on_post)",
        "self.activations[j].slope(pre @ synapse.weight)",
        "test_update_slope.py::test_the_update_is_the_loop_over_neurons",
    ),
    Defect(
        "own slope: a bias moves without its factor",
        "network.py",
        'summed[f"{name}.{field}"] = gradient',
        'summed[f"{name}.{field}"] = driven[j].sum(-2) if field == "bias" else gradient',
        "test_update_slope.py::test_the_update_is_the_loop_over_neurons",
    ),
    Defect(
        "C-VF: half of each update with σ′ at the weights that the other half has moved",
        "rules/vector_field.py",
        "            yield Step(neurons, synapse_updates(trial, change, beta))",
        "            half = {name: g / 2 for name, g in change.items()}\n"
        "            yield Step(neurons, synapse_updates(trial, half, beta))\n"
        "            late = trial.model.vector_field_gradient(trial.x, s, ds, self.update_slope)\n"
        "            half = {name: g / 2 for name, g in late.items()}\n"
        "            yield Step(neurons, synapse_updates(trial, half, beta))",
        "test_update_slope.py::test_a_minibatch_is_the_loop_over_time",
    ),
    Defect(
        "compiled engine, own slope: σ′ at the whole drive of the layer",
        "engines/native/kernel.c",
        "vec u = *(const vec *)(forward + at), a = activate(activation, u);\n"
        "            *(vec *)(m->change[l] + at) = slope(activation, u, a);",
        "vec u = *(const vec *)(forward + at), a = activate(activation, u);\n"
        "            vec w = u;\n"
        "            if (inner) w += *(vec *)(m->back_change[l] + at);\n"
        "            *(vec *)(m->change[l] + at) = slope(activation, w, activate(activation, w));",
        "test_engines.py::test_layers_in_turn[native-C-VF, own slope]",
    ),
    Defect(
        "compiled engine, own slope: a bias moves without its factor",
        "engines/native/kernel.c",
        "*(vec *)(m->moved[l] + i) += d;",
        "vec whole = *(vec *)(m->next[l] + i) - s;\n"
        "                    *(vec *)(m->moved[l] + i) += l ? whole : d;",
        "test_engines.py::test_layers_in_turn[native-C-VF, own slope]",
    ),
    Defect(
        "compiled engine, own slope: a backward weight moves with the slope of the forward drive",
        "engines/native/kernel.c",
        "**D_back = m->back_change;",
        "**D_back = m->change;",
        "test_engines.py::test_layers_in_turn[native-C-VF, own slope]",
    ),
    Defect(
        "compiled engine, dense inputs: the last rows of the input weights do not move",
        "engines/native/kernel.c",
        "{move_stage, learns ? 1 + row_parts(p) : 0}",
        "{move_stage, learns ? row_parts(p) : 0}",
        "test_engines.py::test_inputs_that_are_mostly_zero_and_inputs_that_never_are",
    ),
    Defect(
        "compiled engine: every group of samples relaxes with the drive of the first group",
        "engines/native/kernel.c",
        "        m->drive[l] += skipped;\n",
        "",
        "test_engines.py::test_layers_in_turn[native-C-EP]",
    ),
    Defect(
        "compiled engine: parameters move although a member has failed",
        "engines/native/kernel.c",
        "shift->stage = any_failed(shift->p) ? STAGES : shift->stage + 1;",
        "shift->stage = shift->stage + 1;",
        "test_engines.py::test_an_update_that_overflows_is_refused_and_moves_nothing",
    ),
    Defect(
        "engines: the layout of a parameter is not looked at",
        "engines/engine.py",
        "if self.contiguous and not p.is_contiguous():",
        "if False:",
        "test_solid.py::test_a_parameter_that_does_not_lie_row_by_row_is_refused",
    ),
    Defect(
        "engines: a step that is not finite stays",
        "engines/engine.py",
        "            if found is None:\n                restore()\n        if found",
        "        if found",
        "test_solid.py::test_a_step_that_diverges_is_undone_also_where_parameters_require_grad",
    ),
    Defect(
        "telescoped engine, own slope: σ′ at the drive of the input after its weights moved",
        "engines/telescoped.py",
        "moved = [m + d for m, d in zip(moved, change_f, strict=True)]",
        "moved = [m + d for m, d in zip(moved, change_f, strict=True)]\n"
        "                late = self._slope(torch.baddbmm(self.drive[0], spread, moved[0]))\n"
        "                moved[0] = moved[0] - change_f[0] + late * (s_next[0] - s[0])",
        "test_engines.py::test_layers_in_turn[telescoped-C-VF, own slope]",
    ),
    Defect(
        "telescoped engine, own slope: a backward weight moves with the slope of the forward drive",
        "engines/telescoped.py",
        "change_b.append(change_f[k] if slope_b is slope_f else slope_b * change)",
        "change_b.append(change_f[k])",
        "test_engines.py::test_layers_in_turn[telescoped-C-VF, own slope]",
    ),
    Defect(
        "VF on tied weights: W where Wᵀ belongs in the backward share",
        "synapses/dense.py",
        "return self._named(forward + backward.mT, None, d_post)",
        "return self._named(forward, None, d_post)",
        "test_networks.py::test_vector_field_gradient_is_the_transposed_jacobian",
    ),
    Defect(
        "within a layer: the ½ of ½ sᵀWs dropped from ∂φ/∂W",
        "synapses/dense.py",
        "product = 0.5 * product * self.block_mask",
        "product = product * self.block_mask",
        "test_topologies.py::test_phi_gradient_is_autograd_of_phi",
    ),
    Defect(
        "feedback through the forward weight although a backward weight exists",
        "synapses/dense.py",
        "self.weight.mT if self.backward_weight is None else self.backward_weight",
        "self.weight.mT",
        "test_networks.py::test_the_condensed_form_is_the_layered_network_in_discrete_time",
    ),
    Defect(
        "nudge away from the target",
        "dynamics.py",
        "s_next[i] - strength * gradient",
        "s_next[i] + strength * gradient",
        "test_networks.py::test_the_nudge_is_beta_epsilon_times_y_minus_output_outside_sigma",
    ),
    Defect(
        "nudge without the factor ε of real time",
        "dynamics.py",
        "strength = per_member(beta, gradient, model.ensemble) * model.nudge_scale",
        "strength = per_member(beta, gradient, model.ensemble)",
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
        "initial.py",
        "p = 0.5 * (1 - math.cos(math.radians(angle)))",
        "p = 1 - math.cos(math.radians(angle))",
        "test_initialisation.py::test_the_share_of_flipped_signs_is_half_of_one_minus_cosine",
    ),
    Defect(
        "update_slope full: σ′ at the state in place of the drive",
        "network.py",
        "sigma.slope(drives[i]) * ds[i]",
        "sigma.slope(s[i]) * ds[i]",
        "test_asymmetric.py::test_with_a_symmetric_jacobian_the_updates_follow_bptt_to_first_order_in_beta",
    ),
    Defect(
        "update_slope own: backward weights without their factor",
        "network.py",
        "d_pre = d_pre * self.activations[i].slope(on_pre)",
        "d_pre = d_pre * 1.0",
        "test_asymmetric.py::test_without_the_whole_sigma_prime_a_symmetric_jacobian_does_not_help",
    ),
    Defect(
        "analysis: θ moves under rules that are not continual",
        "analysis.py",
        "share = rule.moving_share",
        "share = rule.moving_share or 1.0",
        "test_analysis.py::test_theta_moves_during_the_phase_under_continual_rules_alone",
    ),
    Defect(
        "analysis: rescale ignored",
        "analysis.py",
        "share = rule.moving_share",
        "share = float(rule.continual)",
        "test_analysis.py::test_a_rescaled_rule_moves_theta_by_its_share_of_the_learning_rates",
    ),
    Defect(
        "rescaled C-EP: the total never rescaled",
        "engines/descent.py",
        "theta[name].copy_(value)\n    mover.move(total)",
        "theta[name].copy_(value)\n    tiny.move(total)",
        "test_toy_model.py::test_one_engine_step_with_rescaling_applies_eta_to_the_updates_of_the_tiny_rate",
    ),
    Defect(
        "learning rates from output to input",
        "engines/descent.py",
        "zip(groups, given, strict=True)",
        "zip(groups, given[::-1], strict=True)",
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
        "persistent kernel: σ' of the whole drive where the own is meant",
        "engines/persistent/output.cuh",
        "slope(behind, activate(behind))",
        "slope(before + behind, a)",
        "test_persistent.py::test_activations[tanh-C-VF, own slope-sizes1-2-cpu]",
    ),
    Defect(
        "persistent kernel: a bias without its factor σ'",
        "engines/persistent/output.cuh",
        "sum += m.changed[b][o];",
        "sum += m.o[now][b][o] - m.o[now ^ 1][b][o];",
        "test_persistent.py::test_activations[tanh-C-VF, own slope-sizes1-2-cpu]",
    ),
    Defect(
        "persistent kernel: rows of no sample keep what was there before",
        "engines/persistent/two_hidden.cu",
        "const int words = (BN - B) * ROW_BYTES / 4;",
        "const int words = 0;",
        "test_persistent.py::test_float32_is_as_close_as_the_reference_in_float32"
        "[rows of no sample]",
    ),
    Defect(
        "persistent kernel: too few threads for the columns of a small minibatch",
        "engines/persistent/__init__.py",
        "and warps * strip >= slice_",
        "",
        "test_persistent.py::test_one_minibatch",
    ),
    Defect(
        "centred nudging: both phases with the same sign",
        "nudging.py",
        "return (beta, -beta)",
        "return (beta, beta)",
        "test_nudging.py::test_the_error_of_centred_nudging_falls_as_beta_squared",
    ),
    Defect(
        "continual and centred: the sum of both phases instead of their mean",
        "rules/two_phase.py",
        "{name: value / n for name, value in items}",
        "dict(items)",
        "test_nudging.py::test_continual_centred_on_the_toy_model_in_closed_form",
    ),
    Defect(
        "convolution: what was pooled goes back to the first position",
        "synapses/conv2d.py",
        "winners.flatten(2)",
        "(winners * 0).flatten(2)",
        "test_convolution.py::test_drives_are_those_of_the_unrolled_network",
    ),
    Defect(
        "convolution: the state before in place of its change in the backward share",
        "synapses/conv2d.py",
        "self._weight_gradient(d_pre, self._spread(post, winners))",
        "self._weight_gradient(pre, self._spread(post, winners))",
        "test_convolution.py::test_vector_field_updates_are_the_derivatives_of_the_drives",
    ),
    Defect(
        "cross-entropy: the read-out learns from the sum over the batch",
        "readouts.py",
        '"weight": self._read(s).mT @ errors / batch',
        '"weight": self._read(s).mT @ errors',
        "test_readouts.py::test_backward_gradients_are_those_of_autograd",
    ),
    Defect(
        "updates: a step that fails leaves its momentum",
        "engines/engine.py",
        "            if remembered:\n",
        "            if False:\n",
        "test_updates.py::test_a_step_that_fails_forgets_what_it_remembered",
    ),
    Defect(
        "explorer: backward weights are not transposed where signs are flipped",
        "explorer/networks.py",
        "flip_signs(synapse.weight, angle, flips).mT",
        "flip_signs(synapse.weight.mT, angle, flips)",
        "test_explorer.py::test_untied_is_what_layered_draws",
    ),
    Defect(
        "explorer: the networks of a run in another order",
        "explorer/page.py",
        "run.net.member(i),",
        "run.net.member(-1 - i),",
        "test_explorer.py::test_a_page_of_ones_own_has_exactly_the_weights_of_the_run",
    ),
    Defect(
        "colouring: layers that are joined move together",
        "colouring.py",
        "if c not in taken[v]",
        "if c not in list(taken[v])[1:]",
        "test_dynamics.py::test_colours_are_proper_and_two_wherever_two_are_enough",
    ),
    Defect(
        "validation: held-out samples are trained on",
        "splits.py",
        "train=train.head(len(train) - n), validation",
        "train=train, validation",
        "test_search.py::test_held_out_samples_are_the_last_and_no_longer_trained_on",
    ),
    Defect(
        "validation: epochs are measured on the test set",
        "runs/training.py",
        "measure(self.net, self.data.splits[split], steps",
        "measure(self.net, self.data.test, steps",
        "test_search.py::test_a_run_with_validation_does_not_touch_the_test_set",
    ),
    Defect(
        "search: a network that became non-finite is the best",
        "search/objective.py",
        "NON_FINITE = 100.0",
        "NON_FINITE = 0.0",
        "test_search.py::test_the_objective_by_hand",
    ),
    Defect(
        "search: a trial gets the members of another",
        "search/plan.py",
        "seeds * distinct.index(setting)",
        "seeds * distinct[::-1].index(setting)",
        "test_search.py::test_a_group_is_one_recipe_and_equal_proposals_share_their_members",
    ),
    Defect(
        "tune: learning rates in proportion to the gradients",
        "tuning/ratio.py",
        "largest * least / it",
        "largest * it / max(magnitudes)",
        "test_tune.py::test_the_ratio_is_inverse_to_the_gradients_of_autograd",
    ),
    Defect(
        "tune: the test set stays in reach",
        "tuning/trials.py",
        "replace(data, test=data.train.head(1))",
        "data",
        "test_tune.py::test_short_runs_hold_no_test_samples",
    ),
    Defect(
        "tune: small losses of a shorter T and K add up",
        "tuning/shortening.py",
        "increased(tried[steps], before, choices.rise)",
        "increased(tried[steps], tried[kept], choices.rise)",
        "test_tune.py::test_small_losses_do_not_add_up",
    ),
    Defect(
        "sweeps: tasks with more networks than --pack allows",
        "sweeps/tasks.py",
        "limit * len(values) // product.size)",
        "1 + limit * len(values) // product.size)",
        "test_sweep.py::test_packing_keeps_every_network_once",
    ),
    Defect(
        "sweeps: seeds with a gap between them as one range",
        "sweeps/tasks.py",
        '_consecutive(values) if axis == "seeds" else [values]',
        "[values]",
        "test_sweep.py::test_seeds_that_are_not_consecutive_are_tasks_of_their_own",
    ),
    Defect(
        "sweeps: the table counts networks that became non-finite as finite",
        "sweeps/table.py",
        '"non_finite": member["frozen"]',
        '"non_finite": False',
        "test_sweep.py::test_a_network_that_became_non_finite_is_marked",
    ),
    Defect(
        "nudged phase in turn: the nudge acts on an output that does not move",
        "dynamics.py",
        "if layers is not None and i not in layers:",
        "if False:",
        "test_nudged_in_turn.py::test_three_steps_by_hand",
    ),
    Defect(
        "nudged phase in turn: the groups of layers change places",
        "rules/two_phase.py",
        "trial.turns[t % len(trial.turns)]",
        "trial.turns[(t + 1) % len(trial.turns)]",
        "test_nudged_in_turn.py::test_three_steps_by_hand",
    ),
    Defect(
        "convolutional engine: the way back goes through the winners of the step before",
        "engines/convolutional/connections.py",
        "self.driven = self._spread = False",
        "self.driven = False",
        "test_convolutional.py::test_every_chain_in_every_order",
    ),
    Defect(
        "convolutional engine: the gradient at the end of a phase has earlier winners",
        "engines/convolutional/connections.py",
        "if not self._won and self.windows.size > 1:",
        "if False:",
        "test_convolutional.py::test_every_chain_in_every_order",
    ),
    Defect(
        "convolutional engine: the drive of the input has no bias",
        "engines/convolutional/connections.py",
        "return None if bias is None else self._by_member(bias)[i]",
        "return None if bias is None or self.synapse.from_input else self._by_member(bias)[i]",
        "test_convolutional.py::test_every_chain_in_every_order",
    ),
    Defect(
        "convolutional engine: a skip keeps what a layer sent back before it moved",
        "engines/convolutional/connections.py",
        'which another connection has moved."""\n        self._spread = False\n',
        'which another connection has moved."""\n',
        "test_convolutional.py::test_every_graph_in_every_order",
    ),
    Defect(
        "convolutional engine: a layer hears the first of the layers after it alone",
        "engines/convolutional/dynamics.py",
        "back(*self._ends[c]) for c in self._out_of[k]]",
        "back(*self._ends[c]) for c in self._out_of[k][:1]]",
        "test_convolutional.py::test_every_graph_in_every_order",
    ),
    Defect(
        "convolutional engine: a layer that moves drives the layer after a skip as before",
        "engines/convolutional/dynamics.py",
        "            for c in self._out_of[k]:\n",
        "            for c in self._out_of[k][:1]:\n",
        "test_convolutional.py::test_every_graph_in_every_order",
    ),
    Defect(
        "convolutional engine: one-sided EP without the free state",
        "engines/convolutional/minibatch.py",
        "before, after = self.free.ends(layers), ends",
        "before, after = ends, ends",
        "test_convolutional.py::test_every_rule_nudging_and_order",
    ),
    Defect(
        "convolutional engine: a change of the layer before meets the layer after as it was",
        "engines/convolutional/connections.py",
        "self._add(after.pre - before.pre, after.post, None",
        "self._add(after.pre - before.pre, before.post, None",
        "test_convolutional.py::test_every_chain_in_every_order",
    ),
    Defect(
        "captured graphs: what follows a cut has memory of its own",
        "engines/graphs.py",
        "self._captured[0].pool() if self._captured else torch",
        "torch",
        "test_graphs.py::test_graphs_do_the_work_once_per_replay",
    ),
    Defect(
        "captured graphs: work goes on after it has ended",
        "engines/graphs.py",
        """                if ended():
                    return
                graph.replay()""",
        """                ended()
                graph.replay()""",
        "test_graphs.py::test_work_ends_before_the_step_that_is_told_so",
    ),
    Defect(
        "convolutional engine: a member that has settled moves on",
        "engines/convolutional/settling.py",
        "s.value[i].copy_(value)",
        "pass",
        "test_convolutional.py::test_a_tolerance_ends_the_free_phase_of_each_member",
    ),
    Defect(
        "convolutional engine: a member stops when the first of its samples settles",
        "engines/convolutional/settling.py",
        "residual.amax(1) <= self.tolerance",
        "residual.amin(1) <= self.tolerance",
        "test_convolutional.py::test_a_tolerance_ends_the_free_phase_of_each_member",
    ),
    Defect(
        "convolutional engine: a captured minibatch assumes where the free phase ended",
        "engines/convolutional/minibatch.py",
        "self.free.forget()",
        "pass",
        "test_convolutional.py::test_captured_graphs_do_the_same",
    ),
    Defect(
        "convolutional engine: C-EP loses the winners of the state before a step",
        "engines/convolutional/dynamics.py",
        "winners = winners.clone()",
        "winners = winners.view(winners.shape)",
        "test_convolutional.py::test_continual_ep_on_every_chain",
    ),
    Defect(
        "convolutional engine: small sums are rounded to float16",
        "engines/convolutional/connections.py",
        "rest = (most / self._room)[:, None]",
        "rest = most / self._room",
        "test_convolutional.py::test_sums_over_large_images_fit_float16",
    ),
    Defect(
        "convolutional engine: C-EP forgets that the layer before has moved",
        "engines/convolutional/dynamics.py",
        "pre_moved = self.net.edges[c][0] in layers",
        "pre_moved = self.net.edges[c][0] in layers and len(layers) > 1",
        "test_convolutional.py::test_every_rule_nudging_and_order",
    ),
    Defect(
        "convolutional engine: the nudged phase takes the order of the free phase",
        "engines/convolutional/minibatch.py",
        "net.split() if rule.nudged_in_turn else",
        "net.split() if rule.in_turn else",
        "test_convolutional.py::test_every_chain_in_every_order",
    ),
    Defect(
        "convolutional engine: C-EP reads the moved weights of the input alone",
        "engines/convolutional/minibatch.py",
        "self.nudged.follow()\n",
        "self.nudged.connections[0].follow()\n",
        "test_convolutional.py::test_continual_ep_on_every_chain",
    ),
    Defect(
        "convolutional engine: a rescaled rule does not take the parameters back",
        "engines/convolutional/minibatch.py",
        "if self.rule.moving_share < 1:",
        "if False:",
        "test_convolutional.py::test_rescaled_rules_with_any_update",
    ),
    Defect(
        "convolutional engine: η instead of η_tiny within the phase",
        "engines/convolutional/__init__.py",
        "self._tiny or self.mover",
        "self.mover",
        "test_convolutional.py::test_rescaled_rules_with_any_update",
    ),
    Defect(
        "convolutional engine: the read-out learns at every step of C-EP",
        "engines/convolutional/minibatch.py",
        "if phase == t == 0:",
        "if True:",
        "test_convolutional.py::test_cross_entropy",
    ),
    Defect(
        "convolutional engine: in turn, the residual is the change of the last group alone",
        "engines/convolutional/settling.py",
        "self.changes[t % len(self.changes)].copy_(change)",
        "self.changes.copy_(change.expand_as(self.changes))",
        "test_convolutional.py::test_relaxing_is_relaxing",
    ),
    Defect(
        "convolutional engine: dense weights in the order of channels, layers in that of memory",
        "engines/convolutional/connections.py",
        "rows[:, None], columns)",
        "rows.sort()[0][:, None], columns)",
        "test_convolutional.py::test_every_chain_in_every_order",
    ),
    Defect(
        "convolutional engine: the way back takes the forward weight of an untied synapse",
        "engines/convolutional/connections.py",
        "factors = [(self._spreading(pre, post), self.backward.operand)]",
        "factors = [(self._spreading(pre, post), self.weight.operand)]",
        "test_convolutional.py::test_vf_on_every_chain_in_every_order",
    ),
    Defect(
        "convolutional engine: VF takes the state after the step for that before it",
        "engines/convolutional/dynamics.py",
        "Change(before[k], s.value - before[k])",
        "Change(s.value, s.value - before[k])",
        "test_convolutional.py::test_vf_on_every_chain_in_every_order",
    ),
    Defect(
        "convolutional engine: VF goes back through the winners of the state after the step",
        "engines/convolutional/dynamics.py",
        "            self.connections[c].add_step(",
        "            self.connections[c].forward(*self._ends[c])\n"
        "            self.connections[c].add_step(",
        "test_convolutional.py::test_vf_on_every_chain_in_every_order",
    ),
    Defect(
        "convolutional engine: nudged phases multiply states, not differences from the free state",
        "engines/convolutional/minibatch.py",
        "origin = self.origin if measured else None",
        "origin = None",
        "test_convolutional.py::test_a_small_nudge_survives_rounding",
    ),
    Defect(
        "convolutional engine: with one nudged phase, the free phase multiplies states to its end",
        "engines/convolutional/minibatch.py",
        "if len(self._signs) == 1 and results_round(like, precision):",
        "if False:",
        "test_convolutional.py::test_one_small_nudge_survives_rounding",
    ),
    Defect(
        "convolutional engine: C-EP multiplies states, not differences from the free state",
        "engines/convolutional/minibatch.py",
        "measured = not moving or convolutions_round(self.beta, self._precision)",
        "measured = not moving",
        "test_convolutional.py::test_a_small_nudge_survives_rounding",
    ),
    Defect(
        "convolutional engine: the free state drives with the weights that it was found with",
        "engines/convolutional/connections.py",
        "[(pre, self.weight.operand), stayed]",
        "[(pre, self.weight.operand)]",
        "test_convolutional.py::test_moving_weights_measured_from_the_free_state",
    ),
    Defect(
        "convolutional engine: the free state goes back with the weights that it was found with",
        "engines/convolutional/connections.py",
        "self.origin._spreading(*self._ends_origin), self.backward.change)",
        "self.origin._spreading(*self._ends_origin), 0 * self.backward.change)",
        "test_convolutional.py::test_moving_weights_measured_from_the_free_state",
    ),
    Defect(
        "convolutional engine: a dense layer keeps the bias of the free state",
        "engines/convolutional/connections.py",
        "product += self.bias.change",
        "pass",
        "test_convolutional.py::test_moving_weights_measured_from_the_free_state",
    ),
    Defect(
        "convolutional engine: steps of C-EP are rounded one by one",
        "engines/convolutional/minibatch.py",
        "                for p, value in start:\n"
        "                    p.copy_(value)\n"
        "                self.mover.move(self.gradients)\n",
        "                self.mover.move(self.gradients)\n                self._clear()\n",
        "test_convolutional.py::test_steps_of_continual_rules_below_the_rounding_of_the_weights",
    ),
    Defect(
        "convolutional engine: the nudge decides ties that rounding has made",
        "engines/convolutional/windows.py",
        "if convolved.origin is not None and self._rounds:",
        "if False:",
        "test_convolutional.py::test_the_winner_of_the_origin_wins_a_tie_that_rounding_made",
    ),
    Defect(
        "convolutional engine: products of the free state are those of the minibatch before",
        "engines/convolutional/connections.py",
        "        self._forget_origin()\n\n",
        "\n",
        "test_convolutional.py::test_every_chain_in_every_order",
    ),
    Defect(
        "convolutional engine: the way back from a free state lacks the unit of differences",
        "engines/convolutional/connections.py",
        "Product(moved, self._back_origin, unit(moved.dtype))",
        "Product(moved, self._back_origin)",
        "test_convolutional.py::test_a_small_nudge_survives_rounding",
    ),
    Defect(
        "kernel of convolutional layers: the nudge decides ties that rounding has made",
        "engines/convolutional/fused.py",
        "lost = (other_0 == largest_0) & (winner_0 != k)",
        "lost = other_0 != other_0",
        "test_convolutional.py::test_the_winner_of_the_origin_wins_a_tie_that_rounding_made",
    ),
    Defect(
        "kernel of convolutional layers: what is spread is measured from the winner of the phase",
        "engines/convolutional/fused.py",
        "tl.where(winner_0 == k, value_0, 0.0)",
        "tl.where(winner == k, value_0, 0.0)",
        "test_convolutional.py::test_the_kernel_measures_two_phases_from_an_origin",
    ),
    Defect(
        "kernel of convolutional layers: the last of equal maxima wins",
        "engines/convolutional/fused.py",
        "(other > value) |",
        "(other >= value) |",
        "test_convolutional.py::test_the_kernel_drives_moves_and_spreads_as_separate_operations_do",
    ),
    Defect(
        "kernel of convolutional layers: NaN does not win",
        "engines/convolutional/fused.py",
        " | (other != other)",
        "",
        "test_convolutional.py::test_the_kernel_hides_no_value_that_is_not_finite",
    ),
    Defect(
        "kernel of convolutional layers: it spreads the state without the nudge",
        "engines/convolutional/fused.py",
        "            value -= tl.load(nudge + e, inside)\n",
        "            tl.store(post + e, value - tl.load(nudge + e, inside), inside)\n",
        "test_convolutional.py::test_cross_entropy_with_the_kernel",
    ),
    Defect(
        "relaxation: the nudge keeps its strength",
        "timesteps.py",
        "return self.relaxation  # a nudge",
        "return 1.0  # a nudge",
        "test_relaxation.py::test_the_steady_states_are_the_same",
    ),
    Defect(
        "relaxation: neurons leave the bounds of their activation",
        "timesteps.py",
        "return None if output or self.relaxation == 1 else activation.bounds",
        "return None",
        "test_relaxation.py::test_in_turn_no_step_raises_the_energy",
    ),
    Defect(
        "relaxation: the output is held within bounds, whatever nudges it",
        "timesteps.py",
        "return None if output or self.relaxation == 1 else activation.bounds",
        "return activation.bounds",
        "test_relaxation.py::test_the_steady_states_are_the_same",
    ),
    Defect(
        "relaxation: full slopes lose their factor",
        "network.py",
        "self.time.epsilon * sigma.slope(drives[i])",
        "sigma.slope(drives[i])",
        "test_relaxation.py::test_one_nudged_step_goes_further_with_every_slope",
    ),
    Defect(
        "convolutional engine: the nudge of relaxed steps keeps its strength",
        "engines/convolutional/dynamics.py",
        "beta * self.net.nudge_scale",
        "beta",
        "test_convolutional.py::test_relaxation_with_every_rule_and_order",
    ),
    Defect(
        "kernel of convolutional layers: relaxed neurons leave their bounds",
        "engines/convolutional/fused.py",
        "tl.where(value < LOW, LOW, tl.where(value > HIGH, HIGH, value))",
        "value",
        "test_convolutional.py::test_the_kernel_drives_moves_and_spreads_as_separate_operations_do",
    ),
    Defect(
        "kernel of convolutional layers: relaxed neurons forget where they were",
        "engines/convolutional/fused.py",
        "(1 - RELAXATION) * tl.load(post + e, inside) + RELAXATION * value",
        "RELAXATION * value",
        "test_convolutional.py::test_the_kernel_drives_moves_and_spreads_as_separate_operations_do",
    ),
    Defect(
        "convolutional engine: with shared_update, the backward weight keeps an update of its own",
        "engines/convolutional/connections.py",
        "self.synapse.untied and not self.synapse.shared_update",
        "self.synapse.untied",
        "test_convolutional.py::test_kolen_pollack_with_momentum_and_weight_decay",
    ),
    Defect(
        "convolutional engine: takes a subclass of Conv2d for Conv2d",
        "engines/convolutional/__init__.py",
        "kinds = {type(synapse) for",
        "kinds = {Conv2d if isinstance(synapse, Conv2d) else type(synapse) for",
        "test_convolutional.py::test_what_it_cannot_run_is_said_and_left_to_the_reference",
    ),
)


CAUGHT = 99  # exit code
# A process per defect. On Linux it is a fork of one that has imported LIBRARIES once for all.
PROCESSES = get_context("forkserver" if sys.platform == "linux" else "spawn")


def must_fail(folder: Path, tests: list[str]) -> None:
    """End this process with CAUGHT if tests of the package in a folder fail; output in said.txt."""
    gc.freeze()  # else collections look at all of LIBRARIES, and copy its pages
    with (folder / "said.txt").open("w") as said:
        os.dup2(said.fileno(), 1)
        os.dup2(said.fileno(), 2)
    os.chdir(ROOT)
    os.environ["PYTHONPATH"] = str(folder)  # for the processes that tests start
    sys.path.insert(0, str(folder))
    options = ["-q", "-p", "no:cacheprovider", "--no-header", "--tb=no", "--assert=plain"]
    # A folder of its own: where processes share one, each tidies up what others still use.
    code = pytest.main([*options, f"--basetemp={folder / 'temporary'}", *tests])
    # Anything but failed tests (no such test, an import error) is not a catch.
    sys.exit(CAUGHT if code is pytest.ExitCode.TESTS_FAILED else 1)


def run(defect: Defect, tests: list[str]) -> tuple[Defect, bool, str]:
    """Whether the tests fail once the defect is planted, and what pytest said."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shutil.copytree(ROOT / "src" / "eqprop", folder / "eqprop")
        file = folder / "eqprop" / defect.file
        source = file.read_text("utf-8")
        if source.count(defect.line) != 1:
            return defect, False, f"its line stands {source.count(defect.line)} times"
        file.write_text(source.replace(defect.line, defect.becomes), "utf-8")
        process = PROCESSES.Process(target=must_fail, args=(folder, tests))
        process.start()
        process.join()
        return defect, process.exitcode == CAUGHT, (folder / "said.txt").read_text()


def main() -> int:
    find = "--find" in sys.argv
    survivors = 0
    if not torch.cuda.is_available():
        os.environ["TRITON_INTERPRET"] = "1"  # Triton reads it when it is imported
    PROCESSES.set_forkserver_preload(LIBRARIES)
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
