// What a page owes its readers, as a list of sentences about what is missing. Runs in the page under test.
const found = [];
const parse = text => {
  const parts = (text.match(/[\d.]+/g) || []).map(Number);
  return { rgb: parts.slice(0, 3), alpha: parts.length > 3 ? parts[3] : 1 };
};
const light = rgb => {
  const [r, g, b] = rgb.map(v => v / 255).map(v => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const back = element => {
  for (let at = element; at; at = at.parentElement) {
    const colour = parse(getComputedStyle(at).backgroundColor);
    if (colour.alpha === 1) return colour.rgb;
  }
  return [255, 255, 255];
};
const named = element => element.getAttribute("aria-label") || element.getAttribute("aria-labelledby") ||
  element.textContent.trim() || (element.labels && element.labels.length && element.labels[0].textContent.trim());
const shown = element => element.checkVisibility ? element.checkVisibility() : true;
const word = element => `<${element.tagName.toLowerCase()}> ${(element.textContent || "").trim().slice(0, 40)}`;

if (!document.documentElement.lang) found.push("the page has no language");
if (!document.title) found.push("the page has no title");
if (document.querySelectorAll("main").length !== 1) found.push("there is not one main region");
const ids = Array.from(document.querySelectorAll("[id]"), element => element.id);
for (const id of new Set(ids.filter((id, place) => ids.indexOf(id) !== place))) found.push(`two elements have the id ${id}`);
for (const element of document.querySelectorAll("a, button, input, select, dialog, [role=region], [role=img], [role=group], svg, nav")) {
  if (shown(element) && !named(element)) found.push(`no name: ${word(element)}`);
}
for (const element of document.querySelectorAll("table")) {
  if (!element.caption || !element.caption.textContent.trim()) found.push("a table has no caption");
  for (const head of element.querySelectorAll("thead th")) if (head.scope !== "col") found.push(`no scope: ${word(head)}`);
}
for (const element of document.querySelectorAll("pre, .scroll")) {
  if (shown(element) && element.tabIndex < 0) found.push("a part that scrolls cannot be reached by the keyboard");
}
let before = 0;
for (const element of document.querySelectorAll("h1, h2, h3, h4")) {
  if (!shown(element)) continue;
  const level = Number(element.tagName[1]);
  if (level > before + 1) found.push(`a heading skips a level: ${word(element)}`);
  before = level;
}
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
const pairs = new Set();
for (let node = walker.nextNode(); node; node = walker.nextNode()) {
  const element = node.parentElement;
  if (!node.textContent.trim() || ["SCRIPT", "STYLE", "NOSCRIPT", "OPTION"].includes(element.tagName)) continue;
  if (!shown(element)) continue;
  const style = getComputedStyle(element);
  const colour = element instanceof SVGElement ? style.fill : style.color;
  const [a, b] = [light(parse(colour).rgb), light(back(element))];
  const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  if (ratio < 4.5) pairs.add(`contrast ${ratio.toFixed(2)}: ${word(element)}`);
}
found.push(...pairs);
return found;
