// Runs the page /docs: lists the routes in openapi.json, each with its fields and a form to send a request.
const EXAMPLES = {
  documents: {query: "cats", documents: ["a dog", "a cat sat"]},
  texts: {query: "cats", texts: ["a dog", "a cat sat"]},
  inputs: {inputs: [{text: "cats", text_pair: "a dog"}]},
  text_1: {text_1: "cats", text_2: ["a dog", "a cat sat"]},
};
const description = await (await fetch("openapi.json")).json();
document.getElementById("summary").prepend(`${description.info.summary ?? ""} `);

function resolve(schema) {
  const name = schema?.$ref?.split("/").pop();
  return name ? description.components.schemas[name] : schema ?? {};
}

function bodySchemas(operation) {
  const schema = resolve(operation.requestBody?.content?.["application/json"]?.schema);
  return (schema.oneOf ?? schema.anyOf ?? [schema]).map(resolve);
}

function describeType(schema) {
  const parts = schema.anyOf?.map(describeType).filter((name) => name !== "null");
  if (parts) return parts.join(" or ");
  if (schema.type === "array") return `list of ${describeType(resolve(schema.items))}`;
  return schema.enum?.join(" or ") ?? schema.type ?? resolve(schema).title ?? "any";
}

function fieldTable(schema) {
  const rows = document.createElement("table");
  rows.createCaption().textContent = schema.description ?? "";
  for (const [name, field] of Object.entries(schema.properties ?? {})) {
    const row = rows.insertRow();
    const suffix = schema.required?.includes(name) ? " (required)" : "";
    for (const text of [name + suffix, describeType(field), field.description ?? ""]) row.insertCell().textContent = text;
  }
  return rows;
}

async function send(method, path, body, output) {
  output.textContent = "...";
  const headers = {"Content-Type": "application/json"};
  const token = document.getElementById("token").value;
  if (token) headers.Authorization = `Bearer ${token}`;
  try {
    const startedMs = performance.now();
    const response = await fetch(path.slice(1) || "./", {method, headers, body});
    const text = await response.text();
    output.textContent = `${response.status}, ${Math.round(performance.now() - startedMs)} ms\n${text}`;
  } catch (error) {
    output.textContent = `The server did not respond: ${error.message}`;
  }
}

for (const [path, methods] of Object.entries(description.paths)) {
  for (const [name, operation] of Object.entries(methods)) {
    const method = name.toUpperCase();
    const section = document.getElementById("route").content.cloneNode(true);
    section.querySelector(".method").textContent = method;
    section.querySelector(".path").textContent = path;
    section.querySelector(".what").textContent = operation.description ?? operation.summary ?? "";
    const bodyArea = section.querySelector("textarea");
    const output = section.querySelector("pre");
    if (method === "POST") {
      const types = bodySchemas(operation);
      section.querySelector(".fields").append(...types.map(fieldTable));
      const key = Object.keys(EXAMPLES).find((name) => types[0].properties?.[name]) ?? "documents";
      bodyArea.value = JSON.stringify(EXAMPLES[key], null, 1);
    } else {
      bodyArea.remove();
    }
    section.querySelector("button").addEventListener("click", () => {
      send(method, path, method === "POST" ? bodyArea.value : undefined, output);
    });
    document.getElementById("routes").append(section);
  }
}
