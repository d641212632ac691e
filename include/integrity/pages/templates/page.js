"use strict";
const main = document.querySelector("main");
const message = document.getElementById("message");
const texts = JSON.parse(main.dataset.texts);

// A text with its values. Everything is shown as text, never as HTML.
function say(key, values = {}) {
  return texts[key].replace(/\{(\w+)\}/g, (_, name) => values[name]);
}

function openInAirflow(event) {
  // This frame may not navigate the window around it, but a link of that window may.
  if (window.parent === window) return;
  event.preventDefault();
  const link = window.parent.document.createElement("a");
  link.href = event.currentTarget.href;
  window.parent.document.body.append(link);
  link.click();
  link.remove();
}

function linkTo(path, text) {
  const link = document.createElement("a");
  link.href = path;
  link.textContent = text;
  link.addEventListener("click", openInAirflow);
  return link;
}

function runPath(dag, run) {
  return `${main.dataset.dags}${encodeURIComponent(dag)}/runs/${encodeURIComponent(run)}`;
}

// Call Airflow's API with the user's own rights; null if it does not answer.
async function call(method, path, body) {
  try {
    return await fetch(`${main.dataset.api}${path}`, {
      method, headers: { "Content-Type": "application/json" }, body: body && JSON.stringify(body),
    });
  } catch {
    return null;
  }
}

// All entries of a list of Airflow's API; null if it does not answer. Airflow gives a page at a time.
async function callAll(path, list) {
  let found = [], total = 0;
  do {
    const response = await call("GET", `${path}&limit=100&offset=${found.length}`);
    if (!response?.ok) return null;
    const page = await response.json();
    // One that left the list meanwhile moved the others up, past the next page: begin again.
    const isMoved = page.total_entries < total;
    if (!isMoved && !page[list].length) return found;
    found = isMoved ? [] : found.concat(page[list]);
    total = page.total_entries;
  } while (found.length < total);
  return found;
}

// Start a run. `what` names it, as in "a dry run of 2026-11-20".
async function startRun(dag, conf, what) {
  message.textContent = say("starting", { what });
  const response = await call("POST", `dags/${dag}/dagRuns`, { logical_date: null, conf });
  if (response === null) {
    message.textContent = say("airflow_silent");
  } else if (response.ok) {
    const run = await response.json();
    message.replaceChildren(say("started", { what }), linkTo(runPath(dag, run.dag_run_id), say("watch_it")));
  } else if (response.status === 401 || response.status === 403) {
    message.textContent = say("may_not_start");
  } else {
    message.textContent = say("not_started", { what, status: response.status });
  }
}

async function submitRun(event) {
  event.preventDefault();
  const button = event.submitter;
  const reason = new FormData(event.currentTarget).get("reason");
  button.disabled = true;
  await startRun(button.dataset.dag, { ...JSON.parse(button.dataset.conf), reason }, button.dataset.text);
  button.disabled = false;
}

// Builds that wait for a person: tasks of this pipeline's DAGs, which have its name as a tag. Asked for by state: the
// questions of tasks that were cleared, failed or timed out stay unanswered for ever. Null if Airflow does not answer.
async function waitingBuilds(day) {
  const [dags, waiting] = await Promise.all([
    callAll(`dags?tags=${encodeURIComponent(main.dataset.pipeline)}`, "dags"),
    callAll("dags/~/dagRuns/~/hitlDetails?state=awaiting_input&state=deferred&response_received=false" +
      "&order_by=created_at", "hitl_details"),
  ]);
  if (dags === null || waiting === null) return null;
  const own = new Set(dags.map((dag) => dag.dag_id));
  const builds = [];
  for (const question of waiting) {
    const task = question.task_instance;
    if (!own.has(task.dag_id)) continue;
    const found = [task.rendered_fields?.day, task.rendered_map_index, question.subject]
      .map((text) => /\d{4}-\d{2}-\d{2}/.exec(text ?? "")?.[0]).find(Boolean);
    if (day === undefined || day === found) builds.push({ day: found, question, task });
  }
  return builds;
}

async function decide(build, option, label, buttons) {
  for (const button of buttons) button.disabled = true;
  message.textContent = say("deciding");
  const { dag_id, dag_run_id, task_id, map_index } = build.task;
  const path = `dags/${encodeURIComponent(dag_id)}/dagRuns/${encodeURIComponent(dag_run_id)}` +
    `/taskInstances/${encodeURIComponent(task_id)}/${map_index}/hitlDetails`;
  const response = await call("PATCH", path, { chosen_options: [option], params_input: {} });
  const isDone = response?.ok || response?.status === 409;
  if (response === null) message.textContent = say("airflow_silent");
  else if (response.ok) message.replaceChildren(say("decided", { what: label }), linkTo(runPath(dag_id, dag_run_id), say("watch_it")));
  else if (response.status === 401 || response.status === 403) message.textContent = say("may_not_decide");
  else if (response.status === 409) message.textContent = say("decided_before");
  else message.textContent = say("not_decided", { status: response.status });
  for (const button of buttons) button.disabled = isDone;
}

function buildToDecide(build) {
  const item = document.createElement("article");
  item.className = "notice";
  const subject = document.createElement("h3");
  subject.textContent = build.question.subject;
  const body = document.createElement("pre");
  body.textContent = (build.question.body ?? "").replace(/^~{3,}\n?|\n?~{3,}$/g, "");
  const actions = document.createElement("p");
  const buttons = ["Approve", "Reject"].map((option) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = say(option.toLowerCase());
    return button;
  });
  buttons.forEach((button, number) => button.addEventListener(
    "click", () => decide(build, ["Approve", "Reject"][number], button.textContent, buttons)));
  actions.append(buttons[0], " ", buttons[1], " ", linkTo(runPath(build.task.dag_id, build.task.dag_run_id), say("approvals_run")));
  const why = document.createElement("p");
  why.textContent = say("approvals_day");
  item.append(subject, why, body, actions);
  return item;
}

async function showApprovals(section) {
  const builds = await waitingBuilds(section.dataset.day);
  if (builds === null) {
    message.textContent = say("approvals_unknown");
    return;
  }
  const list = section.querySelector(".builds");
  if (section.dataset.day) {
    list.replaceChildren(...builds.map(buildToDecide));
  } else {
    list.replaceChildren(...builds.filter((build) => build.day).map((build) => {
      const item = document.createElement("p");
      const link = document.createElement("a");
      link.href = `${section.dataset.days}${build.day}`;
      link.textContent = build.question.subject;
      item.append(link);
      return item;
    }));
  }
  section.hidden = list.children.length === 0;
}

function filterDays(form) {
  const chosen = new FormData(form);
  const kinds = chosen.getAll("kind");
  const rows = [...document.querySelectorAll("tr[data-kind]")];
  for (const row of rows) {
    row.hidden = !kinds.includes(row.dataset.kind) || (chosen.has("look") && row.dataset.look !== "true");
  }
  const shown = rows.filter((row) => !row.hidden).length;
  form.querySelector("output").textContent = say("filter_shown", { shown, all: rows.length });
}

const REFRESH_MS = 30000;

async function refreshState() {
  const state = document.getElementById("state");
  if (document.visibilityState !== "visible" || state.contains(document.activeElement)) return;
  try {
    const response = await fetch(state.dataset.source);
    if (!response.ok) return;
    // the server has escaped it, and the policy of this page lets no script in it run
    const fresh = new DOMParser().parseFromString(await response.text(), "text/html").getElementById("state");
    if (fresh) state.replaceWith(fresh);
  } catch { /* the next time */ }
}

document.addEventListener("click", (event) => {
  const link = event.target.closest?.("a.airflow");
  if (link) openInAirflow({ preventDefault: () => event.preventDefault(), currentTarget: link });
});
for (const form of document.querySelectorAll("form.action")) form.addEventListener("submit", submitRun);
const approvals = document.getElementById("approvals");
if (approvals) showApprovals(approvals);
const filter = document.getElementById("filter");
if (filter) {
  filter.addEventListener("submit", (event) => event.preventDefault());
  filter.addEventListener("change", () => filterDays(filter));
  window.addEventListener("pageshow", () => filterDays(filter));  // the browser keeps what was chosen
}
if (document.getElementById("state")) setInterval(refreshState, REFRESH_MS);
