// What a model that reads pictures or sound is given: its own example, a drawing or a tone (which the link keeps), or a file (which it does not).

import { snapshot } from "ch/api";
import { card, give } from "ch/run";
import { defaults, on, set, state } from "ch/state";

export const GRID = 64; // places of a drawing from left to right, and from top to bottom
const SIDE = 280; // pixels it is drawn with
const LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
const SEVEN = "QOuOkgcy"; // until someone draws, where there is no example
const TONE = 440;
const RATE = 16000;

defaults({ drawing: null, tone: 0 }); // until someone draws or tunes
let file = snapshot?.given ?? null; // { name, data }, until it is taken away; a saved page has what it was saved with
let sent = ""; // what was given last

/** Strokes as text: two letters for each point, a dot between strokes. */
export const written = (strokes) => strokes.map((points) => points.map(([x, y]) => LETTERS[x] + LETTERS[y]).join("")).join(".");

/** And back; what is no drawing has no strokes. */
export function strokesOf(text) {
  return text.split(".").map((part) => (part.match(/../g) ?? []).map((pair) => [...pair].map((letter) => LETTERS.indexOf(letter))).filter((point) => point.every((at) => at >= 0))).filter((points) => points.length);
}

/** A drawing onto a canvas: white on black, as the digits are that small models learn from. */
export function paint(canvas, strokes) {
  [canvas.width, canvas.height] = [SIDE, SIDE];
  const context = canvas.getContext("2d"), step = SIDE / GRID;
  context.fillStyle = "#000";
  context.fillRect(0, 0, SIDE, SIDE);
  Object.assign(context, { strokeStyle: "#fff", lineWidth: SIDE / 13, lineCap: "round", lineJoin: "round" });
  for (const points of strokes) {
    context.beginPath();
    points.forEach(([x, y], i) => context[i ? "lineTo" : "moveTo"]((x + 0.5) * step, (y + 0.5) * step));
    if (points.length === 1) context.lineTo((points[0][0] + 0.5) * step, (points[0][1] + 0.5) * step);
    context.stroke();
  }
}

export const drawingOf = ({ drawing }) => drawing ?? SEVEN;
export const toneOf = ({ tone }) => tone || TONE;

/** Read a file from now on. */
export async function open(chosen) {
  file = chosen && { name: chosen.name, data: await dataOf(chosen) };
  settle();
}

/** The file that is read: one that was opened, or the model's own example until someone draws or tunes. */
export const fileOf = ({ examples, pictures }) => file ?? ((pictures ? state().drawing === null : !state().tone) ? examples.file : null);

/** Draw, or tune, instead of reading a file. */
export function make({ pictures }) {
  set(pictures ? { drawing: state().drawing ?? "" } : { tone: toneOf(state()) });
  open(null);
}

/** Go back to the model's own example. */
export function example() {
  set({ drawing: null, tone: 0 });
  open(null);
}

function dataOf(blob) {
  return new Promise((done, fail) => {
    const reader = new FileReader();
    reader.onload = () => done(reader.result.split(",")[1]);
    reader.onerror = () => fail(reader.error);
    reader.readAsDataURL(blob);
  });
}

/** A second of one pitch that rises by an octave, as a WAV file in base64. */
function tone(from) {
  const bytes = new DataView(new ArrayBuffer(44 + 2 * RATE));
  const put = (at, text) => [...text].forEach((letter, i) => bytes.setUint8(at + i, letter.charCodeAt(0)));
  put(0, "RIFF"), put(8, "WAVEfmt "), put(36, "data");
  [[4, 36 + 2 * RATE], [16, 16], [24, RATE], [28, 2 * RATE], [40, 2 * RATE]].forEach(([at, value]) => bytes.setUint32(at, value, true));
  [[20, 1], [22, 1], [32, 2], [34, 16]].forEach(([at, value]) => bytes.setUint16(at, value, true));
  for (let i = 0, turn = 0; i < RATE; i++) {
    turn += (2 * Math.PI * from * (1 + i / RATE)) / RATE;
    bytes.setInt16(44 + 2 * i, 12000 * Math.sin(turn), true);
  }
  return btoa(Array.from(new Uint8Array(bytes.buffer), (byte) => String.fromCharCode(byte)).join(""));
}

/** Give the model what the state says, once. */
function settle() {
  const found = card().value;
  const kind = found?.pictures ? "picture" : found?.sound ? "sound" : "";
  if (!found) return;
  const read = fileOf(found);
  const now = `${found.name} ${read ? read.data : kind === "picture" ? drawingOf(state()) : toneOf(state())}`;
  if (now === sent) return;
  sent = now;
  if (!kind) {
    give({});
    return;
  }
  if (read) give({ [kind]: read.data });
  else if (kind === "sound") give({ sound: tone(toneOf(state())) });
  else {
    const canvas = document.createElement("canvas");
    paint(canvas, strokesOf(drawingOf(state())));
    give({ picture: canvas.toDataURL("image/png").split(",")[1] });
  }
}
on(settle);
