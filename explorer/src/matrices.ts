/** Products of matrices in rows, and gradients kept as the products that they are. */

/** out[b, j] += Σ_i a[b, i] w[i, j], for b < batch. */
export function addProduct(
  out: Float64Array,
  a: Float64Array,
  w: Float64Array,
  batch: number,
  inner: number,
  width: number,
): void {
  for (let b = 0; b < batch; b++) {
    for (let i = 0; i < inner; i++) {
      const factor = a[b * inner + i];
      if (factor === 0) continue;
      const [from, to] = [i * width, b * width];
      for (let j = 0; j < width; j++) out[to + j] += factor * w[from + j];
    }
  }
}

/** out[b, i] += Σ_j a[b, j] w[i, j], for b < batch. */
export function addTransposed(
  out: Float64Array,
  a: Float64Array,
  w: Float64Array,
  batch: number,
  inner: number,
  width: number,
): void {
  for (let b = 0; b < batch; b++) {
    for (let i = 0; i < width; i++) {
      let sum = 0;
      const [from, at] = [i * inner, b * inner];
      for (let j = 0; j < inner; j++) sum += a[at + j] * w[from + j];
      out[b * width + i] += sum;
    }
  }
}

/** scale · leftᵀ right, summed over the batch; left is [batch, n], right [batch, m]. */
export interface Product {
  left: Float64Array;
  right: Float64Array;
  scale: number;
}

/** A matrix [n, m] as a sum of products. */
export class ProductSum {
  constructor(
    readonly rows: number,
    readonly columns: number,
    readonly batch: number,
    readonly terms: readonly Product[],
  ) {}

  entry(i: number, j: number): number {
    let value = 0;
    for (const { left, right, scale } of this.terms) {
      let sum = 0;
      for (let b = 0; b < this.batch; b++) {
        sum += left[b * this.rows + i] * right[b * this.columns + j];
      }
      value += scale * sum;
    }
    return value;
  }

  /** matrix += factor · this. */
  addTo(matrix: Float64Array, factor: number): void {
    for (const { left, right, scale } of this.terms) {
      for (let b = 0; b < this.batch; b++) {
        for (let i = 0; i < this.rows; i++) {
          const f = factor * scale * left[b * this.rows + i];
          if (f === 0) continue;
          const [to, from] = [i * this.columns, b * this.columns];
          for (let j = 0; j < this.columns; j++) matrix[to + j] += f * right[from + j];
        }
      }
    }
  }

  dense(): Float64Array {
    const matrix = new Float64Array(this.rows * this.columns);
    this.addTo(matrix, 1);
    return matrix;
  }
}
