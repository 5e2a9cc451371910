// Things that stay the same object while what they are made of does: elements draw again only when they are given another.

const made = new WeakMap(); // source -> key -> value

/** What `make` gives for a source (an object) and a key, made once. */
export function once(source, key, make) {
  if (!made.has(source)) made.set(source, new Map());
  const known = made.get(source);
  if (!known.has(key)) known.set(key, make());
  return known.get(key);
}
