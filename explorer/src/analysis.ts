/** How well a rule follows BPTT: `gddcheck`, angles and sign agreement as in `eqprop.analysis`. */

import { type Order, Presented, type Relaxation, relax, type State } from "./dynamics";
import { degrees, type Network } from "./network";
import {
  bptt,
  continual,
  move,
  nudgedPhase,
  type Rule,
  type Step,
  type SynapseGradient,
} from "./rules";

/** One network with one batch, a rule and what it takes. */
export interface Setup {
  net: Network;
  x: Float64Array; // [batch, inputs]
  y: Float64Array; // [batch, outputs]
  batch: number;
  rule: Rule;
  rates: number[]; // η of each synapse, input → output
  freeSteps: number;
  order: Order;
}

/** A row of the comparison: the neurons of a layer, or one parameter. */
export interface Row {
  name: string;
  error: number; // ‖−Δ − ∇‖ / ‖∇‖ over all t
  angle: number; // between the totals, degrees
  signs: number; // share of entries with equal signs over all t
}

const EPSILON = 2 ** -52;

/**
 * Compares −Δ(t) with ∇(t), step by step. What it is given stands for its products with each of
 * `inputs`, in ascending order: with every pixel for weights from the input, with 1 for the rest.
 */
class Tally {
  private error = 0;
  private norm = 0;
  private equal = 0;
  private counted = 0;
  private largest = 0;
  private readonly power: number; // Σ of the squared inputs
  readonly ours: Float64Array;
  readonly exact: Float64Array;

  constructor(
    readonly name: string,
    size: number,
    private readonly inputs: readonly number[] = [1],
  ) {
    this.ours = new Float64Array(size);
    this.exact = new Float64Array(size);
    this.power = inputs.reduce((sum, v) => sum + v * v, 0);
  }

  add(a: Float64Array, b: Float64Array): void {
    const highest = this.inputs[this.inputs.length - 1] ?? 0;
    for (let i = 0; i < b.length; i++) {
      this.largest = Math.max(this.largest, highest * Math.abs(b[i]));
    }
    const least = 1e3 * EPSILON * this.largest;
    for (let i = 0; i < a.length; i++) {
      const u = a[i];
      const v = b[i];
      const count = this.above(least, Math.abs(v));
      this.counted += count;
      if (Math.sign(u) === Math.sign(v)) this.equal += count;
      this.error += (u - v) * (u - v);
      this.norm += v * v;
      this.ours[i] += u;
      this.exact[i] += v;
    }
  }

  /** How many products of `size` with an input are above rounding. */
  private above(least: number, size: number): number {
    let [low, high] = [0, this.inputs.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.inputs[middle] * size > least) high = middle;
      else low = middle + 1;
    }
    return this.inputs.length - low;
  }

  private inner(a: Float64Array, b: Float64Array): number {
    let sum = 0;
    for (let i = 0; i < a.length; i++) sum += a[i] * b[i];
    return this.power * sum;
  }

  /** ‖Σ_t Δ(t)‖ so far. */
  distance(): number {
    return Math.sqrt(this.inner(this.ours, this.ours));
  }

  row(): Row {
    const { ours, exact } = this;
    return {
      name: this.name,
      error: this.error * this.power === 0 ? 0 : Math.sqrt(this.error / this.norm),
      angle: degrees(this.inner(ours, exact), this.inner(ours, ours), this.inner(exact, exact)),
      signs: this.counted === 0 ? 1 : this.equal / this.counted,
    };
  }
}

/** Everything that one digit shows: both phases, every Δ(t) and ∇(t), and how they compare. */
export interface Observation {
  free: Relaxation;
  nudged: State[]; // s_0 = s_*, … s_K
  ours: Step[]; // −Δ(t)
  exact: Step[]; // ∇(t)
  neurons: Row[];
  parameters: Row[];
  moved: number[][]; // ‖θ_t − θ_0‖ of each parameter, t = 0 … K
  angle: number; // between the totals of all parameters
}

/** Run a rule on a batch of one, with the weights moving as they do in training. */
export function observe(setup: Setup): Observation {
  const { net, x, y, rule, rates, freeSteps, order } = setup;
  const start = new Presented(net, x, 1);
  const free = relax(start, freeSteps, order);
  const path = order === "sync" ? free : relax(start, freeSteps, "sync"); // as BPTT takes it
  const exact = bptt(start, path.states, y, rule.nudgedSteps);
  const presented = new Presented(net.copy(false), x, 1);
  const names = layerNames(net);
  const neuronTallies = names.map((n, i) => new Tally(`neurons ${n}`, net.sizes[i + 1]));
  const tallies = parameterTallies(net, x);
  const moved = tallies.map(() => [0]);
  const nudged = [free.states[freeSteps]];
  const ours: Step[] = [];
  for (const { step, s } of nudgedPhase(presented, rule, nudged[0], y)) {
    const t = ours.length;
    step.neurons.forEach((layer, i) => neuronTallies[i].add(layer, exact[t].neurons[i]));
    const [a, b] = [step, exact[t]].map((it) => entries(it.synapses));
    tallies.forEach((tally, p) => {
      tally.add(a[p], b[p]);
      const share = continual(rule) ? rates[synapseOf(tally.name)] : 0;
      moved[p].push(share * tally.distance());
    });
    if (continual(rule)) move(presented, step.synapses, rates);
    ours.push(step);
    nudged.push(s);
  }
  return {
    free,
    nudged,
    ours,
    exact,
    neurons: neuronTallies.map((tally) => tally.row()),
    parameters: tallies.map((tally) => tally.row()),
    moved,
    angle: totalOf(start, ours).angle(totalOf(start, exact), start),
  };
}

/** The names that `eqprop.layered` gives. */
export function layerNames(net: Network): string[] {
  const hidden = net.depth - 1;
  const names = Array.from({ length: hidden }, (_, i) =>
    hidden === 1 ? "hidden" : `hidden${i + 1}`,
  );
  return [...names, "output"];
}

/** "synapses.1.bias" belongs to synapse 1. */
export const synapseOf = (parameter: string): number => Number(parameter.split(".")[1]);

function parameterTallies(net: Network, x: Float64Array): Tally[] {
  const pixels = Array.from(x.filter((v) => v > 0).sort());
  return net.synapses.flatMap(({ weight, bias, backward }, k) => {
    const size = k === 0 ? net.sizes[1] : weight.length;
    const found = [new Tally(`synapses.${k}.weight`, size, k === 0 ? pixels : undefined)];
    if (bias) found.push(new Tally(`synapses.${k}.bias`, bias.length));
    if (backward) found.push(new Tally(`synapses.${k}.backward_weight`, backward.length));
    return found;
  });
}

/** The entries of each parameter's gradient; those from the input per unit of a pixel. */
function entries(synapses: SynapseGradient[]): Float64Array[] {
  return synapses.flatMap(({ weight, bias, backward }, k) => {
    const { right, scale } = weight.terms[0];
    const found = [k === 0 ? right.map((v) => scale * v) : weight.dense()];
    if (bias) found.push(bias);
    if (backward) found.push(backward.dense());
    return found;
  });
}

/** Σ_t of the gradients of all parameters; the input's as d of Xᵀ d. */
export class Total {
  private readonly input: Float64Array;
  private readonly others: Float64Array[];

  constructor(presented: Presented) {
    const { net, batch } = presented;
    this.input = new Float64Array(batch * net.sizes[1]);
    this.others = net.synapses
      .slice(1)
      .flatMap(({ weight, bias, backward }) =>
        [weight, bias, backward]
          .filter((it) => it !== null)
          .map((it) => new Float64Array(it.length)),
      );
  }

  add(synapses: SynapseGradient[]): void {
    const { right, scale } = synapses[0].weight.terms[0];
    for (let i = 0; i < right.length; i++) this.input[i] += scale * right[i];
    let at = 0;
    for (const { weight, bias, backward } of synapses.slice(1)) {
      weight.addTo(this.others[at++], 1);
      if (bias) {
        const total = this.others[at++];
        bias.forEach((v, j) => (total[j] += v));
      }
      if (backward) backward.addTo(this.others[at++], 1);
    }
  }

  private inner(other: Total, { gram, batch, net }: Presented): number {
    const width = net.sizes[1];
    let sum = 0;
    for (let a = 0; a < batch; a++) {
      for (let b = 0; b < batch; b++) {
        let dot = 0;
        for (let j = 0; j < width; j++)
          dot += this.input[a * width + j] * other.input[b * width + j];
        sum += gram[a * batch + b] * dot;
      }
    }
    this.others.forEach((values, p) => {
      const theirs = other.others[p];
      for (let i = 0; i < values.length; i++) sum += values[i] * theirs[i];
    });
    return sum;
  }

  /** In degrees. */
  angle(other: Total, presented: Presented): number {
    const inner = (a: Total, b: Total) => a.inner(b, presented);
    return degrees(inner(this, other), inner(this, this), inner(other, other));
  }
}

function totalOf(presented: Presented, steps: Iterable<Step>): Total {
  const total = new Total(presented);
  for (const step of steps) total.add(step.synapses);
  return total;
}

/** The angle between the total update of a rule and the gradient of BPTT, in degrees. */
export function totalAngle(setup: Setup): number {
  const { net, x, y, batch, rule, rates, freeSteps, order } = setup;
  const start = new Presented(net, x, batch);
  const free = relax(start, freeSteps, order);
  const path = order === "sync" ? free : relax(start, freeSteps, "sync");
  const exact = totalOf(start, bptt(start, path.states, y, rule.nudgedSteps));
  const presented = new Presented(net.copy(false), x, batch);
  const ours = new Total(presented);
  for (const { step } of nudgedPhase(presented, rule, free.states[freeSteps], y)) {
    ours.add(step.synapses);
    if (continual(rule)) move(presented, step.synapses, rates);
  }
  return ours.angle(exact, start);
}
