/** Elements, and numbers as text. */

type Child = Node | string | null;

export function element<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  attributes: Record<string, string | number | boolean> = {},
  ...children: Child[]
): HTMLElementTagNameMap[K] {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === true) made.setAttribute(name, "");
    else if (value !== false) made.setAttribute(name, String(value));
  }
  made.append(...children.filter((child) => child !== null));
  return made;
}

export function byId<T extends HTMLElement>(id: string): T {
  const found = document.getElementById(id);
  if (!found) throw new Error(`the page has no #${id}`);
  return found as T;
}

/** A number in short, for a reader. */
export function brief(v: number): string {
  if (!Number.isFinite(v)) return "–";
  const size = Math.abs(v);
  if (size !== 0 && (size < 1e-3 || size >= 1e5)) {
    const [digits, power] = v.toExponential(1).split("e");
    const factor = digits.replace("-", "−").replace(".0", "");
    return `${`${factor}·`.replace(/^(−?)1·/, "$1")}10${superscript(Number(power))}`;
  }
  return String(Number(v.toPrecision(3))).replace("-", "−");
}

const superscript = (power: number): string =>
  String(power).replace(/[-\d]/g, (c) => (c === "-" ? "⁻" : "⁰¹²³⁴⁵⁶⁷⁸⁹"[Number(c)]));

/** A number with nine digits, for a table. */
export const exactly = (v: number): string => String(Number(v.toPrecision(9)));

/** A table that scrolls within itself. `name` tells it from the others. */
export function table(name: string, head: string[], rows: (string | number)[][]): HTMLElement {
  const cell = (value: string | number) =>
    typeof value === "number"
      ? element("td", { class: "number" }, exactly(value))
      : element("td", {}, value);
  return element(
    "div",
    { class: "scroll", tabindex: 0, role: "region", "aria-label": name },
    element(
      "table",
      { "data-table": name },
      element(
        "thead",
        {},
        element("tr", {}, ...head.map((text) => element("th", { scope: "col" }, text))),
      ),
      element("tbody", {}, ...rows.map((row) => element("tr", {}, ...row.map(cell)))),
    ),
  );
}

export const reducedMotion = (): boolean => matchMedia("(prefers-reduced-motion: reduce)").matches;
