// Inspector content for numbers in tables and drawings.

import { framed } from "ch/element";

const NUMBER = /\d/;

/** Inspector content of a table cell or an element with data-what; else null. */
export function pointedAt(target) {
  const own = target.closest?.("main [data-what]");
  if (own) {
    const { what, where = "", formula = "", value } = own.dataset;
    return { title: what, where: where ? [where] : [], note: formula, value: Number(value) };
  }
  const cell = target.closest?.("main table:not(.chances) td");
  if (!cell || !NUMBER.test(cell.textContent)) return null;
  const table = cell.closest("table"), heads = table.tHead?.rows[0]?.cells;
  const where = [cell.closest("tr").querySelector("th")?.textContent, heads?.[cell.cellIndex]?.textContent, cell.querySelector(".word")?.textContent];
  const value = cell.dataset.value === undefined ? (cell.querySelector(".hint") ?? cell).textContent.trim() : Number(cell.dataset.value);
  const { title, note } = framed(cell), section = cell.closest("section")?.querySelector("h2")?.textContent;
  return { title: title || section || "", where: where.map((text) => text?.trim()).filter(Boolean), note, value };
}
