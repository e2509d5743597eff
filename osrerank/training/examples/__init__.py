"""What is learnt from: lists of documents, where they are read, how they are drawn and batched."""
