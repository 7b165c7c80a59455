"""What the labels of a query mean: labels whatever their case, and where their scores come from.

A hasher with a label layer has scores in the store. For a label that it never saw, and for a hasher without a layer,
a logistic layer over stored bits and scores is fitted from the photos that carry the label, and kept until they change.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

import numpy as np

from hyphash.codes import Codes
from hyphash.datasets import spelled, with_parents
from hyphash.errors import ConfigError, LabelError, did_you_mean
from hyphash.hasher import Hasher
from hyphash.labels import fit_logistic, logit, sigmoid
from hyphash.searchers import LabelQuery, LabelTerm, Role, Said
from hyphash.searchers.local.scores import features_of
from hyphash.stores import Ids, Scores, Session, Store, require_hasher

CARRIERS = 2000  # photos that are enough to tell a label by,
OTHERS = 8000  # and of those that are not to be told by it
FEW = 500  # tagged photos without the label below which untagged ones are taken for such


def probabilities(pairs: Iterable[str]) -> dict[str, float]:
    """What each label must have at least, of pairs such as dog=.8."""
    try:
        return {label.strip(): float(p) for label, _, p in (pair.rpartition("=") for pair in pairs)}
    except ValueError as error:
        raise ConfigError(f"a label and the probability that it must have, such as dog=.8 ({error})") from None


def roles_of(
    every: Iterable[str], some: Iterable[str], unwanted: Iterable[str], missing: str, wrong: str
) -> tuple[list[tuple[str, Role]], Said]:
    """Each label of a search with its role, and what is made of what people said."""
    asked: dict[Role, Iterable[str]] = {"every": every, "some": some, "unwanted": unwanted}
    roles = [(label, role) for role, labels in asked.items() for label in spelled(labels)]
    if (missing or wrong) and (roles or (missing and wrong)):
        raise ConfigError("labels that are missing, and labels that are wrong, are searched for by themselves")
    if missing:
        return [(missing, "every")], "lacking"
    return ([(wrong, "unwanted")], "ignored") if wrong else (roles, "first")


class LabelSources:
    """The labels of one collection; those that were fitted are kept while the same photos carry and refuse them."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._fitted: dict[tuple[str, str], tuple[int, LabelTerm | None]] = {}  # by hasher and label; see _told

    def spelled(self, label: str, hasher: Hasher, *, strict: bool = True) -> str:
        """A label as the hasher or the photos have it, whatever its case; LabelError where neither knows it."""
        if label in hasher.classes or self.store.count(carrying=[label]):
            return label
        known = with_parents([*hasher.classes, *self.store.labels()])
        same = [one for one in known if one.casefold() == label.casefold()]
        if same or not strict:
            return [*same, label][0]
        meant = did_you_mean(label, known) or "`hyphash collection stats` lists those that photos carry"
        raise LabelError(f"neither the hasher knows the label {label!r} nor does a photo here carry it; {meant}")

    def get(self, label: str, hasher: Hasher) -> LabelTerm | None:
        """Where the scores of a label come from, and what they mean; None: there is nothing to tell it by."""
        calibration = hasher.calibration
        if calibration is not None and label in hasher.classes:
            number = hasher.classes.index(label)
            levels = calibration.tables[number]
            unkept = int(np.abs(levels - logit(calibration.priors[number])).argmin())
            return LabelTerm(label, number, levels, float(calibration.thresholds[number]), unkept)
        key, told = (hasher.fingerprint, label), self.store.read(lambda session: _told(session, label))
        if self._fitted.get(key, (None, None))[0] != told:
            self._fitted[key] = told, self._fit(label, hasher)
        return self._fitted[key][1]

    def _fit(self, label: str, hasher: Hasher) -> LabelTerm | None:
        state, ((ids, codes, scores), carriers, odds) = self.store.read(
            lambda session: (session.state(), _examples(session, label))
        )
        require_hasher(state, hasher.fingerprint, self.store.shown)  # the collection may have just moved to another
        carried = np.isin(ids, carriers)
        if not carried.any() or carried.all() or (hasher.quantizer is not None and not scores.shape[1]):
            return None
        features = features_of(codes, scores)
        layer = fit_logistic(features, carried[:, None])
        logits = layer.logits(features) - np.log(odds)
        levels = np.linspace(logits.min(), logits.max(), 256, dtype=np.float32)
        weights = np.append(layer.weights[0], layer.bias[0] - np.log(odds)).astype(np.float32)
        threshold = sigmoid(logit(layer.calibration.thresholds[0]) - np.log(odds))
        return LabelTerm(label, weights.tobytes(), levels, float(threshold))

    def _with_children(self, asked: list[tuple[str, Role]], hasher: Hasher) -> Iterator[tuple[str, Role, str]]:
        """Labels, roles, and what was asked for: of a label that was learnt by its kinds alone, any of these will do.

        Of several that are wanted all, each is told by the photos that carry it.
        """
        learnt = hasher.classes if hasher.calibration else ()
        children = {name: at_or_below(name, learnt) if name not in learnt else [] for name, _ in asked}
        wanted = [role == "every" for name, role in asked if role == "some" or (role == "every" and children[name])]
        for name, role in asked:
            if not children[name] or (role == "every" and wanted != [True]):
                yield name, role, name
                continue
            kind: Role = "some" if role == "every" else role
            for one in (*([name] if self.get(name, hasher) else ()), *children[name]):
                yield one, kind, name

    def query(
        self, roles: Iterable[tuple[str, Role]], said: Said, at_least: Mapping[str, float], hasher: Hasher, *,
        scored: bool,
    ) -> LabelQuery:  # fmt: skip
        """The labels of a search under their names here, `scored` with their scores where these are to be had.

        A label that must have some probability is wanted, unless it is one of some of which one is enough.
        """
        terms: dict[str, LabelTerm] = {}
        least = {self.spelled(label, hasher): p for label, p in at_least.items()}
        implied: list[tuple[str, Role]] = [(label, "every") for label in least]
        named = [(self.spelled(label, hasher), role) for label, role in (*roles, *implied)]
        for name, role, top in self._with_children(named, hasher) if scored else ((*one, one[0]) for one in named):
            found = (self.get(name, hasher) if scored else None) or LabelTerm(name)
            term = replace(found, role=role, at_least=least.get(top, 0.0))
            if (terms.setdefault(name, term).role == "unwanted") != (role == "unwanted"):
                raise LabelError(f"the label {name!r} is wanted and unwanted at once; leave one out")
        if odd := [f"{label}={p:g}" for label, p in least.items() if not 0 <= p <= 1]:
            raise ConfigError(f"at least {odd[0]}: a probability lies between 0 and 1")
        return LabelQuery(tuple(terms.values()), said)


def at_or_below(label: str, classes: Iterable[str]) -> list[str]:
    """The label, if it is a class, else those classes that are kinds of it: of animal, animal/dog."""
    return [label] if label in classes else [one for one in classes if one.startswith(f"{label}/")]


def _told(session: Session, label: str) -> int:
    """A number that changes with what is said of a label, and when there are twice as many photos."""
    people = session.ids_carrying([label]), session.ids_refusing(label)
    size = session.state().photos.bit_length(), len(session.ids_carrying(())).bit_length()
    return hash((*size, *(ids.tobytes() for ids in people)))


def _examples(session: Session, label: str) -> tuple[tuple[Ids, Codes, Scores], Ids, float]:
    """Photos to fit a label on, evenly spread; which carry it, and how many times rather these were taken."""
    carriers, others = session.ids_carrying([label]), session.ids_carrying(())
    if len(others) - len(carriers) < FEW:
        others = np.union1d(others, session.derived(session.state().in_use)[0])
    others = np.setdiff1d(np.union1d(others, session.ids_refusing(label)), carriers, assume_unique=True)
    steps = max(len(carriers) // CARRIERS, 1), max(len(others) // OTHERS, 1)
    taken = carriers[:: steps[0]], others[:: steps[1]]
    return session.derived_of(np.union1d(*taken)), taken[0], steps[1] / steps[0]
