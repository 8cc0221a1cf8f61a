"""Frozen embedding models, one package per family: z = E(X̃, q), equation 10 of the paper."""
