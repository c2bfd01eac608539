/** The free phase all at once and in turn: two sequences that never meet, or one. */

import { Chart } from "../chart";
import { brief } from "../dom";
import { Presented, type Relaxation, relax } from "../dynamics";
import { LINES } from "../python";
import type { Scene } from "../scene";
import { Frame, range, row, type View } from "./view";

export class OrderView implements View {
  readonly title = "Order";
  private readonly outputs = new Chart(260);
  private readonly changes = new Chart(260);
  private readonly frame = new Frame(
    "All at once, each layer answers to what its neighbours were one step ago. So odd and even layers form two sequences that never meet. Where feedback is strong they can settle in two different states, and the network alternates between them for ever. In turn, there is one sequence.",
    row(this.outputs, this.changes),
  );

  get root(): HTMLElement {
    return this.frame.root;
  }

  show(scene: Scene): string {
    const { T } = scene.settings;
    const presented = new Presented(scene.net, scene.x, 1);
    const [sync, turn] = [relax(presented, T, "sync"), relax(presented, T, "turn")];
    const last = scene.net.depth - 1;
    const neuron = mostRestless(sync, last);
    const value = ({ states }: Relaxation) => states.map((s) => s[last][neuron]);
    const pick = (values: number[], parity: number) => {
      const times = range(T + 1).filter((t) => t % 2 === parity);
      return { x: times, y: times.map((t) => values[t]) };
    };
    this.outputs.show({
      title: `Output neuron ${neuron}`,
      xLabel: "step",
      yLabel: "activity",
      yRange: [scene.net.sigma.low - 0.05, 1.05],
      lines: [
        {
          label: "all at once",
          x: range(T + 1),
          y: value(sync),
          color: "--grid",
          width: 1,
          quiet: true,
        },
        {
          label: "all at once, even steps",
          ...pick(value(sync), 0),
          color: "--c0",
          style: "points",
          width: 3,
        },
        {
          label: "all at once, odd steps",
          ...pick(value(sync), 1),
          color: "--c1",
          style: "points",
          width: 3,
        },
        { label: "in turn", x: range(T + 1), y: value(turn), color: "--c2" },
      ],
    });
    this.changes.show({
      title: "Largest change of any neuron",
      xLabel: "step",
      yLabel: "change",
      yLog: true,
      lines: [
        { label: "all at once", x: range(T, 1), y: sync.changes, color: "--c0" },
        { label: "in turn", x: range(T, 1), y: turn.changes, color: "--c2", style: "dashed" },
      ],
    });
    this.frame.showStats(
      ["sync", "residual, all at once", sync.residual],
      ["turn", "residual, in turn", turn.residual],
    );
    this.frame.say(sentence(sync.residual, turn.residual));
    this.frame.showNumbers(() => [
      [
        "sync outputs",
        ["step", ...range(10).map(String)],
        sync.states.map((s, t) => [String(t), ...s[last]]),
      ],
      [
        "turn outputs",
        ["step", ...range(10).map(String)],
        turn.states.map((s, t) => [String(t), ...s[last]]),
      ],
      [
        "changes",
        ["step", "all at once", "in turn"],
        range(T).map((t) => [String(t + 1), sync.changes[t], turn.changes[t]]),
      ],
    ]);
    return LINES.order(scene);
  }
}

/** The neuron of a layer that differs most between the last two states. */
function mostRestless({ states }: Relaxation, layer: number): number {
  const [before, after] = states.slice(-2).map((s) => s[layer]);
  const moved = Array.from(after, (v, i) => Math.abs(v - before[i]));
  const most = Math.max(...moved);
  return most > 1e-9 ? moved.indexOf(most) : after.indexOf(Math.max(...after));
}

function sentence(sync: number, turn: number): string {
  if (sync > 0.1 && turn < 0.1) {
    return `All at once, the network alternates between two states: neurons change by ${brief(sync)} at every step. In turn, it settles.`;
  }
  if (sync > 0.1) return "The network does not settle, neither all at once nor in turn.";
  return "The network settles both ways, in the same state. Digits that do not: the last ones of the test set, with the network trained with C-VF.";
}
