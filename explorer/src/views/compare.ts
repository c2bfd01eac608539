/** Δ(t) of the rule over −∇(t) of BPTT, for neurons and synapses, and how well they agree. */

import { layerNames, type Observation } from "../analysis";
import { Chart, type Line } from "../chart";
import type { Change } from "../controls";
import { element, table } from "../dom";
import { PROBE_COLORS } from "../layers";
import { LINES } from "../python";
import type { Step } from "../rules";
import type { Scene } from "../scene";
import { LayerStrip } from "./strip";
import { Frame, range, type View } from "./view";

/** One chart: a name, a title, and the value of each probe at a step. */
export interface Curve {
  name: string;
  title: string;
  at(step: Step, probe: number[]): number;
}

export function curvesOf(scene: Scene): Curve[] {
  const names = layerNames(scene.net);
  const ends = ["input", ...names];
  const neurons = names.map((name, i) => ({
    name,
    title: `Neurons, ${name}`,
    at: (step: Step, probe: number[]) => step.neurons[i][probe[i + 1]],
  }));
  return [...neurons, ...weightsOf(scene, ends)];
}

function weightsOf(scene: Scene, ends: string[]): Curve[] {
  return scene.net.synapses.flatMap(({ backward }, k) => {
    const found: Curve[] = [
      {
        name: `synapses.${k}.weight`,
        title: `Synapses, ${ends[k]} → ${ends[k + 1]}`,
        at: (step, probe) => step.synapses[k].weight.entry(probe[k], probe[k + 1]),
      },
    ];
    if (backward) {
      found.push({
        name: `synapses.${k}.backward_weight`,
        title: `Synapses, ${ends[k + 1]} → ${ends[k]}`,
        at: (step, probe) => step.synapses[k].backward?.entry(probe[k + 1], probe[k]) ?? 0,
      });
    }
    return found;
  });
}

export class CompareView implements View {
  readonly title = "Δ and ∇";
  private charts: Chart[] = [];
  private readonly strip: LayerStrip;
  private readonly grid = element("div", { class: "charts" });
  private readonly rows = element("div", { class: "rows" });
  private readonly frame: Frame;

  constructor(change: Change) {
    this.strip = new LayerStrip("compare", change);
    this.frame = new Frame(
      "BPTT goes backwards through the free phase. A local rule goes forwards through the nudged phase. Where the theorem of the paper holds, both give the same at every t. One colour per probe.",
      this.strip.root,
      element(
        "ul",
        { class: "legend wide" },
        key("solid", "−∇(t), BPTT"),
        key("dashed", "Δ(t), the rule"),
      ),
      this.grid,
      this.rows,
    );
  }

  get root(): HTMLElement {
    return this.frame.root;
  }

  show(scene: Scene): string {
    const seen = scene.observation;
    const { T, K } = scene.settings;
    this.strip.show(scene, seen.free.states[T], "The layers at the end of the free phase.");
    const curves = curvesOf(scene);
    if (this.charts.length !== curves.length) {
      this.charts = curves.map(() => new Chart(200));
      this.grid.replaceChildren(...this.charts.map((chart) => chart.figure));
    }
    const steps = range(K);
    curves.forEach((curve, i) => {
      const lines = scene.probes.flatMap((probe, p): Line[] => {
        const color = PROBE_COLORS[p];
        const values = (of: Step[]) => of.map((step) => -curve.at(step, probe) + 0);
        return [
          { label: `−∇ of probe ${p + 1}`, x: steps, y: values(seen.exact), color, width: 2 },
          {
            label: `Δ of probe ${p + 1}`,
            x: steps,
            y: values(seen.ours),
            color,
            width: 2,
            style: "dashed",
          },
        ];
      });
      this.charts[i].show({
        title: curve.title,
        xLabel: "t",
        yLabel: "Δ(t), −∇(t)",
        lines,
        legend: false,
      });
    });
    const all = [...seen.neurons, ...seen.parameters];
    const percent = (v: number) => `${(100 * v).toFixed(1)} %`;
    this.rows.replaceChildren(
      element("h3", {}, "Over all neurons and synapses"),
      table(
        "agreement",
        ["", "relative error", "angle", "equal signs"],
        all.map((it) => [
          it.name,
          it.error.toPrecision(3),
          `${it.angle.toFixed(1)}°`,
          percent(it.signs),
        ]),
      ),
    );
    this.frame.showStats(
      ["angle", "angle of the totals", seen.angle, "°"],
      ["signs", "equal signs, first layer", 100 * seen.neurons[0].signs, " %"],
      ["residual", "residual", seen.free.residual],
    );
    this.frame.say(claim(seen));
    this.frame.showNumbers(() => [
      [
        "rows",
        ["", "relative error", "angle", "equal signs"],
        all.map((it) => [it.name, it.error, it.angle, it.signs]),
      ],
      ...curves.map((curve): [string, string[], (string | number)[][]] => [
        curve.name,
        ["t", ...scene.probes.flatMap((_, p) => [`Δ ${p + 1}`, `−∇ ${p + 1}`])],
        steps.map((t) => [
          String(t),
          ...scene.probes.flatMap((probe) => [
            -curve.at(seen.ours[t], probe),
            -curve.at(seen.exact[t], probe),
          ]),
        ]),
      ]),
    ]);
    return LINES.compare(scene);
  }
}

function key(style: string, text: string): HTMLElement {
  const swatch = element("span", { class: `swatch ${style}` });
  swatch.style.setProperty("--color", "var(--muted)");
  return element("li", {}, swatch, text);
}

function claim({ angle }: Observation): string {
  const degrees = `${angle.toFixed(1)}°`;
  if (angle < 20) return `The total update points along the gradient: ${degrees} apart.`;
  if (angle < 90) return `The total update still points downhill, ${degrees} from the gradient.`;
  return `The total update points uphill: ${degrees} from the gradient. This rule unlearns.`;
}
