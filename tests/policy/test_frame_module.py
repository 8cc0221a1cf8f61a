"""The trainable part of the learned allocator: shapes, masks, and gradients that can start."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from allocembed.errors import ConfigError
from allocembed.policy.frame_module import CEILING, FrameModule, FrameModuleConfig

SMALL = FrameModuleConfig(visual_width=12, text_width=12, width=32, heads=4, layers=2)


@pytest.fixture(params=[(False, False), (True, False), (True, True)], ids=["patches", "summary", "questions"])
def module(request) -> FrameModule:
    torch.manual_seed(0)
    summary, learns = request.param
    return FrameModule(replace(SMALL, summary=summary, learns_questions=learns))


def inputs(chunks: int = 6, words: int = 5) -> tuple[torch.Tensor, torch.Tensor]:
    """Two videos; nothing is asked about the second, whose text ends in what it begins with."""
    torch.manual_seed(1)
    text = torch.randn(2, words, 12)
    text[1, -1] = text[1, 0]
    return torch.randn(2, chunks, 4, 12), text


def test_every_chunk_gets_a_distribution(module):
    alpha, beta = module(*inputs())
    assert alpha.shape == beta.shape == (2, 6)
    for shape in (alpha, beta):
        assert shape.dtype == torch.float32 and (shape >= 1).all() and (shape <= CEILING).all()


def test_the_smolvlm_variant_has_the_papers_size():
    with torch.device("meta"):
        module = FrameModule(FrameModuleConfig())
    trainable = sum(parameter.numel() for parameter in module.parameters())
    assert abs(trainable / 48e6 - 1) < 0.10


def test_padding_chunks_and_words_change_nothing(module):
    visual, text = inputs()
    alone = module(visual, text)
    padded_visual = torch.cat([visual, 9 * torch.ones(2, 3, 4, 12)], 1)
    padded_text = torch.cat([text, 7 * torch.ones(2, 4, 12)], 1)
    chunk_mask = torch.arange(9).expand(2, -1) < 6
    text_mask = torch.arange(9).expand(2, -1) < 5
    padded = module(padded_visual, padded_text, chunk_mask, text_mask)
    for short, long in zip(alone, padded, strict=True):
        assert torch.allclose(short, long[:, :6], atol=1e-5)


def test_an_empty_text_gives_no_nan(module):
    visual, text = inputs()
    alpha, beta = module(visual, text, text_mask=torch.zeros(2, 5, dtype=torch.bool))
    assert torch.isfinite(alpha).all() and torch.isfinite(beta).all()


def test_text_order_and_neighbours_matter(module):
    visual, text = inputs()
    torch.nn.init.normal_(module.head.out.weight, std=1.0)
    alpha, _ = module(visual, text)
    other_text, _ = module(visual, text.flip(-1))
    moved, _ = module(torch.cat([visual[:, 1:], visual[:, :1]], 1), text)
    assert (alpha - other_text).abs().max() > 1e-4
    assert (alpha - moved.roll(1, 1)).abs().max() > 1e-4


def test_every_parameter_gets_a_gradient_at_the_start(module):
    """A head that starts where softplus is flat would learn nothing, silently."""
    torch.nn.init.normal_(module.head.out.weight, std=0.01)
    alpha, beta = module(*inputs())
    (alpha * torch.randn_like(alpha) + beta * torch.randn_like(beta)).sum().backward()
    silent = [name for name, p in module.named_parameters() if p.grad is None or not p.grad.abs().max() > 0]
    # Adding a constant to all keys or gates changes no softmax, so these biases have no gradient but rounding.
    assert not [name for name in silent if not name.endswith(("key.bias", "gate.bias"))]


def question_gradient(module: FrameModule) -> dict[str, float]:
    """The largest gradient of each parameter if something is asked about every video."""
    visual, text = inputs()
    text[1, -1] = -text[1, 0]
    alpha, beta = module(visual, text)
    (alpha * torch.randn_like(alpha) + beta * torch.randn_like(beta)).sum().backward()
    named = module.named_parameters()
    return {name: 0.0 if p.grad is None else p.grad.abs().max().item() for name, p in named}


def test_questions_train_the_network_and_not_only_the_weight_of_their_fit():
    torch.manual_seed(0)
    older, module = (FrameModule(replace(SMALL, summary=True, learns_questions=learns)) for learns in (False, True))
    fixed = ("asked", "head.out.weight", "head.out.bias")  # what decides without a question
    assert {name for name, size in question_gradient(older).items() if size} == {"asked"}
    silent = {name for name, size in question_gradient(module).items() if not size}
    assert not [name for name in silent if not name.endswith("key.bias") and name not in fixed]


def test_the_network_corrects_every_chunk_however_far_outside_the_fit_puts_it():
    torch.manual_seed(0)
    module = FrameModule(replace(SMALL, summary=True, learns_questions=True))
    visual, text = inputs()
    with torch.no_grad():
        module.asked[0] = 100.0
        before = module(visual, text)
        module.head.correct.bias.copy_(torch.tensor([0.5, -0.5]))
        after = module(visual, text)
    worth = [alpha / (alpha + beta) for alpha, beta in (before, after)]
    low = worth[0][0] < 0.1
    assert low.any() and (worth[1][0] > worth[0][0] + 0.02)[low].all()
    assert torch.equal(worth[0][1], worth[1][1]), "nothing is asked about the second video"


def test_the_papers_head_is_a_plain_softplus():
    torch.manual_seed(0)
    module = FrameModule(replace(SMALL, policy_head="softplus"))
    torch.nn.init.normal_(module.head.out.weight, std=100.0)
    shapes = torch.stack(module(*inputs()))
    assert 0 < shapes.min() < 1 and shapes.max() > CEILING
    with torch.no_grad():
        module.head.out.weight.zero_()
        module.head.out.bias.copy_(torch.tensor([0.0, 3.0]))
        alpha, beta = module(*inputs())
    assert torch.allclose(alpha, torch.tensor(2.0).log()) and torch.allclose(beta, F.softplus(torch.tensor(3.0)))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"policy_head": "sigmoid"}, "use one of bounded, softplus"),
        ({"policy_head": "softplus", "summary": True}, "cannot use a summary"),
        ({"learns_questions": True}, "set summary too"),
    ],
)
def test_heads_that_do_not_fit_are_refused(changes, message):
    with pytest.raises(ConfigError, match=message):
        replace(SMALL, **changes)


def test_half_precision_still_gives_fp32_distributions(module):
    with torch.autocast("cpu", torch.bfloat16):
        alpha, beta = module(*inputs())
    assert alpha.dtype == beta.dtype == torch.float32


def test_a_width_that_heads_do_not_divide_is_refused():
    with pytest.raises(ValueError, match="even multiple"):
        FrameModuleConfig(width=100, heads=16)
    with pytest.raises(ValueError, match="must be equal"):
        FrameModuleConfig(visual_width=12, text_width=10, summary=True)


def test_the_chunk_a_question_is_about_is_worth_more_before_any_training():
    torch.manual_seed(0)
    module = FrameModule(replace(SMALL, summary=True))
    visual, text = inputs()
    visual[:, 3, 0] = text[:, -1]
    alpha, beta = module(visual, text)
    asked, unasked = alpha / (alpha + beta)
    assert asked[3] > 0.8 and asked.argsort()[-2] != 3 and asked.sort().values[-2] < 0.7
    assert unasked.std() < 0.05
