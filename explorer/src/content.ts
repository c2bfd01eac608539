/** The networks and digits that the page holds. `eqprop.explorer.content` packs them. */

import { Network, type Synapse } from "./network";
import type { Settings } from "./settings";
import type { Digits } from "./training";

interface Packed {
  type: "int8" | "uint8" | "float32" | "float64";
  shape: number[];
  scale: number;
  data: string;
}

interface StoredNetwork {
  name: string;
  title: string;
  python: string;
  sizes: number[];
  activation: string;
  seed: number;
  settings: Partial<Settings>;
  tensors: Record<string, Packed>;
}

interface Stored {
  networks: StoredNetwork[];
  digits: { set: string; train: number; test: number[]; labels: string; images: Packed };
}

export interface Trained {
  name: string;
  title: string;
  python: string;
  seed: number;
  settings: Partial<Settings>;
  net: Network;
}

export interface Content {
  networks: Trained[];
  set: string; // the name of the data set
  train: Digits;
  test: Digits;
  testNumbers: number[]; // where the test digits are in the data set
}

const ARRAYS = { int8: Int8Array, uint8: Uint8Array, float32: Float32Array, float64: Float64Array };

async function unpack({ type, scale, data }: Packed): Promise<Float64Array> {
  const bytes = Uint8Array.from(atob(data), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  const numbers = new ARRAYS[type](await new Response(stream).arrayBuffer());
  return Float64Array.from(numbers, (v) => scale * v);
}

async function unpackNetwork(stored: StoredNetwork): Promise<Trained> {
  const { name, title, python, sizes, activation, seed, settings, tensors } = stored;
  const find = async (field: string) => (tensors[field] ? unpack(tensors[field]) : null);
  const synapses: Synapse[] = await Promise.all(
    sizes.slice(1).map(async (_, k) => ({
      weight: await unpack(tensors[`synapses.${k}.weight`]),
      bias: await find(`synapses.${k}.bias`),
      backward: await find(`synapses.${k}.backward_weight`),
    })),
  );
  return { name, title, python, seed, settings, net: new Network(sizes, synapses, activation) };
}

/** Everything in the page's element #content. */
export async function readContent(): Promise<Content> {
  const text = document.getElementById("content")?.textContent ?? "";
  const { networks, digits }: Stored = JSON.parse(text);
  const images = Uint8Array.from(await unpack(digits.images));
  const labels = Uint8Array.from(digits.labels, Number);
  const cut = (from: number, to: number): Digits => ({
    images: images.slice(from * 784, to * 784),
    labels: labels.slice(from, to),
  });
  return {
    networks: await Promise.all(networks.map(unpackNetwork)),
    set: digits.set,
    train: cut(0, digits.train),
    test: cut(digits.train, labels.length),
    testNumbers: digits.test,
  };
}
