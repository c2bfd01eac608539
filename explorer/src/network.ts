/**
 * Layered networks in discrete time. Weights are [n_pre, n_post] in rows, as in Python.
 * Layer 0 is the input; synapse k joins layer k to layer k + 1.
 */

import { ACTIVATIONS, type Activation } from "./activations";
import { Generator } from "./random";

export interface Synapse {
  weight: Float64Array; // [n_pre, n_post]
  bias: Float64Array | null; // [n_post]
  backward: Float64Array | null; // [n_post, n_pre]; null: the weight serves both directions
}

export class Network {
  constructor(
    readonly sizes: readonly number[],
    readonly synapses: readonly Synapse[],
    readonly activation: string = "sigmoid",
  ) {}

  get sigma(): Activation {
    return ACTIVATIONS[this.activation];
  }

  get tied(): boolean {
    return this.synapses.every((synapse) => synapse.backward === null);
  }

  /** How many layers move. */
  get depth(): number {
    return this.sizes.length - 1;
  }

  /**
   * A network whose weights may move while those of this one stay. Weights from the input are
   * copied on request: within a phase they move as a drive (see `Presented`).
   */
  copy(input = true): Network {
    const synapses = this.synapses.map((synapse, k) => {
      if (k === 0 && !input) return synapse;
      const { weight, bias, backward } = synapse;
      return {
        weight: weight.slice(),
        bias: bias?.slice() ?? null,
        backward: backward?.slice() ?? null,
      };
    });
    return new Network(this.sizes, synapses, this.activation);
  }

  /** The same forward weights, with backward weights of their own at the angle Ψ, in degrees. */
  untied(seed: number, angle: number): Network {
    const p = 0.5 * (1 - Math.cos((angle * Math.PI) / 180));
    const synapses = this.synapses.map((synapse, k) => {
      if (k === 0) return synapse;
      const [before, after] = [this.sizes[k], this.sizes[k + 1]];
      const flips = new Generator(seed, `synapse ${k} sign flips`);
      const backward = new Float64Array(synapse.weight.length);
      for (let i = 0; i < before; i++) {
        for (let j = 0; j < after; j++) {
          const w = synapse.weight[i * after + j];
          backward[j * before + i] = flips.uniform() < p ? -w : w;
        }
      }
      return { ...synapse, backward };
    });
    return new Network(this.sizes, synapses, this.activation);
  }

  /** Ψ between the forward and backward weights of synapse k, in degrees; 0 where tied. */
  angle(k: number): number {
    const { weight, backward } = this.synapses[k];
    if (backward === null) return 0;
    const [before, after] = [this.sizes[k], this.sizes[k + 1]];
    let [dot, forward, back] = [0, 0, 0];
    for (let i = 0; i < before; i++) {
      for (let j = 0; j < after; j++) {
        const [a, b] = [weight[i * after + j], backward[j * before + i]];
        dot += a * b;
        forward += a * a;
        back += b * b;
      }
    }
    return degrees(dot, forward, back);
  }
}

/** The angle of two vectors from their product and squared norms; 0 where both are zero. */
export function degrees(dot: number, a: number, b: number): number {
  if (a === 0 && b === 0) return 0;
  if (a === 0 || b === 0) return 90;
  const cosine = dot / (Math.sqrt(a) * Math.sqrt(b));
  return (Math.acos(Math.min(1, Math.max(-1, cosine))) * 180) / Math.PI;
}

/** `eqprop.layered(*sizes, init="fan_in", seed=seed)`: one weight per synapse for both directions. */
export function fresh(sizes: readonly number[], seed: number): Network {
  const synapses = sizes.slice(1).map((after, k) => {
    const before = sizes[k];
    const bound = 1 / Math.sqrt(before);
    const source = new Generator(seed, `synapse ${k} weights`);
    const drawn = (length: number) => {
      const values = new Float64Array(length);
      for (let i = 0; i < length; i++) values[i] = (2 * source.uniform() - 1) * bound;
      return values;
    };
    return { weight: drawn(before * after), bias: drawn(after), backward: null };
  });
  return new Network(sizes, synapses);
}
