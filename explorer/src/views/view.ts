/** What every view has: a sentence, a few numbers, charts, and tables of what they show. */

import type { Chart } from "../chart";
import { brief, element, exactly, table } from "../dom";
import type { Scene } from "../scene";

export interface View {
  title: string;
  root: HTMLElement;
  /** Show a scene; return the Python lines that give its numbers. */
  show(scene: Scene): string;
}

/** The frame of a view, from top to bottom. */
export class Frame {
  readonly root: HTMLElement;
  private readonly claim = element("p", { class: "claim", "aria-live": "polite" });
  private readonly stats = element("dl", { class: "stats" });
  private readonly numbers = element("details", { class: "numbers" });

  constructor(about: string, ...parts: HTMLElement[]) {
    this.root = element(
      "div",
      { class: "view" },
      element("p", { class: "about" }, about),
      this.claim,
      this.stats,
      ...parts,
      this.numbers,
    );
  }

  say(claim: string): void {
    if (this.claim.textContent !== claim) this.claim.textContent = claim;
  }

  /** Numbers that stand out: name, label, value, unit. */
  showStats(...stats: [string, string, number | string, string?][]): void {
    this.stats.replaceChildren(
      ...stats.map(([name, label, value, unit = ""]) => {
        const text = typeof value === "number" ? brief(value) + unit : value;
        const full = typeof value === "number" ? exactly(value) : value;
        return element(
          "div",
          {},
          element("dt", {}, label),
          element("dd", { "data-stat": name, "data-value": full, title: full }, text),
        );
      }),
    );
  }

  /** Tables, filled when the reader opens them. */
  showNumbers(make: () => [string, string[], (string | number)[][]][]): void {
    const fill = () => {
      const tables = make().flatMap(([name, head, rows]) => [
        element("h3", {}, name),
        table(name, head, rows),
      ]);
      this.numbers.replaceChildren(
        element("summary", {}, "Numbers"),
        ...(this.numbers.open ? tables : []),
      );
    };
    this.numbers.ontoggle = fill;
    fill();
  }
}

export const range = (count: number, from = 0): number[] =>
  Array.from({ length: count }, (_, i) => i + from);

export const row = (...charts: Chart[]): HTMLElement =>
  element("div", { class: "charts" }, ...charts.map((chart) => chart.figure));
