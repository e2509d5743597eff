"""Requests as other rerankers' clients send them, byte by byte; docs/rerank-servers.md lists them from here.

Each was recorded from its client on a socket, unless its name says that it is from a documentation. The texts were
chosen here; Host, Connection and Content-Length are left out.
"""

from dataclasses import dataclass

QUERY = "capital of France"
TEXTS = ("Cats sleep.", "Paris is the capital of France.")
"""The second is the relevant one."""
DOCUMENTS = b'"documents":["Cats sleep.","Paris is the capital of France."]'
FERN = ("Accept: */*", "Content-Type: application/json", "authorization: Bearer none", "x-fern-language: JavaScript",
        "x-fern-runtime: node", "x-fern-runtime-version: 20.20.2", "accept-language: *",
        "sec-fetch-mode: cors", "accept-encoding: gzip, deflate")  # fmt: skip
STAINLESS = ("Accept: application/json", "X-Stainless-Retry-Count: 0", "X-Stainless-Lang: js", "X-Stainless-OS: Linux",
             "X-Stainless-Arch: x64", "X-Stainless-Runtime: node", "X-Stainless-Runtime-Version: v20.20.2",
             "authorization: Bearer none", "content-type: application/json", "accept-language: *",
             "sec-fetch-mode: cors", "accept-encoding: gzip, deflate")  # fmt: skip
STAINLESS_PYTHON = ("Accept-Encoding: gzip, deflate, zstd", "Accept: application/json",
                    "Content-Type: application/json", "X-Stainless-Lang: python", "X-Stainless-OS: Linux",
                    "X-Stainless-Arch: x64", "X-Stainless-Runtime: CPython", "Authorization: Bearer none",
                    "X-Stainless-Async: false", "x-stainless-retry-count: 0",
                    "x-stainless-read-timeout: 60")  # fmt: skip
LITELLM = ("Accept-Encoding: gzip, deflate, zstd", "User-Agent: litellm/1.110.2", "Authorization: Bearer none",
           "accept: application/json", "content-type: application/json")  # fmt: skip
APACHE = ("Authorization: Bearer none", "User-Agent: Apache-HttpAsyncClient/4.1.5 (Java/25.0.3)")
GO = ("User-Agent: Go-http-client/1.1", "Accept-Encoding: gzip")
CURL = ("User-Agent: curl/8.5.0", "Accept: */*", "Content-Type: application/json")


@dataclass(frozen=True, slots=True)
class Client:
    """A request of a client.

    Attributes:
        name: the client's in the documentation.
        path: the route that it asks.
        headers: as sent.
        body: as sent.
        needs: what it reads of the answer, as paths through the JSON.
        best: the path of the entry that must be the relevant document's, and what it must be.
    """

    name: str
    path: str
    headers: tuple[str, ...]
    body: bytes
    needs: tuple[str, ...]
    best: tuple[str, object]


@dataclass(frozen=True, slots=True)
class Dialect:
    """A dialect and the clients that were tried with it.

    Attributes:
        name: with what tells it from the other dialects of a route.
        routes: its paths.
        least: what the documentation says of asking for 0 results.
        clients: requests.
    """

    name: str
    routes: tuple[str, ...]
    least: str
    clients: tuple[Client, ...]


RESULTS = ("results.0.index", "results.0.relevance_score")
TOKENS = ("usage.prompt_tokens", "usage.completion_tokens", "usage.total_tokens")
FIRST = ("results.0.index", 1)

COHERE = Dialect(
    "Cohere, Jina, Together",
    ("/v1/rerank", "/v2/rerank"),
    "refused: [1 or more](https://docs.cohere.com/reference/rerank)",
    (
        Client("`cohere` 7.3.1 for Python", "/v2/rerank",
               ("Accept: */*", "Accept-Encoding: gzip, deflate, zstd", "User-Agent: cohere/7.3.1",
                "X-Fern-Language: Python", "X-Fern-SDK-Name: cohere", "X-Fern-SDK-Version: 7.3.1",
                "Authorization: Bearer none", "content-type: application/json"),
               b'{"model":"rerank-v3.5","query":"capital of France",' + DOCUMENTS + b',"top_n":1}',
               (*RESULTS, "id", "meta.api_version.version", "meta.billed_units.search_units"), FIRST),
        Client("`cohere-ai` 8.1.0", "/v1/rerank",
               (*FERN, "x-fern-sdk-name: cohere-ai", "x-fern-sdk-version: 8.1.0", "user-agent: cohere-ai/8.1.0"),
               b'{"model":"m","query":"capital of France","documents":[{"title":"A","text":"Cats sleep."},{"title":"B",'
               b'"text":"Paris is the capital of France."}],"rank_fields":["title","text"],"return_documents":true}',
               (*RESULTS, "results.0.document.text"), ("results.0.document.title", "B")),
        Client("`together` 3.1.1 for Python", "/v1/rerank", (*STAINLESS_PYTHON, "User-Agent: Together/Python 3.1.1"),
               b"{" + DOCUMENTS + b',"model":"Salesforce/Llama-Rank-v1","query":"capital of France","top_n":1}',
               (*RESULTS, *TOKENS, "object"), FIRST),
        Client("`together-ai` 0.52.0", "/v1/rerank", (*STAINLESS, "User-Agent: Together/JS 0.52.0"),
               b'{"model":"Salesforce/Llama-Rank-v1","query":"capital of France",' + DOCUMENTS
               + b',"top_n":1,"return_documents":true}', (*RESULTS, *TOKENS, "results.0.document.text"), FIRST),
        Client("`@ai-sdk/togetherai` 2.0.84", "/v1/rerank",
               ("authorization: Bearer none", "content-type: application/json", "accept: */*", "accept-language: *",
                "sec-fetch-mode: cors", "accept-encoding: gzip, deflate",
                "user-agent: ai-sdk/togetherai/2.0.84 ai-sdk/provider-utils/4.0.54 runtime/node.js/v20.20.2"),
               b'{"model":"Salesforce/Llama-Rank-v1",' + DOCUMENTS
               + b',"query":"capital of France","top_n":1,"return_documents":false}', (*RESULTS, *TOKENS), FIRST),
        Client("LiteLLM 1.110.2 (`cohere/`, `jina_ai/`)", "/v1/rerank", LITELLM,
               b'{"model": "jina-reranker-v2", "query": "capital of France", "top_n": 1, "documents": ["Cats sleep.",'
               b' "Paris is the capital of France."], "return_documents": true}',
               (*RESULTS, "results.0.document.text"), FIRST),
        Client("OpenSearch 3.6's ml-commons", "/v1/rerank", ("Content-Type: application/json",),
               b'{"query":"capital of France",' + DOCUMENTS + b',"model":"osrerank"}', RESULTS, FIRST),
        Client("Elasticsearch 9.4's service `custom`", "/v2/rerank",
               ("Content-Type: application/json;charset=utf-8", *APACHE),
               b'{"query": "capital of France", "documents": ["Cats sleep.", "Paris is the capital of France."]}',
               RESULTS, FIRST),
    ),
)  # fmt: skip
VLLM = Dialect(
    "vLLM, with `documents`",
    ("/rerank",),
    "all, [the default](https://github.com/vllm-project/vllm/blob/main/vllm/entrypoints/pooling/scoring/protocol.py)",
    (
        Client("LiteLLM 1.110.2 (`hosted_vllm/`, `together_ai/`)", "/rerank", LITELLM,
               b'{"model":"m","query":"capital of France","top_n":1,' + DOCUMENTS + b',"return_documents":true}',
               (*RESULTS, "results.0.document.text"), FIRST),
    ),
)  # fmt: skip
TEI = Dialect(
    "text-embeddings-inference (TEI), with `texts`",
    ("/rerank", "/"),
    "all; TEI has no `top_n`",
    (
        Client("LiteLLM 1.110.2 (`huggingface/`)", "/rerank", LITELLM,
               b'{"raw_scores": false, "truncation_direction": "Right", "query": "capital of France", "top_n": 1, '
               b'"texts": ["Cats sleep.", "Paris is the capital of France."], "return_text": true}',
               ("0.score", "0.text"), ("0.index", 1)),
    ),
)  # fmt: skip
WEAVIATE = Dialect(
    "Weaviate, with `property`",
    ("/rerank",),
    "",
    (
        Client("Weaviate 1.35's `reranker-transformers`", "/rerank", GO,
               b'{"query":"capital of France",' + DOCUMENTS + b',"property":""}',
               ("query", "scores.0.score", "scores.1.score"), ("scores.1.document", TEXTS[1])),
    ),
)  # fmt: skip
VOYAGE = Dialect(
    "Voyage",
    ("/voyage/v1/rerank",),
    "refused; [the documentation](https://docs.voyageai.com/reference/reranker-api) names no 0",
    (
        Client("`voyageai` 0.5.0 for Python", "/voyage/v1/rerank",
               ("User-Agent: python-requests/2.34.2", "Accept-Encoding: gzip, deflate", "Accept: */*",
                "Authorization: Bearer none", "Content-Type: application/json"),
               b'{"query": "capital of France", "documents": ["Cats sleep.", "Paris is the capital of France."], '
               b'"model": "rerank-2.5", "top_k": 1, "truncation": true}',
               ("data.0.relevance_score", "usage.total_tokens"), ("data.0.index", 1)),
        Client("`voyageai` 0.4.0 for JavaScript", "/voyage/v1/rerank",
               (*FERN, "x-fern-sdk-name: voyageai", "x-fern-sdk-version: 0.4.0", "user-agent: voyageai/0.4.0"),
               b'{"model":"rerank-2.5","query":"capital of France",' + DOCUMENTS + b',"top_k":1}',
               ("object", "model", "data.0.relevance_score", "usage.total_tokens"), ("data.0.index", 1)),
        Client("`austinfhunter/voyageai` 1.1.2 for Go", "/voyage/v1/rerank", (*GO, "Authorization: BEARER none"),
               b'{"query":"capital of France",' + DOCUMENTS + b',"model":"rerank-2"}',
               ("data.0.relevance_score", "usage.total_tokens"), ("data.0.index", 1)),
        Client("LiteLLM 1.110.2 (`voyage/`)", "/voyage/v1/rerank", LITELLM,
               b'{"model": "rerank-2.5", "query": "capital of France", "documents": ["Cats sleep.", "Paris is the '
               b'capital of France."], "top_k": 1, "return_documents": true}',
               ("data.0.relevance_score", "data.0.document", "usage.total_tokens"), ("data.0.index", 1)),
    ),
)  # fmt: skip
MIXEDBREAD = Dialect(
    "Mixedbread",
    ("/v1/reranking",),
    "refused: [1 or more](https://www.mixedbread.com/api-reference/endpoints/reranking/rerank-documents), or the "
    "default of -1 for all",
    (
        Client("`mixedbread` 0.54.0 for Python", "/v1/reranking",
               (*STAINLESS_PYTHON, "User-Agent: Mixedbread/Python 0.54.0"),
               b'{"model":"mixedbread-ai/mxbai-rerank-large-v2","query":"capital of France","input":["Cats sleep.",'
               b'"Paris is the capital of France."],"top_k":1,"return_input":true}',
               ("data.0.score", "data.0.input", "usage.prompt_tokens", "top_k", "return_input"), ("data.0.index", 1)),
        Client("`@mixedbread/sdk` 0.78.0", "/v1/reranking", (*STAINLESS, "User-Agent: Mixedbread/JS 0.78.0"),
               b'{"model":"mixedbread-ai/mxbai-rerank-large-v2","query":"capital of France","input":["Cats sleep.",'
               b'"Paris is the capital of France."],"top_k":1,"return_input":true}',
               ("data.0.score", "data.0.input", "usage.prompt_tokens", "model"), ("data.0.index", 1)),
        Client("`@mixedbread-ai/sdk` 2.2.11", "/v1/reranking",
               ("Content-Type: application/json", "X-Fern-Language: JavaScript", "X-Fern-Runtime: node",
                "Authorization: none", "Accept: */*", "Accept-Encoding: gzip,deflate",
                "User-Agent: node-fetch/1.0 (+https://github.com/bitinn/node-fetch)"),
               b'{"model":"mixedbread-ai/mxbai-rerank-large-v1","query":"capital of France","input":["Cats sleep.",'
               b'"Paris is the capital of France."],"top_k":1,"return_input":true}',
               ("data.0.score", "data.0.input", "usage.prompt_tokens", "model"), ("data.0.index", 1)),
    ),
)  # fmt: skip
INFINITY = Dialect(
    "Infinity",
    ("/infinity/rerank", "/infinity/v1/rerank"),
    "refused: [above 0](https://github.com/michaelfeil/infinity/blob/main/docs/assets/openapi.json)",
    (
        Client("LiteLLM 1.110.2 (`infinity/`)", "/infinity/rerank", LITELLM,
               b'{"model": "m", "query": "capital of France", "top_n": 1, "documents": ["Cats sleep.", "Paris is the '
               b'capital of France."], "return_documents": true}', RESULTS, ("results.0.document", TEXTS[1])),
    ),
)  # fmt: skip
HUGGING_FACE = Dialect(
    "TEI's answer to `texts` or `documents`",
    ("/hf/rerank",),
    "all",
    (
        Client("Elasticsearch 9.4's service `hugging_face`", "/hf/rerank", ("Content-Type: application/json", *APACHE),
               b'{"texts":["Cats sleep.","Paris is the capital of France."],"query":"capital of France"}',
               ("0.score",), ("0.index", 1)),
    ),
)  # fmt: skip
PAIRS = b'[{"text":"capital of France","text_pair":"Cats sleep."},{"text":"capital of France","text_pair":"Paris is the'
SAGEMAKER = Dialect(
    "SageMaker: pairs under `inputs`, else as `/rerank`",
    ("/invocations",),
    "as there",
    (
        Client("SageMaker's documentation", "/invocations", ("Content-Type: application/json", "Accept: */*"),
               b'{"inputs":' + PAIRS + b' capital of France."}]}', ("0.score", "1.score"), ("1.label", "LABEL_0")),
    ),
)  # fmt: skip
CLASSIFICATION = Dialect(
    "text classification of pairs",
    ("/predict",),
    "",
    (
        Client("OpenSearch's documentation of cross-encoders", "/predict", ("Content-Type: application/json",),
               b'{"inputs":' + PAIRS + b' capital of France."}]}', ("0.score", "1.score"), ("1.label", "LABEL_0")),
    ),
)  # fmt: skip
SCORES = Dialect(
    "vLLM's scores of pairs, 1:N or N:N",
    ("/score", "/v1/score"),
    "",
    (
        Client("vLLM's documentation", "/score", (*CURL, "accept: application/json"),
               b'{\n  "model": "BAAI/bge-reranker-v2-m3",\n  "text_1": "capital of France",\n  "text_2": [\n    '
               b'"Cats sleep.",\n    "Paris is the capital of France."\n  ]\n}',
               ("id", "object", "created", "model", "data.0.score", "data.1.score", *TOKENS), ("data.1.index", 1)),
    ),
)  # fmt: skip
DIALECTS = (
    COHERE, VLLM, TEI, WEAVIATE, VOYAGE, MIXEDBREAD, INFINITY, HUGGING_FACE, SAGEMAKER, CLASSIFICATION, SCORES
)  # fmt: skip
CLIENTS = tuple(client for dialect in DIALECTS for client in dialect.clients)


def table() -> str:
    """Return the documentation's list of dialects and clients."""
    rows = ["| `POST` | dialect | 0 results asked for | clients tried |", "|---|---|---|---|"]
    for dialect in DIALECTS:
        routes = ", ".join(f"`{route}`" for route in dialect.routes)
        clients = ", ".join(client.name for client in dialect.clients)
        rows.append(f"| {routes} | {dialect.name} | {dialect.least} | {clients} |")
    return "\n".join(rows)
