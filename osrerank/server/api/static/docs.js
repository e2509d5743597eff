// Fills the page /docs: lists the routes in openapi.json, each with its fields and a form to send a request.

/** Example bodies. A form shows the example under the first of these keys that the route's body can contain. */
const EXAMPLES = {
  documents: {query: "cats", documents: ["a dog", "a cat sat"]},
  input: {query: "cats", input: ["a dog", "a cat sat"]},
  texts: {query: "cats", texts: ["a dog", "a cat sat"]},
  inputs: {inputs: [{text: "cats", text_pair: "a dog"}]},
  text_1: {text_1: "cats", text_2: ["a dog", "a cat sat"]},
};
const description = await (await fetch("openapi.json")).json();
document.getElementById("summary").prepend(`${description.info.summary ?? ""} `);

/** Return the schema that a reference such as {$ref: "#/components/schemas/Health"} names, or a schema unchanged. */
function resolve(schema) {
  const name = schema?.$ref?.split("/").pop();
  return name ? description.components.schemas[name] : schema ?? {};
}

/** Return the schemas of a route's body: several if the route accepts several dialects. */
function bodySchemas(operation) {
  const schema = resolve(operation.requestBody?.content?.["application/json"]?.schema);
  return (schema.oneOf ?? schema.anyOf ?? [schema]).map(resolve);
}

/** Return a field's type in words, such as "list of string" or "integer". */
function describeType(schema) {
  const alternatives = schema.anyOf?.map(describeType).filter((name) => name !== "null");
  if (alternatives) return alternatives.join(" or ");
  if (schema.type === "array") return `list of ${describeType(resolve(schema.items))}`;
  return schema.enum?.join(" or ") ?? schema.type ?? resolve(schema).title ?? "any";
}

function createFieldTable(schema) {
  const table = document.createElement("table");
  table.createCaption().textContent = schema.description ?? "";
  for (const [name, field] of Object.entries(schema.properties ?? {})) {
    const row = table.insertRow();
    const suffix = schema.required?.includes(name) ? " (required)" : "";
    for (const text of [name + suffix, describeType(field), field.description ?? ""]) row.insertCell().textContent = text;
  }
  return table;
}

/** Send a request, and show the status, the duration and the body of the response in the element `output`. */
async function send(method, path, body, output) {
  output.textContent = "...";
  const headers = {"Content-Type": "application/json"};
  const token = document.getElementById("token").value;
  if (token) headers.Authorization = `Bearer ${token}`;
  try {
    const startedAtMs = performance.now();
    const response = await fetch(path.slice(1) || "./", {method, headers, body});
    const text = await response.text();
    output.textContent = `${response.status}, ${Math.round(performance.now() - startedAtMs)} ms\n${text}`;
  } catch (error) {
    output.textContent = `The server did not respond: ${error.message}`;
  }
}

for (const [path, operations] of Object.entries(description.paths)) {
  for (const [methodName, operation] of Object.entries(operations)) {
    const method = methodName.toUpperCase();
    const section = document.getElementById("route").content.cloneNode(true);
    section.querySelector(".method").textContent = method;
    section.querySelector(".path").textContent = path;
    section.querySelector(".what").textContent = operation.description ?? operation.summary ?? "";
    const bodyArea = section.querySelector("textarea");
    const output = section.querySelector("pre");
    if (method === "POST") {
      const schemas = bodySchemas(operation);
      section.querySelector(".fields").append(...schemas.map(createFieldTable));
      const key = Object.keys(EXAMPLES).find((name) => schemas[0].properties?.[name]) ?? "documents";
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
