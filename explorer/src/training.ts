/** Training on the digits of the page, minibatch by minibatch, as an engine of eqprop does it. */

import { totalAngle } from "./analysis";
import { type Order, Presented, relax } from "./dynamics";
import type { Network } from "./network";
import { continual, contrast, move, nudgedPhase, type Rule } from "./rules";

export interface Digits {
  images: Uint8Array; // [n, 784]
  labels: Uint8Array; // [n]
}

export interface Lesson {
  rule: Rule;
  rates: number[];
  freeSteps: number;
  order: Order;
}

export interface Epoch {
  train: number; // error in %, counted while it learns
  test: number; // error in % after the epoch
  angle: number; // between update and BPTT at its first minibatch, degrees
}

/** x [n, 784] and y [n, 10] of the digits from one number to another. */
export function batchOf(digits: Digits, from: number, to: number): [Float64Array, Float64Array] {
  const x = Float64Array.from(digits.images.subarray(from * 784, to * 784), (v) => v / 255);
  const y = new Float64Array((to - from) * 10);
  for (let i = from; i < to; i++) y[(i - from) * 10 + digits.labels[i]] = 1;
  return [x, y];
}

/** Learn from every digit once, in their order. The network moves. */
export function epoch(
  net: Network,
  lesson: Lesson,
  train: Digits,
  test: Digits,
  batch = 20,
): Epoch {
  const count = train.labels.length;
  let [wrong, angle] = [0, 0];
  for (let from = 0; from < count; from += batch) {
    const to = Math.min(count, from + batch);
    const [x, y] = batchOf(train, from, to);
    if (from === 0) angle = totalAngle({ net, x, y, batch: to - from, ...lesson });
    const output = learn(net, lesson, x, y, to - from);
    wrong += mistakes(output, train.labels.subarray(from, to));
  }
  return { train: (100 * wrong) / count, test: error(net, lesson, test), angle };
}

/** Learn from one minibatch with EP, C-EP or C-VF; return the output of the free phase, [batch, 10]. */
function learn(
  net: Network,
  { rule, rates, freeSteps, order }: Lesson,
  x: Float64Array,
  y: Float64Array,
  batch: number,
): Float64Array {
  const presented = new Presented(net, x, batch);
  const start = relax(presented, freeSteps, order).states[freeSteps];
  let end = start;
  for (const { step, s } of nudgedPhase(presented, rule, start, y)) {
    if (continual(rule)) move(presented, step.synapses, rates);
    end = s;
  }
  if (!continual(rule)) move(presented, contrast(presented, start, end, rule.beta), rates);
  presented.settleInput();
  return start[start.length - 1];
}

function mistakes(output: Float64Array, labels: Uint8Array): number {
  let wrong = 0;
  labels.forEach((label, i) => {
    const answer = output.subarray(i * 10, i * 10 + 10);
    if (answer.indexOf(Math.max(...answer)) !== label) wrong++;
  });
  return wrong;
}

/** In %. */
export function error(net: Network, lesson: Lesson, digits: Digits): number {
  const count = digits.labels.length;
  const [x] = batchOf(digits, 0, count);
  const states = relax(new Presented(net, x, count), lesson.freeSteps, lesson.order).states;
  const output = states[lesson.freeSteps];
  return (100 * mistakes(output[output.length - 1], digits.labels)) / count;
}
