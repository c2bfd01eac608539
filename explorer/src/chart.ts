/** Line charts on a canvas, in the colours of the page's style, with the values under the pointer. */

import { brief, element } from "./dom";

export interface Line {
  label: string;
  x: number[];
  y: number[];
  color: string; // a custom property of the style, such as --c0
  style?: "solid" | "dashed" | "points";
  width?: number;
  quiet?: boolean; // not in the legend, nor under the pointer
}

export interface Plot {
  title: string;
  xLabel: string;
  yLabel: string;
  lines: Line[];
  xLog?: boolean;
  yLog?: boolean;
  yRange?: [number, number];
  yTicks?: number[];
  split?: number; // a vertical line here
  splitLabels?: [string, string]; // what is left and right of it
  cursor?: number; // where the reader is
  legend?: boolean;
}

const LEFT = 56;
const RIGHT = 14;
const TOP = 26;
const BOTTOM = 38;

interface Scale {
  (value: number): number;
  ticks: number[];
}

function scale(low: number, high: number, from: number, to: number, log: boolean): Scale {
  const turn = log ? Math.log10 : (v: number) => v;
  const [a, b] = [turn(low), turn(high)];
  const place = (value: number) => from + ((turn(value) - a) / (b - a || 1)) * (to - from);
  return Object.assign(place, { ticks: log ? logTicks(a, b) : linearTicks(low, high) });
}

function linearTicks(low: number, high: number): number[] {
  const rough = (high - low || 1) / 4;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * ([1, 2, 5, 10].find((m) => m * power >= rough) ?? 10);
  const first = Math.ceil(low / step - 1e-9);
  const count = Math.floor(high / step + 1e-9) - first + 1;
  return Array.from({ length: count }, (_, i) => (first + i) * step);
}

function logTicks(a: number, b: number): number[] {
  const every = Math.max(1, Math.ceil((b - a) / 5));
  const found: number[] = [];
  for (let power = Math.ceil(a - 1e-9); power <= b + 1e-9; power += every) found.push(10 ** power);
  return found;
}

export class Chart {
  readonly figure: HTMLElement;
  private readonly canvas = element("canvas", { role: "img" });
  private readonly caption = element("h3");
  private readonly keys = element("ul", { class: "legend" });
  private readonly tip = element("div", { class: "tip", hidden: true });
  private plot: Plot | null = null;
  private pointed: number | null = null;

  constructor(private readonly height = 230) {
    const box = element("div", { class: "canvas" }, this.canvas, this.tip);
    this.figure = element("figure", { class: "chart" }, this.caption, box, this.keys);
    new ResizeObserver(() => this.draw()).observe(box);
    this.canvas.addEventListener("pointermove", (event) => this.point(event.offsetX));
    this.canvas.addEventListener("pointerleave", () => this.point(null));
  }

  show(plot: Plot): void {
    this.plot = plot;
    this.caption.textContent = plot.title;
    const named = plot.lines.filter((line) => !line.quiet);
    const parts = named.map((line) => `${line.label} ends at ${brief(line.y[line.y.length - 1])}`);
    this.canvas.setAttribute("aria-label", `${plot.title}. ${parts.slice(0, 6).join("; ")}.`);
    const shown = plot.legend === false ? [] : named;
    this.keys.replaceChildren(
      ...shown.map((line) => {
        const swatch = element("span", { class: `swatch ${line.style ?? "solid"}` });
        swatch.style.setProperty("--color", `var(${line.color})`);
        return element("li", {}, swatch, line.label);
      }),
    );
    this.draw();
  }

  private frame(): { x: Scale; y: Scale; width: number } | null {
    const width = this.canvas.parentElement?.clientWidth ?? 0;
    if (!this.plot || width < 80) return null;
    const { lines, xLog = false, yLog = false, yRange } = this.plot;
    const usable = (v: number, log: boolean) => Number.isFinite(v) && (!log || v > 0);
    const xs = lines.flatMap((line) => line.x).filter((v) => usable(v, xLog));
    const ys = yRange ?? lines.flatMap((line) => line.y).filter((v) => usable(v, yLog));
    let [low, high] = ys.length ? [Math.min(...ys), Math.max(...ys)] : [yLog ? 0.1 : 0, 1];
    if (low === high)
      [low, high] = yLog
        ? [low / 10, high * 10]
        : [low - (Math.abs(low) || 1) / 2, high + (Math.abs(high) || 1) / 2];
    else if (!yLog && !yRange)
      [low, high] = [low - 0.06 * (high - low), high + 0.06 * (high - low)];
    return {
      x: scale(Math.min(...xs), Math.max(...xs), LEFT, width - RIGHT, xLog),
      y: scale(low, high, this.height - BOTTOM, TOP, yLog),
      width,
    };
  }

  private draw(): void {
    const frame = this.frame();
    const context = this.canvas.getContext("2d");
    if (!frame || !context || !this.plot) return;
    const { x, y, width } = frame;
    const { plot, height } = this;
    const ratio = devicePixelRatio || 1;
    this.canvas.width = width * ratio;
    this.canvas.height = height * ratio;
    this.canvas.style.height = `${height}px`;
    const style = getComputedStyle(document.documentElement);
    const color = (name: string) => style.getPropertyValue(name).trim();
    context.scale(ratio, ratio);
    context.clearRect(0, 0, width, height);
    context.font = "12px system-ui, sans-serif";
    context.lineWidth = 1;
    context.textBaseline = "middle";
    for (const tick of plot.yTicks ?? y.ticks) {
      context.strokeStyle = color("--grid");
      line(context, LEFT, y(tick), width - RIGHT, y(tick));
      context.fillStyle = color("--muted");
      context.textAlign = "right";
      context.fillText(brief(tick), LEFT - 7, y(tick));
    }
    context.textAlign = "center";
    for (const tick of x.ticks) context.fillText(brief(tick), x(tick), height - BOTTOM + 13);
    context.fillText(plot.xLabel, (LEFT + width - RIGHT) / 2, height - 7);
    context.textAlign = "left";
    context.fillText(plot.yLabel, 2, 8);
    context.strokeStyle = color("--axis");
    line(context, LEFT, height - BOTTOM, width - RIGHT, height - BOTTOM);
    if (plot.split !== undefined) {
      context.setLineDash([2, 3]);
      line(context, x(plot.split), 2, x(plot.split), height - BOTTOM);
      context.setLineDash([]);
      const [left, right] = plot.splitLabels ?? ["", ""];
      context.textAlign = "right";
      context.fillText(left, x(plot.split) - 6, 8);
      context.textAlign = "left";
      context.fillText(right, x(plot.split) + 6, 8);
    }
    for (const mark of [plot.cursor, this.pointed]) {
      if (mark === undefined || mark === null) continue;
      context.strokeStyle = color("--muted");
      line(context, x(mark), TOP, x(mark), height - BOTTOM);
    }
    context.lineJoin = "round";
    for (const each of plot.lines) this.stroke(context, each, x, y, color(each.color));
  }

  private stroke(
    context: CanvasRenderingContext2D,
    each: Line,
    x: Scale,
    y: Scale,
    color: string,
  ): void {
    const [width, log] = [each.width ?? 2, this.plot?.yLog ?? false];
    context.strokeStyle = context.fillStyle = color;
    context.lineWidth = width;
    context.setLineDash(each.style === "dashed" ? [5, 4] : []);
    let started = false;
    context.beginPath();
    each.x.forEach((value, i) => {
      const drawable = Number.isFinite(each.y[i]) && (!log || each.y[i] > 0);
      if (!drawable) {
        started = false;
        return;
      }
      const [px, py] = [x(value), y(each.y[i])];
      if (each.style === "points") {
        context.moveTo(px + width, py);
        context.arc(px, py, width, 0, 2 * Math.PI);
      } else if (started) context.lineTo(px, py);
      else context.moveTo(px, py);
      started = true;
    });
    if (each.style === "points") context.fill();
    else context.stroke();
    context.setLineDash([]);
  }

  private point(at: number | null): void {
    const frame = this.frame();
    if (!frame || !this.plot) return;
    const places = this.plot.lines.flatMap((each) => each.x);
    const near = (v: number) => Math.abs(frame.x(v) - (at ?? 0));
    this.pointed =
      at === null ? null : places.reduce((a, b) => (near(b) < near(a) ? b : a), places[0]);
    this.draw();
    this.tip.hidden = this.pointed === null;
    if (this.pointed === null) return;
    const rows = this.plot.lines.filter(
      (each) => !each.quiet && each.x.includes(this.pointed as number),
    );
    this.tip.replaceChildren(
      element("b", {}, `${this.plot.xLabel}: ${brief(this.pointed)}`),
      ...rows.slice(0, 12).map((each) => {
        const value = brief(each.y[each.x.indexOf(this.pointed as number)]);
        return element("span", {}, `${each.label}: ${value}`);
      }),
    );
    const place = frame.x(this.pointed);
    this.tip.style.left = `${Math.min(place + 10, frame.width - this.tip.offsetWidth - 2)}px`;
  }
}

function line(
  context: CanvasRenderingContext2D,
  x1: number,
  y1: number,
  x2: number,
  y2: number,
): void {
  context.beginPath();
  context.moveTo(x1, y1);
  context.lineTo(x2, y2);
  context.stroke();
}
