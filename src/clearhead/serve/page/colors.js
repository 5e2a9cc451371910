// Color maps: blue is positive, orange is negative, zero is the background color, as in
// clearhead.lens.render.colors.

const POSITIVE = [0x2b, 0x83, 0xd8];
const NEGATIVE = [0xd9, 0x69, 0x1c];
const LIGHT = { paper: [255, 255, 255], ink: "#1b1f24", line: "#d5dae0", quiet: "#59626c" };
const DARK = { paper: [0x14, 0x17, 0x1a], ink: "#e6e8ea", line: "#39414a", quiet: "#a3adb8" };
const colorTables = new Map();

/** Whether the dark theme is active. */
export function isDark() {
	const { theme } = document.documentElement.dataset;
	return theme ? theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

/** Colors of the current theme: paper, ink, line, quiet. */
export const themeColors = () => (isDark() ? DARK : LIGHT);

/** Map a value from -1 to 1 to [r, g, b]. */
function mixColor(share) {
	const { paper } = themeColors();
	const full = share < 0 ? NEGATIVE : POSITIVE;
	const part = Math.min(1, Math.abs(share) || 0);
	return paper.map((zero, i) => Math.round(zero + (full[i] - zero) * part));
}

/** Map a value from -1 to 1 to a CSS color. */
export const cssColor = (share) => `rgb(${mixColor(share).join(" ")})`;

/** Text color with enough contrast on that color. */
export function textColor(share) {
	const [r, g, b] = mixColor(share).map((c) =>
		c / 255 <= 0.04045 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4,
	);
	return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.179 ? "#10151a" : "#ffffff";
}

/** 256 colors as 32-bit pixels: index 0 is zero, or 128 if values are signed. */
export function colorTable(signed) {
	const name = `${signed} ${isDark()}`;
	if (!colorTables.has(name)) {
		const table = new Uint32Array(256);
		for (let i = 0; i < 256; i++) {
			const [r, g, b] = mixColor(signed ? (i - 128) / 127 : i / 255);
			table[i] = (255 << 24) | (b << 16) | (g << 8) | r;
		}
		colorTables.set(name, table);
	}
	return colorTables.get(name);
}

/** Index of a value in the color table; NaN gets the color of zero. */
export function colorIndex(value, max, signed) {
	if (!Number.isFinite(value)) return value === Infinity ? 255 : signed ? 128 : 0;
	const share = Math.max(-1, Math.min(1, value / max));
	return signed ? 128 + Math.round(127 * share) : Math.round(255 * Math.max(0, share));
}
