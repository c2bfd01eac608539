/**
 * Learning rules, as in `eqprop.rules`: gradients that point uphill on the loss, so Δ = −gradient.
 *
 * EP, C-EP   Δ_W(t) = (1/β) (s_{t+1} s_{t+1}ᵀ − s_t s_tᵀ)
 * VF, C-VF   Δ_W(t) = (1/β) s_tᵀ (σ′ ⊙ (s_{t+1} − s_t)), with σ′ as `slope` says
 * BPTT       ∇_s(t) = (∂F/∂s)ᵀ ∇_s(t−1),  ∇_W(t) = (∂F/∂W)ᵀ ∇_s(t)
 */

import { isFinite, type Presented, type State } from "./dynamics";
import { addProduct, addTransposed, ProductSum } from "./matrices";

export type RuleName = "ep" | "c-ep" | "vf" | "c-vf";
export type Slope = "none" | "own" | "full";

export interface Rule {
  name: RuleName;
  beta: number;
  nudgedSteps: number;
  slope: Slope;
}

export const continual = (rule: Rule): boolean => rule.name === "c-ep" || rule.name === "c-vf";
export const vectorField = (rule: Rule): boolean => rule.name === "vf" || rule.name === "c-vf";

/** The gradient of one synapse, mean over the batch. */
export interface SynapseGradient {
  weight: ProductSum;
  bias: Float64Array | null;
  backward: ProductSum | null;
}

/** Time t of a rule: −Δ(t) or ∇(t). */
export interface Step {
  neurons: State;
  synapses: SynapseGradient[];
}

export class Diverged extends Error {}

/** The nudged phase. Whoever consumes it may `move` the weights after each step. */
export function* nudgedPhase(
  presented: Presented,
  rule: Rule,
  start: State,
  y: Float64Array,
): Generator<{ step: Step; s: State }> {
  let s = start;
  for (let t = 0; t < rule.nudgedSteps; t++) {
    const next = presented.nudgedStep(s, y, rule.beta);
    if (!isFinite(next)) throw new Diverged(`The neurons are infinite after nudged step ${t + 1}.`);
    const neurons = s.map((layer, i) => layer.map((v, n) => (v - next[i][n]) / rule.beta));
    const synapses = vectorField(rule)
      ? fieldGradient(presented, s, neurons, rule.slope)
      : contrast(presented, s, next, rule.beta);
    yield { step: { neurons, synapses }, s: next };
    s = next;
  }
}

/** −(∂Φ/∂θ(b) − ∂Φ/∂θ(a)) / β, of EP. */
export function contrast(
  presented: Presented,
  a: State,
  b: State,
  beta: number,
): SynapseGradient[] {
  const { net, batch, x } = presented;
  const scale = -1 / (beta * batch);
  return net.synapses.map(({ bias }, k) => {
    const moved = b[k].map((v, i) => v - a[k][i]);
    const terms =
      k === 0
        ? [{ left: x, right: moved, scale }]
        : [
            { left: b[k - 1], right: b[k], scale },
            { left: a[k - 1], right: a[k], scale: -scale },
          ];
    const weight = new ProductSum(net.sizes[k], net.sizes[k + 1], batch, terms);
    return { weight, bias: bias && meanOver(moved, bias.length, scale), backward: null };
  });
}

/** (∂F/∂θ)ᵀ · d with the factor σ′ that `slope` says. */
function fieldGradient(presented: Presented, s: State, d: State, slope: Slope): SynapseGradient[] {
  const { net } = presented;
  const sloped = (values: Float64Array, drive: Float64Array) =>
    values.map((v, i) => v * net.sigma.slope(drive[i]));
  if (slope === "own") {
    const ahead = d.map((layer, k) => sloped(layer, presented.forwardDrive(s, k)));
    const back = d.slice(0, -1).map((layer, k) => {
      const drive = new Float64Array(layer.length);
      presented.addBackwardDrive(drive, s, k + 1);
      return sloped(layer, drive);
    });
    return localProducts(presented, s, ahead, back);
  }
  const pulled =
    slope === "full" ? d.map((layer, i) => sloped(layer, presented.layerDrive(s, i))) : d;
  return localProducts(presented, s, pulled, pulled);
}

/**
 * What each synapse forms from its two ends: pre · d_post, and post · d_pre backwards.
 * `ahead` is d of the layer after each synapse; `back` that of the layer before the next one.
 */
function localProducts(
  presented: Presented,
  s: State,
  ahead: State,
  back: State,
): SynapseGradient[] {
  const { net, batch, x } = presented;
  const scale = 1 / batch;
  return net.synapses.map(({ bias, backward }, k) => {
    const [before, after] = [net.sizes[k], net.sizes[k + 1]];
    const forward = { left: k === 0 ? x : s[k - 1], right: ahead[k], scale };
    const biased = bias && meanOver(ahead[k], after, scale);
    if (k === 0 || backward) {
      const weight = new ProductSum(before, after, batch, [forward]);
      const backTerms = [{ left: s[k], right: back[k - 1], scale }];
      const own = k === 0 ? null : new ProductSum(after, before, batch, backTerms);
      return { weight, bias: biased, backward: own };
    }
    const both = [forward, { left: back[k - 1], right: s[k], scale }];
    return { weight: new ProductSum(before, after, batch, both), bias: biased, backward: null };
  });
}

function meanOver(values: Float64Array, width: number, scale: number): Float64Array {
  const mean = new Float64Array(width);
  for (let i = 0; i < values.length; i++) mean[i % width] += scale * values[i];
  return mean;
}

/** ∇(t) of BPTT, t = 0 … K−1, along the last K of the states s_0 … s_T. */
export function bptt(presented: Presented, states: State[], y: Float64Array, K: number): Step[] {
  const { net, batch } = presented;
  const last = states[states.length - 1];
  let nabla = last.map((layer, i) =>
    i === net.depth - 1 ? layer.map((v, n) => v - y[n]) : new Float64Array(layer.length),
  );
  const steps: Step[] = [];
  for (let t = 0; t < K; t++) {
    const s = states[states.length - 2 - t];
    const pulled = nabla.map((layer, i) => {
      const drive = presented.layerDrive(s, i);
      return layer.map((v, n) => v * net.sigma.slope(drive[n]));
    });
    steps.push({ neurons: nabla, synapses: localProducts(presented, s, pulled, pulled) });
    const earlier = presented.zero();
    for (let k = 1; k < net.depth; k++) {
      const { weight, backward } = net.synapses[k];
      const [before, after] = [net.sizes[k], net.sizes[k + 1]];
      addTransposed(earlier[k - 1], pulled[k], weight, batch, after, before);
      if (backward) addTransposed(earlier[k], pulled[k - 1], backward, batch, before, after);
      else addProduct(earlier[k], pulled[k - 1], weight, batch, before, after);
    }
    nabla = earlier;
  }
  return steps;
}

/** Move the weights downhill by one gradient; those from the input as a change of their drive. */
export function move(presented: Presented, synapses: SynapseGradient[], rates: number[]): void {
  const { net } = presented;
  synapses.forEach((gradient, k) => {
    const synapse = net.synapses[k];
    if (k === 0) {
      const { right, scale } = gradient.weight.terms[0];
      presented.moveInput(right, -rates[k] * scale);
      return;
    }
    gradient.weight.addTo(synapse.weight, -rates[k]);
    if (gradient.backward && synapse.backward) {
      gradient.backward.addTo(synapse.backward, -rates[k]);
    }
    if (gradient.bias && synapse.bias) {
      for (let j = 0; j < synapse.bias.length; j++) synapse.bias[j] -= rates[k] * gradient.bias[j];
    }
  });
}
