// Memoization by object identity: elements redraw only when a property is a new object.

const made = new WeakMap(); // source -> key -> value

/** Memoize `make` for a source object and a key. */
export function once(source, key, make) {
  if (!made.has(source)) made.set(source, new Map());
  const known = made.get(source);
  if (!known.has(key)) known.set(key, make());
  return known.get(key);
}
