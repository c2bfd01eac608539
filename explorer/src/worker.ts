/** Trains networks side by side, away from the page. One message per epoch and lane. */

import { Network, type Synapse } from "./network";
import { type Digits, type Epoch, epoch, type Lesson } from "./training";

export interface Lane {
  lesson: Lesson;
  sizes: number[];
  synapses: Synapse[];
  activation: string;
}

export interface Order {
  lanes: Lane[];
  train: Digits;
  test: Digits;
  epochs: number;
}

export type Report =
  | { lane: number; number: number; epoch: Epoch }
  | { lane: number; number: number; failed: string }
  | { done: true };

const post = (report: Report): void => postMessage(report);

self.onmessage = ({ data }: MessageEvent<Order>) => {
  const nets = data.lanes.map((it) => new Network(it.sizes, it.synapses, it.activation).copy());
  const failed = new Set<number>();
  for (let number = 1; number <= data.epochs; number++) {
    data.lanes.forEach(({ lesson }, lane) => {
      if (failed.has(lane)) return;
      try {
        post({ lane, number, epoch: epoch(nets[lane], lesson, data.train, data.test) });
      } catch (error) {
        failed.add(lane);
        post({ lane, number, failed: error instanceof Error ? error.message : String(error) });
      }
    });
  }
  post({ done: true });
};
