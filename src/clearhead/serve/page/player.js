// Something that moves on by itself, step by step: one at a time, started and halted by its button or by Space.

import { changed } from "ch/state";

let timer = 0;

export const playing = () => timer !== 0;

/** Shows every number from `first` to `last`; what plays already is halted instead. */
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
