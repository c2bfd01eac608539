/**
 * Dynamics of a layered network in discrete time, as in `eqprop.dynamics`.
 *
 * First phase   s_{t+1} = σ(drive(s_t))
 * Second phase  s_{t+1} = σ(drive(s_t)) − β (s_t − y) on the output
 */

import { addProduct, addTransposed } from "./matrices";
import type { Network } from "./network";

/** One array [batch, n] per layer that moves, the first hidden layer first. */
export type State = Float64Array[];

export type Order = "sync" | "turn";

/**
 * A network with a batch of inputs. The input does not change, so its drive on the first layer is
 * computed once; where its weights move by Xᵀd, the drive moves by (X Xᵀ) d.
 */
export class Presented {
  readonly drive: Float64Array; // [batch, n of the first layer]
  private products: Float64Array | null = null;
  readonly change: Float64Array; // [batch, n]: the input weights have moved by Xᵀ change

  constructor(
    readonly net: Network,
    readonly x: Float64Array,
    readonly batch: number,
  ) {
    const [inputs, width] = net.sizes;
    const { weight, bias } = net.synapses[0];
    this.drive = new Float64Array(batch * width);
    this.change = new Float64Array(batch * width);
    addProduct(this.drive, x, weight, batch, inputs, width);
    if (bias) addRows(this.drive, bias);
  }

  /** X Xᵀ, [batch, batch], plus 1 where there is a bias. */
  get gram(): Float64Array {
    if (this.products) return this.products;
    const { net, x, batch } = this;
    const inputs = net.sizes[0];
    const gram = new Float64Array(batch * batch).fill(net.synapses[0].bias ? 1 : 0);
    for (let a = 0; a < batch; a++) {
      for (let b = 0; b < batch; b++) {
        let sum = 0;
        for (let i = 0; i < inputs; i++) sum += x[a * inputs + i] * x[b * inputs + i];
        gram[a * batch + b] += sum;
      }
    }
    return (this.products = gram);
  }

  /** Move the input weights by Xᵀ(rate · d), and the bias with them. */
  moveInput(d: Float64Array, rate: number): void {
    const width = this.net.sizes[1];
    const scaled = d.map((v) => rate * v);
    addProduct(this.drive, this.gram, scaled, this.batch, this.batch, width);
    for (let i = 0; i < scaled.length; i++) this.change[i] += scaled[i];
  }

  /** Write the movement of the input weights to the network. */
  settleInput(): void {
    const [inputs, width] = this.net.sizes;
    const { weight, bias } = this.net.synapses[0];
    for (let b = 0; b < this.batch; b++) {
      const change = this.change.subarray(b * width, (b + 1) * width);
      for (let i = 0; i < inputs; i++) {
        const pixel = this.x[b * inputs + i];
        if (pixel === 0) continue;
        for (let j = 0; j < width; j++) weight[i * width + j] += pixel * change[j];
      }
      if (bias) for (let j = 0; j < width; j++) bias[j] += change[j];
    }
    this.change.fill(0);
  }

  zero(): State {
    return this.net.sizes.slice(1).map((n) => new Float64Array(this.batch * n));
  }

  /** The drive of synapse k on the layer after it, its bias included. */
  forwardDrive(s: State, k: number): Float64Array {
    if (k === 0) return this.drive.slice();
    const { sizes, synapses } = this.net;
    const drive = new Float64Array(this.batch * sizes[k + 1]);
    addProduct(drive, s[k - 1], synapses[k].weight, this.batch, sizes[k], sizes[k + 1]);
    const { bias } = synapses[k];
    if (bias) addRows(drive, bias);
    return drive;
  }

  /** Add the drive of synapse k on the layer before it. */
  addBackwardDrive(drive: Float64Array, s: State, k: number): void {
    const { sizes, synapses } = this.net;
    const { weight, backward } = synapses[k];
    const [before, after] = [sizes[k], sizes[k + 1]];
    if (backward) addProduct(drive, s[k], backward, this.batch, after, before);
    else addTransposed(drive, s[k], weight, this.batch, after, before);
  }

  /** The whole drive on layer i. */
  layerDrive(s: State, i: number): Float64Array {
    const drive = this.forwardDrive(s, i);
    if (i + 1 < this.net.depth) this.addBackwardDrive(drive, s, i + 1);
    return drive;
  }

  /** F(x, s, θ). Layers for which `moves` is false stay as they are. */
  step(s: State, moves: (layer: number) => boolean = () => true): State {
    const { value } = this.net.sigma;
    return s.map((layer, i) => (moves(i) ? this.layerDrive(s, i).map(value) : layer));
  }

  /** F(x, s, θ) − β ∂ℓ/∂s. */
  nudgedStep(s: State, y: Float64Array, beta: number): State {
    const next = this.step(s);
    const [before, after] = [s[s.length - 1], next[s.length - 1]];
    for (let i = 0; i < after.length; i++) after[i] -= beta * (before[i] - y[i]);
    return next;
  }
}

function addRows(matrix: Float64Array, row: Float64Array): void {
  for (let i = 0; i < matrix.length; i++) matrix[i] += row[i % row.length];
}

export interface Relaxation {
  states: State[]; // s_0 … s_T
  changes: number[]; // the largest change of any neuron at each step
  residual: number; // the largest at the last update of each layer
}

/** The free phase: T steps from zero, all layers at once or every other layer in turn. */
export function relax(presented: Presented, steps: number, order: Order): Relaxation {
  const states = [presented.zero()];
  const changes: number[] = [];
  for (let t = 0; t < steps; t++) {
    const s = states[t];
    const next = presented.step(s, order === "turn" ? (i) => i % 2 === t % 2 : undefined);
    changes.push(largestChange(s, next));
    states.push(next);
  }
  const residual = Math.max(...changes.slice(order === "turn" ? -2 : -1));
  return { states, changes, residual };
}

function largestChange(a: State, b: State): number {
  let largest = 0;
  for (let k = 0; k < a.length; k++) {
    for (let i = 0; i < a[k].length; i++) {
      largest = Math.max(largest, Math.abs(b[k][i] - a[k][i]));
    }
  }
  return largest;
}

/** Whether every neuron is a number. */
export function isFinite(s: State): boolean {
  return s.every((layer) => layer.every((v) => Number.isFinite(v)));
}
