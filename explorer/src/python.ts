/** The Python lines that give the numbers of a view. Tests run them. */

import { layerNames } from "./analysis";
import type { Scene } from "./scene";
import type { Settings } from "./settings";
import { vectorField } from "./rules";

const CLASSES = { ep: "EP", "c-ep": "ContinualEP", vf: "VF", "c-vf": "ContinualVF" };

/** A number as Python writes a float. */
export function float(v: number): string {
  const text = String(v);
  return /[.e]/.test(text) ? text : `${text}.0`;
}

const tuple = (values: (string | number)[]): string =>
  values.length === 1 ? `(${values[0]},)` : `(${values.join(", ")})`;

const head = "import torch\nimport eqprop";

function network(
  scene: Scene,
  tied = scene.settings.tied,
  psi = float(scene.settings.psi),
): string {
  const { net, seed } = scene.settings;
  const stored = scene.library.trained(net);
  const turned = `angle=${psi}`;
  if (stored) {
    const opened = tied || !stored.net.tied;
    return opened ? stored.python : `eqprop.explorer.untied(${stored.python}, ${turned})`;
  }
  const tying = tied ? "" : `, tied=False, ${turned}`;
  return `eqprop.layered(${scene.net.sizes.join(", ")}, init="fan_in"${tying}, seed=${seed}, dtype=torch.float64)`;
}

function ruleLine(scene: Scene, name = scene.settings.rule, K = scene.settings.K): string {
  const { beta, T, slope, order } = scene.settings;
  const sloped =
    vectorField({ ...scene.setup.rule, name }) && slope !== "none"
      ? `, update_slope="${slope}"`
      : "";
  const turn = order === "turn" ? ", in_turn=True" : "";
  return `eqprop.${CLASSES[name]}(beta=${float(beta)}, free_steps=${T}, nudged_steps=${K}${sloped}${turn})`;
}

function digit({ settings, library }: Scene): string {
  const place = library.place(settings.digit);
  if (!place) {
    return `x = torch.tensor([[int(c, 16) / 15 for c in "${settings.drawing}"]], dtype=torch.float64)
y = torch.eye(10, dtype=torch.float64)[[${settings.target}]]`;
  }
  const [split, number] = settings.digit.split("-");
  return `digits = eqprop.data.load("${library.content.set}").${split}.shaped((784,))
x, y = digits.batch(torch.tensor([${number}]), torch.float64)`;
}

function common(scene: Scene): string {
  const made = network(scene);
  const explorer = made.includes("eqprop.explorer") ? "\nimport eqprop.explorer" : "";
  return `${head}${explorer}

net = ${made}
${digit(scene)}
rule = ${ruleLine(scene)}
rates = ${tuple(scene.settings.eta.map(float))}`;
}

const OURS = "ours = eqprop.time_resolved(net, rule, x, y, learning_rates=rates)";

function probes(scene: Scene): string {
  const names = ["pixel", ...layerNames(scene.net)];
  const rows = scene.probes.map((probe) => `[${probe.join(", ")}]`).join(", ");
  return `${names.join(", ")} = torch.tensor([${rows}]).T  # the probes`;
}

const places = (scene: Scene): [string, string][] => {
  const names = ["pixel", ...layerNames(scene.net)];
  return scene.net.synapses.flatMap(({ backward }, k) => {
    const found: [string, string][] = [[`synapses.${k}.weight`, `${names[k]}, ${names[k + 1]}`]];
    if (backward) found.push([`synapses.${k}.backward_weight`, `${names[k + 1]}, ${names[k]}`]);
    return found;
  });
};

export const LINES: Record<Exclude<Settings["view"], "train">, (scene: Scene) => string> = {
  settle: (scene) => {
    const { T, order } = scene.settings;
    const turn = order === "turn" ? ", in_turn=True" : "";
    return `${common(scene)}

free = eqprop.relax(net, x, ${T}${turn}, keep=${T})
outputs = torch.cat([s[-1] for s in (*free.history, free.state)])  # s_0 to s_T, [T + 1, 10]
${OURS}
pulled = {name: -rule.beta * d[:, 0].cumsum(0) for name, d in ours.neurons.items()}  # s_t − s_*
distance = {name: d.norm(dim=1) for name, d in pulled.items()}  # t = 1 to K
print(free.residual, outputs[-1].argmax().item())`;
  },

  compare: (scene) => {
    const { T, K } = scene.settings;
    const neurons = layerNames(scene.net)
      .map((name) => `        "${name}": -process.neurons["${name}"][:, 0, ${name}],`)
      .join("\n");
    const synapses = places(scene)
      .map(([name, at]) => `        "${name}": -process.synapses["${name}"][:, ${at}],`)
      .join("\n");
    return `${common(scene)}

report = eqprop.gddcheck(net, rule, x, y, learning_rates=rates)
print(report)
${OURS}
bptt = eqprop.BPTT(free_steps=${T}, backward_steps=${K})
exact = eqprop.time_resolved(net, bptt, x, y)
${probes(scene)}
delta, nabla = (
    {
${neurons}
${synapses}
    }
    for process in (ours, exact)
)`;
  },

  weights: (scene) => {
    const moves = scene.settings.rule.startsWith("c-");
    const weights = places(scene)
      .map(([name, at]) => {
        const [, k, field] = name.split(".");
        const start = `net.synapses[${k}].${field}[${at}]`;
        return moves
          ? `    "${name}": ${start} - rates[${k}] * ours.synapses["${name}"][:, ${at}].cumsum(0),`
          : `    "${name}": ${start}.expand(${scene.settings.K}, -1),`;
      })
      .join("\n");
    const share = moves ? 'rates[int(name.split(".")[1])]' : "0.0";
    return `${common(scene)}

${OURS}
${probes(scene)}
weights = {  # after step 1 to K
${weights}
}
moved = {
    name: ${share} * d.cumsum(0).flatten(1).norm(dim=1)
    for name, d in ours.synapses.items()
}`;
  },

  limits: (scene) => {
    const { T, K, tied } = scene.settings;
    const continual = tied ? "c-ep" : "c-vf";
    const turn = scene.library.untied(scene.settings.net)
      ? ""
      : `
by_angle = {
    psi: total_angle(${network(scene, false, "psi")}, field, 1)
    for psi in ${tuple(ANGLES)}
}`;
    const lines = `${common(scene)}
bptt = eqprop.BPTT(free_steps=${T}, backward_steps=${K})


def total_angle(net, rule, scale):
    ours = eqprop.total_update(net, rule, x, y, learning_rates=[scale * rate for rate in rates])
    return eqprop.angle(ours, eqprop.total_update(net, bptt, x, y)).item()


continual = ${ruleLine(scene, continual)}
field = ${ruleLine(scene, "c-vf")}
by_rate = {scale: total_angle(net, continual, scale) for scale in ${tuple(SCALES)}}${turn}`;
    return lines.includes("eqprop.explorer.") && !lines.includes("import eqprop.explorer")
      ? lines.replace(head, `${head}\nimport eqprop.explorer`)
      : lines;
  },

  order: (scene) => {
    const { T } = scene.settings;
    return `${common(scene)}

sync = eqprop.relax(net, x, ${T}, keep=${T})
turn = eqprop.relax(net, x, ${T}, in_turn=True, keep=${T})
sync_outputs, turn_outputs = (
    torch.cat([s[-1] for s in (*free.history, free.state)]) for free in (sync, turn)
)  # [T + 1, 10]
print(sync.residual, turn.residual)`;
  },
};

export const SCALES = [0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30];
export const ANGLES = [0, 22.5, 45, 67.5, 90, 112.5, 135, 157.5, 180];
export const LANES = ["ep", "c-ep", "c-vf"] as const;

/** The lines of the training view: three rules side by side. */
export function trainingLines(scene: Scene): string {
  const { eta, boost, samples, epochs, T, K } = scene.settings;
  const { set, testNumbers } = scene.library.content;
  const tests = testNumbers.filter((number, at) => number === at).length;
  const own = scene.library.untied(scene.settings.net);
  const lanes = (own ? LANES.slice(2) : LANES)
    .map((name) => `    "${name}": (${network(scene, name !== "c-vf")}, ${ruleLine(scene, name)}),`)
    .join("\n");
  const explorer = lanes.includes("eqprop.explorer") ? "\nimport eqprop.explorer" : "";
  return `${head}${explorer}

train = eqprop.data.load("${set}").train.shaped((784,))
test = eqprop.data.load("${set}").test.shaped((784,))
rates = ${tuple(eta.map((rate) => float(rate * boost)))}
lanes = {
${lanes}
}
bptt = eqprop.BPTT(free_steps=${T}, backward_steps=${K})
curves = {}


def wrong(output, y):
    return (output.argmax(-1) != y.argmax(-1)).double().mean().item() * 100


for name, (net, rule) in lanes.items():
    engine, curves[name] = eqprop.make_engine(net, rule, rates), []
    for epoch in range(${epochs}):
        x, y = train.batch(torch.arange(20), torch.float64)
        update = eqprop.total_update(net, rule, x, y, learning_rates=rates)
        angle = eqprop.angle(update, eqprop.total_update(net, bptt, x, y)).item()
        errors = []
        for index in torch.arange(${samples}).split(20):
            x, y = train.batch(index, torch.float64)
            errors.append(wrong(engine.step(x, y), y))
        x, y = test.batch(torch.arange(${tests}), torch.float64)
        output = eqprop.relax(net, x, rule.free_steps, in_turn=rule.in_turn).state[-1]
        curves[name].append((sum(errors) / len(errors), wrong(output, y), angle))
    print(name, curves[name][-1])`;
}
