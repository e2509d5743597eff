"""Train, distil and pre-train rerankers; needs the extra ``torch``."""
