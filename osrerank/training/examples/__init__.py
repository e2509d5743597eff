"""Read, sample and batch training examples."""
