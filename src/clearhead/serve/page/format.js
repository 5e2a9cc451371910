// Numbers as text.

/** Format a number for display. */
export function formatNumber(value, digits = 3) {
	if (value === null || value === undefined) return "";
	if (Number.isNaN(value)) return "NaN";
	if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
	if (value === 0) return "0";
	const size = Math.abs(value);
	const text =
		size >= 1e5 || size < 1e-4 ? value.toExponential(digits - 1) : value.toPrecision(digits);
	return text.replaceAll("-", "−");
}

/** Format a count: 12,345 tokens. */
export const formatCount = (count, noun = "") =>
	`${count.toLocaleString("en")}${noun ? ` ${noun}${count === 1 ? "" : "s"}` : ""}`;

/** Abbreviate a count: 8.5M. */
export const abbreviateCount = (count) => count.toLocaleString("en", { notation: "compact" });

/** Format a probability or another share as a percentage. */
export function formatPercent(share) {
	if (share === null || Number.isNaN(share)) return "NaN";
	if (share === 0) return "0%";
	if (share < 0.0001) return "<0.01%";
	if (share > 0.9995) return share > 0.999999 ? "100%" : ">99.9%";
	return `${(100 * share).toFixed(share < 0.01 ? 2 : 1)}%`;
}
