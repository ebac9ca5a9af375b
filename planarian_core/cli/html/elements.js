// Making elements. Whatever comes from the data becomes a text node: it is foreign text, never markup.

const SVG = document.getElementById("graph").namespaceURI;

/** An element; `options`: its properties, and `class`, `role`, `aria-*`; strings among `children` become text. */
function el(tag, options = {}, ...children) {
  const made = document.createElement(tag);
  for (const [key, value] of Object.entries(options)) {
    if (key === "class" || key === "role" || key.startsWith("aria-")) made.setAttribute(key, value);
    else made[key] = value;
  }
  made.append(...children.filter((child) => child !== null && child !== undefined && child !== ""));
  return made;
}

function shape(tag, attributes) {
  const made = document.createElementNS(SVG, tag);
  for (const [key, value] of Object.entries(attributes)) if (value !== "") made.setAttribute(key, value);
  return made;
}

/** Foreign text on a line of its own direction. */
function words(text, kind = "") {
  return el("bdi", kind ? { class: kind } : {}, text);
}

function mark(text, kind = "", title = "") {
  return el("span", { class: `mark ${kind}`.trim(), title }, words(text));
}

function bytes(count) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (count >= 1024 && unit < units.length - 1) {
    count /= 1024;
    unit += 1;
  }
  return `${unit ? count.toFixed(1) : Math.round(count)} ${units[unit]}`;
}

function duration(seconds) {
  if (seconds >= 60) return `${(seconds / 60).toFixed(1)} min`;
  if (seconds >= 1) return `${seconds.toFixed(2)} s`;
  return `${(seconds * 1000).toFixed(seconds < 0.01 ? 2 : 1)} ms`;
}

function count(number, one, many = `${one}s`) {
  return `${number} ${number === 1 ? one : many}`;
}

/** How long before the page was made. */
function age(moment, made) {
  const seconds = (Date.parse(made) - Date.parse(moment)) / 1000;
  if (!Number.isFinite(seconds)) return moment;
  for (const [unit, length] of [["d", 86400], ["h", 3600], ["min", 60]]) {
    if (seconds >= length) return `${Math.floor(seconds / length)} ${unit} ago`;
  }
  return `${Math.max(0, Math.floor(seconds))} s ago`;
}

function clock(moment) {
  return moment.replace("T", " ").replace(/\.\d+Z$/, "").replace(/Z$/, "") + " UTC";
}

/** A small chart of values in the order of time; of more than `most` the greatest of each neighbourhood. */
function chart(title, values, unit, most = 120) {
  const group = Math.max(1, Math.ceil(values.length / most));
  const bars = [];
  for (let at = 0; at < values.length; at += group) bars.push(Math.max(...values.slice(at, at + group)));
  const top = Math.max(...bars, Number.MIN_VALUE);
  const made = shape("svg", { viewBox: `0 0 ${bars.length} 20`, preserveAspectRatio: "none", role: "img" });
  made.setAttribute("aria-label", `${title}: up to ${unit(top)}`);
  bars.forEach((value, at) => {
    const height = Math.max(0.4, (value / top) * 20);
    made.append(shape("rect", { x: at + 0.1, y: 20 - height, width: 0.8, height }));
  });
  return el("figure", {}, made, el("figcaption", {}, `${title}, up to ${unit(top)}`));
}
