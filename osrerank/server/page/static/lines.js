// Draws a line from each document's row in BM25's order to its row in the reranked order.

const SVG = "http://www.w3.org/2000/svg";
const ROW_CENTER = 22;
const MARGIN = 4;
const GAP = 6;

/** Draw a line for each document with a row in at least one column. If only one row is shown, the line leads down. */
export function drawLines(svg, documents, rows) {
  const frame = svg.getBoundingClientRect();
  svg.replaceChildren();
  if (frame.width === 0) return;
  svg.setAttribute("viewBox", `0 0 ${frame.width} ${frame.height}`);
  documents.forEach((document_, position) => {
    const left = lineHeight(rows.before.get(position), frame);
    const right = lineHeight(rows.after.get(position), frame);
    if (left === null && right === null) return;
    const path = document.createElementNS(SVG, "path");
    path.setAttribute("d", curve(left, right, frame));
    path.setAttribute("class", lineClass(document_, left === null || right === null));
    path.dataset.position = position;
    svg.append(path);
  });
}

function lineHeight(row, frame) {
  if (!row) return null;
  const box = row.getBoundingClientRect();
  return box.top - frame.top + ROW_CENTER;
}

function curve(left, right, { width, height: bottom }) {
  const middle = width / 2;
  if (left === null) return `M ${middle + GAP} ${bottom} C ${middle + GAP} ${right}, ${middle + GAP} ${right}, ${width - MARGIN} ${right}`;
  if (right === null) return `M ${MARGIN} ${left} C ${middle - GAP} ${left}, ${middle - GAP} ${left}, ${middle - GAP} ${bottom}`;
  return `M ${MARGIN} ${left} C ${middle} ${left}, ${middle} ${right}, ${width - MARGIN} ${right}`;
}

function lineClass(document_, isCutOff) {
  const names = [direction(document_)];
  if (isCutOff) names.push("cut-off");
  if (document_.relevance > 0) names.push("relevant");
  return names.join(" ");
}

/** Return whether reranking moved a document "up" (towards rank 1), "down", or not at all ("same"). */
export function direction(document_) {
  if (document_.after === document_.before) return "same";
  return document_.after < document_.before ? "up" : "down";
}
