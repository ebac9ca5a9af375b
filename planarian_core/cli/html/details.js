// Everything about one statepoint.

function section(title, ...content) {
  const shown = content.filter(Boolean);
  return shown.length ? [el("h3", {}, title), ...shown] : [];
}

function more(number, what) {
  return number ? el("p", { class: "quiet" }, `and ${number} more ${what}: planarian show`) : null;
}

function pairs(entries) {
  const shown = entries.filter(([, value]) => value);
  if (!shown.length) return null;
  return el("dl", { class: "pairs" }, ...shown.flatMap(([label, value]) => [el("dt", {}, words(label)), el("dd", {}, value)]));
}

function listOf(items) {
  return items.length ? el("ul", { class: "items" }, ...items) : null;
}

function tableOf(titles, rows, numeric = []) {
  if (!rows.length) return null;
  const kind = (at) => (numeric.includes(at) ? { class: "number" } : {});
  return el("table", {},
    el("thead", {}, el("tr", {}, ...titles.map((title, at) => el("th", { scope: "col", ...kind(at) }, title)))),
    el("tbody", {}, ...rows.map((row) => el("tr", {}, ...row.map((cell, at) => el("td", kind(at), cell))))));
}

/** Fill `panel`; `link(id)` makes a button that goes to a statepoint. */
function showDetails(panel, node, context) {
  panel.replaceChildren(
    el("button", { class: "close", type: "button", onclick: context.close }, "Back to the tree"),
    el("h2", { id: "chosen", class: node.name ? "" : "mono" }, words(node.name || node.id)),
    el("div", { class: "marks" }, ...context.marks(node)),
    node.error ? el("p", { class: "lead words" }, `Error: ${node.error}`) : "",
    node.description ? el("p", { class: "lead words" }, node.description) : "",
    ...section("Place", place(node, context)),
    ...section("Outcomes: what was tried from here", outcomes(node, context), more(node.outcomes_more, "outcomes")),
    ...section("Facts", pairs(node.facts), more(node.facts_more, "facts")),
    ...section("Changes against the parent", ...changes(node)),
    ...section("Coverage", coverage(node), more(node.missing_more, "that were not captured")),
    ...section("Processes", processes(node), more(node.running_more, "processes")),
    ...section("Remote services", tableOf(["service", "position", "endpoint"],
      node.remote.map(([service, position, endpoint]) => [service, position, endpoint]))),
    ...section("Timings", timings(node)),
    ...section("Sizes", sizes(node, context)),
  );
  panel.setAttribute("aria-labelledby", "chosen");
  panel.scrollTop = 0;
}

function place(node, context) {
  const links = (ids) => (ids.length ? el("span", {}, ...ids.flatMap((id, at) => (at ? [", ", context.link(id)] : [context.link(id)]))) : "");
  return pairs([
    ["id", el("span", { class: "mono" }, node.id)],
    ["taken", `${clock(node.at)} (${age(node.at, context.made)})`],
    ["by", node.automatic ? "a policy, or before a rollback" : "request"],
    ["sandbox", context.sandboxName(node.sandbox)],
    ["parent", node.parent ? context.link(node.parent) : "none"],
    ["children", links(context.children(node.id).map((child) => child.id))],
    ["forks", context.forks(node.id).map((fork) => fork.name || fork.id).join(", ")],
    ["held", node.held === null ? "" : node.held || "no pruning removes it"],
    ["warm copy", warmth(node)],
    ["drill", node.drill ? `${node.drill.error || `restored well in ${duration(node.drill.seconds)}`} (${clock(node.drill.at)})` : ""],
  ]);
}

function warmth(node) {
  if (!node.warm) return "";
  const copies = count(node.warm.copies, "copy", "copies");
  const ready = node.warm.ready === node.warm.copies ? "ready" : `${node.warm.ready} ready`;
  return `${copies}, ${ready}${node.warm.memory ? `, ${bytes(node.warm.memory)} of memory` : ""}`;
}

function outcomes(node, context) {
  return listOf(node.outcomes.map(([status, text, author, at]) => el("li", { class: OUTCOMES.includes(status) ? status : "" },
    el("div", { class: "quiet" }, words(`${status}${author ? `, by ${author}` : ""}, ${age(at, context.made)}`)),
    el("div", { class: "words" }, text))));
}

const OUTCOMES = ["note", "succeeded", "failed"];

function coverage(node) {
  return listOf([
    ...node.captured.map((text) => el("li", { class: "captured" }, "captured: ", words(text))),
    ...node.missing.map(([domain, subject, reason]) => el("li", { class: "missing" },
      "not captured: ", words(subject), el("div", { class: "quiet" }, words(`${domain}: ${reason}`)))),
  ]);
}

function processes(node) {
  return tableOf(["pid", "command", "directory", "state"], node.running.map(([pid, command, cwd, state, ends]) => [
    String(pid), el("span", { class: "mono" }, command), el("span", { class: "mono" }, cwd),
    ends ? "ends in a restore: it asked for the statepoint" : state,
  ]), [0]);
}

const STEPS = new Map([["frozen", "everything stood still"], ["total", "the whole snapshot"],
  ["until_instant", "until all stood still"], ["in_instant", "files and positions"]]);

function timings(node) {
  if (!node.timings.length) return null;
  const longest = Math.max(...node.timings.map(([, seconds]) => seconds), Number.MIN_VALUE);
  const body = node.timings.map(([step, seconds]) => {
    const bar = el("span", step === "frozen" || step === "total" ? { class: "strong" } : {});
    bar.style.width = `${(seconds / longest) * 100}%`;
    return el("tr", {}, el("td", {}, words(STEPS.get(step) || step)), el("td", { class: "number" }, duration(seconds)), el("td", { class: "bar" }, bar));
  });
  return el("table", {}, el("tbody", {}, ...body));
}

function sizes(node, context) {
  const row = (title, part) => [title, part.backend, bytes(part.stored), bytes(part.logical),
    part.owner ? el("span", {}, "shared with ", context.link(part.owner)) : ""];
  const rows = [];
  if (node.files) rows.push(row("files", node.files));
  if (node.processes) rows.push(row("processes", node.processes));
  return tableOf(["part", "kept by", "added to the disk", "stands for", ""], rows, [2, 3]);
}

const SIGNS = new Map([["added", "+"], ["deleted", "−"], ["changed", "~"], ["renamed", "→"]]);

function changes(node) {
  const found = node.changes;
  if (!found) return [];
  if (found.error) return [el("p", { class: "quiet words" }, `could not be compared: ${found.error}`)];
  const names = found.paths.map(([kind, path, note]) => el("li", {},
    el("span", { class: `sign ${SIGNS.has(kind) ? kind : ""}`.trim(), title: kind, role: "img", "aria-label": kind }, SIGNS.get(kind) || "·"),
    el("span", {}, words(path), note ? el("span", { class: "quiet" }, " ", words(note)) : "")));
  const texts = found.texts.map(([path, text]) => el("details", { class: "file" },
    el("summary", {}, words(path, "mono")), el("pre", { class: "diff" }, ...text.split("\n").map(diffLine))));
  return [
    el("p", { class: "words" }, `files: ${found.summary}`),
    names.length ? el("ul", { class: "changes" }, ...names) : null,
    found.more ? el("p", { class: "quiet" }, `and ${found.more} more: planarian diff`) : null,
    found.beside.length ? el("ul", { class: "beside" }, ...found.beside.map((line) => el("li", {}, words(line)))) : null,
    ...texts,
    found.texts_more ? el("p", { class: "quiet" }, `and ${found.texts_more} more files with texts: planarian diff`) : null,
  ];
}

function diffLine(line) {
  const kind = line.startsWith("@@") ? "place" : line.startsWith("+") ? "added" : line.startsWith("-") ? "deleted" : "";
  return el("span", kind ? { class: kind } : {}, line);
}
