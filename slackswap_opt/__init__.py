"""Keep, swap or recompute: plans the activations of a training step into a memory budget."""
