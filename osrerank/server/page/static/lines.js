// Draws the lines between a document's two places.

const SVG = "http://www.w3.org/2000/svg";

/** Draw one line for each document that is shown on a side; one that leaves the shown part ends at its lower edge. */
export function drawLines(svg, documents, rows) {
  const frame = svg.getBoundingClientRect();
  svg.replaceChildren();
  if (frame.width === 0) return;
  svg.setAttribute("viewBox", `0 0 ${frame.width} ${frame.height}`);
  documents.forEach((document_, place) => {
    const left = height(rows.before.get(place), frame);
    const right = height(rows.after.get(place), frame);
    if (left === null && right === null) return;
    const path = document.createElementNS(SVG, "path");
    path.setAttribute("d", curve(left, right, frame));
    path.setAttribute("class", classes(document_, left === null || right === null));
    path.dataset.place = place;
    svg.append(path);
  });
}

function height(row, frame) {
  if (!row) return null;
  const box = row.getBoundingClientRect();
  return box.top - frame.top + 22;
}

function curve(left, right, { width, height: bottom }) {
  const middle = width / 2;
  if (left === null) return `M ${middle + 6} ${bottom} C ${middle + 6} ${right}, ${middle + 6} ${right}, ${width - 4} ${right}`;
  if (right === null) return `M 4 ${left} C ${middle - 6} ${left}, ${middle - 6} ${left}, ${middle - 6} ${bottom}`;
  return `M 4 ${left} C ${middle} ${left}, ${middle} ${right}, ${width - 4} ${right}`;
}

function classes(document_, leaves) {
  const names = [direction(document_)];
  if (leaves) names.push("away");
  if (document_.relevance > 0) names.push("relevant");
  return names.join(" ");
}

/** Say which way a document moved: "up" is towards rank 1. */
export function direction(document_) {
  if (document_.after === document_.before) return "same";
  return document_.after < document_.before ? "up" : "down";
}
