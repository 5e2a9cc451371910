// Input of image and audio models: the bundled example, a drawing or tone (stored in the link), or a
// file (not stored).

import { snapshot } from "ch/api";
import { currentCard, setUpload } from "ch/requests";
import { registerDefaults, set, state, subscribe } from "ch/state";

export const GRID_SIZE = 64; // resolution of a drawing
const CANVAS_SIZE = 280; // pixels
const ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
const DEFAULT_DRAWING = "QOuOkgcy"; // a seven
const DEFAULT_FREQUENCY = 440; // Hz
const SAMPLE_RATE = 16000;

registerDefaults({ drawing: null, tone: 0 }); // null/0: use the example
let openedFile = snapshot?.file ?? null; // { name, data }; a saved page contains its file
let uploadedInput = ""; // last uploaded input

/** Encode strokes as text: two letters per point, a dot between strokes. */
export const encodeStrokes = (strokes) =>
	strokes.map((points) => points.map(([x, y]) => ALPHABET[x] + ALPHABET[y]).join("")).join(".");

/** Decode strokes; invalid text has no strokes. */
export function decodeStrokes(text) {
	return text
		.split(".")
		.map((part) =>
			(part.match(/../g) ?? [])
				.map((pair) => [...pair].map((letter) => ALPHABET.indexOf(letter)))
				.filter((point) => point.every((coordinate) => coordinate >= 0)),
		)
		.filter((points) => points.length);
}

/** Paint strokes white on black, like MNIST digits. */
export function paintStrokes(canvas, strokes) {
	canvas.width = CANVAS_SIZE;
	canvas.height = CANVAS_SIZE;
	const context = canvas.getContext("2d");
	const step = CANVAS_SIZE / GRID_SIZE;
	context.fillStyle = "#000";
	context.fillRect(0, 0, CANVAS_SIZE, CANVAS_SIZE);
	Object.assign(context, {
		strokeStyle: "#fff",
		lineWidth: CANVAS_SIZE / 13,
		lineCap: "round",
		lineJoin: "round",
	});
	for (const points of strokes) {
		context.beginPath();
		points.forEach(([x, y], i) =>
			context[i ? "lineTo" : "moveTo"]((x + 0.5) * step, (y + 0.5) * step),
		);
		if (points.length === 1)
			context.lineTo((points[0][0] + 0.5) * step, (points[0][1] + 0.5) * step);
		context.stroke();
	}
}

/** @param {State} state */
export const currentDrawing = ({ drawing }) => drawing ?? DEFAULT_DRAWING;
/** @param {State} state */
export const currentFrequency = ({ tone }) => tone || DEFAULT_FREQUENCY;

/** Use a file as input; null: none. @param {File | null} file */
export async function openFile(file) {
	openedFile = file && { name: file.name, data: await readBase64(file) };
	uploadInput();
}

/** The current file: an opened one, or the model's example unless there is a drawing or tone. */
export const currentFile = ({ examples, reads_images }) =>
	openedFile ?? ((reads_images ? state().drawing === null : !state().tone) ? examples.file : null);

/** Use a drawing or tone instead of a file. */
export function useDrawingOrTone({ reads_images }) {
	set(reads_images ? { drawing: state().drawing ?? "" } : { tone: currentFrequency(state()) });
	openFile(null);
}

/** Use the model's example. */
export function useExample() {
	set({ drawing: null, tone: 0 });
	openFile(null);
}

function readBase64(blob) {
	return new Promise((done, fail) => {
		const reader = new FileReader();
		reader.onload = () => done(String(reader.result).split(",")[1]);
		reader.onerror = () => fail(reader.error);
		reader.readAsDataURL(blob);
	});
}

/** One second of a tone rising by an octave, as base64 WAV. */
function synthesizeTone(frequency) {
	const wav = new DataView(new ArrayBuffer(44 + 2 * SAMPLE_RATE));
	const text = (offset, letters) =>
		[...letters].forEach((letter, i) => wav.setUint8(offset + i, letter.charCodeAt(0)));
	const uint16 = (offset, value) => wav.setUint16(offset, value, true);
	const uint32 = (offset, value) => wav.setUint32(offset, value, true);
	text(0, "RIFF");
	uint32(4, 36 + 2 * SAMPLE_RATE); // bytes that follow
	text(8, "WAVEfmt ");
	uint32(16, 16); // bytes of this chunk
	uint16(20, 1); // PCM
	uint16(22, 1); // mono
	uint32(24, SAMPLE_RATE);
	uint32(28, 2 * SAMPLE_RATE); // bytes per second
	uint16(32, 2); // bytes per sample
	uint16(34, 16); // bits per sample
	text(36, "data");
	uint32(40, 2 * SAMPLE_RATE);
	for (let i = 0, phase = 0; i < SAMPLE_RATE; i++) {
		phase += (2 * Math.PI * frequency * (1 + i / SAMPLE_RATE)) / SAMPLE_RATE;
		wav.setInt16(44 + 2 * i, 12000 * Math.sin(phase), true);
	}
	const bytes = Array.from(new Uint8Array(wav.buffer), (byte) => String.fromCharCode(byte));
	return btoa(bytes.join(""));
}

/** Upload the input that the state describes, once. */
function uploadInput() {
	const card = currentCard().value;
	if (!card) return;
	const { reads_images: readsImages, reads_audio: readsAudio } = card;
	const file = currentFile(card);
	const generated = readsImages ? currentDrawing(state()) : currentFrequency(state());
	const input = `${card.name} ${file?.data ?? generated}`;
	if (input === uploadedInput) return;
	uploadedInput = input;
	if (!readsImages && !readsAudio) setUpload({});
	else if (file) setUpload({ [readsImages ? "image" : "audio"]: file.data });
	else if (!readsImages) setUpload({ audio: synthesizeTone(currentFrequency(state())) });
	else {
		const canvas = document.createElement("canvas");
		paintStrokes(canvas, decodeStrokes(currentDrawing(state())));
		setUpload({ image: canvas.toDataURL("image/png").split(",")[1] });
	}
}
subscribe(uploadInput);
