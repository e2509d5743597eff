// Runs the comparison page. The page's URL contains the search, so that it can be shared and the back button works.

import { drawLines } from "./lines.js";
import { createFigures, createRow, describeOrder, make, summarize, toggleRow } from "./view.js";

const ROWS_PER_PAGE = 10;
const MAX_SUGGESTIONS = 6;
const TOKEN_KEY = "osrerank-token";
const FORM_FIELDS = ["q", "index", "pipeline", "depth", "passages"];
const byId = (id) => document.getElementById(id);
const form = byId("search");
const state = {
  config: null, // the response of ui/config
  abortController: null, // aborts the current search
  urlSearch: "", // the part of the URL from which the form was filled
  parameters: {}, // the parameters of the search that is shown
  outcome: null, // the response of ui/search
  shownRows: ROWS_PER_PAGE,
  rows: { before: new Map(), after: new Map() }, // in each column: a document's position in the outcome -> its row
  times: { kind: "", firstPass: [], total: [] }, // of all searches with the same options, in milliseconds
};

class RequestError extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

function get(path, parameters = {}, signal = undefined) {
  return request(`${path}?${new URLSearchParams(parameters)}`, { signal });
}

function post(path, content) {
  return request(path, { method: "POST", body: JSON.stringify(content), headers: { "Content-Type": "application/json" } });
}

async function request(path, options) {
  const token = sessionStorage.getItem(TOKEN_KEY);
  const headers = { ...options.headers, ...(token ? { Authorization: `Bearer ${token}` } : {}) };
  let response;
  try {
    response = await fetch(`ui/${path}`, { ...options, headers });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new RequestError("The server does not respond: check that it runs.", 0);
  }
  const content = await response.json().catch(() => null);
  if (response.ok && content !== null) return content;
  throw new RequestError(content?.message ?? `The server responded with status ${response.status}.`, response.status);
}

async function start() {
  try {
    state.config = await get("config");
  } catch (error) {
    showError(error);
    return;
  }
  showConfig(state.config);
  await searchFromUrl();
}

function showConfig(config) {
  byId("model").textContent = config.model;
  byId("depth").max = config.max_depth;
  byId("indexes").replaceChildren(...config.indexes.map((name) => make("option", { value: name })));
  const usable = config.pipelines.filter(({ reason }) => reason === "");
  byId("pipelines").replaceChildren(...usable.map(({ name }) => pipelineChoice(name)));
  byId("pick-field").hidden = config.queries.length === 0;
  byId("pick").replaceChildren(
    make("option", { value: "" }, "pick one"),
    ...config.queries.map(({ text, is_judged: isJudged }) => make("option", { value: text }, isJudged ? text : `${text} (not judged)`)),
  );
  if (config.problem) showNotice("The indices cannot be listed", config.problem);
  else if (usable.length === 0) showNotice("No model", config.pipelines[0]?.reason ?? "There is no pipeline.");
}

function pipelineChoice(name) {
  return make("label", {}, make("input", { type: "radio", name: "pipeline", value: name }), name);
}

/** Fill the form from the page's URL, and run the search. */
async function searchFromUrl() {
  const parameters = new URLSearchParams(location.search);
  const { config } = state;
  state.urlSearch = location.search;
  form.elements.q.value = parameters.get("q") ?? "";
  form.elements.index.value = parameters.get("index") ?? config.index;
  form.elements.depth.value = parameters.get("depth") ?? config.default_depth;
  choosePassages(parameters.get("passages") ?? "0");
  choosePipeline(parameters.get("pipeline") ?? config.pipelines.find(({ reason }) => reason === "")?.name);
  selectListedQuery();
  if (!form.elements.q.value.trim()) {
    showSuggestions();
    return;
  }
  const defaults = readForm();
  await search(Object.fromEntries(FORM_FIELDS.map((name) => [name, parameters.get(name) ?? defaults[name]])));
}

/** Select a pipeline. If it cannot be used, add it to the form, so that the server's response says why. */
function choosePipeline(name) {
  const radios = () => [...form.querySelectorAll("[name=pipeline]")];
  if (name && !radios().some((radio) => radio.value === name)) byId("pipelines").append(pipelineChoice(name));
  for (const radio of radios()) radio.checked = radio.value === name;
}

function choosePassages(words) {
  const select = byId("passages");
  if (![...select.options].some((option) => option.value === words)) {
    select.append(make("option", { value: words }, `passages of ${words} words`));
  }
  select.value = words;
}

function selectListedQuery() {
  const query = form.elements.q.value.trim();
  byId("pick").value = state.config.queries.some(({ text }) => text === query) ? query : "";
}

function readForm() {
  const entries = new FormData(form);
  return Object.fromEntries(FORM_FIELDS.map((name) => [name, String(entries.get(name) ?? "").trim()]));
}

/** Run the form's search, and put it into the page's URL. */
async function submit() {
  if (!state.config || !form.elements.q.value.trim() || !form.reportValidity()) return;
  const parameters = readForm();
  const urlSearch = `?${new URLSearchParams(parameters)}`;
  if (urlSearch !== location.search) history.pushState(null, "", urlSearch);
  state.urlSearch = location.search;
  selectListedQuery();
  await search(parameters);
}

async function search(parameters) {
  state.abortController?.abort();
  const controller = new AbortController();
  state.abortController = controller;
  showProgress(true);
  try {
    const outcome = await get("search", parameters, controller.signal);
    state.parameters = parameters;
    recordTimes(outcome, parameters);
    showOutcome(outcome);
  } catch (error) {
    if (controller.signal.aborted) return;
    byId("outcome").hidden = true;
    showError(error);
  } finally {
    if (state.abortController === controller) showProgress(false);
  }
}

/** Record how long a search took. Other options start a new list, because their times cannot be compared. */
function recordTimes(outcome, { index, pipeline, depth, passages }) {
  const kind = JSON.stringify([index, pipeline, depth, passages]);
  if (state.times.kind !== kind) state.times = { kind, firstPass: [], total: [] };
  state.times.firstPass.push(outcome.first_pass_ms);
  state.times.total.push(outcome.took_ms);
}

/** Save or remove a user's judgment of a document, and repeat the search to update the measures. */
async function judge(position, column, button) {
  const isRemoval = button.getAttribute("aria-pressed") === "true";
  const relevance = Number(button.dataset.relevance);
  const { doc_id: docId } = state.outcome.documents[position];
  const { shownRows } = state;
  try {
    await post("judge", { q: state.outcome.query, doc_id: docId, relevance: isRemoval ? null : relevance });
    showOutcome(await get("search", state.parameters));
  } catch (error) {
    showError(error);
    return;
  }
  state.shownRows = shownRows;
  fillColumns();
  const newPosition = state.outcome.documents.findIndex((document_) => document_.doc_id === docId);
  state.rows[column].get(newPosition)?.querySelector(`[data-relevance="${relevance}"]`)?.focus({ preventScroll: true });
}

function showProgress(isRunning) {
  byId("results").setAttribute("aria-busy", String(isRunning));
  byId("progress").hidden = !isRunning;
  if (isRunning) {
    byId("status").textContent = "Searching.";
    byId("notice").replaceChildren();
    byId("empty").hidden = true;
  }
}

function showOutcome(outcome) {
  state.outcome = outcome;
  state.shownRows = ROWS_PER_PAGE;
  document.title = `${outcome.query} | osrerank`;
  byId("status").textContent = summarize(outcome);
  byId("figures").replaceChildren(...createFigures(outcome, state.times));
  byId("after-how").textContent = describeOrder(outcome);
  byId("outcome").hidden = outcome.documents.length === 0;
  if (outcome.documents.length === 0) {
    byId("empty").replaceChildren(`No document of ${outcome.index} matches. Try other words.`);
    byId("empty").hidden = false;
    return;
  }
  if (outcome.applied === false) showNotice("Not reranked", outcome.reason);
  else if (outcome.applied === "partial") showNotice("Reranked in part", outcome.reason);
  fillColumns();
}

function fillColumns() {
  const { documents, blend } = state.outcome;
  const options = { blend, canJudge: state.config.can_judge };
  for (const column of ["before", "after"]) {
    const ranked = documents.map((document_, position) => [document_, position]).sort(([first], [second]) => first[column] - second[column]);
    const rows = state.rows[column];
    rows.clear();
    for (const [document_, position] of ranked.slice(0, state.shownRows)) rows.set(position, createRow(document_, position, column, options));
    byId(column).replaceChildren(...rows.values());
  }
  const remaining = documents.length - state.shownRows;
  byId("more").parentElement.hidden = remaining <= 0;
  byId("more").textContent = `Show ${Math.min(remaining, ROWS_PER_PAGE)} more of ${remaining}`;
  redrawLines();
}

function redrawLines() {
  if (state.outcome) drawLines(byId("lines"), state.outcome.documents, state.rows);
}

function showSuggestions() {
  byId("outcome").hidden = true;
  byId("status").textContent = "";
  document.title = "osrerank: compare";
  const queries = state.config.queries.slice(0, MAX_SUGGESTIONS).map(({ text }) => make("li", {}, make("button", { type: "button", "data-query": text, dir: "auto" }, text)));
  byId("empty").replaceChildren(
    make("p", {}, "See each search in two orders: BM25's and the model's."),
    queries.length ? make("ul", { "aria-label": "Queries to begin with" }, ...queries) : "",
  );
  byId("empty").hidden = false;
}

function showError(error) {
  if (error.status === 401) {
    byId("token-form").hidden = false;
    byId("token").focus();
    if (sessionStorage.getItem(TOKEN_KEY)) showNotice("The token is wrong", "Enter the server's OSRERANK_SERVER_TOKEN.");
    sessionStorage.removeItem(TOKEN_KEY);
    byId("status").textContent = "";
    return;
  }
  if (!(error instanceof RequestError)) console.error(error);
  byId("status").textContent = "";
  showNotice("The request failed", error instanceof RequestError ? error.message : "this is a bug in the page; the browser's console shows the error.");
}

function showNotice(title, message) {
  byId("notice").replaceChildren(make("p", { class: "notice" }, make("b", {}, `${title}: `), message ?? ""));
}

/** Scroll to a document in a column, and move the focus there. */
function goTo(position, column) {
  const rank = state.outcome.documents[position][column];
  if (rank > state.shownRows) {
    state.shownRows = rank;
    fillColumns();
  }
  showColumn(column);
  const target = state.rows[column].get(position);
  target.focus({ preventScroll: true });
  const isStill = matchMedia("(prefers-reduced-motion: reduce)").matches;
  target.scrollIntoView({ block: "nearest", behavior: isStill ? "auto" : "smooth" });
}

function showColumn(column) {
  byId("columns").dataset.column = column;
  for (const button of byId("column-choice").children) button.setAttribute("aria-pressed", String(button.dataset.column === column));
}

function highlightDocument(event) {
  const position = event.type === "mouseleave" ? undefined : event.target.closest(".row")?.dataset.position;
  for (const element of byId("columns").querySelectorAll("[data-position]")) {
    element.classList.toggle("active", position !== undefined && element.dataset.position === position);
  }
}

function handleClick(event) {
  const item = event.target.closest(".row");
  if (!item) return;
  const position = Number(item.dataset.position);
  const column = item.parentElement.id;
  if (event.target.closest(".move")) goTo(position, column === "before" ? "after" : "before");
  const button = event.target.closest(".judge");
  if (button) judge(position, column, button);
  if (event.target.closest(".open-text")) {
    toggleRow(item, state.outcome.documents[position], column);
    redrawLines();
  }
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  submit();
});
form.addEventListener("change", (event) => {
  if (event.target.id === "pick" && event.target.value) form.elements.q.value = event.target.value;
  if (event.target.name !== "q") submit();
});
byId("token-form").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem(TOKEN_KEY, byId("token").value);
  byId("token").value = "";
  byId("token-form").hidden = true;
  byId("notice").replaceChildren();
  start();
});
byId("empty").addEventListener("click", (event) => {
  const query = event.target.closest("[data-query]")?.dataset.query;
  if (query === undefined) return;
  form.elements.q.value = query;
  submit();
});
byId("column-choice").addEventListener("click", (event) => {
  if (event.target.dataset.column) showColumn(event.target.dataset.column);
});
byId("more").addEventListener("click", () => {
  const next = state.shownRows + 1;
  state.shownRows += ROWS_PER_PAGE;
  fillColumns();
  byId(byId("columns").dataset.column).querySelector(`[data-rank="${next}"]`)?.focus({ preventScroll: true });
});
byId("columns").addEventListener("click", handleClick);
byId("columns").addEventListener("mouseover", highlightDocument);
byId("columns").addEventListener("focusin", highlightDocument);
byId("columns").addEventListener("mouseleave", highlightDocument);
addEventListener("popstate", () => {
  // following a link within the page, such as #results, changes only the fragment
  if (state.config && location.search !== state.urlSearch) searchFromUrl();
});
addEventListener("keydown", (event) => {
  const isTyping = event.target.closest?.("input, select, textarea");
  if (event.key !== "/" || isTyping || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  form.elements.q.focus();
});
new ResizeObserver(redrawLines).observe(byId("columns"));
start();
