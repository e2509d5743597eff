// Builds the rows and the figures. Texts from the index become text nodes, never markup.

import { direction } from "./lines.js";

const KEPT_BEFORE_MARK = 32;

/** Make an element with attributes and children; strings become text. */
export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== undefined && value !== null && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

/** Make a document's row on one side, "before" or "after"; `how` has the blend, and whether people may judge. */
export function row(document_, place, side, how) {
  const rank = document_[side];
  const item = make("li", { class: rowClass(document_), tabindex: "-1", "data-place": place, "data-rank": rank });
  const heading = document_.title || document_.doc_id;
  const text = make("p", { class: "text", dir: "auto", id: `${side}-text-${place}` });
  fill(text, document_, side, false);
  item.append(
    make("div", { class: "place" }, make("span", { class: "rank" }, make("span", { class: "hidden" }, "Rank "), String(rank)), move(document_, side)),
    make("div", { class: "body" }, make("p", { class: "title", dir: "auto", title: heading }, ...titled(document_)), text, meta(document_, side, place, how)),
    score(document_, side, how),
  );
  return item;
}

/** Show a row's whole text and the scores of every stage, or the two lines of before. */
export function toggle(item, document_, side) {
  const button = item.querySelector(".open-text");
  const opens = button.getAttribute("aria-expanded") !== "true";
  button.setAttribute("aria-expanded", String(opens));
  item.classList.toggle("open", opens);
  item.querySelector(".trace")?.remove();
  if (opens) item.append(trace(document_));
  const text = item.querySelector(".text");
  fill(text, document_, side, opens);
  if (opens && text.scrollHeight > text.clientHeight) text.tabIndex = 0;
  else text.removeAttribute("tabindex");
}

/** Say in a few words what the reranked order is by. */
export function ordering(outcome) {
  const names = outcome.stages.filter((stage) => stage.applied).map((stage) => stage.name);
  if (names.length === 0) return "";
  const byPassage = outcome.documents.some((one) => one.parts.some((part) => part.marked));
  const scored = byPassage ? "the model's score of the best passage" : "the model's score";
  const first = names.includes("sentences") ? "BM25 and the best sentences" : scored;
  const blended = names.includes("blend") ? ` and BM25's together` : "";
  return `by ${first}${blended}${names.includes("duo") ? ", the first ones by pairs" : ""}`;
}

/** Return the figures of an outcome as pairs of elements; `times` has those of the searches of its kind. */
export function figures(outcome, times) {
  const count = outcome.total === null ? "not counted" : `${outcome.total.toLocaleString("en")}${outcome.total_is_least ? "+" : ""}`;
  const shown = [
    figure("Hits", count, `${outcome.documents.length} compared`),
    figure("BM25", milliseconds(outcome.first_pass_ms), spread(times.firstPass)),
    ...outcome.stages.map((stage) => figure(stage.name, milliseconds(stage.took_ms), work(stage))),
    figure("Total", milliseconds(outcome.took_ms), spread(times.total)),
  ];
  if (!outcome.judged) return shown;
  for (const { name, before, after } of outcome.judged.measures) {
    shown.push(figure(name, `${decimal(before, 3)} → ${decimal(after, 3)}`, null, "judged"));
  }
  shown.push(figure("Relevant", `${outcome.judged.found} of ${outcome.judged.relevant}`, "in this depth", "judged"));
  return shown;
}

/** Say in one sentence what came of a search. */
export function sentence(outcome) {
  if (outcome.documents.length === 0) return "No hits.";
  const moved = outcome.documents.filter((one) => one.before !== one.after).length;
  const order = outcome.applied === false ? "not reranked" : `${moved} moved by ${outcome.pipeline}`;
  return `${outcome.documents.length} documents compared, ${order}, in ${milliseconds(outcome.took_ms)}.`;
}

function rowClass(document_) {
  return document_.relevance > 0 ? "row relevant" : "row";
}

function move(document_, side) {
  const way = direction(document_);
  const steps = Math.abs(document_.before - document_.after);
  const other = side === "before" ? `Reranked to ${document_.after}` : `Was ${document_.before} in BM25`;
  const arrows = { up: `▲ ${steps}`, down: `▼ ${steps}`, same: "=" };
  const label = side === "before" ? `→ ${document_.after}` : arrows[way];
  return make("button", { type: "button", class: `move ${way}`, "aria-label": `${other}: go there`, title: other }, label);
}

function fill(text, document_, side, isWhole) {
  const parts = isWhole || side === "before" ? document_.parts : shortened(document_.parts);
  if (parts.length === 0) text.replaceChildren("No text in the fields that the model reads.");
  else text.replaceChildren(...parts.map((part) => piece(part, side)));
}

function piece(part, side) {
  const text = part.is_term ? make("span", { class: "term" }, part.text) : part.text;
  return part.marked && side === "after" ? make("mark", {}, text) : text;
}

function titled(document_) {
  return document_.title_parts.length ? document_.title_parts.map((part) => piece(part, "")) : [document_.doc_id];
}

function shortened(parts) {
  const place = parts.findIndex((part) => part.marked);
  const before = parts.slice(0, Math.max(place, 0)).map((part) => part.text).join("");
  if (before.length <= KEPT_BEFORE_MARK) return parts;
  const kept = before.slice(-KEPT_BEFORE_MARK);
  return [{ text: `…${kept.slice(kept.indexOf(" ") + 1)}`, marked: false }, ...parts.slice(place)];
}

function meta(document_, side, place, how) {
  const label = document_.title || document_.doc_id;
  return make(
    "div",
    { class: "meta" },
    badge(document_),
    make("span", { class: "id", dir: "auto", title: document_.doc_id }, document_.doc_id),
    side === "after" ? passage(document_) : null,
    document_.failure && side === "after" ? make("span", { class: "badge failed", title: document_.failure }, "not scored") : null,
    how.canJudge ? judging(document_, label) : null,
    make("button", { type: "button", class: "open-text", "aria-expanded": "false", "aria-controls": `${side}-text-${place}`, "aria-label": `More of ${label}` }, "more"),
  );
}

/** Show which passage decided the score, if the model did not read the document from its beginning. */
function passage(document_) {
  if (!document_.passage) return null;
  const { field, start, end } = document_.passage;
  const characters = `${(start + 1).toLocaleString("en")}–${end.toLocaleString("en")}`;
  const title = `Characters ${characters} of ${field} decided the score`;
  return make("span", { class: "read", title }, `read: characters ${characters}`);
}

function judging(document_, label) {
  const choice = (sign, relevance, words) => make(
    "button",
    { type: "button", class: "judge", "data-relevance": relevance, "aria-pressed": String(isJudged(document_, relevance)), "aria-label": `${label}: ${words}`, title: words },
    sign,
  );
  return make("span", { class: "judging" }, choice("✓", 1, "relevant"), choice("✗", 0, "not relevant"));
}

function isJudged(document_, relevance) {
  if (document_.relevance === null) return false;
  return relevance > 0 ? document_.relevance > 0 : document_.relevance <= 0;
}

function badge(document_) {
  if (document_.relevance === null) return null;
  if (document_.relevance <= 0) return make("span", { class: "badge no" }, "not relevant");
  return make("span", { class: "badge" }, document_.relevance > 1 ? `✓ relevant (${document_.relevance})` : "✓ relevant");
}

function score(document_, side, how) {
  const value = side === "before" ? document_.first_pass_score : document_.score;
  const shown = value === null ? "" : decimal(value, side === "before" ? 2 : 3);
  const probability = document_.stages.map((stage) => stage.probability).filter((one) => one !== null).at(-1);
  const below = side === "after" && probability !== undefined ? make("small", { title: "Probability of relevance, by the model alone" }, `model p ${decimal(probability, 3)}`) : null;
  const added = side === "after" && how.blend === "linear" ? firstPassPart(document_) : null;
  return make("div", { class: "score" }, make("span", { class: "hidden" }, "Score "), shown, below, added);
}

/** Say what BM25 added to the model's logit in a linear blend. */
function firstPassPart(document_) {
  const place = document_.stages.findIndex((stage) => stage.stage === "blend");
  if (place < 1) return null;
  const part = document_.stages[place].score - document_.stages[place - 1].score;
  return make("small", { title: "What BM25's score adds to the model's logit; the order is by their sum" }, `BM25 +${decimal(part, 1)}`);
}

function trace(document_) {
  const entries = document_.stages.map((stage) => [stage.stage, stage.score, stage.rank]);
  if (document_.first_pass_score !== null) entries.unshift(["BM25", document_.first_pass_score, document_.before]);
  const lines = entries.map(([name, value, rank]) =>
    make("div", {}, make("dt", {}, name), make("dd", {}, `${decimal(value, 3)}, rank ${rank}`)));
  if (document_.failure) lines.push(make("div", {}, make("dt", {}, "failure"), make("dd", {}, document_.failure)));
  return make("dl", { class: "trace" }, ...lines);
}

function figure(term, value, note = null, kind = "") {
  return make("div", { class: kind }, make("dt", {}, term), make("dd", {}, value, note ? " " : null, note ? make("small", {}, note) : null));
}

function work(stage) {
  if (!stage.model) return stage.reason ?? null;
  if (stage.encoded !== null) return `${stage.known.toLocaleString("en")} known, ${stage.encoded.toLocaleString("en")} new`;
  const cached = stage.cached ? `, ${stage.cached.toLocaleString("en")} cached` : "";
  return `${stage.inferences.toLocaleString("en")} inferences${cached}`;
}

/** Say the median and the 95th percentile of some times, once there are two. */
function spread(times) {
  if (times.length < 2) return null;
  const sorted = times.toSorted((one, other) => one - other);
  const at = (share) => milliseconds(sorted[Math.min(sorted.length - 1, Math.ceil(share * sorted.length) - 1)]);
  return `median ${at(0.5)}, p95 ${at(0.95)} of ${times.length}`;
}

function milliseconds(value) {
  if (value > 0 && value < 0.1) return "< 0.1 ms";
  return value >= 10 || value === 0 ? `${Math.round(value).toLocaleString("en")} ms` : `${value.toFixed(1)} ms`;
}

function decimal(value, digits) {
  return value.toFixed(digits).replace("-", "−");
}
