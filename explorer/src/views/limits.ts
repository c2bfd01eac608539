/** What breaks when η or Ψ grows: the angle between the update and the gradient. */

import { type Setup, totalAngle } from "../analysis";
import { Chart } from "../chart";
import { element } from "../dom";
import { ANGLES, LINES, SCALES } from "../python";
import { Diverged, type RuleName } from "../rules";
import { Scene } from "../scene";
import { Frame, row, type View } from "./view";

interface Sweep {
  byRate: number[];
  byAngle: number[];
}

export class LimitsView implements View {
  readonly title = "Limits";
  private readonly rates = new Chart(260);
  private readonly angles = new Chart(260);
  private readonly note = element("p", { class: "hint" });
  private readonly frame = new Frame(
    "Below 90° an update goes downhill. The larger η, the further the weights of C-EP and C-VF move while they are measured. The larger Ψ, the less the backward weights carry the gradient.",
    row(this.rates, this.angles),
    this.note,
  );
  private key = "";
  private sweep: Sweep = { byRate: [], byAngle: [] };
  private running = 0;

  get root(): HTMLElement {
    return this.frame.root;
  }

  show(scene: Scene): string {
    if (this.key !== scene.key) {
      this.key = scene.key;
      this.sweep = { byRate: [], byAngle: [] };
      clearTimeout(this.running);
      this.running = window.setTimeout(() => this.measure(scene, tasks(scene)), 0);
    }
    this.draw(scene);
    return LINES.limits(scene);
  }

  /** One point at a time, so that the page answers in between. */
  private measure(scene: Scene, [task, ...others]: Task[]): void {
    if (!task) return;
    const until = performance.now() + 30;
    let rest = others;
    this.sweep[task.to].push(angleOf(task.setup()));
    while (rest.length && performance.now() < until) {
      const [next, ...later] = rest;
      this.sweep[next.to].push(angleOf(next.setup()));
      rest = later;
    }
    this.draw(scene);
    this.running = window.setTimeout(() => this.measure(scene, rest), 0);
  }

  private draw(scene: Scene): void {
    const { byRate, byAngle } = this.sweep;
    const { tied, psi, rule } = scene.settings;
    const own = scene.library.untied(scene.settings.net);
    const now = scene.observation.angle;
    const name = tied ? "C-EP" : "C-VF";
    const level = { color: "--axis", style: "dashed" as const, width: 1, quiet: true };
    this.rates.show({
      title: `${name}: the rate`,
      xLabel: "η, times the η of the controls",
      yLabel: "angle to BPTT, degrees",
      xLog: true,
      yRange: [0, 180],
      yTicks: [0, 45, 90, 135, 180],
      lines: [
        { label: "90°", x: [SCALES[0], SCALES[SCALES.length - 1]], y: [90, 90], ...level },
        { label: name, x: SCALES.slice(0, byRate.length), y: byRate, color: "--c0" },
        ...(rule === "c-ep" || rule === "c-vf"
          ? [{ label: "now", x: [1], y: [now], color: "--c1", style: "points" as const, width: 5 }]
          : []),
      ],
    });
    this.angles.show({
      title: "C-VF: two weights, at the angle Ψ",
      xLabel: "Ψ, degrees",
      yLabel: "angle to BPTT, degrees",
      yRange: [0, 180],
      yTicks: [0, 45, 90, 135, 180],
      lines: [
        { label: "90°", x: [0, 180], y: [90, 90], ...level },
        { label: "C-VF", x: ANGLES.slice(0, byAngle.length), y: byAngle, color: "--c2" },
        ...(rule === "c-vf" && !tied && !own
          ? [
              {
                label: "now",
                x: [psi],
                y: [now],
                color: "--c1",
                style: "points" as const,
                width: 5,
              },
            ]
          : []),
      ],
    });
    this.note.textContent = own
      ? "The backward weights of this network are trained, so its Ψ is what it is: choose another network to turn them."
      : "";
    const [first, last] = [byRate[0], byRate[byRate.length - 1]];
    const done = byRate.length === SCALES.length;
    this.frame.showStats(
      ["angle", "now", now, "°"],
      [
        "points",
        "points measured",
        `${byRate.length + byAngle.length} of ${SCALES.length + (own ? 0 : ANGLES.length)}`,
      ],
    );
    this.frame.say(
      done
        ? `With η ${SCALES[0]} times as large the update of ${name} is ${first.toFixed(0)}° off the gradient; with η ${SCALES[SCALES.length - 1]} times as large, ${last.toFixed(0)}°.`
        : "Measuring …",
    );
    this.frame.showNumbers(() => [
      ["by rate", ["times η", name], byRate.map((angle, i) => [String(SCALES[i]), angle])],
      ["by angle", ["Ψ", "C-VF"], byAngle.map((angle, i) => [String(ANGLES[i]), angle])],
    ]);
  }
}

interface Task {
  to: keyof Sweep;
  setup(): Setup;
}

function tasks(scene: Scene): Task[] {
  const { settings, library } = scene;
  const continual: RuleName = settings.tied ? "c-ep" : "c-vf";
  const byRate = SCALES.map(
    (scale): Task => ({
      to: "byRate",
      setup: () => {
        const { setup } = scene;
        return {
          ...setup,
          rule: { ...setup.rule, name: continual },
          rates: setup.rates.map((it) => scale * it),
        };
      },
    }),
  );
  if (library.untied(settings.net)) return byRate;
  const byAngle = ANGLES.map(
    (psi): Task => ({
      to: "byAngle",
      setup: () => new Scene({ ...settings, rule: "c-vf", tied: false, psi }, library).setup,
    }),
  );
  return [...byRate, ...byAngle];
}

function angleOf(setup: Setup): number {
  try {
    return totalAngle(setup);
  } catch (error) {
    if (error instanceof Diverged) return NaN;
    throw error;
  }
}
