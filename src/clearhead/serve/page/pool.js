// Max-pooling of a matrix: the finite value of largest magnitude in each block, with its sign.

/** { rows, cols, data, hatched, most, largest(r, c) -> [row, col] }; with factor 1 the matrix itself. */
export function pooled({ data: values }, rows, cols, factor, signed, masked) {
  const high = Math.ceil(rows / factor), wide = Math.ceil(cols / factor);
  const data = factor === 1 ? values : new Float32Array(high * wide).fill(NaN);
  const from = factor === 1 ? null : new Uint32Array(high * wide);
  const hatched = masked ? new Uint8Array(high * wide).fill(1) : null;
  let most = 0;
  for (let r = 0, i = 0; r < rows; r++) {
    const line = Math.floor(r / factor) * wide;
    for (let c = 0, left = factor, here = line; c < cols; c++, i++) {
      const value = values[i], size = value < 0 ? -value : value;
      if (size > most && size < Infinity) most = size;
      const kept = data[here];
      if (from && (size < Infinity ? !Number.isFinite(kept) || (signed ? size > Math.abs(kept) : value > kept) : Number.isNaN(kept))) {
        data[here] = value;
        from[here] = i;
      }
      if (hatched && hatched[here] && !masked(r, c)) hatched[here] = 0;
      if (--left === 0) {
        left = factor;
        here++;
      }
    }
  }
  const largest = (r, c) => (from ? [Math.floor(from[r * wide + c] / cols), from[r * wide + c] % cols] : [r, c]);
  return { rows: high, cols: wide, data, hatched: hatched?.some(Boolean) ? hatched : null, most, largest };
}
