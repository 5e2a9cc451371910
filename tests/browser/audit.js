// What a page does wrong for people who see or hear otherwise; evaluated inside it.
() => {
  const dot = Object.assign(document.createElement("canvas"), { width: 1, height: 1 }).getContext("2d");
  const pixel = (color) => {
    dot.clearRect(0, 0, 1, 1);
    dot.fillStyle = color;
    dot.fillRect(0, 0, 1, 1);
    return [...dot.getImageData(0, 0, 1, 1).data];
  };
  const linear = (c) => (c / 255 <= 0.04045 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4);
  const lightness = ([r, g, b]) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
  const paper = (element) => {
    for (let e = element; e; e = e.parentElement) {
      const found = pixel(getComputedStyle(e).backgroundColor);
      if (found[3] === 255) return found;
    }
    return pixel(getComputedStyle(document.body).backgroundColor);
  };
  const skipped = ":disabled, dialog, .visually-hidden, .live-text, .skip, math, svg, [aria-hidden=true]";
  const poor = [];
  for (const element of document.querySelectorAll("body *")) {
    const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
    if (!own || !element.checkVisibility() || element.closest(skipped)) continue;
    const both = [lightness(pixel(getComputedStyle(element).color)), lightness(paper(element))];
    const ratio = (Math.max(...both) + 0.05) / (Math.min(...both) + 0.05);
    if (ratio < 4.5) poor.push(`${element.localName}.${element.className} “${element.textContent.trim()}” ${ratio.toFixed(2)}`);
  }
  const controls = "button, select, input, textarea, summary, [role=button], [tabindex='0']";
  const named = (e) => e.getAttribute("aria-label") || e.textContent.trim() || e.title || e.labels?.length || e.closest("label");
  const nameless = [...document.querySelectorAll(controls)].filter((e) => e.checkVisibility() && !named(e)).map((e) => e.outerHTML);
  const ids = [...document.querySelectorAll("[id]")].map((e) => e.id);
  return { poor, nameless, twice: ids.filter((id, i) => ids.indexOf(id) !== i) };
}
