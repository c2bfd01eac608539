/** The page: settings in, views out. */

import { readContent } from "./content";
import { Controls } from "./controls";
import { byId, element } from "./dom";
import { Diverged } from "./rules";
import { Library, Scene } from "./scene";
import {
  DEFAULTS,
  fit,
  readAddress,
  type Settings,
  stretched,
  type ViewName,
  VIEWS,
  writeAddress,
} from "./settings";
import { settingsOf, Tour } from "./tour";
import { CompareView } from "./views/compare";
import { LimitsView } from "./views/limits";
import { OrderView } from "./views/order";
import { SettleView } from "./views/settle";
import { TrainView } from "./views/train";
import type { View } from "./views/view";
import { WeightsView } from "./views/weights";

const WRITE_AFTER_MS = 200; // browsers limit how often the address may change

class App {
  private settings: Settings;
  private controls: Controls;
  private readonly views: Record<ViewName, View>;
  private readonly tabs = new Map<ViewName, HTMLElement>();
  private readonly tour: Tour;
  private readonly python = byId("python");
  private readonly notice = byId("notice");
  private waiting = false;
  private writing = 0;
  private known = location.hash; // as last read or written

  constructor(private readonly library: Library) {
    const { settings, messages } = readAddress(location.hash, library);
    this.settings = settings;
    const change = (changed: Partial<Settings>) => this.change(changed);
    this.views = {
      settle: new SettleView(change),
      compare: new CompareView(change),
      weights: new WeightsView(change),
      limits: new LimitsView(),
      order: new OrderView(),
      train: new TrainView(change),
    };
    this.controls = new Controls(
      new Scene(settings, library),
      change,
      () => this.settings,
      (name) => this.pickNetwork(name),
    );
    byId("controls").append(this.controls.root);
    this.tour = new Tour((to) => this.become(to ?? { ...this.settings, tour: 0 }));
    byId("tour").append(this.tour.root);
    this.buildTabs();
    byId("start-tour").addEventListener("click", () => {
      this.become(settingsOf(1));
      byId("tour").scrollIntoView({ block: "nearest" });
    });
    byId("reset").addEventListener("click", () => this.become(structuredClone(DEFAULTS)));
    byId("copy").addEventListener(
      "click",
      () => void navigator.clipboard?.writeText(this.python.textContent ?? ""),
    );
    addEventListener("hashchange", () => this.readAddress());
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.render());
    this.say(messages);
    this.render();
  }

  private buildTabs(): void {
    const list = byId("tabs");
    for (const name of VIEWS) {
      const tab = element(
        "button",
        { type: "button", role: "tab", id: `tab-${name}`, "aria-controls": "view" },
        this.views[name].title,
      );
      tab.addEventListener("click", () => this.change({ view: name }));
      this.tabs.set(name, tab);
      list.append(tab);
    }
    list.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!step) return;
      const at = VIEWS.indexOf(this.settings.view) + step;
      const view = VIEWS[(at + VIEWS.length) % VIEWS.length];
      this.change({ view });
      this.tabs.get(view)?.focus();
    });
  }

  private readAddress(): void {
    if (location.hash === this.known) return;
    this.known = location.hash;
    const { settings, messages } = readAddress(location.hash, this.library);
    this.settings = settings;
    this.say(messages);
    this.schedule();
  }

  /** A network comes with the settings that it was trained with. */
  private pickNetwork(net: string): void {
    const { eta, ...rest } = this.library.trained(net)?.settings ?? {};
    const sizes = this.library.sizes(net) ?? [];
    const tied = !this.library.untied(net);
    const rates = stretched(eta ?? this.settings.eta, sizes);
    this.change({ net, ...rest, tied, eta: rates, probes: [] });
  }

  private change(changed: Partial<Settings>): void {
    const { settings, messages } = fit({ ...this.settings, ...changed }, this.library);
    this.settings = settings;
    this.say(messages);
    this.schedule();
  }

  private become(settings: Settings): void {
    this.settings = settings;
    this.say([]);
    this.schedule();
  }

  private say(messages: string[]): void {
    this.notice.hidden = messages.length === 0;
    this.notice.replaceChildren(...messages.map((message) => element("p", {}, message)));
  }

  /** Draw once per frame, however often the settings change. */
  private schedule(): void {
    clearTimeout(this.writing);
    this.writing = window.setTimeout(() => this.write(), WRITE_AFTER_MS);
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => {
      this.waiting = false;
      this.render();
    });
  }

  private write(): void {
    if (location.hash !== this.known) return; // another address is about to be read
    history.replaceState(null, "", writeAddress(this.settings));
    this.known = location.hash;
  }

  private render(): void {
    const start = performance.now();
    const scene = new Scene(this.settings, this.library);
    const view = this.views[this.settings.view];
    const panel = byId("view");
    if (panel.firstChild !== view.root) panel.replaceChildren(view.root);
    panel.setAttribute("aria-labelledby", `tab-${this.settings.view}`);
    for (const [name, tab] of this.tabs) {
      const selected = name === this.settings.view;
      tab.setAttribute("aria-selected", String(selected));
      tab.tabIndex = selected ? 0 : -1;
    }
    this.controls.show(scene);
    this.tour.show(this.settings.tour);
    try {
      this.python.textContent = view.show(scene);
    } catch (error) {
      if (!(error instanceof Diverged)) throw error;
      this.say([`${error.message} Take a smaller β or η.`]);
    }
    const took = performance.now() - start;
    byId("speed").textContent = `answered in ${took.toFixed(0)} ms`;
    document.documentElement.dataset.shown = writeAddress(this.settings);
  }
}

const panel = byId<HTMLDetailsElement>("panel");
const wide = matchMedia("(min-width: 60rem)");
const arrange = () => (panel.open = wide.matches);
wide.addEventListener("change", arrange);
arrange();
void readContent().then((content) => new App(new Library(content)));
