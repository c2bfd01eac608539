// The values nearest to the pointer, read from the paths: data-v holds "x;y" for every vertex.
const tip = document.getElementById("tip");

function points(svg) {
  return [...svg.querySelectorAll("path[data-v]")].flatMap((path) => {
    const values = path.dataset.v.split("|");
    return [...path.getAttribute("d").matchAll(/[ML](-?[\d.]+) (-?[\d.]+)/g)].map((at, i) => {
      const [x, y] = values[i].split(";");
      return { label: path.dataset.label, left: +at[1], top: +at[2], x, y };
    });
  });
}

function line(tag, text) {
  const element = document.createElement(tag);
  element.textContent = text;
  return element;
}

function show(svg, event) {
  const inner = svg.querySelector("svg");
  const field = inner.viewBox.baseVal;
  const mark = inner.querySelector("circle");
  const pointer = new DOMPoint(event.clientX, event.clientY).matrixTransform(mark.getScreenCTM().inverse());
  svg.points ??= points(svg).filter((p) =>
    p.top >= field.y && p.top <= field.y + field.height && p.left >= field.x && p.left <= field.x + field.width);
  const distance = (p) => Math.hypot(p.left - pointer.x, p.top - pointer.y);
  const nearest = svg.points.reduce((a, b) => (a && distance(a) <= distance(b) ? a : b), null);
  if (!nearest) return;
  const there = svg.points.filter((p) => p.left === nearest.left && Math.abs(p.top - nearest.top) <= 2).slice(0, 6);
  mark.setAttribute("cx", nearest.left);
  mark.setAttribute("cy", nearest.top);
  mark.setAttribute("r", 5);
  tip.replaceChildren(
    line("span", `${svg.dataset.x}: ${nearest.x}`),
    ...there.map((p) => line("b", `${p.label || svg.dataset.y}: ${p.y}`)));
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  const left = Math.min(event.clientX + 14, document.documentElement.clientWidth - box.width - 8);
  const above = event.clientY - box.height - 14;
  tip.style.transform = `translate(${Math.max(8, left)}px, ${above > 8 ? above : event.clientY + 18}px)`;
}

function hide(svg) {
  tip.hidden = true;
  svg.querySelector("circle").setAttribute("r", 0);
}

for (const svg of document.querySelectorAll("svg.plot")) {
  for (const kind of ["pointermove", "pointerdown"]) svg.addEventListener(kind, (event) => show(svg, event));
  for (const kind of ["pointerleave", "pointercancel"]) svg.addEventListener(kind, () => hide(svg));
}
