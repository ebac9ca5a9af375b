// The page: reads the data, draws the list, and follows mouse, keyboard and filter.

const data = JSON.parse(document.getElementById("data").textContent);
const byId = new Map(data.statepoints.map((node) => [node.id, node]));
const sandboxes = new Map(data.sandboxes.map((one) => [one.id, one]));
const chosenSandbox = sandboxes.get(data.sandbox);
const newestFirst = [...data.statepoints].reverse();
const heads = [chosenSandbox, ...data.sandboxes.filter((one) => one !== chosenSandbox)].map((one) => one.head);
const headOf = group(data.sandboxes, (one) => one.head);
const forksOf = group(data.sandboxes, (one) => one.forked_from);
const childrenOf = group(data.statepoints, (node) => node.parent);
const returned = new Map(data.returns);
const straight = ancestry(heads[0], byId);
const live = new Set(straight);
for (const head of heads) ancestry(head, byId, live);
const [list, panel, filter, kind] = ["list", "details", "filter", "kind"].map((id) => document.getElementById(id));
const haystacks = new Map();
let shown = [];
let layout = null;
let selected = null;

function group(items, key) {
  const grouped = new Map();
  for (const item of items) {
    const at = key(item);
    if (!at) continue;
    if (!grouped.has(at)) grouped.set(at, []);
    grouped.get(at).push(item);
  }
  return grouped;
}

const context = {
  made: data.generated_at,
  marks,
  close: closeDetails,
  children: (id) => childrenOf.get(id) || [],
  forks: (id) => forksOf.get(id) || [],
  sandboxName: (id) => (sandboxes.get(id)?.name ? `${sandboxes.get(id).name} (${id})` : id),
  link(id) {
    const node = byId.get(id);
    if (!node) return el("span", { class: "mono" }, id, " (not in this picture)");
    const text = node.name ? words(node.name) : el("span", { class: "mono" }, id);
    return el("button", { class: "link", type: "button", onclick: () => select(id, { focus: true, open: true, reveal: true }) }, text);
  },
};

// --- one statepoint at a glance ---

function title(node) {
  return node.name || firstLine(node.description) || node.id;
}

function firstLine(text) {
  return text.split("\n").find((line) => line.trim()) || "";
}

function marks(node) {
  return [
    ...(headOf.get(node.id) || []).map((one) => mark(one === chosenSandbox ? "head" : `head of ${one.name || one.id}`, one === chosenSandbox ? "head" : "accent")),
    node.status === "committed" ? null : mark(node.status, node.status === "pruned" ? "" : "bad"),
    ...context.forks(node.id).map((one) => mark(`fork ${one.name || one.id}`, "note", one.id)),
    returned.has(node.id) ? mark(returned.get(node.id) > 1 ? `returned here ${returned.get(node.id)}×` : "returned here", "note") : null,
    outcomeMark(node),
    node.held === null ? null : mark("held", "accent", node.held),
    node.drill?.error ? mark("can't be restored", "bad", node.drill.error) : null,
    node.warm?.ready ? mark("warm", "warm") : null,
    node.missing.length ? mark(`${node.missing.length + node.missing_more} not captured`, "warm") : null,
  ].filter(Boolean);
}

/** How the last run from here ended, or that something was noted. */
function outcomeMark(node) {
  const last = node.outcomes.findLast(([status]) => status === "succeeded" || status === "failed") || node.outcomes.at(-1);
  if (!last || !OUTCOMES.includes(last[0])) return null;
  const number = node.outcomes.length + node.outcomes_more;
  const kinds = { succeeded: "good", failed: "bad", note: "note" };
  return mark(number > 1 ? `${last[0]}, ${number} outcomes` : last[0], kinds[last[0]]);
}

function look(node) {
  const at = data.sandboxes.findIndex((one) => one.id === node.sandbox);
  const onTheWay = live.has(node.id);
  const committed = node.status === "committed";
  return {
    live: onTheWay,
    head: headOf.has(node.id),
    small: node.automatic,
    failed: node.status === "discarded" || node.status === "pending",
    full: committed && onTheWay,
    colour: at >= 0 && (onTheWay || node.status === "pruned") ? `var(--lane-${at % 6})` : "var(--left)",
  };
}

function row(node) {
  const frozen = node.timings.find(([step]) => step === "frozen")?.[1];
  const stored = added(node.files) + added(node.processes);
  const classes = ["row", node.name ? "named" : "", live.has(node.id) ? "" : "left", node.status === "pruned" ? "pruned" : ""];
  const below = [node.name || node.description ? node.id : "", age(node.at, data.generated_at),
    node.sandbox === data.sandbox ? "" : context.sandboxName(node.sandbox), node.name ? firstLine(node.description) : "", node.changes?.summary];
  return el("div", { class: classes.filter(Boolean).join(" "), role: "option", id: `row-${node.id}`, tabIndex: -1, "aria-selected": "false" },
    el("div", { class: "name" }, words(title(node), "text"), ...marks(node)),
    el("div", { class: "figure" }, node.status === "committed" && frozen ? duration(frozen) : ""),
    el("div", { class: "below" }, words(below.filter(Boolean).join(" · "))),
    el("div", { class: "figure" }, node.status === "committed" ? (stored ? `+${bytes(stored)}` : unchanged(node) ? "unchanged" : "") : ""));
}

/** What a part took on the disk; nothing where another statepoint's is shared. */
function added(part) {
  return part && !part.owner ? part.stored : 0;
}

function unchanged(node) {
  const parts = [node.files, node.processes].filter(Boolean);
  return parts.length > 0 && parts.every((part) => part.owner);
}

// --- the list ---

const KINDS = {
  all: () => true,
  noted: (node) => node.name || node.held !== null || node.outcomes.length,
  ends: (node) => headOf.has(node.id) || forksOf.has(node.id) || context.children(node.id).length > 1,
  live: (node) => live.has(node.id),
  incomplete: (node) => node.missing.length > 0,
  failed: (node) => node.status === "discarded" || node.status === "pending" || Boolean(node.drill?.error),
};

function haystack(node) {
  if (!haystacks.has(node.id)) {
    const parts = [node.id, node.name, node.description, node.error, context.sandboxName(node.sandbox), ...node.facts.flat(), ...node.captured,
      ...node.outcomes.flatMap(([status, text, author]) => [status, text, author]), ...node.missing.flat(),
      ...node.running.flatMap(([pid, command]) => [String(pid), command]), ...node.remote.flat(),
      ...(node.changes?.paths || []).map(([, path]) => path)];
    haystacks.set(node.id, parts.join("\n").toLowerCase());
  }
  return haystacks.get(node.id);
}

function draw() {
  const sought = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
  shown = newestFirst.filter((node) => KINDS[kind.value](node) && sought.every((word) => haystack(node).includes(word)));
  layout = arrange(shown, byId, straight);
  list.replaceChildren(...shown.map(row));
  drawLines();
  document.getElementById("none").hidden = shown.length > 0;
  document.getElementById("count").textContent = shown.length === data.statepoints.length
    ? "" : `${shown.length} of ${count(data.statepoints.length, "statepoint")}`;
  if (selected && layout.rows.has(selected)) select(selected);
  else if (shown.length) list.firstElementChild.tabIndex = 0;
}

function drawLines() {
  const svg = document.getElementById("graph");
  const height = list.firstElementChild?.offsetHeight || 0;
  const width = drawGraph(svg, shown, layout, height, look);
  list.style.setProperty("--graph", `${width}px`);
}

function rowOf(id) {
  return document.getElementById(`row-${id}`);
}

function idOf(element) {
  return element?.id.slice("row-".length);
}

/** Make a statepoint the chosen one: `focus` its row, `open` its details where they cover the tree. */
function select(id, { focus = false, open = false, reveal = false } = {}) {
  if (reveal && !layout.rows.has(id)) {
    filter.value = "";
    kind.value = "all";
    draw();
  }
  for (const old of list.querySelectorAll('[aria-selected="true"], [tabindex="0"]')) {
    old.setAttribute("aria-selected", "false");
    old.tabIndex = -1;
  }
  const chosen = rowOf(id);
  chosen.setAttribute("aria-selected", "true");
  chosen.tabIndex = 0;
  if (reveal) chosen.scrollIntoView({ block: "center" });
  if (focus) chosen.focus();
  if (id !== selected) showDetails(panel, byId.get(id), context);
  selected = id;
  history.replaceState(null, "", `#${id}`);
  if (open) {
    panel.classList.add("open");
    if (covers()) panel.querySelector(".close").focus();
  }
}

/** Whether the details lie over the tree, as on a phone. */
function covers() {
  return getComputedStyle(panel).position === "fixed";
}

function closeDetails() {
  panel.classList.remove("open");
  rowOf(selected)?.focus();
}

function move(event) {
  const at = layout.rows.get(selected) ?? 0;
  const node = byId.get(selected);
  const page = Math.max(1, Math.floor(list.parentElement.parentElement.clientHeight / (list.firstElementChild?.offsetHeight || 1)) - 1);
  const target = {
    ArrowDown: () => shown[Math.min(at + 1, shown.length - 1)],
    ArrowUp: () => shown[Math.max(at - 1, 0)],
    PageDown: () => shown[Math.min(at + page, shown.length - 1)],
    PageUp: () => shown[Math.max(at - page, 0)],
    Home: () => shown[0],
    End: () => shown.at(-1),
    ArrowLeft: () => node && byId.get(layout.parents[at]?.id),
    ArrowRight: () => node && shown.findLast((one, index) => layout.parents[index]?.id === node.id),
  }[event.key]?.();
  if (!target) return;
  event.preventDefault();
  select(target.id, { focus: true });
}

list.addEventListener("keydown", (event) => {
  if (event.altKey || event.ctrlKey || event.metaKey || !shown.length) return;
  if (event.key === "Enter" || event.key === " ") {
    event.preventDefault();
    select(idOf(document.activeElement.closest(".row")) || selected, { open: true });
    if (!covers()) panel.focus();
  } else {
    move(event);
  }
});
list.addEventListener("click", (event) => {
  const chosen = event.target.closest(".row");
  if (chosen) select(idOf(chosen), { focus: true, open: true });
});
document.addEventListener("keydown", (event) => {
  if (event.key === "/" && !["INPUT", "SELECT"].includes(document.activeElement.tagName)) {
    event.preventDefault();
    filter.focus();
  } else if (event.key === "Escape" && panel.contains(document.activeElement)) {
    closeDetails();
  }
});
filter.addEventListener("input", draw);
kind.addEventListener("change", draw);
addEventListener("resize", () => shown.length && drawLines());
addEventListener("hashchange", () => byId.has(location.hash.slice(1)) && select(location.hash.slice(1), { focus: true, reveal: true }));

// --- what stands above and below ---

function drawHead() {
  document.getElementById("title").append(words(chosenSandbox.name || chosenSandbox.id));
  const origin = chosenSandbox.forked_from ? ` · fork of ${chosenSandbox.forked_from}` : "";
  document.getElementById("place").append(words(`${chosenSandbox.workspace} · ${chosenSandbox.backends}${origin}`));
  document.title = `${chosenSandbox.name || chosenSandbox.id}: statepoints`;
  const committed = data.statepoints.filter((node) => node.status === "committed");
  const stored = committed.map((node) => added(node.files) + added(node.processes));
  const frozen = committed.map((node) => node.timings.find(([step]) => step === "frozen")?.[1] ?? 0);
  const returns = [...returned.values()].reduce((sum, one) => sum + one, 0);
  const total = stored.reduce((sum, one) => sum + one, 0);
  const figures = [
    [String(data.statepoints.length), "statepoints"], [String(data.sandboxes.length - 1), "forks"],
    [String(returns), "returns"], [bytes(total), "added to the disk"],
  ];
  const still = frozen.filter(Boolean).sort((a, b) => a - b); // those for which something had to stand still
  if (still.length) figures.push([duration(still[still.length >> 1]), "frozen, median"]);
  document.getElementById("figures").append(...figures.map(([value, label]) => el("div", {}, el("dt", {}, label), el("dd", {}, value))));
  for (const [title, values, unit] of [["frozen", frozen, duration], ["added", stored, bytes]]) {
    if (values.filter(Boolean).length > 1) document.getElementById("charts").append(chart(title, values, unit));
  }
  document.getElementById("made").textContent = `Made by Planarian ${data.planarian} on ${clock(data.generated_at)}${data.left_out ? ` · ${data.left_out}` : ""}`;
}

function drawLegend() {
  const base = { colour: "var(--lane-0)", full: true };
  const signs = [[{ ...base, head: true }, "a head: where a sandbox is now"], [base, "taken on request"],
    [{ ...base, small: true }, "taken by a policy, or before a rollback"], [{ ...base, full: false }, "pruned: its evidence is left"],
    [{ colour: "var(--left)" }, "left behind by a rollback; can still be returned to"], [{ failed: true, colour: "var(--bad)" }, "failed or unfinished: can't be restored"]];
  document.getElementById("legend").append(...signs.map(([sign, text]) => {
    const picture = shape("svg", { viewBox: "0 0 24 24", "aria-hidden": "true" });
    picture.append(...dot(12, 12, sign));
    return el("li", {}, picture, el("span", {}, text));
  }));
}

drawHead();
drawLegend();
draw();
const first = byId.get(location.hash.slice(1)) || byId.get(heads[0]) || shown[0];
if (first) select(first.id, { reveal: true });
else panel.append(el("p", { class: "quiet" }, "There is no statepoint yet."));
