/** A guided tour: six steps, each with one claim and the settings that show it. */

import { element } from "./dom";
import { DEFAULTS, type Settings } from "./settings";

interface Stop {
  claim: string;
  text: string;
  settings: Partial<Settings>;
}

export const STOPS: Stop[] = [
  {
    claim: "A network answers by settling.",
    text: "The pixels are held. The neurons push each other until nothing moves. The output neuron that is left on is the answer. Press play, or move the step.",
    settings: { view: "settle", net: "c-ep", rule: "c-ep", digit: "test-0", time: 40 },
  },
  {
    claim: "A nudge reaches the output first, and the hidden layer one step later.",
    text: "In the second phase β pulls the output a little towards the target. One step later the hidden layer feels it. Nothing but the neurons themselves carries the error back.",
    settings: { view: "settle", net: "c-ep", rule: "c-ep", time: 41 },
  },
  {
    claim: "With weights that stand still, the local update follows the gradient.",
    text: "Dashed: what each synapse computes from its two neurons (EP). Solid: the gradient of backpropagation through time. In discrete time they differ by a factor σ′, so the lines are close, not equal: less than 10° apart in total.",
    settings: { view: "compare", net: "fresh-512", rule: "ep", beta: 0.1 },
  },
  {
    claim: "When the weights move during the phase, a large η spoils the update.",
    text: "C-EP needs no memory of the first phase: every weight moves at every step. The price: with a larger η the weights that measure the gradient are no longer those that it belongs to.",
    settings: { view: "limits", net: "fresh-512", rule: "c-ep", digit: "test-0" },
  },
  {
    claim:
      "The more the backward weights differ from the forward ones, the less the update follows the gradient.",
    text: "C-VF has two weights between two neurons, at the angle Ψ. The right chart turns them from equal (0°) to opposite (180°).",
    settings: {
      view: "limits",
      net: "fresh-512",
      rule: "c-vf",
      tied: false,
      psi: 45,
      eta: [0.0001, 0.00005],
      digit: "test-0",
    },
  },
  {
    claim: "A network that has lost stability alternates between two states. In turn, it settles.",
    text: "This network was trained for 42 epochs with the update of the released code. For some digits it never settles when all layers move at once. The same weights settle when the layers move in turn.",
    settings: {
      view: "order",
      net: "c-vf",
      rule: "c-vf",
      tied: false,
      eta: [0.0076, 0.0038],
      digit: "test-740",
    },
  },
];

export const settingsOf = (step: number): Settings => ({
  ...structuredClone(DEFAULTS),
  ...STOPS[step - 1].settings,
  tour: step,
});

/** The panel of the tour. `go` is given the settings of a step, or none to leave. */
export class Tour {
  readonly root = element("section", { class: "tour", "aria-label": "guided tour", hidden: true });

  constructor(private readonly go: (settings: Settings | null) => void) {}

  show(step: number): void {
    this.root.hidden = step === 0;
    if (step === 0) return this.root.replaceChildren();
    const { claim, text } = STOPS[step - 1];
    const button = (label: string, to: number | null, main = false) => {
      const made = element("button", { type: "button", class: main ? "primary" : "" }, label);
      made.disabled = to !== null && (to < 1 || to > STOPS.length);
      made.addEventListener("click", () => this.go(to === null ? null : settingsOf(to)));
      return made;
    };
    const end = step === STOPS.length;
    this.root.replaceChildren(
      element("p", { class: "count" }, `Step ${step} of ${STOPS.length}`),
      element("h2", { tabindex: -1 }, claim),
      element("p", {}, text),
      element(
        "div",
        { class: "row" },
        button("Back", step - 1),
        end ? button("Finish", null, true) : button("Next", step + 1, true),
        end ? null : button("Leave the tour", null),
      ),
    );
  }
}
