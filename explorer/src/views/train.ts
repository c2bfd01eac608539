/** Training in the page: EP, C-EP and C-VF side by side on a few hundred digits. */

import { Chart } from "../chart";
import { type Change, NumberControl } from "../controls";
import { element } from "../dom";
import { LANES, trainingLines } from "../python";
import type { Scene } from "../scene";
import { RANGES, type Settings } from "../settings";
import type { Digits, Epoch } from "../training";
import type { Lane, Order, Report } from "../worker";
import { Frame, range, row, type View } from "./view";

declare const WORKER: string; // the script of the worker, put in by the build

const NAMES = { ep: "EP", "c-ep": "C-EP", "c-vf": "C-VF" };
const COLORS = { ep: "--c2", "c-ep": "--c0", "c-vf": "--c1" };

const QUICK: Partial<Settings> = {
  ...{ net: "fresh-128", eta: [0.0056, 0.0028], boost: 2, beta: 0.5, T: 20, K: 6 },
  ...{
    rule: "c-ep",
    tied: true,
    slope: "none",
    order: "sync",
    samples: 400,
    epochs: 20,
    probes: [],
  },
};

interface Course {
  name: keyof typeof NAMES;
  epochs: Epoch[];
  failed: string;
}

export class TrainView implements View {
  readonly title = "Train";
  private readonly errors = new Chart(260);
  private readonly angles = new Chart(260);
  private readonly button = element("button", { type: "button", class: "primary" }, "Train");
  private readonly quick = element("button", { type: "button" }, "Settings that learn fast");
  private readonly note = element("p", { class: "hint" });
  private readonly numbers: Record<"boost" | "samples" | "epochs" | "psi", NumberControl>;
  private readonly frame: Frame;
  private worker: Worker | null = null;
  private courses: Course[] = [];
  private key = "";
  private scene: Scene | null = null;

  constructor(change: Change) {
    const number = (key: "boost" | "samples" | "epochs" | "psi", label: string) =>
      new NumberControl(`train-${key}`, label, RANGES[key], (value) => change({ [key]: value }));
    this.numbers = {
      samples: number("samples", "digits"),
      epochs: number("epochs", "epochs"),
      boost: number("boost", "η times"),
      psi: number("psi", "Ψ of C-VF"),
    };
    this.quick.addEventListener("click", () => change(QUICK));
    this.button.addEventListener("click", () => (this.worker ? this.stop() : this.start()));
    const { samples, epochs, boost, psi } = this.numbers;
    this.frame = new Frame(
      "Three copies of the network learn from the same digits, 20 per minibatch, with the β, T, K and η of the controls: EP and C-EP with one weight between two neurons, C-VF with two at the angle Ψ.",
      element(
        "div",
        { class: "lesson" },
        samples.root,
        epochs.root,
        boost.root,
        psi.root,
        element("div", { class: "row" }, this.button, this.quick),
      ),
      this.note,
      row(this.errors, this.angles),
    );
  }

  get root(): HTMLElement {
    return this.frame.root;
  }

  private lessonKey({ key, settings: { boost, samples, epochs } }: Scene): string {
    return `${key} ${boost} ${samples} ${epochs}`;
  }

  private stop(): void {
    this.worker?.terminate();
    this.worker = null;
    this.button.textContent = "Train";
    if (this.scene) this.draw(this.scene);
  }

  private start(): void {
    const { scene } = this;
    if (!scene) return;
    this.stop();
    this.key = this.lessonKey(scene);
    const names = scene.library.untied(scene.settings.net) ? LANES.slice(2) : LANES;
    this.courses = names.map((name) => ({ name, epochs: [], failed: "" }));
    const order = orderOf(scene, this.courses);
    const address = URL.createObjectURL(new Blob([WORKER], { type: "text/javascript" }));
    this.worker = new Worker(address);
    URL.revokeObjectURL(address);
    this.worker.onmessage = ({ data }: MessageEvent<Report>) => {
      if ("done" in data) return this.stop();
      if ("failed" in data) this.courses[data.lane].failed = data.failed;
      else this.courses[data.lane].epochs.push(data.epoch);
      if (this.scene) this.draw(this.scene);
    };
    this.worker.postMessage(order);
    this.button.textContent = "Stop";
    this.draw(scene);
  }

  show(scene: Scene): string {
    this.scene = scene;
    const { boost, samples, epochs, psi } = scene.settings;
    this.numbers.psi.show(psi, !scene.library.untied(scene.settings.net));
    this.numbers.boost.show(boost);
    this.numbers.samples.show(samples);
    this.numbers.epochs.show(epochs);
    if (this.worker && this.key !== this.lessonKey(scene)) this.stop();
    this.draw(scene);
    return trainingLines(scene);
  }

  private draw(scene: Scene): void {
    const { epochs } = scene.settings;
    const stale = this.courses.length > 0 && this.key !== this.lessonKey(scene);
    const lines = (of: keyof Epoch) =>
      this.courses.map(({ name, epochs: done }) => ({
        label: NAMES[name],
        x: range(done.length, 1),
        y: done.map((epoch) => epoch[of]),
        color: COLORS[name],
        style: name === "ep" ? ("dashed" as const) : ("solid" as const),
      }));
    const blank = {
      label: "",
      x: [1, Math.max(2, epochs)],
      y: [NaN, NaN],
      color: "--grid",
      quiet: true,
    };
    this.errors.show({
      title: "Error on digits that it has not seen",
      xLabel: "epoch",
      yLabel: "test error, %",
      yRange: [0, 100],
      lines: [blank, ...lines("test")],
    });
    this.angles.show({
      title: "Angle between the update and BPTT",
      xLabel: "epoch",
      yLabel: "degrees",
      yRange: [0, 180],
      yTicks: [0, 45, 90, 135, 180],
      lines: [blank, { ...blank, y: [90, 90], style: "dashed", width: 1 }, ...lines("angle")],
    });
    const failed = this.courses.filter((course) => course.failed);
    this.note.textContent = failed.length
      ? failed.map((course) => `${NAMES[course.name]} stopped: ${course.failed}`).join(" ")
      : stale
        ? "The settings have changed since: these curves belong to the earlier ones."
        : scene.library.untied(scene.settings.net)
          ? "This network has two weights between neurons, so it learns with C-VF only."
          : "";
    this.frame.showStats(
      ...this.courses.map(({ name, epochs: done }): [string, string, number, string] => [
        name,
        `test error, ${NAMES[name]}`,
        done.length ? done[done.length - 1].test : NaN,
        " %",
      ]),
    );
    const state = this.worker ? "Training …" : this.courses.length ? "Done." : "Press Train.";
    this.frame.say(state);
    this.frame.showNumbers(() => [
      [
        "training",
        ["rule", "epoch", "train error, %", "test error, %", "angle, degrees"],
        this.courses.flatMap(({ name, epochs: done }) =>
          done.map(({ train, test, angle }, i) => [name, String(i + 1), train, test, angle]),
        ),
      ],
    ]);
  }
}

function orderOf(scene: Scene, courses: Course[]): Order {
  const { library, settings } = scene;
  const { beta, K, T, order, eta, boost, samples, epochs, slope } = settings;
  const lanes = courses.map(({ name }): Lane => {
    const net = library.network({ ...settings, tied: name !== "c-vf" });
    return {
      lesson: {
        rule: { name, beta, nudgedSteps: K, slope },
        rates: eta.map((rate) => rate * boost),
        freeSteps: T,
        order,
      },
      sizes: net.sizes.slice(),
      synapses: net.synapses.slice(),
      activation: net.activation,
    };
  });
  const { train, test, testNumbers } = library.content;
  const plain = testNumbers.filter((number, at) => number === at).length;
  return { lanes, train: head(train, samples), test: head(test, plain), epochs };
}

const head = ({ images, labels }: Digits, count: number): Digits => ({
  images: images.slice(0, count * 784),
  labels: labels.slice(0, count),
});
