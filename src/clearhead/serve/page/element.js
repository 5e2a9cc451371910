// Base class of the custom elements: properties that trigger one redraw, and events.

import { render } from "lit-html";

/** A custom element without shadow DOM. `static properties` are its properties with defaults; `draw` renders it. */
export class Element extends HTMLElement {
  constructor() {
    super();
    const given = { ...this.constructor.properties };
    for (const name of Object.keys(given)) {
      if (Object.hasOwn(this, name)) { // set before the element was defined
        given[name] = this[name];
        delete this[name];
      }
    }
    this.props = given;
  }

  connectedCallback() {
    this.soon();
  }

  /** Schedule one redraw after all properties are set. */
  soon() {
    if (this.waiting) return;
    this.waiting = true;
    queueMicrotask(() => {
      this.waiting = false;
      if (this.isConnected) this.draw();
    });
  }

  /** Render a template into the element. */
  fill(template) {
    render(template, this);
  }

  /** Dispatch an event; with `up`, it bubbles. */
  tell(name, detail, up = false) {
    this.dispatchEvent(new CustomEvent(name, { detail, bubbles: up }));
  }
}

/** Register an element; its properties become accessors. */
export function define(name, type) {
  for (const property of Object.keys(type.properties ?? {})) {
    Object.defineProperty(type.prototype, property, {
      get() {
        return this.props[property];
      },
      set(value) {
        const old = this.props[property];
        this.props[property] = value;
        if (!same(old, value)) this.soon();
      },
    });
  }
  if (!customElements.get(name)) customElements.define(name, type);
}

/** Whether two property values are equal; templates recreate arrays and functions on every render. */
function same(a, b) {
  if (a === b || (typeof a === "function" && typeof b === "function")) return true;
  if (Array.isArray(a) && Array.isArray(b)) return a.length === b.length && a.every((each, i) => each === b[i]);
  return !!a?.data && a.data === b?.data && String(a.shape) === String(b.shape);
}

/** Title and note of the figure around an element. */
export function framed(element) {
  const figure = element.closest("ch-figure");
  return { title: element.label || figure?.caption || "", note: figure?.note ?? "" };
}

const seen = new WeakMap();
const sizes = new ResizeObserver((entries) => {
  for (const { target, contentRect } of entries) {
    if (seen.get(target) === contentRect.width) continue; // only widths matter; heights follow from the content
    seen.set(target, contentRect.width);
    target.soon();
  }
});

/** Redraw when the width of the element or the theme of the page changes. */
export function resized(element) {
  sizes.observe(element);
}

window.addEventListener("theme", () => {
  for (const element of document.querySelectorAll("ch-map, ch-lines, ch-tokens, ch-bars, ch-view, ch-atlas")) element.soon();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => window.dispatchEvent(new Event("theme")));
