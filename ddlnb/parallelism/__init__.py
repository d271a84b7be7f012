"""Ways to split the training of a model over ranks: what each rank stores, computes and sends."""
