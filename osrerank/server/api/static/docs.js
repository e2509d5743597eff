// Lists the routes of openapi.json, each with its fields and a form to try it.
const EXAMPLES = {
  documents: {query: "cats", documents: ["a dog", "a cat sat"]},
  texts: {query: "cats", texts: ["a dog", "a cat sat"]},
  inputs: {inputs: [{text: "cats", text_pair: "a dog"}]},
  text_1: {text_1: "cats", text_2: ["a dog", "a cat sat"]},
};
const description = await (await fetch("openapi.json")).json();
document.getElementById("summary").prepend(`${description.info.summary ?? ""} `);

function resolved(schema) {
  const name = schema?.$ref?.split("/").pop();
  return name ? description.components.schemas[name] : schema ?? {};
}

function schemas(operation) {
  const schema = resolved(operation.requestBody?.content?.["application/json"]?.schema);
  return (schema.oneOf ?? schema.anyOf ?? [schema]).map(resolved);
}

function kind(schema) {
  const parts = schema.anyOf?.map(kind).filter((name) => name !== "null");
  if (parts) return parts.join(" or ");
  if (schema.type === "array") return `list of ${kind(resolved(schema.items))}`;
  return schema.enum?.join(" or ") ?? schema.type ?? resolved(schema).title ?? "any";
}

function table(schema) {
  const rows = document.createElement("table");
  rows.createCaption().textContent = schema.description ?? "";
  for (const [name, field] of Object.entries(schema.properties ?? {})) {
    const row = rows.insertRow();
    const mark = schema.required?.includes(name) ? " (required)" : "";
    for (const text of [name + mark, kind(field), field.description ?? ""]) row.insertCell().textContent = text;
  }
  return rows;
}

async function send(method, path, body, answer) {
  answer.textContent = "...";
  const headers = {"Content-Type": "application/json"};
  const token = document.getElementById("token").value;
  if (token) headers.Authorization = `Bearer ${token}`;
  try {
    const began = performance.now();
    const response = await fetch(path.slice(1) || "./", {method, headers, body});
    const text = await response.text();
    answer.textContent = `${response.status}, ${Math.round(performance.now() - began)} ms\n${text}`;
  } catch (error) {
    answer.textContent = `There is no answer: ${error.message}`;
  }
}

for (const [path, methods] of Object.entries(description.paths)) {
  for (const [name, operation] of Object.entries(methods)) {
    const method = name.toUpperCase();
    const part = document.getElementById("route").content.cloneNode(true);
    part.querySelector(".method").textContent = method;
    part.querySelector(".path").textContent = path;
    part.querySelector(".what").textContent = operation.description ?? operation.summary ?? "";
    const area = part.querySelector("textarea");
    const answer = part.querySelector("pre");
    if (method === "POST") {
      const known = schemas(operation);
      part.querySelector(".fields").append(...known.map(table));
      const key = Object.keys(EXAMPLES).find((one) => known[0].properties?.[one]) ?? "documents";
      area.value = JSON.stringify(EXAMPLES[key], null, 1);
    } else {
      area.remove();
    }
    part.querySelector("button").addEventListener("click", () => {
      send(method, path, method === "POST" ? area.value : undefined, answer);
    });
    document.getElementById("routes").append(part);
  }
}
