/** The weights during the nudged phase: C-EP and C-VF move them at every step. */

import { synapseOf } from "../analysis";
import { Chart } from "../chart";
import type { Change } from "../controls";
import { element } from "../dom";
import { PROBE_COLORS } from "../layers";
import { LINES } from "../python";
import { continual } from "../rules";
import type { Scene } from "../scene";
import { type Curve, curvesOf } from "./compare";
import { LayerStrip } from "./strip";
import { Frame, range, type View } from "./view";

const COLORS = ["--c0", "--c1", "--c2", "--c3", "--c4", "--c5"];

export class WeightsView implements View {
  readonly title = "Weights";
  private readonly moved = new Chart(240);
  private charts: Chart[] = [];
  private readonly strip: LayerStrip;
  private readonly grid = element("div", { class: "charts" });
  private readonly frame: Frame;

  constructor(change: Change) {
    this.strip = new LayerStrip("weights", change);
    this.frame = new Frame(
      "C-EP and C-VF move every weight at every step of the nudged phase, with the rate η. EP and VF wait until the phase is over.",
      this.strip.root,
      this.grid,
    );
  }

  get root(): HTMLElement {
    return this.frame.root;
  }

  show(scene: Scene): string {
    const seen = scene.observation;
    const { K, T } = scene.settings;
    this.strip.show(
      scene,
      seen.free.states[T],
      "Each probe picks one synapse between neighbouring layers.",
    );
    const curves = curvesOf(scene).filter((curve) => curve.name.startsWith("synapses"));
    if (this.charts.length !== curves.length + 1) {
      this.charts = [...curves.map(() => new Chart(220)), this.moved];
      this.grid.replaceChildren(...this.charts.map((chart) => chart.figure));
    }
    const steps = range(K + 1);
    const tracks = curves.map((curve) => scene.probes.map((probe) => track(scene, curve, probe)));
    curves.forEach((curve, i) => {
      this.charts[i].show({
        title: curve.title,
        xLabel: "nudged step",
        yLabel: "change of the weight",
        lines: tracks[i].map((track, p) => ({
          label: `probe ${p + 1}`,
          x: steps,
          y: track.map((w) => w - track[0]),
          color: PROBE_COLORS[p],
        })),
      });
    });
    const names = seen.parameters.map((it) => it.name);
    this.moved.show({
      title: "How far each parameter has moved",
      xLabel: "nudged step",
      yLabel: "‖θₜ − θ₀‖",
      lines: names.map((label, p) => ({
        label,
        x: steps,
        y: seen.moved[p],
        color: COLORS[p % COLORS.length],
      })),
    });
    const moves = continual(scene.setup.rule);
    const far = seen.moved[0][K];
    this.frame.showStats(["moved", "input weights moved by", far]);
    this.frame.say(
      moves
        ? "The weights move while the neurons do."
        : "The weights stand still during the phase: choose C-EP or C-VF to see them move.",
    );
    this.frame.showNumbers(() => [
      [
        "moved",
        ["nudged step", ...names],
        steps.map((t) => [String(t), ...seen.moved.map((it) => it[t])]),
      ],
      ...curves.map((curve, i): [string, string[], (string | number)[][]] => [
        curve.name,
        ["nudged step", ...scene.probes.map((_, p) => `probe ${p + 1}`)],
        steps.map((t) => [String(t), ...tracks[i].map((it) => it[t])]),
      ]),
    ]);
    return LINES.weights(scene);
  }
}

/** One weight at t = 0 … K. */
function track(scene: Scene, curve: Curve, probe: number[]): number[] {
  const k = synapseOf(curve.name);
  const { weight, backward } = scene.net.synapses[k];
  const [before, after] = [scene.net.sizes[k], scene.net.sizes[k + 1]];
  const back = curve.name.endsWith("backward_weight") && backward;
  const values = [
    back ? back[probe[k + 1] * before + probe[k]] : weight[probe[k] * after + probe[k + 1]],
  ];
  const rate = continual(scene.setup.rule) ? scene.settings.eta[k] : 0;
  for (const step of scene.observation.ours) {
    values.push(values[values.length - 1] - rate * curve.at(step, probe));
  }
  return values;
}
