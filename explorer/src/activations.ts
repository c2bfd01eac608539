/** Activation functions σ with their derivatives, as `eqprop.activations` defines them. */

export interface Activation {
  low: number; // its values lie between this and 1
  value(v: number): number;
  slope(v: number): number;
}

const sigmoid = (v: number): number => 1 / (1 + Math.exp(-4 * (v - 0.5)));

export const ACTIVATIONS: Record<string, Activation> = {
  sigmoid: {
    low: 0,
    value: sigmoid,
    slope: (v) => 4 * sigmoid(v) * (1 - sigmoid(v)),
  },
  tanh: {
    low: -1,
    value: Math.tanh,
    slope: (v) => 1 - Math.tanh(v) ** 2,
  },
  hard_sigmoid: {
    low: 0,
    value: (v) => Math.min(1, Math.max(0, v)),
    slope: (v) => (v >= 0 && v <= 1 ? 1 : 0),
  },
};
