/** The controls: one for each setting. They show the settings, and say what a reader changes. */

import { brief, element } from "./dom";
import { DigitChooser } from "./digits";
import type { Scene } from "./scene";
import { ORDERS, RANGES, RULES, type Settings, SLOPES } from "./settings";

export type Change = (changed: Partial<Settings>) => void;

const RULE_NAMES = { ep: "EP", "c-ep": "C-EP", vf: "VF", "c-vf": "C-VF" };
const FRESH = [
  ["fresh-512", "fresh, 784-512-10"],
  ["fresh-128", "fresh, 784-128-10"],
  ["fresh-64-64", "fresh, 784-64-64-10"],
];

interface Range {
  min: number;
  max: number;
  step: number;
}

/** A slider beside a field for the same number; with a step of 0 the slider is logarithmic. */
export class NumberControl {
  readonly root: HTMLElement;
  private readonly slider: HTMLInputElement;
  private readonly field: HTMLInputElement;
  private readonly log: boolean;

  constructor(
    id: string,
    label: string,
    private readonly range: Range,
    private readonly changed: (value: number) => void,
    hint = "",
  ) {
    this.log = range.step === 0;
    const { min, max, step } = range;
    const ends = this.log
      ? { min: Math.log10(min), max: Math.log10(max), step: 0.01 }
      : { min, max, step };
    this.slider = element("input", { type: "range", id, ...ends });
    this.field = element("input", {
      type: "number",
      min,
      max,
      step: "any",
      "aria-label": `${label}, number`,
    });
    this.slider.addEventListener("input", () => {
      const at = Number(this.slider.value);
      this.changed(this.log ? Number((10 ** at).toPrecision(3)) : at);
    });
    this.field.addEventListener("change", () => this.typed());
    this.root = element(
      "div",
      { class: "control" },
      element("label", { for: id, title: hint }, label),
      this.slider,
      this.field,
    );
  }

  private typed(): void {
    const value = Number(this.field.value);
    const { min, max, step } = this.range;
    const fits =
      this.field.value !== "" &&
      value >= min &&
      value <= max &&
      (step !== 1 || Number.isInteger(value));
    this.field.setCustomValidity(fits ? "" : `from ${min} to ${max}`);
    if (fits) this.changed(value);
    else this.field.reportValidity();
  }

  show(value: number, shown = true, most = this.range.max): void {
    this.root.hidden = !shown;
    if (!this.log) this.slider.max = this.field.max = String(most);
    this.slider.value = String(this.log ? Math.log10(value) : value);
    this.slider.setAttribute("aria-valuetext", brief(value));
    if (document.activeElement !== this.field) this.field.value = String(value);
  }
}

/** A few choices, side by side. */
export class Choice<T extends string> {
  readonly root: HTMLFieldSetElement;
  private readonly inputs = new Map<T, HTMLInputElement>();

  constructor(name: string, legend: string, choices: [T, string][], changed: (value: T) => void) {
    const options = choices.map(([value, text]) => {
      const input = element("input", { type: "radio", name, value, id: `${name}-${value}` });
      input.addEventListener("change", () => changed(value));
      this.inputs.set(value, input);
      return element("label", { for: `${name}-${value}` }, input, element("span", {}, text));
    });
    this.root = element(
      "fieldset",
      { class: "choice", "aria-label": legend || name },
      legend ? element("legend", {}, legend) : null,
      element("div", {}, ...options),
    );
  }

  show(value: T, allowed: (value: T) => boolean = () => true, shown = true): void {
    this.root.hidden = !shown;
    for (const [each, input] of this.inputs) {
      input.checked = each === value;
      input.disabled = !allowed(each);
    }
  }
}

export class Controls {
  readonly root: HTMLElement;
  private readonly network = element("select", { id: "net", "aria-label": "network" });
  private readonly rule: Choice<Settings["rule"]>;
  private readonly slope: Choice<Settings["slope"]>;
  private readonly order: Choice<Settings["order"]>;
  private readonly tying: Choice<"yes" | "no">;
  private readonly numbers: Record<"seed" | "psi" | "beta" | "T" | "K", NumberControl>;
  private readonly rates = element("div");
  private rateControls: NumberControl[] = [];
  private readonly digits: DigitChooser;

  /** `current` gives the settings of now, which may be newer than those that are shown. */
  constructor(
    scene: Scene,
    private readonly change: Change,
    private readonly current: () => Settings,
    pickNetwork: (name: string) => void,
  ) {
    const { networks } = scene.library.content;
    const own = networks.map(({ name, title }): [string, string] => [name, title]);
    this.network.append(
      ...[...own, ...FRESH].map(([value, text]) => element("option", { value }, text)),
    );
    this.network.addEventListener("change", () => pickNetwork(this.network.value));
    this.rule = new Choice(
      "rule",
      "",
      RULES.map((it) => [it, RULE_NAMES[it]]),
      (rule) => change({ rule }),
    );
    this.slope = new Choice(
      "slope",
      "σ′ in the update",
      SLOPES.map((it) => [it, it]),
      (slope) => change({ slope }),
    );
    this.order = new Choice(
      "order",
      "Layers in the free phase",
      [
        [ORDERS[0], "all at once"],
        [ORDERS[1], "in turn"],
      ],
      (order) => change({ order }),
    );
    this.tying = new Choice(
      "tied",
      "Between two layers",
      [
        ["yes", "one weight"],
        ["no", "two weights"],
      ],
      (tied) => change({ tied: tied === "yes" }),
    );
    const number = (key: "seed" | "psi" | "beta" | "T" | "K", label: string, hint: string) =>
      new NumberControl(
        key,
        label,
        RANGES[key],
        (value) => change({ [key]: this.allowed(key, value) }),
        hint,
      );
    this.numbers = {
      seed: number("seed", "seed", "of the fresh weights"),
      psi: number("psi", "Ψ, degrees", "angle between forward and backward weights"),
      beta: number("beta", "β", "strength of the nudge"),
      T: number("T", "T", "steps of the free phase"),
      K: number("K", "K", "steps of the nudged phase"),
    };
    this.digits = new DigitChooser(scene.library, change);
    const group = (title: string, ...parts: HTMLElement[]) =>
      element("section", {}, element("h2", {}, title), ...parts);
    const { seed, psi, beta, T, K } = this.numbers;
    const chosen = element("div", { class: "control wide" }, this.network);
    this.root = element(
      "div",
      { class: "controls" },
      group("Digit", this.digits.root),
      group("Network", chosen, seed.root, this.tying.root, psi.root),
      group("Learning rule", this.rule.root, this.slope.root, beta.root, this.rates),
      group("Phases", T.root, K.root, this.order.root),
    );
  }

  /** A slider may stop at β = 0, where there is no nudge. */
  private allowed(key: string, value: number): number {
    if (key !== "beta" || value !== 0) return value;
    return this.current().beta > 0 ? -0.01 : 0.01;
  }

  show(scene: Scene): void {
    const { settings, library, net } = scene;
    const own = library.untied(settings.net);
    const field = settings.rule === "vf" || settings.rule === "c-vf";
    if (![...this.network.options].some((option) => option.value === settings.net)) {
      this.network.append(
        element("option", { value: settings.net }, `fresh, ${net.sizes.join("-")}`),
      );
    }
    this.network.value = settings.net;
    this.rule.show(settings.rule, (rule) => !own || rule === "vf" || rule === "c-vf");
    this.slope.show(settings.slope, undefined, field);
    this.order.show(settings.order);
    this.tying.show(settings.tied ? "yes" : "no", undefined, field && !own);
    this.numbers.seed.show(settings.seed, !library.trained(settings.net));
    this.numbers.psi.show(settings.psi, field && !own && !settings.tied);
    this.numbers.beta.show(settings.beta);
    this.numbers.T.show(settings.T);
    this.numbers.K.show(settings.K, true, Math.min(RANGES.K.max, settings.T));
    this.showRates(settings.eta, net.sizes);
    this.digits.show(scene);
  }

  private showRates(eta: number[], sizes: readonly number[]): void {
    if (this.rateControls.length !== eta.length) {
      this.rateControls = eta.map((_, k) => {
        const label = k === 0 ? "η input" : k === eta.length - 1 ? "η output" : `η ${k}`;
        const hint = `learning rate of the weights ${sizes[k]} → ${sizes[k + 1]}`;
        return new NumberControl(
          `eta-${k}`,
          label,
          RANGES.eta,
          (value) => {
            const now = this.current().eta;
            this.change({ eta: now.map((rate, i) => (i === k ? value : rate)) });
          },
          hint,
        );
      });
      this.rates.replaceChildren(...this.rateControls.map((control) => control.root));
    }
    this.rateControls.forEach((control, k) => control.show(eta[k]));
  }
}
