// Step-by-step animation, started and stopped by a button or Space; one at a time.

import { changed } from "ch/state";

let timer = 0;

export const playing = () => timer !== 0;

/** Show every number from `first` to `last`; stops instead if already playing. */
export function play(first, last, show) {
  if (timer) return halt();
  let at = first;
  const step = () => {
    if (at >= last) halt();
    show(Math.min(at++, last));
  };
  timer = setInterval(step, matchMedia("(prefers-reduced-motion: reduce)").matches ? 1000 : 400);
  step();
}

function halt() {
  clearInterval(timer);
  timer = 0;
  changed();
}

window.addEventListener("play", (event) => {
  const button = document.querySelector("main button.play");
  if (!button) return;
  event.preventDefault();
  button.click();
});
