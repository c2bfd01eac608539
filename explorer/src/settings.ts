/** The state of the page: what the controls say, read from and written to the address. */

import type { Order } from "./dynamics";
import type { RuleName, Slope } from "./rules";

export const VIEWS = ["settle", "compare", "weights", "limits", "order", "train"] as const;
export type ViewName = (typeof VIEWS)[number];

/** One neuron per layer, the pixel first. Synapses join neighbours. */
export type Probe = number[];

export interface Settings {
  view: ViewName;
  net: string; // the name of a stored network, or fresh-512, fresh-64-64, …
  seed: number; // of a fresh network
  rule: RuleName;
  tied: boolean;
  psi: number; // degrees, of untied weights
  beta: number;
  eta: number[]; // per synapse, input → output
  T: number;
  K: number;
  slope: Slope;
  order: Order;
  digit: string; // test-7, train-12, or drawn
  drawing: string; // 784 hexadecimal digits, one per pixel
  target: number; // the class that a drawn digit is nudged to
  probes: Probe[]; // empty: the page picks
  time: number; // the step that the layers show, through both phases; -1: the last
  boost: number; // η in training is this many times η
  samples: number; // digits to train on
  epochs: number;
  tour: number; // step of the tour, 0: none
}

export const RULES: readonly RuleName[] = ["ep", "c-ep", "vf", "c-vf"];
export const SLOPES: readonly Slope[] = ["none", "own", "full"];
export const ORDERS: readonly Order[] = ["sync", "turn"];
export const BLANK = "0".repeat(784);
export const TOUR_STEPS = 6;
export const MOST_PROBES = 3;

/** The range of each number, with the step of its slider. */
export const RANGES = {
  seed: { min: 0, max: 9999, step: 1 },
  psi: { min: 0, max: 180, step: 0.5 },
  beta: { min: -1, max: 1, step: 0.01 },
  eta: { min: 1e-6, max: 1, step: 0 },
  T: { min: 2, max: 200, step: 1 },
  K: { min: 1, max: 60, step: 1 },
  target: { min: 0, max: 9, step: 1 },
  time: { min: -1, max: 260, step: 1 },
  boost: { min: 0.1, max: 20, step: 0 },
  samples: { min: 20, max: 400, step: 20 },
  epochs: { min: 1, max: 60, step: 1 },
  tour: { min: 0, max: TOUR_STEPS, step: 1 },
} as const;

export const DEFAULTS: Settings = {
  view: "settle",
  net: "c-ep",
  seed: 0,
  rule: "c-ep",
  tied: true,
  psi: 0,
  beta: 0.2,
  eta: [0.0056, 0.0028],
  T: 40,
  K: 15,
  slope: "none",
  order: "sync",
  digit: "test-8",
  drawing: BLANK,
  target: 0,
  probes: [],
  time: -1,
  boost: 1,
  samples: 400,
  epochs: 20,
  tour: 0,
};

/** What the page has, against which an address is checked. */
export interface Available {
  /** The layers of a network, from the input on; null where there is no such network. */
  sizes(name: string): number[] | null;
  /** Whether a stored network has backward weights of its own. */
  untied(name: string): boolean;
  hasDigit(name: string): boolean;
}

class Unfit extends Error {}

type Field<T> = { read(text: string): T; write(value: T): string };

const oneOf = <T extends string>(choices: readonly T[]): Field<T> => ({
  read: (text) => {
    const found = choices.find((choice) => choice === text);
    if (found === undefined) throw new Unfit(`must be one of ${choices.join(", ")}`);
    return found;
  },
  write: (value) => value,
});

const number = (name: keyof typeof RANGES): Field<number> => ({
  read: (text) => {
    const { min, max, step } = RANGES[name];
    const value = text.trim() === "" ? NaN : Number(text);
    const whole = step === 0 || step % 1 !== 0 || Number.isInteger(value);
    if (!(value >= min && value <= max) || !whole) {
      const kind = step === 0 || step % 1 !== 0 ? "a number" : "an integer";
      throw new Unfit(`must be ${kind} from ${min} to ${max}`);
    }
    if (name === "beta" && value === 0) throw new Unfit("must not be 0: there would be no nudge");
    return value;
  },
  write: String,
});

const FIELDS: { [K in keyof Settings]: Field<Settings[K]> } = {
  view: oneOf(VIEWS),
  net: { read: (text) => text, write: (value) => value },
  seed: number("seed"),
  rule: oneOf(RULES),
  tied: {
    read: (text) => oneOf(["yes", "no"]).read(text) === "yes",
    write: (value) => (value ? "yes" : "no"),
  },
  psi: number("psi"),
  beta: number("beta"),
  eta: {
    read: (text) => text.split(",").map((part) => number("eta").read(part)),
    write: (value) => value.join(","),
  },
  T: number("T"),
  K: number("K"),
  slope: oneOf(SLOPES),
  order: oneOf(ORDERS),
  digit: { read: (text) => text, write: (value) => value },
  drawing: {
    read: (text) => {
      if (!/^[0-9a-f]{784}$/.test(text)) throw new Unfit("must have 784 hexadecimal digits");
      return text;
    },
    write: (value) => value,
  },
  target: number("target"),
  probes: {
    read: (text) => {
      const probes = text.split("_").map((probe) => probe.split(".").map(Number));
      if (!/^[\d._]+$/.test(text)) throw new Unfit("must be numbers such as 406.12.3_407.40.5");
      return probes;
    },
    write: (value) => value.map((probe) => probe.join(".")).join("_"),
  },
  time: number("time"),
  boost: number("boost"),
  samples: number("samples"),
  epochs: number("epochs"),
  tour: number("tour"),
};

export interface Read {
  settings: Settings;
  messages: string[];
}

/** The settings of an address. A value that does not fit gives a message and the default. */
export function readAddress(hash: string, has: Available): Read {
  const settings = structuredClone(DEFAULTS);
  const messages: string[] = [];
  for (const [key, text] of new URLSearchParams(hash.replace(/^#/, ""))) {
    if (!(key in FIELDS)) {
      messages.push(`${key}: there is no such setting.`);
      continue;
    }
    try {
      Object.assign(settings, { [key]: FIELDS[key as keyof Settings].read(text) });
    } catch (error) {
      if (!(error instanceof Unfit)) throw error;
      const shown = text.length > 30 ? `${text.slice(0, 30)}…` : text;
      messages.push(`${key} ${error.message}, not “${shown}”.`);
    }
  }
  const fitted = fit(settings, has);
  return { settings: fitted.settings, messages: [...messages, ...fitted.messages] };
}

/** The address of a view: what differs from the defaults. */
export function writeAddress(settings: Settings): string {
  const pairs = (Object.keys(FIELDS) as (keyof Settings)[])
    .map((key) => {
      const field = FIELDS[key] as Field<unknown>;
      return [key, field.write(settings[key]), field.write(DEFAULTS[key])];
    })
    .filter(([, value, usual]) => value !== usual)
    .map(([key, value]) => `${key}=${value}`);
  return pairs.length ? `#${pairs.join("&")}` : "#";
}

/** Settings that go together, and a message for each that had to change. */
export function fit(given: Settings, has: Available): Read {
  const settings = { ...given };
  const messages: string[] = [];
  if (!has.sizes(settings.net)) {
    messages.push(`net: there is no network “${settings.net}”.`);
    settings.net = DEFAULTS.net;
  }
  if (has.untied(settings.net)) {
    if (settings.rule === "ep" || settings.rule === "c-ep") {
      messages.push("rule: EP and C-EP need tied weights; this network has C-VF.");
      settings.rule = "c-vf";
    }
    settings.tied = false;
  } else if (settings.rule === "ep" || settings.rule === "c-ep") {
    settings.tied = true;
  }
  const sizes = has.sizes(settings.net) ?? [];
  if (settings.eta.length !== sizes.length - 1) {
    messages.push(`eta: give ${sizes.length - 1} numbers, one per synapse, input to output.`);
    settings.eta = stretched(settings.eta, sizes);
  }
  if (settings.K > settings.T) {
    messages.push(`K: BPTT goes back through K of the T steps, so K is ${settings.T} at most.`);
    settings.K = settings.T;
  }
  settings.time = Math.min(settings.time, settings.T + settings.K);
  if (settings.digit !== "drawn" && !has.hasDigit(settings.digit)) {
    messages.push(`digit: the page has no digit “${settings.digit}”.`);
    settings.digit = DEFAULTS.digit;
  }
  const fits = (probe: Probe) =>
    probe.length === sizes.length && probe.every((n, i) => Number.isInteger(n) && n < sizes[i]);
  if (!settings.probes.every(fits) || settings.probes.length > MOST_PROBES) {
    messages.push(`probes: give ${MOST_PROBES} at most, with one number per layer of the network.`);
    settings.probes = [];
  }
  return { settings, messages };
}

/** Learning rates for a network with these layers: the last one serves for those that miss. */
export function stretched(eta: number[], sizes: number[]): number[] {
  return sizes.slice(1).map((_, k) => eta[Math.min(k, eta.length - 1)]);
}
