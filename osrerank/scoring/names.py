"""The names of the backends, the dtypes and the multilingual model. This module imports nothing, so it is quick."""

AUTO, WORKERS, HTTP = "auto", "workers", "http"
LOCAL_BACKENDS = (AUTO, "onnx", "torch")
"""The backends that compute in this process."""
BACKEND_NAMES = (*LOCAL_BACKENDS, WORKERS, HTTP)
WORKER_BACKENDS = tuple(name for name in BACKEND_NAMES if name != WORKERS)
"""The backends that a worker can compute with."""
DTYPES = (AUTO, "fp32", "bf16", "fp16")

MULTILINGUAL = "osrerank/e5-multilingual"
"""The shipped model that is too large for this package."""
MULTILINGUAL_PACKAGE = "osrerank_multilingual"
"""The package that contains the multilingual model."""
MULTILINGUAL_LANGUAGES = (
    "af", "am", "ar", "as", "az", "be", "bg", "bn", "br", "bs", "ca", "cs", "cy", "da", "de", "el", "en", "eo", "es",
    "et", "eu", "fa", "fi", "fr", "fy", "ga", "gd", "gl", "gu", "ha", "he", "hi", "hr", "hu", "hy", "id", "is", "it",
    "ja", "jv", "ka", "kk", "km", "kn", "ko", "ku", "ky", "la", "lo", "lt", "lv", "mg", "mk", "ml", "mn", "mr", "ms",
    "my", "ne", "nl", "no", "om", "or", "pa", "pl", "ps", "pt", "ro", "ru", "sa", "sd", "si", "sk", "sl", "so", "sq",
    "sr", "su", "sv", "sw", "ta", "te", "th", "tl", "tr", "ug", "uk", "ur", "uz", "vi", "xh", "yi", "zh",
)  # fmt: skip
"""The ISO 639-1 codes of the multilingual model's languages, from the card of intfloat/multilingual-e5-small."""
