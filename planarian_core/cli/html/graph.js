// The picture of the tree: which lane each row has, and the lines between them. Rows are the newest first.

/** Rows with their lanes. `nodes`: the visible statepoints, newest first; those of `straight` stay in the first lane. */
function arrange(nodes, byId, straight) {
  const visible = new Map(nodes.map((node, row) => [node.id, row]));
  const parents = nodes.map((node) => nearestVisible(node, byId, visible));
  const waiting = []; // per lane: the id of the statepoint that its line goes down to
  const lanes = nodes.map((node, row) => {
    const found = [];
    waiting.forEach((id, lane) => id === node.id && found.push(lane));
    for (const lane of found) waiting[lane] = null;
    let lane = straight.has(node.id) ? 0 : found.find((one) => one > 0);
    if (lane === undefined) {
      lane = 1;
      while (waiting[lane]) lane += 1;
    }
    waiting[lane] = parents[row] ? parents[row].id : null;
    return lane;
  });
  return { lanes, parents, rows: visible, width: lanes.reduce((most, lane) => Math.max(most, lane + 1), 1) };
}

/** The ids of a statepoint and of all that it grew from, added to `found`. */
function ancestry(id, byId, found = new Set()) {
  for (let node = byId.get(id); node && !found.has(node.id); node = byId.get(node.parent)) found.add(node.id);
  return found;
}

function nearestVisible(node, byId, visible) {
  let above = byId.get(node.parent);
  for (let steps = byId.size; above && !visible.has(above.id) && steps; steps -= 1) above = byId.get(above.parent);
  return above && visible.has(above.id) ? { id: above.id, direct: above.id === node.parent } : null;
}

/** Draw lines and dots into `svg`; returns the width that they take. */
function drawGraph(svg, nodes, layout, height, looks) {
  const step = Math.min(20, 190 / layout.width);
  const x = (lane) => 20 + lane * step;
  const y = (row) => (row + 0.5) * height;
  const width = x(layout.width - 1) + 18;
  svg.setAttribute("width", width);
  svg.setAttribute("height", nodes.length * height);
  const lines = [];
  const dots = [];
  nodes.forEach((node, row) => {
    const look = looks(node);
    const parent = layout.parents[row];
    if (parent) {
      const below = layout.rows.get(parent.id);
      const line = shape("path", { d: curve(x(layout.lanes[row]), y(row), x(layout.lanes[below]), y(below), height) });
      line.style.setProperty("--colour", look.colour);
      if (!look.live || !parent.direct) line.classList.add("left");
      lines.push(line);
    }
    dots.push(...dot(x(layout.lanes[row]), y(row), look));
  });
  svg.replaceChildren(...lines, ...dots);
  return width;
}

function curve(fromX, fromY, toX, toY, height) {
  if (fromX === toX) return `M${fromX} ${fromY}V${toY}`;
  const turn = toY - height;
  return `M${fromX} ${fromY}V${turn}C${fromX} ${turn + height * 0.7} ${toX} ${turn + height * 0.3} ${toX} ${toY}`;
}

/** The sign of one statepoint; shapes differ, not only colours. */
function dot(x, y, look) {
  const parts = [];
  if (look.failed) {
    parts.push(shape("path", { class: "cross", d: `M${x - 4} ${y - 4}l8 8m0 -8l-8 8` }));
  } else {
    parts.push(shape("circle", { cx: x, cy: y, r: look.small ? 3.5 : 5.5, class: look.full ? "full" : "" }));
    if (look.head) parts.push(shape("circle", { cx: x, cy: y, r: 9, class: "ring" }));
  }
  for (const part of parts) part.style.setProperty("--colour", look.colour);
  return parts;
}
