/** The layers side by side, from the input to the output, with the probes of the reader. */

import { layerNames } from "../analysis";
import type { Change } from "../controls";
import { element } from "../dom";
import { LayerGrid, layout, PROBE_COLORS } from "../layers";
import type { Scene } from "../scene";
import { MOST_PROBES } from "../settings";

export class LayerStrip {
  readonly root: HTMLElement;
  private readonly grids = element("div", { class: "grids" });
  private readonly caption = element("p", { class: "hint" });
  private readonly radios: HTMLInputElement[];
  private layers: LayerGrid[] = [];
  private sizes = "";
  private active = 0;
  private scene: Scene | null = null;

  constructor(
    name: string,
    private readonly change: Change,
  ) {
    const labels = Array.from({ length: MOST_PROBES }, (_, i) => {
      const input = element("input", { type: "radio", name: `probe-${name}`, value: i });
      input.checked = i === 0;
      input.addEventListener("change", () => this.activate(i));
      const swatch = element("span", { class: "swatch solid" });
      swatch.style.setProperty("--color", `var(${PROBE_COLORS[i]})`);
      return element("label", {}, input, element("span", {}, swatch, `probe ${i + 1}`));
    });
    this.radios = labels.map((label) => label.firstChild as HTMLInputElement);
    const choice = element(
      "fieldset",
      { class: "choice probes" },
      element("legend", {}, "A click on a layer moves"),
      element("div", {}, ...labels),
    );
    this.root = element(
      "div",
      { class: "strip" },
      this.grids,
      element("div", { class: "row" }, choice, this.caption),
    );
  }

  private activate(probe: number): void {
    this.active = probe;
    this.radios[probe].checked = true;
    if (this.scene) this.change({ probes: this.scene.probes });
  }

  /** Show x and one array per layer; where these are changes, the largest of each layer. */
  show(scene: Scene, values: Float64Array[], caption: string, largest?: number[]): void {
    this.scene = scene;
    const sizes = scene.net.sizes;
    if (this.sizes !== sizes.join()) {
      this.sizes = sizes.join();
      const names = ["input", ...layerNames(scene.net)];
      this.layers = sizes.map((count, i) => {
        const pick = (neuron: number) => this.pick(i, neuron);
        return new LayerGrid(names[i], count, ...layout(count), pick);
      });
      this.grids.replaceChildren(...this.layers.map((layer) => layer.root));
    }
    const picks = scene.probes;
    const signed = scene.net.sigma.low < 0 ? values.map(() => 1) : null;
    const scales = largest ?? signed;
    this.layers.forEach((layer, i) => {
      layer.show({
        values: i === 0 ? scene.x : values[i - 1],
        largest: i > 0 && scales ? scales[i - 1] : null,
        picks: picks.map((probe) => probe[i]),
        active: this.active,
      });
    });
    this.caption.textContent = caption;
  }

  private pick(layer: number, neuron: number): void {
    const probes = (this.scene?.probes ?? []).map((probe) => probe.slice());
    probes[this.active][layer] = neuron;
    this.change({ probes });
  }
}
