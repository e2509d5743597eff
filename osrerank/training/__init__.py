"""Train, distil and pre-train rerankers, with the extra ``torch``."""
