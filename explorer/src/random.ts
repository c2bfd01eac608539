/**
 * The random numbers of `eqprop.seeds.generator`: a Mersenne twister, seeded by a hash of a purpose
 * and a seed. A fresh network is therefore the one that Python draws, to the last bit.
 */

/** The first eight bytes of SHA-256 of an ASCII text, as two 32-bit numbers. */
function sha256Head(text: string): [number, number] {
  const { constants, start } = sha256Tables();
  const length = text.length;
  const blocks = new Uint8Array(64 * Math.ceil((length + 9) / 64));
  for (let i = 0; i < length; i++) blocks[i] = text.charCodeAt(i);
  blocks[length] = 0x80;
  new DataView(blocks.buffer).setUint32(blocks.length - 4, 8 * length);
  const view = new DataView(blocks.buffer);
  const hash = start.slice();
  const w = new Uint32Array(64);
  const turn = (v: number, n: number) => (v >>> n) | (v << (32 - n));
  for (let at = 0; at < blocks.length; at += 64) {
    for (let i = 0; i < 16; i++) w[i] = view.getUint32(at + 4 * i);
    for (let i = 16; i < 64; i++) {
      const a = w[i - 15];
      const b = w[i - 2];
      const s0 = turn(a, 7) ^ turn(a, 18) ^ (a >>> 3);
      const s1 = turn(b, 17) ^ turn(b, 19) ^ (b >>> 10);
      w[i] = w[i - 16] + s0 + w[i - 7] + s1;
    }
    let [a, b, c, d, e, f, g, h] = hash;
    for (let i = 0; i < 64; i++) {
      const s1 = turn(e, 6) ^ turn(e, 11) ^ turn(e, 25);
      const t1 = (h + s1 + ((e & f) ^ (~e & g)) + constants[i] + w[i]) | 0;
      const s0 = turn(a, 2) ^ turn(a, 13) ^ turn(a, 22);
      const t2 = (s0 + ((a & b) ^ (a & c) ^ (b & c))) | 0;
      [h, g, f, e, d, c, b, a] = [g, f, e, (d + t1) | 0, c, b, a, (t1 + t2) | 0];
    }
    [a, b, c, d, e, f, g, h].forEach((v, i) => (hash[i] += v));
  }
  return [hash[0], hash[1]];
}

/** The constants of SHA-256: the fractions of cube and square roots of the first primes. */
function sha256Tables(): { constants: Uint32Array; start: Uint32Array } {
  const primes: number[] = [];
  for (let n = 2; primes.length < 64; n++) if (primes.every((p) => n % p)) primes.push(n);
  const fraction = (v: number) => (v - Math.floor(v)) * 2 ** 32;
  return {
    constants: Uint32Array.from(primes, (p) => fraction(Math.cbrt(p))),
    start: Uint32Array.from(primes.slice(0, 8), (p) => fraction(Math.sqrt(p))),
  };
}

export class Generator {
  private readonly state = new Uint32Array(624);
  private at = 624;

  constructor(seed: number, purpose: string) {
    const [high, low] = sha256Head(`${purpose}:${seed}`);
    this.state[0] = ((high & 1) << 31) | (low >>> 1); // the low half of the 64 bits >> 1
    for (let i = 1; i < 624; i++) {
      const before = this.state[i - 1] ^ (this.state[i - 1] >>> 30);
      this.state[i] = Math.imul(1812433253, before) + i;
    }
  }

  private next(): number {
    const s = this.state;
    if (this.at === 624) {
      for (let i = 0; i < 624; i++) {
        const mixed = (s[i] & 0x80000000) | (s[(i + 1) % 624] & 0x7fffffff);
        s[i] = s[(i + 397) % 624] ^ (mixed >>> 1) ^ (mixed & 1 ? 0x9908b0df : 0);
      }
      this.at = 0;
    }
    let v = s[this.at++];
    v ^= v >>> 11;
    v ^= (v << 7) & 0x9d2c5680;
    v ^= (v << 15) & 0xefc60000;
    return (v ^ (v >>> 18)) >>> 0;
  }

  /** Uniform in [0, 1), with 53 bits. */
  uniform(): number {
    const high = this.next() & 0x1fffff;
    return (high * 2 ** 32 + this.next()) / 2 ** 53;
  }
}
