/** Layers as grids of squares, one per neuron. A click or an arrow key picks a neuron. */

import { brief, element } from "./dom";

export const PROBE_COLORS = ["--c0", "--c1", "--c2"];

export interface Shown {
  values: Float64Array;
  largest: number | null; // of a change, in two colours; null: an activity from 0 to 1
  picks: number[]; // the neuron of each probe
  active: number; // which probe a click moves
}

export class LayerGrid {
  readonly root: HTMLElement;
  private readonly canvas: HTMLCanvasElement;
  private readonly rows: number;
  private shown: Shown | null = null;

  constructor(
    readonly name: string,
    private readonly count: number,
    private readonly columns: number,
    private readonly cell: number,
    private readonly picked: (neuron: number) => void,
  ) {
    this.rows = Math.ceil(count / columns);
    this.canvas = element("canvas", {
      tabindex: 0,
      role: "slider",
      "aria-label": `${name}: pick with a click or the arrow keys`,
      "aria-valuemin": 0,
      "aria-valuemax": count - 1,
    });
    this.canvas.style.aspectRatio = `${columns} / ${this.rows}`;
    this.canvas.style.width = `${columns * cell}px`;
    this.canvas.addEventListener("click", (event) => {
      const { width, height } = this.canvas.getBoundingClientRect();
      const column = Math.floor((event.offsetX / width) * columns);
      const row = Math.floor((event.offsetY / height) * this.rows);
      this.pick(row * columns + column);
    });
    this.canvas.addEventListener("keydown", (event) => this.key(event));
    this.root = element(
      "div",
      { class: "layer" },
      element("span", { class: "name" }, `${name}, ${count}`),
      this.canvas,
    );
  }

  private key(event: KeyboardEvent): void {
    const steps: Record<string, number> = {
      ArrowLeft: -1,
      ArrowRight: 1,
      ArrowUp: -this.columns,
      ArrowDown: this.columns,
    };
    const step = steps[event.key];
    if (!step || !this.shown) return;
    event.preventDefault();
    this.pick(this.shown.picks[this.shown.active] + step);
  }

  private pick(neuron: number): void {
    if (neuron >= 0 && neuron < this.count) this.picked(neuron);
  }

  show(shown: Shown): void {
    this.shown = shown;
    const { values, largest, picks, active } = shown;
    const pixel = Math.ceil(this.cell * (devicePixelRatio || 1));
    this.canvas.width = this.columns * pixel;
    this.canvas.height = this.rows * pixel;
    const context = this.canvas.getContext("2d");
    if (!context) return;
    const style = getComputedStyle(document.documentElement);
    const color = (name: string) => style.getPropertyValue(name).trim();
    const [none, full, less, more] = ["--cell", "--full", "--less", "--more"].map((it) =>
      rgb(color(it)),
    );
    for (let i = 0; i < this.count; i++) {
      const share = Math.max(-1, Math.min(1, values[i] / (largest || 1)));
      const to = largest === null ? full : share < 0 ? less : more;
      context.fillStyle = mixed(none, to, Math.abs(share));
      const [column, row] = [i % this.columns, Math.floor(i / this.columns)];
      context.fillRect(
        column * pixel,
        row * pixel,
        pixel - (pixel > 5 ? 1 : 0),
        pixel - (pixel > 5 ? 1 : 0),
      );
    }
    if (this.count <= 10) this.number(context, pixel, color, largest === null ? values : null);
    picks.forEach((neuron, probe) => {
      const [column, row] = [neuron % this.columns, Math.floor(neuron / this.columns)];
      const thick = Math.max(2, Math.round(pixel / 5));
      context.strokeStyle = color(PROBE_COLORS[probe]);
      context.lineWidth = probe === active ? thick + 1 : thick;
      context.strokeRect(column * pixel - 1, row * pixel - 1, pixel + 1, pixel + 1);
    });
    const now = picks[active];
    this.canvas.setAttribute("aria-valuenow", String(now));
    this.canvas.setAttribute("aria-valuetext", `${now}: ${brief(values[now])}`);
  }

  /** Write its number into each cell; `activity` says where cells are dark. */
  private number(
    context: CanvasRenderingContext2D,
    pixel: number,
    color: (name: string) => string,
    activity: Float64Array | null,
  ): void {
    context.font = `${Math.round(0.55 * pixel)}px system-ui, sans-serif`;
    context.textAlign = "center";
    context.textBaseline = "middle";
    for (let i = 0; i < this.count; i++) {
      context.fillStyle = color(activity && activity[i] > 0.5 ? "--page" : "--ink");
      context.fillText(String(i), (i + 0.5) * pixel, 0.54 * pixel);
    }
  }
}

type Rgb = [number, number, number];

function rgb(hex: string): Rgb {
  return [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16)) as Rgb;
}

function mixed(a: Rgb, b: Rgb, share: number): string {
  return `rgb(${a.map((v, i) => Math.round(v + share * (b[i] - v))).join(" ")})`;
}

/** How a layer of this many neurons is laid out: columns, and the size of a cell. */
export function layout(count: number): [number, number] {
  if (count === 784) return [28, 5];
  if (count <= 10) return [count, 26];
  if (count <= 64) return [Math.min(16, count), 14];
  return count <= 128 ? [16, 12] : [32, 8];
}
