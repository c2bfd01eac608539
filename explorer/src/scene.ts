/** What the settings mean: a network, a digit, and what is observed when one meets the other. */

import { type Observation, observe, type Setup } from "./analysis";
import type { Content, Trained } from "./content";
import { fresh, type Network } from "./network";
import { type Available, MOST_PROBES, type Probe, type Settings } from "./settings";
import { batchOf } from "./training";

const FRESH = /^fresh((?:-\d+){1,3})$/;
const LARGEST = 512;

/** The layers of a fresh network from its name, fresh-64-64: 784, 64, 64, 10. */
function freshSizes(name: string): number[] | null {
  const hidden = FRESH.exec(name)?.[1].slice(1).split("-").map(Number);
  const fits = hidden?.every((n) => n >= 1 && n <= LARGEST);
  return hidden && fits ? [784, ...hidden, 10] : null;
}

/** The networks and digits of the page by name. Networks are drawn once. */
export class Library implements Available {
  private readonly drawn = new Map<string, Network>();
  private readonly turned = new Map<string, Network>();
  private readonly seen = new Map<string, Observation>();

  constructor(readonly content: Content) {}

  trained(name: string): Trained | undefined {
    return this.content.networks.find((it) => it.name === name);
  }

  sizes(name: string): number[] | null {
    return this.trained(name)?.net.sizes.slice() ?? freshSizes(name);
  }

  untied(name: string): boolean {
    return this.trained(name)?.net.tied === false;
  }

  hasDigit(name: string): boolean {
    return this.place(name) !== null;
  }

  /** Where a digit such as test-7 is among those that the page holds. */
  place(name: string): { split: "train" | "test"; at: number } | null {
    const found = /^(train|test)-(\d+)$/.exec(name);
    if (!found) return null;
    const [split, number] = [found[1] as "train" | "test", Number(found[2])];
    const { train, testNumbers } = this.content;
    const at = split === "test" ? testNumbers.indexOf(number) : number;
    return at >= 0 && at < (split === "test" ? testNumbers : train.labels).length
      ? { split, at }
      : null;
  }

  network({ net: name, seed, tied, psi }: Settings): Network {
    const stored = this.trained(name);
    const base =
      stored?.net ??
      remembered(this.drawn, `${name} ${seed}`, () => fresh(freshSizes(name) ?? [], seed));
    if (tied || !base.tied) return base;
    const key = `${name} ${seed} ${psi}`;
    return remembered(this.turned, key, () => base.untied(stored?.seed ?? seed, psi));
  }

  /** What a scene shows; the same for every view of it, every time and every probe. */
  observation(scene: Scene): Observation {
    return remembered(this.seen, scene.key, () => observe(scene.setup));
  }
}

/** A few values by key; the oldest are forgotten. */
function remembered<T>(store: Map<string, T>, key: string, make: () => T): T {
  const known = store.get(key) ?? make();
  store.delete(key);
  store.set(key, known);
  for (const oldest of store.keys()) {
    if (store.size <= 12) break;
    store.delete(oldest);
  }
  return known;
}

export class Scene {
  readonly net: Network;
  readonly x: Float64Array;
  readonly y: Float64Array;
  readonly label: number;

  constructor(
    readonly settings: Settings,
    readonly library: Library,
  ) {
    this.net = library.network(settings);
    const place = library.place(settings.digit);
    if (place) {
      const digits = library.content[place.split];
      [this.x, this.y] = batchOf(digits, place.at, place.at + 1);
      this.label = digits.labels[place.at];
    } else {
      this.x = Float64Array.from(settings.drawing, (c) => parseInt(c, 16) / 15);
      this.label = settings.target;
      this.y = new Float64Array(10);
      this.y[this.label] = 1;
    }
  }

  get setup(): Setup {
    const { rule, beta, K, slope, eta, T, order } = this.settings;
    return {
      net: this.net,
      x: this.x,
      y: this.y,
      batch: 1,
      rule: { name: rule, beta, nudgedSteps: K, slope },
      rates: eta,
      freeSteps: T,
      order,
    };
  }

  /** The settings that the mathematics depends on. */
  get key(): string {
    const { view, probes, time, boost, samples, epochs, tour, ...rest } = this.settings;
    return JSON.stringify(rest);
  }

  get observation(): Observation {
    return this.library.observation(this);
  }

  /** Those that the reader picked; else the pixel, and in each layer the neurons, that matter most. */
  get probes(): Probe[] {
    if (this.settings.probes.length) return this.settings.probes;
    const { exact } = this.observation;
    const byLayer = [
      strongest(this.x, 3 * MOST_PROBES).filter((_, i) => i % 3 === 0),
      ...this.net.sizes.slice(1).map((n, i) => {
        const weight = new Float64Array(n);
        for (const { neurons } of exact) neurons[i].forEach((v, j) => (weight[j] += Math.abs(v)));
        return strongest(weight, MOST_PROBES);
      }),
    ];
    return Array.from({ length: MOST_PROBES }, (_, i) =>
      byLayer.map((picks) => picks[i % picks.length]),
    );
  }
}

/** The places of the largest values, the largest first. */
function strongest(values: Float64Array, count: number): number[] {
  const places = Array.from(values.keys());
  return places.sort((a, b) => values[b] - values[a] || a - b).slice(0, count);
}
