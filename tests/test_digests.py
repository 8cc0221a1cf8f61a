"""Digests of weights: every value counts, and so do its place, name, shape and type."""

import pytest
import torch

from allocembed.digests import weights_digest


def layer() -> torch.nn.Linear:
    torch.manual_seed(0)
    return torch.nn.Linear(100, 100)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_value_of_a_tensor_counts(dtype):
    model = layer().to(dtype)
    digests, places = {weights_digest(model)}, range(0, 10_000, 97)
    for place in places:
        with torch.no_grad():
            model.weight.view(-1)[place] += 1
        digests.add(weights_digest(model))
    assert len(digests) == len(places) + 1


def test_equal_values_in_other_places_or_under_other_names_differ():
    moved, renamed, shaped = layer(), torch.nn.Module(), torch.nn.Module()
    with torch.no_grad():
        moved.weight[:] = moved.weight.flip(0)
    weight, bias = layer().weight, layer().bias
    renamed.weight, renamed.other = weight, bias
    shaped.weight, shaped.bias = torch.nn.Parameter(weight.view(50, 200)), bias
    assert len({weights_digest(model) for model in (layer(), moved, renamed, shaped, layer().bfloat16())}) == 5
    assert weights_digest(layer()) == weights_digest(layer())


def test_tensors_longer_than_a_chunk_count_to_their_end(monkeypatch):
    monkeypatch.setattr("allocembed.digests.CHUNK_VALUES", 1000)
    model = layer()
    digests = {weights_digest(model)}
    for place in (999, 1000, 9999):
        with torch.no_grad():
            model.weight.view(-1)[place] += 1
        digests.add(weights_digest(model))
    with torch.no_grad():  # whole chunks change places
        rows = model.weight.view(10, 1000)
        rows[[0, 1]] = rows[[1, 0]]
    assert len(digests | {weights_digest(model)}) == 5
