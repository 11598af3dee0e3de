// The chunk waterfall: a row for each chunk, from its arrival to the end of its playback.

const SVG = "http://www.w3.org/2000/svg";
const ROW = 14;
const TOP = 20;
const LEFT = 4;
const STEPS_MS = [100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 60_000];

function element(name, attributes, text) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

/** The latest chunks only, when there are very many. */
const MOST_ROWS = 60;

/** Draws `record`'s chunks into the SVG, against time since the click. */
export function drawWaterfall(svg, record) {
  const width = svg.clientWidth || 600;
  const chunks = record.chunks.slice(-MOST_ROWS);
  const ends = chunks.map((chunk) => (chunk.startMs ?? chunk.arrivedMs) + chunk.lengthMs);
  const spanMs = Math.max(1000, ...ends);
  const x = (ms) => LEFT + (Math.max(0, ms) / spanMs) * (width - 2 * LEFT);
  const height = TOP + ROW * Math.max(3, chunks.length) + 6;
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.setAttribute("height", height);
  svg.replaceChildren(...axis(spanMs, width, height, x));
  const stopMs = record.stoppedMs ?? Infinity;
  for (const [row, chunk] of chunks.entries()) svg.append(bar(chunk, TOP + ROW * row, x, stopMs));
  if (record.stoppedMs !== null) {
    const at = x(stopMs);
    const side = at < width / 2 ? { x: at + 5 } : { x: at - 5, "text-anchor": "end" };
    svg.append(element("line", { class: "stop", x1: at, x2: at, y1: TOP - 4, y2: height }));
    svg.append(element("text", { class: "tick stopped", y: height - 3, ...side }, "stop"));
  }
}

function axis(spanMs, width, height, x) {
  const step = STEPS_MS.find((ms) => (width * ms) / spanMs >= 64) ?? STEPS_MS.at(-1);
  const marks = [];
  for (let ms = 0; ms < spanMs; ms += step) {
    marks.push(element("line", { class: "grid", x1: x(ms), x2: x(ms), y1: TOP - 4, y2: height }));
    if (x(ms) > width - 40) continue;
    const words = ms === 0 ? "click" : spanMs < 2000 ? `${ms} ms` : `${ms / 1000} s`;
    marks.push(element("text", { class: "tick", x: x(ms), y: 11 }, words));
  }
  return marks;
}

function bar(chunk, y, x, stopMs) {
  const row = element("g", {});
  const middle = y + ROW / 2;
  if (chunk.startMs !== null && chunk.startMs < stopMs) {
    const line = { class: "wait", y1: middle, y2: middle };
    row.append(element("line", { ...line, x1: x(chunk.arrivedMs), x2: x(chunk.startMs) }));
    const [from, to] = [x(chunk.startMs), x(Math.min(stopMs, chunk.startMs + chunk.lengthMs))];
    const shape = { x: from, y: y + 3, width: Math.max(1.5, to - from - 1), height: ROW - 6, rx: 2 };
    row.append(element("rect", { class: chunk.underrun ? "bar underrun" : "bar", ...shape }));
  }
  row.append(element("circle", { class: "dot", cx: x(chunk.arrivedMs), cy: middle, r: 3 }));
  return row;
}
