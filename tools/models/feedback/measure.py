"""Choose feedback over stored vectors by `protocol.toml`, or compare one setting with the plain order.

python -m tools.models.feedback.measure SETS WORK --choose [--model osrerank/minilm-l6]
python -m tools.models.feedback.measure TESTS WORK --share 0.1 --temperature 0.15 [--weight 1.5]

SETS is what tools/models/joined/sets.py writes. Vectors are rounded and kept in WORK, so that a run goes on where it
was stopped. A line of the table has nDCG@10 of each set; a setting is compared by wins, losses and a paired t-test.
"""

import argparse
import itertools
import json
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from osrerank.scoring.bi_encoder import BiEncoder
from osrerank.scoring.registry import load_model
from osrerank.settings import Settings
from osrerank.vectors.configured import VectorStorage
from osrerank.vectors.documents import DocumentVectors
from osrerank.vectors.record import rows_of
from tools.models.joined.measure import Set, compared

PROTOCOL = tomllib.loads((Path(__file__).parent / "protocol.toml").read_text("utf-8"))
AT_ONCE = 256
"""Texts that are encoded between two writes."""

CUTOFF = 10
DISCOUNTS = 1 / np.log2(np.arange(CUTOFF) + 2)

Floats = npt.NDArray[Any]


class FeedbackSetting(NamedTuple):
    """A row of the grid, its fields in the order in which simplicity is judged, then by which it is tried.

    Attributes:
        rounds: how often the query moves.
        tempered: whether the share shrinks where the best candidate stands out.
        weight: of the first pass, times the card's.
        share: of the candidates' mean in the new query.
        temperature: of the candidates' weights, in logits.
    """

    rounds: int = 1
    tempered: bool = False
    weight: float = 1.0
    share: float = 0.0
    temperature: float = 1.0

    @property
    def simplicity(self) -> tuple[bool, bool, bool]:
        """What the rule of choice compares before the mean; lower is simpler."""
        return self.rounds > 1, self.tempered, self.weight != 1


PLAIN = FeedbackSetting()


class FeedbackQuery(NamedTuple):
    """A query and its candidates.

    Attributes:
        vector: the query's ``(hidden,)``.
        rows: the passages' ``(n, hidden)``, of all candidates.
        starts: where each candidate's passages begin.
        first_pass: BM25's scores over the query's best.
    """

    vector: Floats
    rows: Floats
    starts: npt.NDArray[np.int64]
    first_pass: Floats


class ModelVectors:
    """A model and the stored vectors of texts.

    Args:
        model: a directory, or a shipped model's name.
        folder: where vectors are kept.
    """

    def __init__(self, model: str, folder: Path) -> None:
        loaded = load_model(model)
        if not isinstance(loaded, BiEncoder):
            raise TypeError(f"{model} is not a bi-encoder")
        self.encoder = loaded
        settings = Settings(vectors="file", vectors_folder=folder, vectors_mb=8192)
        self._stored = DocumentVectors(loaded, VectorStorage.of(settings))

    def of(self, texts: Sequence[str]) -> Floats:
        """Return the vectors of documents' texts as they are stored."""
        found = [self._stored.of(texts[start : start + AT_ONCE]) for start in range(0, len(texts), AT_ONCE)]
        rows: Floats = rows_of([one.records[0] for some in found for one in some.documents])
        return rows

    def close(self) -> None:
        """Wait for what is being written."""
        self._stored.close()
        self.encoder.close()

    def queries(self, content: Mapping[str, Any], one: Set) -> list[FeedbackQuery]:
        """Return the queries of a set that `sets.py` wrote, with candidates."""
        rows = dict(zip(content["texts"], np.cumsum([0, *map(len, content["texts"].values())]), strict=False))
        vectors = self.of([text for texts in content["texts"].values() for text in texts])
        read = []
        for place, text in enumerate(content["queries"].values()):
            counts = [len(content["texts"][doc_id]) for doc_id in one.candidates[place]]
            places = [rows[doc_id] + np.arange(n) for doc_id, n in zip(one.candidates[place], counts, strict=True)]
            first_pass = one.first_pass[one.bounds[place] : one.bounds[place + 1]]
            own = vectors[np.concatenate(places).astype(int)] if places else vectors[:0]
            starts = np.cumsum([0, *counts])[:-1]
            read.append(FeedbackQuery(self.encoder.encode([text], "query").rows[0], own, starts, first_pass))
        return read


def scores(query: FeedbackQuery, scale: float, weight: float, settings: Sequence[FeedbackSetting]) -> Floats:
    """Return what orders a query's candidates by each setting ``(settings, n)``: the logit less the card's offset."""
    rounds, tempered, times, share, temperature = np.array(settings, dtype=np.float32).T[..., None]
    first_pass = weight * times * query.first_pass
    cosines = np.tile(query.rows @ query.vector, (len(settings), 1))
    blended: Floats = _best(cosines, query.starts) * scale + first_pass
    for turn in range(int(rounds.max()) if len(query.starts) > 1 else 0):
        weights = np.exp((blended - blended.max(axis=1, keepdims=True)) / temperature)
        weights /= weights.sum(axis=1, keepdims=True)
        own = share * np.where(tempered, 1 - weights.max(axis=1, keepdims=True), 1)
        moved = (1 - own) * query.vector + own * _unit(_centres(weights, cosines, query))
        cosines = np.where((turn < rounds) & (share > 0), _unit(moved) @ query.rows.T, cosines)
        blended = _best(cosines, query.starts) * scale + first_pass
    return blended


def _unit(vectors: Floats) -> Floats:
    units: Floats = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return units


def _best(cosines: Floats, starts: npt.NDArray[np.int64]) -> Floats:
    return np.maximum.reduceat(cosines, starts, axis=1) if len(starts) else cosines


def _centres(weights: Floats, cosines: Floats, query: FeedbackQuery) -> Floats:
    """Return the weighted sums of the candidates' best passages, of each setting."""
    centres: Floats
    if len(query.starts) == len(query.rows):
        centres = weights @ query.rows
        return centres
    bounds = itertools.pairwise([*query.starts, len(query.rows)])
    places = [begin + cosines[:, begin:end].argmax(axis=1) for begin, end in bounds]
    centres = np.einsum("sn,nsh->sh", weights, query.rows[np.array(places)])
    return centres


class Measured:
    """Sets with vectors, and nDCG@10 of each query by settings."""

    def __init__(self, files: Iterable[Path], vectors: ModelVectors) -> None:
        card = vectors.encoder.card
        self.scale, self.weight = card.calibration.scale, card.first_pass_weight
        self.sets: dict[str, tuple[Set, list[FeedbackQuery]]] = {}
        for file in files:
            content = json.loads(file.read_text("utf-8"))
            one = Set.of(content)
            self.sets[file.stem] = one, vectors.queries(content, one)
            print(f"{file.stem}: {len(one.candidates)} queries", flush=True)

    def values(self, settings: Sequence[FeedbackSetting]) -> dict[FeedbackSetting, dict[str, Floats]]:
        """Return nDCG@10 by each setting on each set, query by query."""
        found = {name: self._set(one, queries, settings) for name, (one, queries) in self.sets.items()}
        return {setting: {name: one[at] for name, one in found.items()} for at, setting in enumerate(settings)}

    def _set(self, one: Set, queries: Sequence[FeedbackQuery], settings: Sequence[FeedbackSetting]) -> Floats:
        """Return nDCG@10 ``(settings, queries)``, as trec_eval computes it."""
        found = np.zeros((len(settings), len(queries)))
        for at, query in enumerate(queries):
            grades = np.array([max(one.relevance[at].get(doc_id, 0), 0) for doc_id in one.candidates[at]], dtype=float)
            ideal = np.sort([max(grade, 0) for grade in one.relevance[at].values()])[::-1][:CUTOFF]
            if len(grades):
                order = np.argsort(-scores(query, self.scale, self.weight, settings), axis=1, kind="stable")
                gains = grades[order[:, :CUTOFF]]
                found[:, at] = gains @ DISCOUNTS[: gains.shape[1]] / (ideal @ DISCOUNTS[: len(ideal)])
        return found


def grid() -> list[FeedbackSetting]:
    """Return the settings that are tried."""
    options = PROTOCOL["grid"]
    names = ("rounds", "tempered", "first_pass_weight", "share", "temperature")
    return [FeedbackSetting(*values) for values in itertools.product(*(options[name] for name in names))]


def mean(values: Mapping[str, Floats]) -> float:
    """Return the macro-mean."""
    return float(np.mean([one.mean() for one in values.values()]))


def chosen(tried: Mapping[FeedbackSetting, Mapping[str, Floats]], plain: Mapping[str, Floats]) -> FeedbackSetting:
    """Return the setting that the protocol's rule chooses."""
    rule = PROTOCOL["choice"]
    best = max(tried, key=lambda setting: mean(tried[setting]))
    random = np.random.default_rng(rule["seed"])
    samples = {name: random.integers(0, len(one), (rule["samples"], len(one))) for name, one in plain.items()}
    within: list[tuple[FeedbackSetting, float]] = []
    for setting, values in tried.items():
        loss = {name: tried[best][name] - one for name, one in values.items()}
        error = np.std(np.mean([one[samples[name]].mean(axis=1) for name, one in loss.items()], axis=0))
        floors = [values[name].mean() - one.mean() for name, one in plain.items()]
        if mean(loss) <= error:
            within.append((setting, min(floors)))
    fit = [setting for setting, floor in within if floor >= rule["floor"]]
    print(f"best {row(best, tried[best])}; {len(within)} of {len(tried)} within one standard error")
    print(f"{len(fit)} of these keep to the floor; the least loss is {max(floor for _, floor in within):+.4f}")
    settings = fit or [setting for setting, _ in within]
    return min(settings, key=lambda setting: (setting.simplicity, -mean(tried[setting])))


def row(setting: FeedbackSetting, values: Mapping[str, Floats]) -> str:
    """Return a line of the table."""
    name = "plain" if setting == PLAIN else " ".join(f"{key} {value:g}" for key, value in setting._asdict().items())
    return f"{name}: mean {mean(values):.4f}, " + ", ".join(f"{key} {one.mean():.4f}" for key, one in values.items())


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", type=Path)
    parser.add_argument("work", type=Path)
    parser.add_argument("--model", default="osrerank/e5-small")
    parser.add_argument("--only", nargs="+", help="names of sets; all that are there if not given")
    parser.add_argument("--choose", action="store_true", help="try the protocol's grid")
    for name in ("share", "temperature", "weight"):
        parser.add_argument(f"--{name}", type=float, default=getattr(PLAIN, name))
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--tempered", action="store_true", help="less share where the best candidate stands out")
    options = parser.parse_args()
    files = [file for file in sorted(options.sets.glob("*.json")) if file.stem in (options.only or [file.stem])]
    with closing(ModelVectors(options.model, options.work)) as vectors:
        measured = Measured(files, vectors)
    setting = FeedbackSetting(**{name: getattr(options, name) for name in FeedbackSetting._fields})
    tried = measured.values(grid() if options.choose else [setting])
    plain = measured.values([PLAIN])[PLAIN]
    print(row(PLAIN, plain))
    if options.choose:
        simple = [pair for pair in tried.items() if pair[0].simplicity == PLAIN.simplicity]
        print("\n".join(itertools.starmap(row, simple)))
        setting = chosen(tried, plain)
    values = tried[setting]
    same_weight = measured.values([FeedbackSetting(weight=setting.weight)])
    for name, others in {"plain": plain, "the same weight without feedback": next(iter(same_weight.values()))}.items():
        print(f"{row(setting, values)}; to {name} {mean(values) - mean(others):+.4f}")
        for one, found in values.items():
            print(f"{one}: {others[one].mean():.4f} -> {found.mean():.4f}, {compared(found, others[one])}")


if __name__ == "__main__":
    main()
