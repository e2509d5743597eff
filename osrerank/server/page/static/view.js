// Creates the page's elements: the documents' rows and the figures above them. Texts from the index become text nodes,
// never markup.

import { direction } from "./lines.js";

const MAX_LEAD_CHARACTERS = 32;

/** Create an element with attributes and children. Children that are strings become text nodes. */
export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== undefined && value !== null && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

/** Create a document's row in a column, "before" or "after". `options` are the blend, and whether users can judge. */
export function createRow(document_, position, column, options) {
  const rank = document_[column];
  const item = make("li", { class: rowClass(document_), tabindex: "-1", "data-position": position, "data-rank": rank });
  const heading = document_.title || document_.doc_id;
  const text = make("p", { class: "text", dir: "auto", id: `${column}-text-${position}` });
  fillText(text, document_, column, false);
  item.append(
    make("div", { class: "place" }, make("span", { class: "rank" }, make("span", { class: "hidden" }, "Rank "), String(rank)), moveButton(document_, column)),
    make("div", { class: "body" }, make("p", { class: "title", dir: "auto", title: heading }, ...titleNodes(document_)), text, metadata(document_, column, position, options)),
    scoreCell(document_, column, options),
  );
  return item;
}

/** Expand a row to the whole text and the scores of all stages, or collapse it again. */
export function toggleRow(item, document_, column) {
  const button = item.querySelector(".open-text");
  const opens = button.getAttribute("aria-expanded") !== "true";
  button.setAttribute("aria-expanded", String(opens));
  item.classList.toggle("open", opens);
  item.querySelector(".trace")?.remove();
  if (opens) item.append(stageScores(document_));
  const text = item.querySelector(".text");
  fillText(text, document_, column, opens);
  if (opens && text.scrollHeight > text.clientHeight) text.tabIndex = 0;
  else text.removeAttribute("tabindex");
}

/** Describe in a few words which scores determine the reranked order. */
export function describeOrder(outcome) {
  const names = outcome.stages.filter((stage) => stage.applied).map((stage) => stage.name);
  if (names.length === 0) return "";
  const usesPassages = outcome.documents.some((document_) => document_.parts.some((part) => part.marked));
  const scored = usesPassages ? "the model's score of the best passage" : "the model's score";
  const first = names.includes("sentences") ? "BM25 and the best sentences" : scored;
  const blended = names.includes("blend") ? ` and BM25's together` : "";
  return `by ${first}${blended}${names.includes("duo") ? ", the first ones by pairs" : ""}`;
}

/** Return the figures of an outcome: hits, times and measures. `times` are those of searches with the same options. */
export function createFigures(outcome, times) {
  const count = outcome.total === null ? "not counted" : `${outcome.total.toLocaleString("en")}${outcome.total_is_least ? "+" : ""}`;
  const shown = [
    createFigure("Hits", count, `${outcome.documents.length} compared`),
    createFigure("BM25", milliseconds(outcome.first_pass_ms), describeTimes(times.firstPass)),
    ...outcome.stages.map((stage) => createFigure(stage.name, milliseconds(stage.took_ms), stageNote(stage))),
    createFigure("Total", milliseconds(outcome.took_ms), describeTimes(times.total)),
  ];
  if (!outcome.judged) return shown;
  for (const { name, before, after } of outcome.judged.measures) {
    shown.push(createFigure(name, `${decimal(before, 3)} → ${decimal(after, 3)}`, null, "judged"));
  }
  shown.push(createFigure("Relevant", `${outcome.judged.found} of ${outcome.judged.relevant}`, "in this depth", "judged"));
  return shown;
}

/** Summarize a search in one sentence, for screen readers. */
export function summarize(outcome) {
  if (outcome.documents.length === 0) return "No hits.";
  const moved = outcome.documents.filter(({ before, after }) => before !== after).length;
  const order = outcome.applied === false ? "not reranked" : `${moved} moved by ${outcome.pipeline}`;
  return `${outcome.documents.length} documents compared, ${order}, in ${milliseconds(outcome.took_ms)}.`;
}

function rowClass(document_) {
  return document_.relevance > 0 ? "row relevant" : "row";
}

function moveButton(document_, column) {
  const movement = direction(document_);
  const steps = Math.abs(document_.before - document_.after);
  const title = column === "before" ? `Reranked to ${document_.after}` : `Was ${document_.before} in BM25`;
  const arrows = { up: `▲ ${steps}`, down: `▼ ${steps}`, same: "=" };
  const label = column === "before" ? `→ ${document_.after}` : arrows[movement];
  return make("button", { type: "button", class: `move ${movement}`, "aria-label": `${title}: go there`, title }, label);
}

function fillText(text, document_, column, isWhole) {
  const parts = isWhole || column === "before" ? document_.parts : shortenLead(document_.parts);
  if (parts.length === 0) text.replaceChildren("No text in the fields that the model reads.");
  else text.replaceChildren(...parts.map((part) => textNode(part, column)));
}

function textNode(part, column) {
  const text = part.is_term ? make("span", { class: "term" }, part.text) : part.text;
  return part.marked && column === "after" ? make("mark", {}, text) : text;
}

function titleNodes(document_) {
  return document_.title_parts.length ? document_.title_parts.map((part) => textNode(part, "")) : [document_.doc_id];
}

function shortenLead(parts) {
  const position = parts.findIndex((part) => part.marked);
  const before = parts.slice(0, Math.max(position, 0)).map((part) => part.text).join("");
  if (before.length <= MAX_LEAD_CHARACTERS) return parts;
  const kept = before.slice(-MAX_LEAD_CHARACTERS);
  return [{ text: `…${kept.slice(kept.indexOf(" ") + 1)}`, marked: false }, ...parts.slice(position)];
}

function metadata(document_, column, position, options) {
  const label = document_.title || document_.doc_id;
  return make(
    "div",
    { class: "meta" },
    judgmentBadge(document_),
    make("span", { class: "id", dir: "auto", title: document_.doc_id }, document_.doc_id),
    column === "after" ? passageNote(document_) : null,
    document_.failure && column === "after" ? make("span", { class: "badge failed", title: document_.failure }, "not scored") : null,
    options.canJudge ? judgeButtons(document_, label) : null,
    make("button", { type: "button", class: "open-text", "aria-expanded": "false", "aria-controls": `${column}-text-${position}`, "aria-label": `More of ${label}` }, "more"),
  );
}

/** Show which passage determined the score, if the model did not read the document from its beginning. */
function passageNote(document_) {
  if (!document_.passage) return null;
  const { field, start, end } = document_.passage;
  const characters = `${(start + 1).toLocaleString("en")}–${end.toLocaleString("en")}`;
  const title = `Characters ${characters} of ${field} determined the score`;
  return make("span", { class: "read", title }, `read: characters ${characters}`);
}

function judgeButtons(document_, label) {
  const button = (sign, relevance, words) => make(
    "button",
    { type: "button", class: "judge", "data-relevance": relevance, "aria-pressed": String(isJudged(document_, relevance)), "aria-label": `${label}: ${words}`, title: words },
    sign,
  );
  return make("span", { class: "judging" }, button("✓", 1, "relevant"), button("✗", 0, "not relevant"));
}

function isJudged(document_, relevance) {
  if (document_.relevance === null) return false;
  return relevance > 0 ? document_.relevance > 0 : document_.relevance <= 0;
}

function judgmentBadge(document_) {
  if (document_.relevance === null) return null;
  if (document_.relevance <= 0) return make("span", { class: "badge no" }, "not relevant");
  return make("span", { class: "badge" }, document_.relevance > 1 ? `✓ relevant (${document_.relevance})` : "✓ relevant");
}

function scoreCell(document_, column, options) {
  const value = column === "before" ? document_.first_pass_score : document_.score;
  const valueText = value === null ? "" : decimal(value, column === "before" ? 2 : 3);
  const probability = document_.stages.map((stage) => stage.probability).filter((number) => number !== null).at(-1);
  const probabilityNote = column === "after" && probability !== undefined ? make("small", { title: "Probability of relevance, by the model alone" }, `model p ${decimal(probability, 3)}`) : null;
  const blendNote = column === "after" && options.blend === "linear" ? firstPassNote(document_) : null;
  return make("div", { class: "score" }, make("span", { class: "hidden" }, "Score "), valueText, probabilityNote, blendNote);
}

/** Show what a linear blend added to the model's logit for BM25's score. */
function firstPassNote(document_) {
  const position = document_.stages.findIndex((stage) => stage.stage === "blend");
  if (position < 1) return null;
  const part = document_.stages[position].score - document_.stages[position - 1].score;
  return make("small", { title: "What BM25's score adds to the model's logit; the order is by their sum" }, `BM25 +${decimal(part, 1)}`);
}

function stageScores(document_) {
  const entries = document_.stages.map((stage) => [stage.stage, stage.score, stage.rank]);
  if (document_.first_pass_score !== null) entries.unshift(["BM25", document_.first_pass_score, document_.before]);
  const lines = entries.map(([name, value, rank]) =>
    make("div", {}, make("dt", {}, name), make("dd", {}, `${decimal(value, 3)}, rank ${rank}`)));
  if (document_.failure) lines.push(make("div", {}, make("dt", {}, "failure"), make("dd", {}, document_.failure)));
  return make("dl", { class: "trace" }, ...lines);
}

function createFigure(term, value, note = null, kind = "") {
  return make("div", { class: kind }, make("dt", {}, term), make("dd", {}, value, note ? " " : null, note ? make("small", {}, note) : null));
}

function stageNote(stage) {
  if (!stage.model) return stage.reason ?? null;
  if (stage.encoded !== null) return `${stage.known.toLocaleString("en")} stored, ${stage.encoded.toLocaleString("en")} new`;
  const cached = stage.cached ? `, ${stage.cached.toLocaleString("en")} cached` : "";
  return `${stage.inferences.toLocaleString("en")} inferences${cached}`;
}

/** Return the median and the 95th percentile of times, or null if there are fewer than two. */
function describeTimes(times) {
  if (times.length < 2) return null;
  const sorted = times.toSorted((first, second) => first - second);
  const percentile = (share) => milliseconds(sorted[Math.min(sorted.length - 1, Math.ceil(share * sorted.length) - 1)]);
  return `median ${percentile(0.5)}, p95 ${percentile(0.95)} of ${times.length}`;
}

function milliseconds(value) {
  if (value > 0 && value < 0.1) return "< 0.1 ms";
  return value >= 10 || value === 0 ? `${Math.round(value).toLocaleString("en")} ms` : `${value.toFixed(1)} ms`;
}

function decimal(value, digits) {
  return value.toFixed(digits).replace("-", "−");
}
