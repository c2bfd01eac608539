/** Choose a digit of the data set, or draw one. */

import type { Change } from "./controls";
import { Choice } from "./controls";
import { element } from "./dom";
import type { Library, Scene } from "./scene";
import { BLANK } from "./settings";

const CELL = 28;
const COLUMNS = 10;
const PAD = 196;

type Source = "test" | "train" | "drawn";

export class DigitChooser {
  readonly root: HTMLElement;
  private readonly source: Choice<Source>;
  private readonly sheet = element("canvas", {
    tabindex: 0,
    role: "slider",
    "aria-label": "digit: choose with a click or the arrow keys",
    "aria-valuemin": 0,
  });
  private readonly box = element("div", { class: "sheet" }, this.sheet);
  private readonly pad: DrawingPad;
  private readonly target = element("select", { id: "target" });
  private readonly drawing: HTMLElement;
  private shown: { split: "test" | "train"; at: number } | null = null;
  private last = { test: 0, train: 0 };

  constructor(
    private readonly library: Library,
    private readonly change: Change,
  ) {
    this.source = new Choice<Source>(
      "source",
      "",
      [
        ["test", "test set"],
        ["train", "training set"],
        ["drawn", "draw one"],
      ],
      (source) =>
        change({
          digit: source === "drawn" ? "drawn" : this.nameOf(source, this.last[source]),
          probes: [],
        }),
    );
    this.sheet.addEventListener("click", (event) => {
      const size = this.sheet.clientWidth / COLUMNS;
      this.choose(Math.floor(event.offsetY / size) * COLUMNS + Math.floor(event.offsetX / size));
    });
    this.sheet.addEventListener("keydown", (event) => {
      const steps: Record<string, number> = {
        ArrowLeft: -1,
        ArrowRight: 1,
        ArrowUp: -COLUMNS,
        ArrowDown: COLUMNS,
      };
      if (!steps[event.key] || !this.shown) return;
      event.preventDefault();
      this.choose(this.shown.at + steps[event.key]);
    });
    this.pad = new DrawingPad((drawing) => change({ drawing }));
    for (let digit = 0; digit < 10; digit++)
      this.target.append(element("option", { value: digit }, String(digit)));
    this.target.addEventListener("change", () => change({ target: Number(this.target.value) }));
    const clear = element("button", { type: "button" }, "clear");
    clear.addEventListener("click", () => change({ drawing: BLANK }));
    this.drawing = element(
      "div",
      { class: "drawing" },
      this.pad.canvas,
      element("div", {}, element("label", { for: "target" }, "nudge to "), this.target, clear),
    );
    this.root = element("div", {}, this.source.root, this.box, this.drawing);
  }

  private nameOf(split: "test" | "train", at: number): string {
    return `${split}-${split === "test" ? this.library.content.testNumbers[at] : at}`;
  }

  private choose(at: number): void {
    if (!this.shown || at < 0 || at >= this.library.content[this.shown.split].labels.length) return;
    this.change({ digit: this.nameOf(this.shown.split, at), probes: [] });
  }

  show(scene: Scene): void {
    const place = this.library.place(scene.settings.digit);
    this.source.show(place?.split ?? "drawn");
    this.box.hidden = place === null;
    this.drawing.hidden = place !== null;
    this.pad.show(scene.x);
    this.target.value = String(scene.settings.target);
    if (!place) return;
    this.last[place.split] = place.at;
    const before = this.shown;
    this.shown = place;
    if (before?.split !== place.split) this.paint(place.split);
    this.mark(place.at, scene.label);
  }

  /** All digits of a split, white on black. */
  private paint(split: "test" | "train"): void {
    const { images, labels } = this.library.content[split];
    this.sheet.width = CELL * COLUMNS;
    this.sheet.height = CELL * Math.ceil(labels.length / COLUMNS);
    const context = this.sheet.getContext("2d");
    const picture = new ImageData(28, 28);
    labels.forEach((_, at) => {
      paintDigit(picture, (i) => images[at * 784 + i] / 255);
      context?.putImageData(picture, (at % COLUMNS) * CELL, Math.floor(at / COLUMNS) * CELL);
    });
  }

  private mark(at: number, label: number): void {
    const frame =
      this.box.querySelector(".mark") ?? this.box.appendChild(element("span", { class: "mark" }));
    const [column, row] = [at % COLUMNS, Math.floor(at / COLUMNS)];
    (frame as HTMLElement).style.cssText = `--column:${column};--row:${row}`;
    const size = this.sheet.clientWidth / COLUMNS;
    const [top, bottom] = [row * size, (row + 1) * size];
    if (top < this.box.scrollTop || bottom > this.box.scrollTop + this.box.clientHeight) {
      this.box.scrollTop = top - size;
    }
    this.sheet.setAttribute(
      "aria-valuemax",
      String(this.library.content[this.shown?.split ?? "test"].labels.length - 1),
    );
    this.sheet.setAttribute("aria-valuenow", String(at));
    this.sheet.setAttribute("aria-valuetext", `number ${at}, a ${label}`);
  }
}

export function paintDigit(picture: ImageData, value: (pixel: number) => number): void {
  for (let i = 0; i < 784; i++) {
    const shade = Math.round(255 * value(i));
    picture.data.set([shade, shade, shade, 255], 4 * i);
  }
}

/** Draw with the pointer, or with the arrow keys and space. */
class DrawingPad {
  readonly canvas = element("canvas", {
    width: PAD,
    height: PAD,
    tabindex: 0,
    role: "application",
    "aria-label": "draw a digit: with the pointer, or arrow keys to move and space to paint",
  });
  private readonly pixels = new Float64Array(784);
  private at: [number, number] = [14, 14];

  constructor(private readonly drawn: (drawing: string) => void) {
    const paint = (event: PointerEvent) => {
      if (!event.buttons) return;
      const scale = 28 / this.canvas.clientWidth;
      this.brush(event.offsetX * scale, event.offsetY * scale);
    };
    this.canvas.addEventListener("pointerdown", (event) => {
      this.canvas.setPointerCapture(event.pointerId);
      paint(event);
    });
    this.canvas.addEventListener("pointermove", paint);
    this.canvas.addEventListener("keydown", (event) => {
      const steps: Record<string, [number, number]> = {
        ArrowLeft: [-1, 0],
        ArrowRight: [1, 0],
        ArrowUp: [0, -1],
        ArrowDown: [0, 1],
      };
      const step = steps[event.key];
      if (!step && event.key !== " ") return;
      event.preventDefault();
      if (step)
        this.at = [0, 1].map((i) => Math.min(27, Math.max(0, this.at[i] + step[i]))) as [
          number,
          number,
        ];
      else this.brush(this.at[0] + 0.5, this.at[1] + 0.5);
      this.paint();
    });
  }

  /** A round brush with a soft edge, in sixteen shades. */
  private brush(x: number, y: number): void {
    for (let i = 0; i < 784; i++) {
      const distance = Math.hypot((i % 28) + 0.5 - x, Math.floor(i / 28) + 0.5 - y);
      const shade = Math.max(0, Math.min(1, 1.9 - distance));
      this.pixels[i] = Math.max(this.pixels[i], Math.round(15 * shade) / 15);
    }
    this.drawn(Array.from(this.pixels, (v) => Math.round(15 * v).toString(16)).join(""));
  }

  show(x: Float64Array): void {
    this.pixels.set(x.map((v) => Math.round(15 * v) / 15));
    this.paint();
  }

  private paint(): void {
    const context = this.canvas.getContext("2d");
    if (!context) return;
    const size = PAD / 28;
    this.pixels.forEach((v, i) => {
      const shade = Math.round(255 * v);
      context.fillStyle = `rgb(${shade} ${shade} ${shade})`;
      context.fillRect((i % 28) * size, Math.floor(i / 28) * size, size + 0.5, size + 0.5);
    });
    if (this.pixels.every((v) => v === 0)) {
      context.fillStyle = "#9fadba";
      context.font = "15px system-ui, sans-serif";
      context.textAlign = "center";
      context.fillText("draw a digit here", PAD / 2, PAD / 2);
    }
    if (document.activeElement === this.canvas) {
      context.strokeStyle = "#e69f00";
      context.lineWidth = 2;
      context.strokeRect(this.at[0] * size, this.at[1] * size, size, size);
    }
  }
}
