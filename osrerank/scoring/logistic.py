"""From logits to probabilities."""

import numpy as np
import numpy.typing as npt


def logistic(logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    """Return the logistic function of logits ``(n,)``, in float64; no logit is too large for it."""
    exponent = -np.clip(logits.astype(np.float64), -700, 700)
    probabilities: npt.NDArray[np.float64] = 1 / (1 + np.exp(exponent))
    return probabilities
