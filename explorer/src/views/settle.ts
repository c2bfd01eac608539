/** Both phases, step by step: the layers settle, then the nudge pulls the output, then the rest. */

import { layerNames } from "../analysis";
import { Chart } from "../chart";
import type { Change } from "../controls";
import { element, reducedMotion } from "../dom";
import type { State } from "../dynamics";
import { LINES } from "../python";
import type { Scene } from "../scene";
import { LayerStrip } from "./strip";
import { Frame, range, row, type View } from "./view";

const LAYER_COLORS = ["--c2", "--c4", "--c5", "--c3"];
const FRAME_MS = 70;

export class SettleView implements View {
  readonly title = "Settle";
  private readonly outputs = new Chart(250);
  private readonly distances = new Chart(250);
  private readonly strip: LayerStrip;
  private readonly slider = element("input", { type: "range", id: "time", min: 0 });
  private readonly play = element("button", { type: "button", class: "play" }, "▶ play");
  private readonly clock = element("output", { for: "time" });
  private timer = 0;
  private scene: Scene | null = null;
  private readonly frame: Frame;

  constructor(private readonly change: Change) {
    this.strip = new LayerStrip("settle", change);
    this.slider.addEventListener("input", () => {
      this.stop();
      change({ time: Number(this.slider.value) });
    });
    this.play.addEventListener("click", () => (this.timer ? this.stop() : this.start()));
    const clock = element(
      "div",
      { class: "clock" },
      this.play,
      element("label", { for: "time" }, "step"),
      this.slider,
      this.clock,
    );
    this.frame = new Frame(
      "The network settles for T steps with the input held. Then the nudge β pulls its output towards the target for K steps.",
      clock,
      this.strip.root,
      row(this.outputs, this.distances),
    );
  }

  get root(): HTMLElement {
    return this.frame.root;
  }

  private start(): void {
    const { T = 0, K = 0 } = this.scene?.settings ?? {};
    if (reducedMotion()) return this.change({ time: -1 }); // the end, without the way there
    let t = 0;
    this.play.textContent = "■ stop";
    this.timer = window.setInterval(() => {
      if (!this.root.isConnected || t > T + K) return this.stop();
      this.change({ time: t++ });
    }, FRAME_MS);
  }

  private stop(): void {
    clearInterval(this.timer);
    this.timer = 0;
    this.play.textContent = "▶ play";
  }

  show(scene: Scene): string {
    this.scene = scene;
    const { T, K, time } = scene.settings;
    const { free, nudged } = scene.observation;
    const states = [...free.states, ...nudged.slice(1)];
    const t = time < 0 ? T + K : time;
    const [settled, last] = [free.states[T], scene.net.depth - 1];
    const inFree = t <= T;
    const change = (s: State) => s.map((layer, i) => layer.map((v, n) => v - settled[i][n]));
    const caption = inFree
      ? "The stronger the colour, the more active the neuron."
      : "Colour is the change since the end of the free phase: blue up, orange down. Each layer has its own scale, the same at all steps.";
    if (inFree) this.strip.show(scene, states[t], caption);
    else {
      const changes = nudged.map(change);
      const largest = settled.map((_, i) =>
        Math.max(...changes.map((c) => Math.max(...c[i].map(Math.abs)))),
      );
      this.strip.show(scene, change(states[t]), caption, largest);
    }
    this.slider.max = String(T + K);
    this.slider.value = String(t);
    this.clock.textContent = inFree ? `t = ${t} of ${T}, free` : `t = ${t - T} of ${K}, nudged`;
    const times = range(T + K + 1);
    const answer = settled[last].indexOf(Math.max(...settled[last]));
    this.outputs.show({
      title: "Output neurons",
      xLabel: "step",
      yLabel: "activity",
      split: T,
      splitLabels: ["free", "nudged"],
      cursor: t,
      lines: range(10).map((digit) => ({
        label:
          digit === scene.label
            ? `${digit}, the target`
            : digit === answer
              ? `${digit}, the answer`
              : String(digit),
        x: times,
        y: states.map((s) => s[last][digit]),
        color: digit === scene.label ? "--c0" : digit === answer ? "--c1" : "--muted",
        width: digit === scene.label || digit === answer ? 2.5 : 1,
        quiet: digit !== scene.label && digit !== answer,
      })),
    });
    const distance = layerNames(scene.net).map((_, i) =>
      nudged.map((s) => Math.hypot(...s[i].map((v, n) => v - settled[i][n]))),
    );
    this.distances.show({
      title: "Nudged phase: distance from the free state",
      xLabel: "nudged step",
      yLabel: "‖sₜ − s∗‖",
      cursor: inFree ? undefined : t - T,
      lines: layerNames(scene.net).map((name, i) => ({
        label: name,
        x: range(K + 1),
        y: distance[i],
        color: i === last ? "--c0" : LAYER_COLORS[i],
      })),
    });
    const loss = 0.5 * settled[last].reduce((sum, v, i) => sum + (v - scene.y[i]) ** 2, 0);
    this.frame.showStats(
      ["answer", "answer", String(answer)],
      ["target", "target", String(scene.label)],
      ["residual", "residual", free.residual],
      ["loss", "loss ½‖s − y‖²", loss],
    );
    const still = free.residual < 1e-3;
    this.frame.say(
      still
        ? `The network has settled after ${T} steps, and answers ${answer}${answer === scene.label ? "" : `, not ${scene.label}`}.`
        : `The network has not settled after ${T} steps: look at the view “Order”.`,
    );
    this.frame.showNumbers(() => [
      [
        "outputs",
        ["step", ...range(10).map(String)],
        times.map((i) => [String(i), ...states[i][last]]),
      ],
      [
        "distance",
        ["nudged step", ...layerNames(scene.net)],
        range(K + 1).map((i) => [String(i), ...distance.map((each) => each[i])]),
      ],
    ]);
    return LINES.settle(scene);
  }
}
