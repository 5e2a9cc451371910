// Input of image and audio models: the bundled example, a drawing or tone (stored in the link), or a file (not stored).

import { snapshot } from "ch/api";
import { card, give } from "ch/run";
import { defaults, on, set, state } from "ch/state";

export const GRID = 64; // grid resolution of a drawing
const SIDE = 280; // canvas size in pixels
const LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
const SEVEN = "QOuOkgcy"; // default drawing if there is no example
const TONE = 440;
const RATE = 16000;

defaults({ drawing: null, tone: 0 }); // null/0: use the example
let file = snapshot?.given ?? null; // { name, data }; a saved page contains its file
let sent = ""; // last uploaded input

/** Encode strokes as text: two letters per point, a dot between strokes. */
export const written = (strokes) => strokes.map((points) => points.map(([x, y]) => LETTERS[x] + LETTERS[y]).join("")).join(".");

/** Decode strokes; invalid text has no strokes. */
export function strokesOf(text) {
  return text.split(".").map((part) => (part.match(/../g) ?? []).map((pair) => [...pair].map((letter) => LETTERS.indexOf(letter))).filter((point) => point.every((at) => at >= 0))).filter((points) => points.length);
}

/** Paint strokes white on black, like MNIST digits. */
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

/** Use a file as input. */
export async function open(chosen) {
  file = chosen && { name: chosen.name, data: await dataOf(chosen) };
  settle();
}

/** The current file: an opened one, or the model's example unless there is a drawing or tone. */
export const fileOf = ({ examples, reads_images }) => file ?? ((reads_images ? state().drawing === null : !state().tone) ? examples.file : null);

/** Use a drawing or tone instead of a file. */
export function make({ reads_images }) {
  set(reads_images ? { drawing: state().drawing ?? "" } : { tone: toneOf(state()) });
  open(null);
}

/** Use the model's example. */
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

/** One second of a tone rising by an octave, as base64 WAV. */
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

/** Upload the input that the state describes, once. */
function settle() {
  const found = card().value;
  const kind = found?.reads_images ? "image" : found?.reads_audio ? "audio" : "";
  if (!found) return;
  const read = fileOf(found);
  const now = `${found.name} ${read ? read.data : kind === "image" ? drawingOf(state()) : toneOf(state())}`;
  if (now === sent) return;
  sent = now;
  if (!kind) {
    give({});
    return;
  }
  if (read) give({ [kind]: read.data });
  else if (kind === "audio") give({ audio: tone(toneOf(state())) });
  else {
    const canvas = document.createElement("canvas");
    paint(canvas, strokesOf(drawingOf(state())));
    give({ image: canvas.toDataURL("image/png").split(",")[1] });
  }
}
on(settle);
