// The comparison page: the address holds the search, the form shows it, the server answers it.

import { drawLines } from "./lines.js";
import { figures, make, ordering, row, sentence, toggle } from "./view.js";

const SHOWN = 10;
const OFFERED = 6;
const TOKEN = "osrerank-token";
const FIELDS = ["q", "index", "pipeline", "depth", "passages"];
const at = (id) => document.getElementById(id);
const form = at("search");
const state = { config: null, address: "", outcome: null, shown: SHOWN, rows: { before: new Map(), after: new Map() }, running: null, parameters: {}, times: { kind: "", firstPass: [], total: [] } };

class Failure extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

function ask(path, parameters = {}, signal = undefined) {
  return request(`${path}?${new URLSearchParams(parameters)}`, { signal });
}

function send(path, content) {
  return request(path, { method: "POST", body: JSON.stringify(content), headers: { "Content-Type": "application/json" } });
}

async function request(path, options) {
  const token = sessionStorage.getItem(TOKEN);
  const headers = { ...options.headers, ...(token ? { Authorization: `Bearer ${token}` } : {}) };
  let answer;
  try {
    answer = await fetch(`ui/${path}`, { ...options, headers });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Failure("The server does not answer: check that it runs.", 0);
  }
  const content = await answer.json().catch(() => null);
  if (answer.ok && content !== null) return content;
  throw new Failure(content?.message ?? `The server answered ${answer.status}.`, answer.status);
}

async function start() {
  try {
    state.config = await ask("config");
  } catch (error) {
    report(error);
    return;
  }
  offer(state.config);
  await follow();
}

function offer(config) {
  at("model").textContent = config.model;
  at("depth").max = config.max_depth;
  at("indexes").replaceChildren(...config.indexes.map((name) => make("option", { value: name })));
  const usable = config.pipelines.filter((one) => one.reason === "");
  at("pipelines").replaceChildren(...usable.map(({ name }) => pipelineChoice(name)));
  at("pick-field").hidden = config.queries.length === 0;
  at("pick").replaceChildren(
    make("option", { value: "" }, "pick one"),
    ...config.queries.map(({ text, is_judged: isJudged }) => make("option", { value: text }, isJudged ? text : `${text} (not judged)`)),
  );
  if (config.problem) notify("The indexes cannot be listed", config.problem);
  else if (usable.length === 0) notify("No model", config.pipelines[0]?.reason ?? "There is no pipeline.");
}

function pipelineChoice(name) {
  return make("label", {}, make("input", { type: "radio", name: "pipeline", value: name }), name);
}

/** Take the search from the address into the form, and run it. */
async function follow() {
  const address = new URLSearchParams(location.search);
  const { config } = state;
  state.address = location.search;
  form.elements.q.value = address.get("q") ?? "";
  form.elements.index.value = address.get("index") ?? config.index;
  form.elements.depth.value = address.get("depth") ?? config.default_depth;
  choosePassages(address.get("passages") ?? "0");
  choosePipeline(address.get("pipeline") ?? config.pipelines.find((one) => one.reason === "")?.name);
  syncPick();
  if (form.elements.q.value.trim()) await search({ ...Object.fromEntries(FIELDS.map((name) => [name, address.get(name) ?? written()[name]])) });
  else invite();
}

/** Check a pipeline, one that cannot be used too where the address names it: the answer then says why. */
function choosePipeline(name) {
  const radios = () => [...form.querySelectorAll("[name=pipeline]")];
  if (name && !radios().some((radio) => radio.value === name)) at("pipelines").append(pipelineChoice(name));
  for (const radio of radios()) radio.checked = radio.value === name;
}

function choosePassages(words) {
  const select = at("passages");
  if (![...select.options].some((option) => option.value === words)) {
    select.append(make("option", { value: words }, `passages of ${words} words`));
  }
  select.value = words;
}

function syncPick() {
  const query = form.elements.q.value.trim();
  at("pick").value = state.config.queries.some((one) => one.text === query) ? query : "";
}

function written() {
  const given = new FormData(form);
  return Object.fromEntries(FIELDS.map((name) => [name, String(given.get(name) ?? "").trim()]));
}

/** Put the form's search into the address and run it. */
async function submit() {
  if (!state.config || !form.elements.q.value.trim() || !form.reportValidity()) return;
  const parameters = written();
  const address = `?${new URLSearchParams(parameters)}`;
  if (address !== location.search) history.pushState(null, "", address);
  state.address = location.search;
  syncPick();
  await search(parameters);
}

async function search(parameters) {
  state.running?.abort();
  const running = new AbortController();
  state.running = running;
  wait(true);
  try {
    const outcome = await ask("search", parameters, running.signal);
    state.parameters = parameters;
    keepTimes(outcome, parameters);
    show(outcome);
  } catch (error) {
    if (running.signal.aborted) return;
    at("outcome").hidden = true;
    report(error);
  } finally {
    if (state.running === running) wait(false);
  }
}

/** Keep how long the searches of one index, pipeline, depth and way of reading took. */
function keepTimes(outcome, { index, pipeline, depth, passages }) {
  const kind = JSON.stringify([index, pipeline, depth, passages]);
  if (state.times.kind !== kind) state.times = { kind, firstPass: [], total: [] };
  state.times.firstPass.push(outcome.first_pass_ms);
  state.times.total.push(outcome.took_ms);
}

/** Save what somebody says of a document, or take it back; then measure both orders again. */
async function judge(place, side, button) {
  const isBack = button.getAttribute("aria-pressed") === "true";
  const relevance = Number(button.dataset.relevance);
  const { doc_id: docId } = state.outcome.documents[place];
  const { shown } = state;
  try {
    await send("judge", { q: state.outcome.query, doc_id: docId, relevance: isBack ? null : relevance });
    show(await ask("search", state.parameters));
  } catch (error) {
    report(error);
    return;
  }
  state.shown = shown;
  fillLists();
  const now = state.outcome.documents.findIndex((one) => one.doc_id === docId);
  state.rows[side].get(now)?.querySelector(`[data-relevance="${relevance}"]`)?.focus({ preventScroll: true });
}

function wait(isRunning) {
  at("results").setAttribute("aria-busy", String(isRunning));
  at("progress").hidden = !isRunning;
  if (isRunning) {
    at("status").textContent = "Searching.";
    at("notice").replaceChildren();
    at("empty").hidden = true;
  }
}

function show(outcome) {
  state.outcome = outcome;
  state.shown = SHOWN;
  document.title = `${outcome.query} | osrerank`;
  at("status").textContent = sentence(outcome);
  at("figures").replaceChildren(...figures(outcome, state.times));
  at("after-how").textContent = ordering(outcome);
  at("outcome").hidden = outcome.documents.length === 0;
  if (outcome.documents.length === 0) {
    at("empty").replaceChildren(`No document of ${outcome.index} matches. Try other words.`);
    at("empty").hidden = false;
    return;
  }
  if (outcome.applied === false) notify("Not reranked", outcome.reason);
  else if (outcome.applied === "partial") notify("Reranked in part", outcome.reason);
  fillLists();
}

function fillLists() {
  const { documents, blend } = state.outcome;
  const how = { blend, canJudge: state.config.can_judge };
  for (const side of ["before", "after"]) {
    const order = documents.map((one, place) => [one, place]).sort(([one], [other]) => one[side] - other[side]);
    const rows = state.rows[side];
    rows.clear();
    for (const [one, place] of order.slice(0, state.shown)) rows.set(place, row(one, place, side, how));
    at(side).replaceChildren(...rows.values());
  }
  const left = documents.length - state.shown;
  at("more").parentElement.hidden = left <= 0;
  at("more").textContent = `Show ${Math.min(left, SHOWN)} more of ${left}`;
  draw();
}

function draw() {
  if (state.outcome) drawLines(at("lines"), state.outcome.documents, state.rows);
}

function invite() {
  at("outcome").hidden = true;
  at("status").textContent = "";
  document.title = "osrerank: compare";
  const queries = state.config.queries.slice(0, OFFERED).map(({ text }) => make("li", {}, make("button", { type: "button", "data-query": text, dir: "auto" }, text)));
  at("empty").replaceChildren(
    make("p", {}, "One search, two orders: as BM25 finds it, and as the model ranks it."),
    queries.length ? make("ul", { "aria-label": "Queries to begin with" }, ...queries) : "",
  );
  at("empty").hidden = false;
}

function report(error) {
  if (error.status === 401) {
    at("token-form").hidden = false;
    at("token").focus();
    if (sessionStorage.getItem(TOKEN)) notify("The token is wrong", "Give the one that the server was started with.");
    sessionStorage.removeItem(TOKEN);
    at("status").textContent = "";
    return;
  }
  if (!(error instanceof Failure)) console.error(error);
  at("status").textContent = "";
  notify("No answer", error instanceof Failure ? error.message : "The page has a defect; the browser's console has more.");
}

function notify(title, message) {
  at("notice").replaceChildren(make("p", { class: "notice" }, make("b", {}, `${title}: `), message ?? ""));
}

/** Go to a document's place on the other side. */
function goTo(place, side) {
  const rank = state.outcome.documents[place][side];
  if (rank > state.shown) {
    state.shown = rank;
    fillLists();
  }
  chooseSide(side);
  const target = state.rows[side].get(place);
  target.focus({ preventScroll: true });
  const isStill = matchMedia("(prefers-reduced-motion: reduce)").matches;
  target.scrollIntoView({ block: "nearest", behavior: isStill ? "auto" : "smooth" });
}

function chooseSide(side) {
  at("columns").dataset.side = side;
  for (const button of at("sides").children) button.setAttribute("aria-pressed", String(button.dataset.side === side));
}

function activate(event) {
  const place = event.type === "mouseleave" ? undefined : event.target.closest(".row")?.dataset.place;
  for (const element of at("columns").querySelectorAll("[data-place]")) {
    element.classList.toggle("active", place !== undefined && element.dataset.place === place);
  }
}

function press(event) {
  const item = event.target.closest(".row");
  if (!item) return;
  const place = Number(item.dataset.place);
  const side = item.parentElement.id;
  if (event.target.closest(".move")) goTo(place, side === "before" ? "after" : "before");
  const button = event.target.closest(".judge");
  if (button) judge(place, side, button);
  if (event.target.closest(".open-text")) {
    toggle(item, state.outcome.documents[place], side);
    draw();
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
at("token-form").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem(TOKEN, at("token").value);
  at("token").value = "";
  at("token-form").hidden = true;
  at("notice").replaceChildren();
  start();
});
at("empty").addEventListener("click", (event) => {
  const query = event.target.closest("[data-query]")?.dataset.query;
  if (query === undefined) return;
  form.elements.q.value = query;
  submit();
});
at("sides").addEventListener("click", (event) => {
  if (event.target.dataset.side) chooseSide(event.target.dataset.side);
});
at("more").addEventListener("click", () => {
  const next = state.shown + 1;
  state.shown += SHOWN;
  fillLists();
  at(at("columns").dataset.side).querySelector(`[data-rank="${next}"]`)?.focus({ preventScroll: true });
});
at("columns").addEventListener("click", press);
at("columns").addEventListener("mouseover", activate);
at("columns").addEventListener("focusin", activate);
at("columns").addEventListener("mouseleave", activate);
addEventListener("popstate", () => {
  // a jump within the page changes no search
  if (state.config && location.search !== state.address) follow();
});
addEventListener("keydown", (event) => {
  const isTyping = event.target.closest?.("input, select, textarea");
  if (event.key !== "/" || isTyping || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  form.elements.q.focus();
});
new ResizeObserver(draw).observe(at("columns"));
start();
